//! `lunar check --media` rejects what `lunar serve` rejects, with the same message, and does not disturb a running
//! server.

use interop::command::lunar;
use interop::{Folder, Server, TARGET};
use std::any::Any;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const OTHER: &str = "iqn.2026-11.org.example:other";
const LOCAL: &str = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n";
const MIB: u64 = 1 << 20;

/// A configuration, and a guard that preserves the cause of its rejection. None: this host cannot produce the cause.
type Case = Option<(String, Box<dyn Any>)>;

fn target(name: &str, luns: &str) -> String {
    format!("[[target]]\nname = \"{name}\"\n{luns}")
}

fn lun(path: &str, keys: &str) -> String {
    format!("[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"{path}\"\n{keys}\n")
}

/// One LUN on a.img.
fn disk(keys: &str) -> String {
    LOCAL.to_owned() + &target(TARGET, &lun("a.img", keys))
}

fn image(folder: &Path, name: &str) {
    File::create(folder.join(name)).and_then(|file| file.set_len(MIB)).expect("an image");
}

fn plain(toml: String) -> Case {
    Some((toml, Box::new(())))
}

/// A configuration with one portal at this address.
fn listening(address: &str, keys: &str) -> String {
    let portal = format!("[[portal_group]]\ntag = 1\nportals = [{{ listen = \"{address}\"{keys} }}]\n");
    portal + &target(TARGET, "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1M\"\n")
}

/// Serves a.img once, with the state in this folder.
fn served(folder: &Path) {
    let toml = format!("[server]\nstate_dir = \"{}\"\n{}", folder.display(), disk("size = \"1M\""));
    let toml = toml.replace("a.img", &folder.join("a.img").display().to_string());
    assert!(Server::start(&toml).stop().success());
}

/// Starts another server with b.img as its LUN, and with its state in this folder.
fn other_server(folder: &Path, name: &str, keys: &str) -> Box<dyn Any> {
    image(folder, "b.img");
    let lun = lun(&folder.join("b.img").display().to_string(), keys);
    let state = format!("[server]\nstate_dir = \"{}\"\n", folder.display());
    Box::new(Server::start(&(state + LOCAL + &target(name, &lun))))
}

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A command that runs on drop, and undoes a case.
struct CleanupCommand(&'static str, Vec<String>);

impl Drop for CleanupCommand {
    fn drop(&mut self) {
        _ = Command::new(self.0).args(&self.1).output();
    }
}

/// A size that is too large for a file in this folder. None: the file system permits all tested sizes.
fn beyond(folder: &Folder) -> Option<&'static str> {
    let probe = File::create(folder.join("probe")).ok()?;
    ["17T", "4000P"]
        .into_iter()
        .zip([17 << 40, 4000 << 50])
        .find(|(_, size)| probe.set_len(*size).is_err())
        .map(|(name, _)| name)
}

fn loop_device(folder: &Path) -> Option<(String, CleanupCommand)> {
    image(folder, "a.img");
    let device = run("losetup", &["--find", "--show", folder.join("a.img").to_str()?])?;
    Some((device.clone(), CleanupCommand("losetup", vec!["--detach".into(), device])))
}

fn swap(folder: &Path) -> Case {
    fs::write(folder.join("a.img"), vec![0; 4 * MIB as usize]).ok()?;
    let path = folder.join("a.img").display().to_string();
    run("mkswap", &[&path])?;
    run("swapon", &[&path])?;
    Some((disk(""), Box::new(CleanupCommand("swapoff", vec![path]))))
}

fn busy_device(folder: &Path) -> Case {
    const O_EXCL: i32 = 0o200;
    let (device, undo) = loop_device(folder)?;
    let exclusive = File::options().read(true).custom_flags(O_EXCL).open(&device).ok()?;
    let lun = lun(&device, "").replace("\"file\"", "\"device\"");
    Some((LOCAL.to_owned() + &target(TARGET, &lun), Box::new((exclusive, undo))))
}

/// A LUN whose image exists, with `state` as the state folder.
fn state_in(folder: &Folder, state: &str) -> String {
    image(folder, "a.img");
    format!("[server]\nstate_dir = \"{state}\"\n{}", disk(""))
}

/// The state folder is a tmpfs with these mount options.
fn state_on(folder: &Folder, options: &str) -> Case {
    let state = folder.join("state").display().to_string();
    fs::create_dir(&state).ok()?;
    run("mount", &["-t", "tmpfs", "-o", options, "none", &state])?;
    Some((state_in(folder, &state), Box::new(CleanupCommand("umount", vec![state]))))
}

