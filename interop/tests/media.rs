//! Files and devices that change while they are served, and raw disks that look like image formats.

use interop::scsi::{read10, write10};
use interop::{Folder, Login, Raw, Server, TARGET};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const SIGTERM: i32 = 15;
const MIB: u64 = 1 << 20;
const LBA_OUT_OF_RANGE: u32 = 0x05_2100;
const CAPACITY_CHANGED: u32 = 0x06_2a09;
const MODE_PARAMETERS_CHANGED: u32 = 0x06_2a01;
const MANUAL_INTERVENTION: u32 = 0x02_0403;
const WRITE_PROTECTED: u32 = 0x07_2700;

fn file(path: &Path, size: u64) {
    File::create(path).and_then(|file| file.set_len(size)).expect("a file");
}

fn configuration(luns: &str) -> String {
    format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n{luns}"
    )
}

fn lun(number: u16, path: &str, keys: &str) -> String {
    format!("[[target.lun]]\nlun = {number}\nbackend = \"file\"\npath = \"{path}\"\n{keys}\n")
}

/// Waits until `is` returns true. `what` is the message if that takes too long.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn session(server: &Server, luns: u16) -> Raw {
    let mut raw = Login::new().on(server.portal());
    (0..luns).for_each(|lun| raw.clear_attentions(lun));
    raw
}

#[test]
fn deleted_and_replaced_images_are_handled_as_set() {
    let folder = Folder::fresh();
    for name in ["a.img", "b.img", "c.img"] {
        file(&folder.join(name), MIB);
    }
    let luns = lun(0, "a.img", "")
        + &lun(1, "b.img", "on_missing_file = \"not-ready\"")
        + &lun(2, "c.img", "on_missing_file = \"read-only\"");
    let mut server = Server::start_in(folder, &configuration(&luns));
    let dir = server.dir().to_path_buf();
    let mut raw = session(&server, 3);
    fs::remove_file(dir.join("a.img")).expect("deleted");
    fs::rename(dir.join("b.img"), dir.join("kept")).expect("moved");
    file(&dir.join("n.img"), MIB);
    fs::rename(dir.join("n.img"), dir.join("c.img")).expect("replaced");
    let moved = format!(
        "b.img was moved to {}",
        dir.canonicalize().expect("the folder exists").join("kept").display()
    );
    for what in ["a.img was deleted", &moved, "c.img was replaced by another file"] {
        until(what, || server.log().lines().any(|line| line.contains("ERROR") && line.contains(what)));
    }
    until("writes are not rejected", || server.log().contains("c.img: writes are rejected"));
    let save = format!("cp --sparse=always /proc/{}/fd/", server.pid());
    assert_eq!(server.log().matches(&save).count(), 2, "one command for each file without a name");
    raw.write(0, &write10(0, 1), &[7; 512]).good();
    raw.simple(1, &[0; 6]).check(MANUAL_INTERVENTION);
    raw.read(1, &read10(0, 1), 512).check(MANUAL_INTERVENTION);
    raw.simple(2, &[0; 6]).check(MODE_PARAMETERS_CHANGED);
    raw.read(2, &read10(0, 1), 512).good();
    raw.write(2, &write10(0, 1), &[7; 512]).check(WRITE_PROTECTED);
    fs::rename(dir.join("kept"), dir.join("b.img")).expect("rename it back");
    until("LUN 1 is not ready again", || raw.simple(1, &[0; 6]).status == 0);
    raw.write(1, &write10(0, 1), &[7; 512]).good();
    let back = |line: &&str| line.contains("its medium is at its path again");
    until("the log does not report LUN 1", || server.log().lines().filter(back).count() == 1);
    assert!(
        server.log().lines().find(back).is_some_and(|line| line.contains("LUN 1 of")),
        "{}",
        server.log()
    );
    let before = server.log().matches(&save).count();
    server.signal(SIGTERM);
    until("the server does not wait", || {
        server.log().contains("the data of deleted files stays available for")
    });
    assert_eq!(server.log().matches(&save).count(), before + 2, "the server logs the commands once more");
    let said = server.log();
    let command = said
        .lines()
        .rfind(|line| line.contains("a.img.saved"))
        .and_then(|line| line.find(&save).map(|at| &line[at..]));
    let copied = Command::new("sh").args(["-c", command.expect("a command")]).status().expect("a shell");
    assert!(copied.success());
    assert_eq!(fs::read(dir.join("a.img.saved")).expect("a copy")[..512], [7; 512]);
    server.signal(SIGTERM);
    assert_eq!(
        server.wait(Duration::from_secs(60)).code(),
        Some(128 + SIGTERM),
        "a second signal ends the wait"
    );
}

