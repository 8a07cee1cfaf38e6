//! `qemu-img` and `qemu-io`, whose iSCSI driver virtual machines use.

use std::path::PathBuf;

use interop::tool::{self, Tool, must};
use interop::{Server, TARGET};

use crate::{Lun, server, url};

pub const TOOLS: [Tool; 2] = [
    Tool { program: "qemu-img", package: "qemu-utils qemu-block-extra" },
    Tool { program: "qemu-io", package: "qemu-utils qemu-block-extra" },
];

/// A file in the server's folder with 64 MiB that differ from block to block.
fn pattern(server: &Server) -> PathBuf {
    let file = server.dir().join("pattern.raw");
    let mut bytes = Vec::with_capacity(64 << 20);
    for block in 0..(64u32 << 20) / 512 {
        bytes.extend(block.wrapping_mul(2_654_435_761).to_be_bytes().repeat(128));
    }
    std::fs::write(&file, bytes).expect("write the pattern");
    file
}

/// Runs commands of qemu-io on a raw or qcow2 image; each must succeed.
pub fn qemu_io(format: &str, url: &str, commands: &[&str]) {
    let mut arguments = vec!["-f", format];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(url);
    let said = must("qemu-io", &arguments);
    assert!(!said.contains("Pattern verification failed"), "{said}");
}

#[test]
fn convert_there_and_back_and_compare() {
    if !tool::have(&TOOLS) {
        return;
    }
    let server = server();
    let (file, url) = (pattern(&server), url(&server, 0, Lun::Thin));
    let file = file.to_str().expect("a UTF-8 path");
    must("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", file, &url]);
    must("qemu-img", &["compare", "-f", "raw", "-F", "raw", file, &url]);
    let back = format!("{file}.back");
    must("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &back]);
    must("qemu-img", &["compare", "-f", "raw", "-F", "raw", file, &back]);
}

/// libiscsi sends LUNs from 256 on unchanged, without the flat space addressing of SAM-5.
#[test]
fn lun_with_a_large_number_is_found() {
    if !tool::have(&TOOLS) {
        return;
    }
    let more = "[[target.lun]]\nlun = 300\nbackend = \"memory\"\nsize = \"3MiB\"\n";
    let server = Server::start(&interop::config::with("", "", more));
    let url = format!("iscsi://{}/{TARGET}/300", server.portal());
    assert!(must("qemu-img", &["info", &url]).contains("3 MiB"));
    qemu_io("raw", &url, &["write -P 7 1M 64k", "read -P 7 1M 64k"]);
}

#[test]
fn create_a_qcow2_image_and_use_it() {
    if !tool::have(&TOOLS) {
        return;
    }
    let server = server();
    let url = url(&server, 0, Lun::Thin);
    must("qemu-img", &["create", "-f", "raw", &url, "32M"]);
    must("qemu-img", &["create", "-f", "qcow2", &url, "48M"]);
    qemu_io("qcow2", &url, &["write -P 7 1M 4M", "discard 2M 1M", "read -P 7 1M 1M", "read -P 7 3M 2M"]);
    must("qemu-img", &["check", "-f", "qcow2", &url]);
}

#[test]
fn discard_and_zeroes() {
    if !tool::have(&TOOLS) {
        return;
    }
    let server = server();
    let commands = [
        "write -P 0x5a 0 8M",
        "discard 1M 1M",
        "read -P 0x5a 0 1M",
        "read -P 0 1M 1M",
        "write -z 2M 1M",
        "read -P 0 2M 1M",
        "write -z -u 3M 1M",
        "read -P 0 3M 1M",
        "read -P 0x5a 4M 4M",
        "write -f -P 0x33 4M 64k",
        "flush",
        "read -P 0x33 4M 64k",
    ];
    qemu_io("raw", &url(&server, 0, Lun::Thin), &commands);
}

#[test]
fn qemu_map_shows_unwritten_ranges() {
    if !tool::have(&TOOLS) {
        return;
    }
    let server = server();
    let url = url(&server, 0, Lun::Thin);
    qemu_io("raw", &url, &["write -P 1 1M 1M"]);
    let map = must("qemu-img", &["map", "--output=json", "-f", "raw", &url]);
    assert!(map.contains("\"start\": 1048576") && map.contains("\"data\": false"), "{map}");
}

#[test]
fn read_only_lun_refuses_a_write() {
    if !tool::have(&TOOLS) {
        return;
    }
    let server = server();
    let url = url(&server, 0, Lun::ReadOnly);
    let limit = std::time::Duration::from_secs(30);
    let write = |args: &[&str]| tool::run(std::process::Command::new("qemu-io").args(args).arg(&url), limit);
    assert!(!write(&["-f", "raw", "-c", "write 0 4k"]).ok());
    assert!(write(&["-r", "-f", "raw", "-c", "read -P 0 0 4k"]).ok());
}

/// Uses `--image-opts`, because QEMU 7.2 crashes on a URL with a query.
#[test]
fn header_digests_under_load() {
    if !tool::have(&TOOLS) {
        return;
    }
    let server = server();
    let image = format!(
        "driver=iscsi,transport=tcp,portal={},target={TARGET},lun={},header-digest=crc32c",
        server.portal(),
        Lun::Thin as u8
    );
    let commands = ["write -P 0x77 0 16M", "read -P 0x77 0 16M", "write -z 0 1M", "read -P 0 0 1M"];
    let mut arguments = vec!["--image-opts"];
    arguments.extend(commands.iter().flat_map(|command| ["-c", command]));
    arguments.push(&image);
    let said = must("qemu-io", &arguments);
    assert!(!said.contains("Pattern verification failed"), "{said}");
}
