//! Tests of the server with libnbd's tools, QEMU and fio.

use super::{MIB, Server, export, memory};
use interop::Folder;
use interop::tool::{self, Tool, must};
use lunar_block::{BackendKind, BackendSpec};
use lunar_nbd::server::ServerLimits;
use std::path::{Path, PathBuf};

const LIBNBD: [Tool; 2] =
    [Tool { program: "nbdinfo", package: "libnbd-bin" }, Tool { program: "nbdcopy", package: "libnbd-bin" }];
const QEMU: [Tool; 2] =
    [Tool { program: "qemu-img", package: "qemu-utils" }, Tool { program: "qemu-io", package: "qemu-utils" }];
const FIO: [Tool; 1] = [Tool { program: "fio", package: "fio" }];

/// Starts servers of a memory backend and of a sparse file, 256 MiB each, and returns the directory of the file.
fn servers() -> [(Server, Option<Folder>); 2] {
    let dir = Folder::fresh();
    let path = dir.join("disk");
    let spec = BackendSpec {
        kind: BackendKind::File,
        size: Some(256 * MIB),
        create: true,
        ..BackendSpec::path(&path)
    };
    [
        (Server::of(memory(256 * MIB)), None),
        (Server::of(lunar_block::open(&spec).expect("the file is created")), Some(dir)),
    ]
}

/// Creates a file with data and holes in the server's directory.
fn pattern(server: &Server, size: u64) -> PathBuf {
    use std::os::unix::fs::FileExt;
    let path = server.dir.join("pattern");
    let file = std::fs::File::create(&path).expect("the file is created");
    file.set_len(size).expect("the file grows");
    for i in (0..size / MIB).filter(|i| i % 3 != 1) {
        let bytes: Vec<u8> = (0..MIB as u32).map(|at| (at / 512).wrapping_mul(i as u32 + 1) as u8).collect();
        file.write_all_at(&bytes, i * MIB).expect("the write succeeds");
    }
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    if !tool::have(&LIBNBD) {
        return;
    }
    let mut small = export("small", memory(MIB));
    (small.block_size, small.read_only, small.description) = (4096, true, "a small disk".into());
    let server = Server::start(vec![export("disk", memory(64 * MIB)), small], ServerLimits::default());
    for url in server.urls("disk") {
        let said = must("nbdinfo", &[&url]);
        for expected in [
            "export-size: 67108864",
            "base:allocation",
            "is_read_only: false",
            "can_cache: true",
            "can_df: true",
            "can_fast_zero: true",
            "can_flush: true",
            "can_fua: true",
            "can_multi_conn: true",
            "can_trim: true",
            "can_zero: true",
            "block_size_minimum: 512",
            "block_size_preferred: 4096",
            "block_size_maximum: 33554432",
        ] {
            assert!(said.contains(expected), "{expected} is missing in\n{said}");
        }
        assert_eq!(must("nbdinfo", &["--size", &url]).trim(), "67108864");
        let map = must("nbdinfo", &["--map", "--json", &url]);
        assert!(
            map.contains("\"length\": 67108864") && map.contains("\"description\": \"hole,zero\""),
            "{map}"
        );
    }
    for url in server.urls("") {
        let said = must("nbdinfo", &["--list", "--json", &url]);
        for expected in ["\"disk\"", "\"small\"", "\"a small disk\"", "\"block_size_minimum\": 4096"] {
            assert!(said.contains(expected), "{expected} is missing in\n{said}");
        }
        assert!(said.contains("\"is_read_only\": true") && said.contains("\"structured\": true"), "{said}");
    }
}