#[test]
fn write_never_grows_a_shrunk_image() {
    let folder = Folder::fresh();
    file(&folder.join("a.img"), MIB);
    let server = Server::start_in(folder, &configuration(&lun(0, "a.img", "")));
    let path = server.dir().join("a.img");
    let [mut one, mut other] = [(); 2].map(|()| session(&server, 1));
    let last = (MIB / 512 - 1) as u32;
    one.write(0, &write10(last, 1), &[7; 512]).good();
    File::options().write(true).open(&path).and_then(|file| file.set_len(4096)).expect("shrunk");
    let size = || fs::metadata(&path).expect("the file exists").len();
    let fails = |raw: &mut Raw, cdb: &[u8], data: &[u8]| {
        let reply = if data.is_empty() { raw.read(0, cdb, 512) } else { raw.write(0, cdb, data) };
        // Either this command finds the end of the file, or the server has found it before.
        assert!([LBA_OUT_OF_RANGE, CAPACITY_CHANGED].contains(&reply.sense()), "{:06x}", reply.sense());
        assert_eq!((reply.status, size()), (2, 4096));
    };
    fails(&mut one, &write10(last, 1), &[8; 512]);
    fails(&mut other, &read10(last, 1), &[]);
    fails(&mut one, &read10(last, 1), &[]);
    one.clear_attentions(0);
    other.clear_attentions(0);
    one.write(0, &write10(last, 1), &[8; 512]).check(LBA_OUT_OF_RANGE);
    one.write(0, &write10(7, 1), &[8; 512]).good();
    let capacity = other.read(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8).good();
    assert_eq!((capacity[..4].to_vec(), size()), (vec![0, 0, 0, 7], 4096));
    let sizes = "changed its size to 4096 bytes; it had 1048576";
    until("the log has no warning", || {
        server.log().lines().any(|line| line.contains("WARN") && line.contains(sizes))
    });
    File::options().write(true).open(&path).and_then(|file| file.set_len(2 * MIB)).expect("grown");
    let sizes = "changed its size to 2097152 bytes; it had 4096";
    until("the log has no line", || {
        server.log().lines().any(|line| line.contains("INFO") && line.contains(sizes))
    });
}

#[test]
fn image_shrunk_while_offline_is_warned_of() {
    let folder = Folder::fresh();
    file(&folder.join("a.img"), MIB);
    let mut server = Server::start_in(folder, &configuration(&lun(0, "a.img", "")));
    server.stop();
    file(&server.dir().join("a.img"), 4096);
    server.restart();
    let sizes = "a.img shrank from 1048576 to 4096 bytes since it was served before";
    let log = server.log();
    assert!(log.lines().any(|line| line.contains("WARN") && line.contains(sizes)), "{log}");
}

#[test]
fn image_format_is_served_only_as_raw() {
    let folder = Folder::fresh();
    fs::write(folder.join("a.img"), [&b"QFI\xfb\0\0\0\x03"[..], &[0; 8192]].concat()).expect("an image");
    let plain = configuration(&lun(0, "a.img", ""));
    let refused = Server::refused(&folder, &plain);
    assert!(refused.contains("a.img: is a disk image in the format qcow2, not raw"), "{refused}");
    assert!(refused.contains("qemu-img convert") && refused.contains("format = \"raw\""), "{refused}");
    let raw = configuration(&lun(0, "a.img", "format = \"raw\""));
    let mut server = Server::start_in(folder, &raw);
    server.rewrite(&plain);
    server.restart();
    session(&server, 1).write(0, &write10(0, 1), &[7; 512]).good();
}

/// Runs `lunar copy` with the folder of a server as the user's state folder. Returns its stderr and its exit status.
fn copy_with_state(state: &Path, source: &Path, destination: &Path) -> (String, Option<i32>) {
    let home = Folder::fresh();
    std::os::unix::fs::symlink(state, home.join("lunar")).expect("a link");
    let mut command = Command::new(interop::lunar_bin());
    let command = command.arg("copy").args([source, destination]).env("XDG_STATE_HOME", &*home);
    let ran = command.output().expect("lunar runs");
    (String::from_utf8_lossy(&ran.stderr).into_owned(), ran.status.code())
}