/// Makes the state folder read-only. For root, that takes a flag of the file system.
fn closed_state(folder: &Folder) -> Case {
    let state = folder.join("state").display().to_string();
    fs::create_dir(&state).ok()?;
    let (program, close, open) = match rustix::process::geteuid().is_root() {
        true => ("chattr", "+i", "-i"),
        false => ("chmod", "0500", "0700"),
    };
    run(program, &[close, &state])?;
    Some((state_in(folder, &state), Box::new(CleanupCommand(program, vec![open.into(), state]))))
}

type SetUp = fn(&Folder) -> Case;

/// Cases, each with a part of the expected message: the object and the fault.
const CASES: [(&str, SetUp); 34] = [
    ("4096 cores selected", |_| plain(format!("[server]\ncores = 4096\n{}", listening("127.0.0.1:0", "")))),
    ("0.0.0.0:3333 and 127.0.0.1:3333 overlap", |_| {
        plain(listening("0.0.0.0:3333", "").replace(" }]", " }, \"127.0.0.1:3333\"]"))
    }),
    ("cannot listen on 127.0.0.1:", |_| {
        let taken = TcpListener::bind("127.0.0.1:0").ok()?;
        Some((listening(&taken.local_addr().ok()?.to_string(), ""), Box::new(taken)))
    }),
    ("cannot listen on 192.0.2.1:3260", |_| plain(listening("192.0.2.1:3260", ""))),
    ("with RDMA devices: this host has no RDMA device", |_| {
        let has_devices = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut list| list.next().is_some());
        let keys = ", transport = [\"iser\"], provider = \"verbs\"";
        (!has_devices).then(|| plain(listening("127.0.0.1:3260", keys)))?
    }),
    ("admin.file is a file", |folder| {
        image(folder, "admin.file");
        let socket = folder.join("admin.file").display().to_string();
        plain(format!("[server]\nadmin_socket = \"{socket}\"\n{}", listening("127.0.0.1:0", "")))
    }),
    ("cannot serve metrics on 127.0.0.1:", |_| {
        let taken = TcpListener::bind("127.0.0.1:0").ok()?;
        let metrics = format!("[server]\nmetrics = \"{}\"\n", taken.local_addr().ok()?);
        Some((metrics + &listening("127.0.0.1:0", ""), Box::new(taken)))
    }),
    ("cannot serve metrics on 192.0.2.1:9860", |_| {
        plain(format!("[server]\nmetrics = \"192.0.2.1:9860\"\n{}", listening("127.0.0.1:0", "")))
    }),
    ("cannot create the folder", |folder| {
        image(folder, "state");
        let state = folder.join("state").display().to_string();
        plain(format!("[server]\nstate_dir = \"{state}\"\n{}", listening("127.0.0.1:0", "")))
    }),
    ("cannot create the folder /proc/servers", |folder| plain(state_in(folder, "/proc"))),
    ("/state/servers: read-only file system", |folder| state_on(folder, "ro")),
    ("/state/servers: no space left on device", |folder| state_on(folder, "nr_inodes=1")),
    ("/state/servers: ", |folder| closed_state(folder)),
    ("/state/atomic: ", |folder| {
        let state = folder.join("state");
        fs::create_dir(&state).and_then(|()| fs::write(state.join("atomic"), "")).ok()?;
        plain(state_in(folder, &state.display().to_string()))
    }),
    ("a.img: no such file or directory", |_| plain(disk(""))),
    ("a.img: no such file or directory; the path held the data of this LUN", |folder| {
        served(folder);
        fs::remove_file(folder.join("a.img")).ok()?;
        plain(disk("size = \"1M\""))
    }),
    ("a.img: is empty; the path held the data of this LUN", |folder| {
        served(folder);
        File::create(folder.join("a.img")).ok()?;
        plain(disk("size = \"1M\""))
    }),
    ("a.img: cannot be created: file too large", |folder| {
        plain(disk(&format!("size = \"{}\"", beyond(folder)?)))
    }),
    ("a.img: cannot be created: file too large", |folder| {
        File::create(folder.join("a.img")).ok()?;
        plain(disk(&format!("size = \"{}\"", beyond(folder)?)))
    }),
    ("a.img: has 1048577 bytes, not a multiple of the O_DIRECT block size of ", |folder| {
        image(folder, "b.img");
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        File::options().write(true).custom_flags(direct).open(folder.join("b.img")).ok()?;
        plain(disk("size = 1048577\ndirect = true"))
    }),
    ("a.img: is a directory", |folder| {
        fs::create_dir(folder.join("a.img")).ok()?;
        plain(disk(""))
    }),
    ("a.img: is a disk image in the format qcow2", |folder| {
        fs::write(folder.join("a.img"), [&b"QFI\xfb\0\0\0\x03"[..], &[0; 8192]].concat()).ok()?;
        plain(disk(""))
    }),
    ("a.img: is a disk image in the format VHDX", |folder| {
        fs::write(folder.join("a.img"), [&b"vhdxfile"[..], &[0; 8192]].concat()).ok()?;
        plain(disk(""))
    }),
    ("the medium has 1024 bytes, less than a block of 4096", |folder| {
        fs::write(folder.join("a.img"), [0; 1024]).ok()?;
        plain(disk("block_size = 4096"))
    }),
    ("a.img: is in use by another", |folder| {
        image(folder, "a.img");
        let file = File::open(folder.join("a.img")).ok()?;
        file.try_lock().ok()?;
        Some((disk(""), Box::new(file)))
    }),
    ("a.img: is being written by another", |folder| {
        image(folder, "a.img");
        let file = File::open(folder.join("a.img")).ok()?;
        file.try_lock().ok()?;
        Some((disk("read_only = true"), Box::new(file)))
    }),
    ("a.img: is in use by another server: lunar (process ", |folder| {
        let elsewhere = Folder::fresh();
        let server = other_server(&elsewhere, TARGET, "");
        fs::hard_link(elsewhere.join("b.img"), folder.join("a.img")).ok()?;
        Some((disk(""), Box::new((server, elsewhere))))
    }),
    ("a.img: is in use by the loop device", |folder| {
        let (_, undo) = loop_device(folder)?;
        Some((disk(""), Box::new(undo)))
    }),
    ("a.img: is in use by the system as swap space", |folder| swap(folder)),
    ("device or resource busy", |folder| busy_device(folder)),
    ("0.state is in use by process ", |folder| {
        image(folder, "a.img");
        Some((disk(""), other_server(folder, TARGET, "")))
    }),
    ("the serial number 7 is in use by process ", |folder| {
        image(folder, "a.img");
        Some((disk("serial = \"7\""), other_server(folder, OTHER, "serial = \"7\"")))
    }),
    ("serial number 7", |folder| {
        image(folder, "a.img");
        image(folder, "b.img");
        let second = lun("b.img", "serial = \"7\"").replace("lun = 0", "lun = 1");
        plain(disk("serial = \"7\"") + &second)
    }),
    ("0.state is damaged", |folder| {
        image(folder, "a.img");
        let state = folder.join("lu").join(TARGET);
        fs::create_dir_all(&state).and_then(|()| fs::write(state.join("0.state"), "no state")).ok()?;
        plain(disk(""))
    }),
];

