//! Commands over SRP, against our own server.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A running server. Its process and folder are removed on drop.
struct Server {
    child: Child,
    folder: PathBuf,
    /// Its portal and its target port, as in URLs.
    portal: String,
    target: String,
    /// The same disk over TCP.
    tcp: String,
}

impl Server {
    fn start(name: &str) -> Server {
        let folder = std::env::temp_dir().join(format!("lunar-srp-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunar"));
        let portals = ["--listen", "127.0.0.1:0", "--srp", "127.0.0.1:0"];
        command.args(["serve", "memory:8M", "--target", "iqn.2026-11.org.example:a"]).args(portals);
        command.current_dir(&folder).env("XDG_STATE_HOME", &folder).env_remove("XDG_RUNTIME_DIR");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut banner = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !banner.ends_with("\nready\n") {
            assert_ne!(out.read_line(&mut banner).unwrap(), 0, "the server ended: {banner}");
        }
        let after = |sign: &str| {
            let rest = banner.split_once(sign).unwrap_or_else(|| panic!("no {sign} in {banner}")).1;
            rest.split([',', '\n']).next().unwrap().to_owned()
        };
        let (portal, target) = (after(",dest="), format!("{}:{}", after("id_ext="), after("ioc_guid=")));
        let tcp = format!("iscsi://{}", after("iscsi://"));
        Server { child, folder, portal, target, tcp }
    }

    /// A URL of its disk, with settings.
    fn url(&self, settings: &str) -> String {
        format!("srp://{}/{}/0?{settings}", self.portal, self.target)
    }

    /// Exit status, stdout and stderr.
    fn lunar(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunar"));
        command.args(args).current_dir(&self.folder).env_remove("LUNAR_LOG").stdin(Stdio::null());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    /// The stdout of a command that succeeds.
    fn prints(&self, args: &[&str]) -> String {
        let (status, out, err) = self.lunar(args);
        assert_eq!(status, 0, "{args:?}: {err}");
        out
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn disk_is_found_and_described() {
    let server = Server::start("found");
    let listed = server.prints(&["ls", &format!("srp://{}/{}", server.portal, server.target)]);
    assert!(listed.contains(&server.target) && listed.contains("LUN 0: disk, 8 MiB"), "{listed}");
    let (guid, _) = server.target.split_once(':').unwrap();
    let output = server.prints(&["info", &format!("srp://{}/{guid}/0", server.portal)]);
    assert!(output.contains("LUNAR"), "{output}");
    let output = server.prints(&["doctor", &server.url("")]);
    assert!(output.contains("8 MiB"), "{output}");
}

#[test]
fn data_copied_over_srp_is_read_back() {
    let server = Server::start("copied");
    let data: Vec<u8> = (0..3_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(server.folder.join("a"), &data).unwrap();
    for settings in ["", "immediate_data=no", "commands=2", "header_digest=crc32c", "channels=3"] {
        server.prints(&["copy", "a", &server.url(settings), "--verify"]);
        server.prints(&["copy", &server.url(settings), "b", "--verify"]);
        let back = std::fs::read(server.folder.join("b")).unwrap();
        assert!(back[..data.len()] == data, "{settings}");
        std::fs::remove_file(server.folder.join("b")).unwrap();
    }
    server.prints(&["copy", &server.tcp, "c"]);
    assert!(
        std::fs::read(server.folder.join("c")).unwrap()[..data.len()] == data,
        "the disk is the same over TCP"
    );
    let small = ["--depth", "4", "--bs", "4k", "--runtime", "100ms"];
    server.prints(&[&["bench", "randwrite", "--destroy", &server.url("")], &small[..]].concat());
}

#[test]
fn reservations_belong_to_our_port() {
    let server = Server::start("reserved");
    let reserve = ["register", "reserve", "--new-key", "0xabc", "--type", "ea"];
    server.prints(&[&["pr", &server.url("")], &reserve[..]].concat());
    let output = server.prints(&["pr", &server.url(""), "read-full-status"]);
    assert!(output.contains("0xabc") || output.contains("abc"), "{output}");
    std::fs::write(server.folder.join("block"), [0; 512]).unwrap();
    let (status, _, err) = server.lunar(&["scsi", &server.url(""), "2a000000000000000100", "--out", "block"]);
    assert!(status != 0 && err.to_lowercase().contains("reservation conflict"), "another port: {err}");
    let (status, _, err) =
        server.lunar(&["pr", &server.url(""), "reserve", "--key", "0xdef", "--type", "ea"]);
    assert_eq!(status, 13, "{err}");
    assert!(err.contains("this initiator is registered with key 0xabc"), "{err}");
    server.prints(&["pr", &server.url(""), "release", "--key", "0xabc", "--type", "ea"]);
}

#[test]
fn impossible_srp_request_has_a_hint() {
    let server = Server::start("refused");
    let portal = format!("srp://{}", server.portal);
    for command in ["discover", "ls", "info"] {
        let (status, _, err) = server.lunar(&[command, &portal]);
        assert_ne!(status, 0);
        assert!(err.contains("cannot report the targets") && err.contains("ID_EXT"), "{command}: {err}");
    }
    let (_, _, err) = server.lunar(&["info", &format!("{portal}/0123456789abcdef/0")]);
    assert!(err.contains("no such target port") && err.contains("access list"), "{err}");
    let (_, _, err) = server.lunar(&["info", &server.tcp.replace("iscsi://", "srp://")]);
    assert!(err.contains("not an SRP target port"), "{err}");
}