#[test]
fn copy_reads_a_disk_with_an_image_header() {
    let folder = Folder::fresh();
    file(&folder.join("a.img"), MIB);
    let mut server = Server::start_in(folder, &configuration(&lun(0, "a.img", "")));
    let header = [&b"QFI\xfb\0\0\0\x03"[..], &[0; 504]].concat();
    session(&server, 1).write(0, &write10(0, 1), &header).good();
    server.stop();
    let [a, b, other] = ["a.img", "b.img", "other"].map(|name| server.dir().join(name));
    let (said, status) = copy_with_state(&other, &a, &b);
    assert!(status != Some(0) && said.contains("in the format qcow2"), "{said}");
    assert!(said.contains("if the bytes of the file are the disk itself: --raw"), "{said}");
    let (said, status) = copy_with_state(server.dir(), &a, &b);
    assert_eq!(status, Some(0), "{said}");
    assert!(fs::read(&b).expect("a copy").starts_with(&header));
    let (said, status) = copy_with_state(server.dir(), &b, &other);
    assert!(status != Some(0) && said.contains("b.img: is a disk image in the format qcow2"), "{said}");
}

#[test]
fn failed_start_keeps_the_medium_record() {
    let folder = Folder::fresh();
    ["a.img", "b.img"].iter().for_each(|name| file(&folder.join(name), MIB));
    let mut server = Server::start_in(folder, &configuration(&lun(0, "a.img", "")));
    let (dir, record) = (server.dir().to_path_buf(), format!("lu/{TARGET}/0.medium"));
    let before = fs::read(dir.join(&record)).expect("a record");
    server.stop();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let wrong = configuration(&lun(0, "b.img", "")).replace("127.0.0.1:0", &address);
    let refused = Server::refused(&dir, &wrong);
    assert!(refused.contains("cannot serve: "), "{refused}");
    assert_eq!(fs::read(dir.join(&record)).expect("a record"), before);
}

/// A loop device with blocks of 4096 bytes.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["-f", "--show", "-b", "4096"]).arg(file).output().ok()?;
        output.status.success().then(|| Loop(String::from_utf8_lossy(&output.stdout).trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn device_keeps_its_block_size() {
    let folder = Folder::fresh();
    file(&folder.join("a.img"), 16 * MIB);
    let Some(device) = Loop::new(&folder.join("a.img")) else {
        return println!("skipped: needs root and a loop device");
    };
    let luns = |keys: &str| {
        let path = &device.0;
        configuration(&format!("[[target.lun]]\nlun = 0\nbackend = \"device\"\npath = \"{path}\"\n{keys}"))
    };
    let block_size = |server: &Server| {
        let data = session(server, 1).read(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8).good();
        u32::from_be_bytes([data[4], data[5], data[6], data[7]])
    };
    let mut server = Server::start_in(folder, &luns(""));
    assert_eq!(block_size(&server), 4096);
    for (keys, bytes) in [("block_size = 512\n", 512), ("", 4096)] {
        server.stop();
        server.rewrite(&luns(keys));
        server.restart();
        assert_eq!(block_size(&server), bytes);
    }
    drop(server);
}

#[test]
fn reload_rejects_a_link_to_another_device() {
    let folder = Folder::fresh();
    let loops = ["a.img", "b.img"].map(|name| {
        file(&folder.join(name), 16 * MIB);
        Loop::new(&folder.join(name))
    });
    let [Some(one), Some(other)] = loops else { return println!("skipped: needs root and loop devices") };
    let link = folder.join("link");
    std::os::unix::fs::symlink(&one.0, &link).expect("a link");
    let server =
        Server::start_in(folder, &configuration(&lun(0, "link", "").replace("\"file\"", "\"device\"")));
    fs::remove_file(&link).and_then(|()| std::os::unix::fs::symlink(&other.0, &link)).expect("switched");
    server.signal(1);
    until("the reload is not rejected", || server.log().contains("rejected: the configuration is unchanged"));
    let log = server.log();
    assert!(log.contains("link leads to another device (device 7:"), "{log}");
    drop(server);
}