/// The error lines in the output of a command.
fn errors(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("error: ")).collect()
}

#[test]
fn check_media_rejects_with_the_message_of_serve() {
    for (object, set_up) in CASES {
        let folder = Folder::fresh();
        let Some((toml, _still)) = set_up(&folder) else {
            println!("skipped: {object}");
            continue;
        };
        let refused = Server::refused(&folder, &toml);
        let file = folder.join("lunar.toml").display().to_string();
        let (_, checked, status) = lunar(&["check", "--media", &file]);
        assert_eq!(errors(&checked), errors(&refused), "{object}");
        assert!(status != 0 && checked.contains(object), "{object}: {status}: {checked}");
    }
}

/// A configuration without an identity is matched to its server by the portal alone.
#[test]
fn check_media_of_a_memory_lun_knows_its_server_by_the_portal() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = listening(&taken.local_addr().expect("bound").to_string(), "").replace("null", "memory");
    let folder = Folder::fresh();
    let refused = Server::refused(&folder, &busy);
    let file = folder.join("lunar.toml").display().to_string();
    let (_, said, status) = lunar(&["check", "--media", &file]);
    assert_eq!((errors(&said), status), (errors(&refused), 28), "{said}");
    drop(taken);
    let server = Server::start_in(folder, &busy);
    let file = server.dir().join("lunar.toml").display().to_string();
    let (_, said, status) = lunar(&["check", "--media", &file]);
    assert!(status == 0 && said.contains("cannot listen on"), "{status}: {said}");
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn check_media_reports_what_a_reload_does() {
    let folder = Folder::fresh();
    image(&folder, "a.img");
    let mut server = Server::start_in(folder, &disk(""));
    let dir = server.dir().to_path_buf();
    let file = dir.join("lunar.toml").display().to_string();
    let check = || lunar(&["check", "--media", &file]);
    let (_, said, status) = check();
    let by = format!(" is in use by process {} (", server.pid());
    assert!(
        status == 0 && said.contains(&by) && said.contains("a.img is in use by another server"),
        "{said}"
    );
    image(&dir, "b.img");
    server.rewrite(&disk("").replace("a.img", "b.img"));
    assert_eq!(check().2, 0, "{}", check().1);
    server.rewrite(&disk(""));
    let served = fs::metadata(dir.join("a.img")).expect("a.img exists").ino();
    fs::rename(dir.join("b.img"), dir.join("a.img")).expect("replaced");
    let there = fs::metadata(dir.join("a.img")).expect("a.img exists").ino();
    let inodes = [format!("inode {served}"), format!("inode {there}")];
    let (_, said, status) = check();
    assert!(status != 0 && inodes.iter().all(|inode| said.contains(inode)), "{said}");
    server.signal(1);
    until("the reload is not rejected", || server.log().contains("rejected: the configuration is unchanged"));
    let log = server.log();
    let refused =
        log.lines().find(|line| line.contains("ERROR") && inodes.iter().all(|inode| line.contains(inode)));
    assert!(refused.is_some(), "{log}");
    server.kill9();
    server.restart();
    let log = server.log();
    let warned = log.lines().find(|line| line.contains("WARN") && line.contains("is not the file that"));
    assert!(inodes.iter().all(|inode| warned.is_some_and(|line| line.contains(inode))), "{log}");
}