#[test]
fn nbdcopy_in_both_directions() {
    if !tool::have(&LIBNBD) {
        return;
    }
    for (server, _dir) in servers() {
        let file = pattern(&server, 256 * MIB);
        for url in server.urls("disk") {
            must("nbdcopy", &["--flush", text(&file), &url]);
            for options in [&["--connections=4"][..], &["--no-extents"], &["--request-size=4194304"]] {
                let back = server.dir.join("back");
                must("nbdcopy", &[options, &[&url, text(&back)]].concat());
                must("cmp", &[text(&file), text(&back)]);
                std::fs::remove_file(back).expect("the file is removed");
            }
            // The holes of the file must still be holes.
            let map = must("nbdinfo", &["--map", &url]);
            assert!(map.contains("hole,zero") && map.contains("data"), "{map}");
        }
    }
}

/// Runs qemu-io with commands, each of which must succeed.
fn qemu_io(url: &str, commands: &[&str]) {
    let options = commands.iter().flat_map(|command| ["-c", command]);
    let said = must("qemu-io", &["-f", "raw"].into_iter().chain(options).chain([url]).collect::<Vec<_>>());
    assert!(!said.contains("Pattern verification failed"), "{said}");
}

#[test]
fn qemu_io_reads_what_it_wrote() {
    if !tool::have(&QEMU) {
        return;
    }
    for (server, _dir) in servers() {
        for url in server.urls("disk") {
            qemu_io(
                &url,
                &["write -P 1 0 64M", "write -P 2 -f 1M 64k", "write -z -u 2M 1M", "write -z 4M 1M"],
            );
            qemu_io(&url, &["read -P 1 0 1M", "read -P 2 1M 64k", "read -P 0 2M 1M", "read -P 0 4M 1M"]);
            qemu_io(
                &url,
                &["discard 8M 8M", "flush", "aio_write -P 3 16M 32M", "aio_read -P 1 3M 1M", "aio_flush"],
            );
            qemu_io(
                &url,
                &["read -P 3 16M 32M", "write -P 4 255M 1M", "read -P 4 255M 1M", "read -P 1 5M 3M"],
            );
        }
    }
}

#[test]
fn qemu_img_converts_there_and_back() {
    if !tool::have(&QEMU) {
        return;
    }
    for (server, _dir) in servers() {
        let file = pattern(&server, 256 * MIB);
        for url in server.urls("disk") {
            let raw = ["-f", "raw", "-O", "raw"];
            must("qemu-img", &[&["convert", "-n"], &raw[..], &[text(&file), &url]].concat());
            must("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&file), &url]);
            let back = server.dir.join("back");
            must("qemu-img", &[&["convert"], &raw[..], &[&url, text(&back)]].concat());
            must("cmp", &[text(&file), text(&back)]);
            let map = must("qemu-img", &["map", "-f", "raw", "--output=json", &url]);
            assert!(map.contains("\"zero\": true") && map.contains("\"data\": true"), "{map}");
        }
    }
}

#[test]
fn qcow2_image_lives_on_blocks_of_4096() {
    if !tool::have(&QEMU) {
        return;
    }
    let mut disk = export("disk", memory(256 * MIB));
    disk.block_size = 4096;
    let server = Server::start(vec![disk], ServerLimits::default());
    for url in server.urls("disk") {
        must("qemu-img", &["create", "-f", "qcow2", &url, "128M"]);
        must("qemu-img", &["bench", "-f", "qcow2", "-w", "-c", "2000", "-d", "16", "-s", "4096", &url]);
        must("qemu-img", &["check", "-f", "qcow2", &url]);
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !tool::have(&FIO) {
        return;
    }
    for (server, _dir) in servers() {
        for url in server.urls("disk") {
            let said = must(
                "fio",
                &[
                    "--name=verify",
                    "--ioengine=nbd",
                    &format!("--uri={url}"),
                    "--rw=randrw",
                    "--bssplit=512/20:4k/40:64k/20:1m/20",
                    "--size=128M",
                    "--io_size=64M",
                    "--iodepth=32",
                    "--verify=crc32c",
                    "--do_verify=1",
                    "--verify_fatal=1",
                    "--verify_state_save=0",
                    "--fsync=64",
                ],
            );
            assert!(said.contains("err= 0"), "{said}");
        }
    }
}