#[test]
fn check_media_only_notes_another_file_at_an_earlier_path() {
    let folder = Folder::fresh();
    ["a.img", "b.img", "c.img"].iter().for_each(|name| image(&folder, name));
    let mut server = Server::start_in(folder, &disk(""));
    let dir = server.dir().to_path_buf();
    let file = dir.join("lunar.toml").display().to_string();
    let read = |server: &Server, times: usize| {
        server.signal(1);
        until("the file is not read again", || server.log().matches("lunar.toml reloaded").count() == times);
    };
    server.rewrite(&disk("").replace("a.img", "b.img"));
    read(&server, 1);
    fs::rename(dir.join("c.img"), dir.join("a.img")).expect("replaced");
    server.rewrite(&disk(""));
    let (_, said, status) = lunar(&["check", "--media", &file]);
    let noted = "a.img is not the file that was served before";
    assert!(status == 0 && said.contains(noted), "{said}");
    read(&server, 2);
    assert!(server.log().contains(noted), "{}", server.log());
}

/// Root opens everything, and the service does not.
#[test]
fn check_media_as_root_checks_for_the_user_of_the_service() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let folder = Folder::fresh();
    image(&folder, "a.img");
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(1), None).expect("the owner");
    own(&folder);
    let state = folder.join("state");
    let toml = format!("[server]\nstate_dir = \"{}\"\n{}", state.display(), disk(""));
    let file = folder.join("lunar.toml");
    fs::write(&file, toml).expect("a configuration");
    let path = file.display().to_string();
    let check = |arguments: &[&str]| lunar(&[&["check", "--media"], arguments, &[path.as_str()]].concat());
    let mode =
        |mode| fs::set_permissions(folder.join("a.img"), fs::Permissions::from_mode(mode)).expect("a mode");
    mode(0o600);
    let (said, _, status) = check(&["--user", "root"]);
    assert!(status == 0 && said.contains("; checked for the user root"), "{status}: {said}");
    let (_, said, status) = check(&["--user", "daemon"]);
    assert!(
        status == 13 && said.contains("a.img: permission denied, for the user daemon"),
        "{status}: {said}"
    );
    own(&folder.join("a.img"));
    let (said, _, status) = check(&["--user", "daemon", "--json"]);
    assert!(status == 0 && said.contains("\"user\": \"daemon\""), "{status}: {said}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    let (_, said, status) = check(&["--user", "daemon"]);
    assert!(status == 0 && said.contains("warning: the user daemon cannot read "), "{status}: {said}");
    let (_, said, status) = check(&["--user", "no-such-user"]);
    assert!(status == 21 && said.contains("the user no-such-user does not exist"), "{status}: {said}");
}
