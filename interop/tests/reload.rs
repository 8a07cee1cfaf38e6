//! SIGHUP with a changed definition of a LUN, while it is used and reserved: it remains the same logical unit.

use interop::scsi::{inquiry, pattern, read_keys, read10, reserve_out, write10};
use interop::{Chap, Folder, Login, Raw, Received, Reply, Server, TARGET};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const GOOD: u8 = 0;
const BUSY: u8 = 0x08;
const RESERVATION_CONFLICT: u8 = 0x18;
/// Persistent reservation types.
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;

const KEY: u64 = 0x1234;
const MODE_PARAMETERS: u32 = 0x062a01;
const CAPACITY: u32 = 0x062a09;
const INQUIRY: u32 = 0x063f03;
const MEDIUM: u32 = 0x062800;
const LUNS: u32 = 0x063f0e;

fn lun(number: u16, path: &str, keys: &str) -> String {
    format!(
        "[[target.lun]]\nlun = {number}\nbackend = \"file\"\npath = \"{path}\"\nsize = \"8MiB\"\n{keys}\n"
    )
}

fn configuration(luns: &str) -> String {
    format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n{luns}"
    )
}

/// Reloads the configuration and waits for the result.
fn reload(server: &mut Server, luns: &str) -> bool {
    let count = |server: &Server, what: &str| server.log().matches(what).count();
    let (good, bad) = ("lunar.toml reloaded", "rejected: the configuration is unchanged");
    let before = (count(server, good), count(server, bad));
    server.rewrite(&configuration(luns));
    server.signal(1);
    let end = Instant::now() + Duration::from_secs(15);
    while Instant::now() < end {
        if count(server, good) > before.0 {
            return true;
        }
        if count(server, bad) > before.1 {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("the reload has no result");
}

/// Runs a command until the logical unit is not busy.
fn patiently(mut command: impl FnMut() -> Reply) -> Reply {
    for _ in 0..2000 {
        let reply = command();
        if reply.status != BUSY {
            return reply;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("busy for too long");
}

/// The pending unit attentions of an initiator.
fn attentions(raw: &mut Raw) -> Vec<u32> {
    let mut pending = Vec::new();
    loop {
        match patiently(|| raw.simple(0, &[0; 6])).sense() {
            sense if sense >> 16 == 6 => pending.push(sense),
            _ => return pending,
        }
        assert!(pending.len() < 16, "{pending:06x?}");
    }
}

fn session(server: &Server) -> Raw {
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    raw
}

/// Two sessions: the first has registered and reserved, without APTPL.
fn reserved(server: &Server) -> (Raw, Raw) {
    let (mut holder, other) = (session(server), session(server));
    reserve_out(&mut holder, 0, 0, 0, 0, KEY, 0).good();
    reserve_out(&mut holder, 0, 1, WRITE_EXCLUSIVE_REGISTRANTS, KEY, 0, 0).good();
    (holder, other)
}

/// A registered session that writes and reads back until it is stopped.
struct BackgroundWriter {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU32>,
    thread: Option<thread::JoinHandle<()>>,
}

impl BackgroundWriter {
    fn start(server: &Server) -> BackgroundWriter {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let mut raw = session(server);
        reserve_out(&mut raw, 0, 0, 0, 0, KEY + 1, 0).good();
        let (stopped, done) = (stop.clone(), rounds.clone());
        let run = move || {
            let mut seed = 0;
            while !stopped.load(Ordering::SeqCst) {
                seed = u8::wrapping_add(seed, 1);
                round(&mut raw, seed);
                done.fetch_add(1, Ordering::SeqCst);
            }
        };
        BackgroundWriter { stop, rounds, thread: Some(thread::spawn(run)) }
    }

    /// Checks that it still makes progress.
    fn goes_on(&self) {
        let (before, end) = (self.rounds.load(Ordering::SeqCst), Instant::now() + Duration::from_secs(10));
        while self.rounds.load(Ordering::SeqCst) < before + 3 {
            assert!(Instant::now() < end, "the writer makes no progress");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().expect("a thread").join().expect("the writer does not panic");
    }
}

/// Writes 4 KiB and reads them back, with the current block size. A round during a change is not checked.
fn round(raw: &mut Raw, seed: u8) {
    let clear = |raw: &mut Raw| {
        let capacity = patiently(|| raw.read(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8));
        (capacity.status == GOOD)
            .then(|| u32::from_be_bytes(capacity.data[4..8].try_into().expect("4 bytes")))
    };
    let Some(block) = clear(raw) else { return };
    let blocks = (4096 / block) as u16;
    let data = pattern(4096, seed);
    let written = patiently(|| raw.write(0, &write10(8, blocks), &data));
    assert_ne!(written.status, RESERVATION_CONFLICT, "the registration is lost");
    let read = patiently(|| raw.read(0, &read10(8, blocks), 4096));
    if (written.status, read.status) == (GOOD, GOOD) && clear(raw) == Some(block) {
        assert!(read.data == data, "other bytes than were written");
    }
}

#[test]
fn changed_lun_keeps_registrations_and_raises_attentions() {
    let mut server = Server::start(&configuration(&lun(0, "disk.img", "")));
    let (mut holder, mut other) = reserved(&server);
    let load = BackgroundWriter::start(&server);
    let cases: [(&str, &[u32]); 8] = [
        ("direct = true", &[]),
        ("serial = \"77\"", &[INQUIRY]),
        ("serial = \"77\"\nblock_size = 4096", &[CAPACITY, MODE_PARAMETERS]),
        ("block_size = 4096\ndirect = true", &[INQUIRY]),
        ("", &[CAPACITY, MODE_PARAMETERS]),
        ("read_only = true", &[INQUIRY, CAPACITY, MODE_PARAMETERS]),
        ("", &[INQUIRY, CAPACITY, MODE_PARAMETERS]),
        ("write_cache = false\nfilters = [{ kind = \"stats\" }]", &[MODE_PARAMETERS]),
    ];
    for (keys, expected) in cases {
        load.goes_on();
        assert!(reload(&mut server, &lun(0, "disk.img", keys)), "{keys}");
        assert_eq!(attentions(&mut holder), expected, "{keys}");
        assert_eq!(attentions(&mut other), expected, "{keys}");
        assert_eq!(read_keys(&mut holder, 0), [KEY, KEY + 1], "{keys}");
        let refused = patiently(|| other.write(0, &write10(64, 1), &[0; 512]));
        assert_eq!(refused.status, RESERVATION_CONFLICT, "{keys}");
    }
    load.goes_on();
    load.end();
    let serial = holder.read(0, &inquiry(Some(0x80), 255), 255).good();
    assert_ne!(&serial[4..], b"77");
    assert!(!server.log().contains("ERROR"), "{}", server.log());
}

#[test]
fn registrations_during_a_reload_are_kept() {
    let mut server = Server::start(&configuration(&lun(0, "disk.img", "")));
    let mut raw = session(&server);
    let mut expected = Vec::new();
    for n in 1..=12 {
        // The signal is sent without waiting for the reload.
        server.rewrite(&configuration(&lun(
            0,
            "disk.img",
            &format!("serial = \"{n}\"\ndirect = {}", n % 2 == 0),
        )));
        server.signal(1);
        for m in 0..8 {
            let mut one = session(&server);
            let key = n * 100 + m;
            let done = patiently(|| reserve_out(&mut one, 0, 0, 0, 0, key, 0));
            match done.status {
                GOOD => expected.push(key),
                _ => assert_eq!(done.sense() >> 16, 6, "{done:?}"),
            }
        }
    }
    assert!(reload(&mut server, &lun(0, "disk.img", "")));
    attentions(&mut raw);
    assert_eq!(read_keys(&mut raw, 0), expected);
}

#[test]
fn failed_reload_keeps_the_old_definition() {
    let mut server = Server::start(&configuration(&lun(0, "disk.img", "")));
    let (mut holder, mut other) = reserved(&server);
    let load = BackgroundWriter::start(&server);
    load.goes_on();
    let missing = lun(1, "none/none.img", "");
    assert!(!reload(&mut server, &(lun(0, "disk.img", "direct = true\nread_only = true") + &missing)));
    assert!(server.log().contains("LUN 1 of iqn.2026-11.org.example:disks: "), "{}", server.log());
    load.goes_on();
    load.end();
    assert_eq!((attentions(&mut holder), attentions(&mut other)), (vec![], vec![]));
    assert_eq!(read_keys(&mut holder, 0), [KEY, KEY + 1]);
    assert_eq!(other.write(0, &write10(64, 1), &[0; 512]).status, RESERVATION_CONFLICT);
    holder.write_blocks(0, 64, &pattern(512, 1)).good();
    let second = configuration(&lun(0, &server.dir().join("disk.img").display().to_string(), ""));
    let other_server = interop::Folder::fresh();
    assert!(
        Server::refused(&other_server, &second).contains("is in use by another server"),
        "the file is not locked again"
    );
}

#[test]
fn reload_ends_running_commands_on_the_old_medium() {
    let slow = "filters = [{ kind = \"delay\", read_us = 1500000, write_us = 0 }]";
    let mut server = Server::start(&configuration(&lun(0, "disk.img", slow)));
    let (mut holder, mut other) = reserved(&server);
    holder.write_blocks(0, 0, &pattern(512, 3)).good();
    let read = holder.command(0, 0x80 | 0x40, &read10(0, 1), 512);
    holder.send(&read);
    thread::sleep(Duration::from_millis(100));
    server.rewrite(&configuration(&lun(0, "other.img", "")));
    server.signal(1);
    let end = Instant::now() + Duration::from_secs(1);
    while other.simple(0, &[0; 6]).status != BUSY {
        assert!(Instant::now() < end, "never busy");
    }
    assert!(holder.collect(read.tag(), &[]).good() == pattern(512, 3), "the data of the old medium");
    assert_eq!(attentions(&mut holder), [MEDIUM]);
    assert_eq!(holder.read_blocks(0, 0, 1), [0; 512], "the data of the new medium");
    assert_eq!(read_keys(&mut holder, 0), [KEY]);
}

#[test]
fn reload_swaps_files_and_removes_luns() {
    let both = |a: &str, b: &str| lun(0, a, "") + &lun(1, b, "");
    let mut server = Server::start(&configuration(&both("a.img", "b.img")));
    let mut raw = session(&server);
    raw.clear_attentions(1);
    raw.write_blocks(0, 0, &pattern(512, 1)).good();
    raw.write_blocks(1, 0, &pattern(512, 2)).good();
    assert!(reload(&mut server, &both("b.img", "a.img")));
    assert_eq!(attentions(&mut raw), [MEDIUM]);
    raw.clear_attentions(1);
    assert!(raw.read_blocks(0, 0, 1) == pattern(512, 2) && raw.read_blocks(1, 0, 1) == pattern(512, 1));
    assert!(reload(&mut server, &lun(0, "a.img", "")), "b.img leaves, and a.img moves once more");
    let pending = attentions(&mut raw);
    assert!(pending.contains(&MEDIUM) && pending.contains(&LUNS), "{pending:06x?}");
    assert!(raw.read_blocks(0, 0, 1) == pattern(512, 1));
    raw.simple(1, &[0; 6]).check(0x052500);
}

#[test]
fn reload_keeps_the_served_file_after_a_replacement() {
    let disk = lun(0, "disk.img", "");
    let mut server = Server::start(&configuration(&disk));
    let (mut holder, _other) = reserved(&server);
    holder.write_blocks(0, 0, &pattern(512, 1)).good();
    let path = |name: &str| server.dir().join(name);
    let (served, kept, new) = (path("disk.img"), path("kept.img"), path("new.img"));
    let mut bytes = vec![0; std::fs::metadata(&served).expect("the served file").len() as usize];
    bytes[..512].copy_from_slice(&pattern(512, 2));
    std::fs::write(&new, bytes).expect("a file");
    std::fs::rename(&served, &kept).expect("rename the served file");
    std::fs::rename(new, &served).expect("put the new file in its place");
    for keys in ["", "read_only = true", "serial = \"9\""] {
        assert!(!reload(&mut server, &lun(0, "disk.img", keys)), "{keys}");
        assert_eq!(attentions(&mut holder), Vec::<u32>::new(), "{keys}");
        assert!(holder.read_blocks(0, 0, 1) == pattern(512, 1), "{keys}");
    }
    assert!(!server.log().contains("at its path again"), "{}", server.log());
    std::fs::remove_file(&served).expect("remove the new file");
    assert!(reload(&mut server, &disk), "a reload while the path names no file");
    std::fs::rename(&kept, &served).expect("rename it back");
    assert!(reload(&mut server, &lun(0, "disk.img", "serial = \"9\"")));
    assert_eq!(attentions(&mut holder), [INQUIRY]);
    assert_eq!(read_keys(&mut holder, 0), [KEY]);
    holder.write_blocks(0, 0, &pattern(512, 3)).good();
    server.stop();
    assert!(
        std::fs::read(&served).expect("the served file").starts_with(&pattern(512, 3)),
        "not the content of the old file"
    );
}

#[test]
fn faults_of_a_refused_file_have_lines_of_their_own() {
    let server = Server::start(&configuration(""));
    let [socket, bad] = ["admin.sock", "bad.toml"].map(|name| server.dir().join(name).display().to_string());
    std::fs::write(&bad, "[[target]]\nname = \"x y\"\nalas = 1\n").expect("written");
    let (out, err, status) = interop::command::lunar(&["apply", "--socket", &socket, &bad]);
    assert_eq!((out.as_str(), status), ("", 1), "{err}");
    let starts: Vec<&str> = err.lines().map(|line| line.split_once(": ").expect("a kind").0).collect();
    assert_eq!(starts, ["error", "  hint", "error", "  hint"], "{err}");
    assert!(err.lines().step_by(2).all(|line| line.starts_with(&format!("error: {bad}:"))), "{err}");
}

#[test]
fn roll_back_succeeds_after_a_file_was_replaced() {
    let server = Server::start(&configuration(&lun(0, "disk.img", "")));
    let [socket, toml, new, disk] =
        ["admin.sock", "lunar.toml", "new.toml", "disk.img"].map(|n| server.dir().join(n));
    let changed = std::fs::read_to_string(toml).expect("a configuration") + "serial = \"9\"\n";
    std::fs::write(&new, changed).expect("written");
    let [socket, new] = [&socket, &new].map(|path| path.to_str().expect("a path"));
    let apply = |arguments: &[&str]| {
        interop::command::lunar(&[&["apply", "--socket", socket][..], arguments].concat())
    };
    let mut raw = session(&server);
    raw.write_blocks(0, 0, &pattern(512, 1)).good();
    assert_eq!(apply(&[new, "--confirm-within", "1h", "--force"]).2, 0);
    assert_eq!(attentions(&mut raw), [INQUIRY]);
    std::fs::rename(&disk, disk.with_extension("kept")).expect("moved");
    std::fs::write(&disk, vec![0; 8 << 20]).expect("another file");
    let (_, said, status) = apply(&[new, "--force"]);
    assert!(status != 0 && said.contains("replaced by another file (inode "), "{said}");
    let (_, said, status) = apply(&["--rollback"]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(attentions(&mut raw), [INQUIRY]);
    assert!(raw.read_blocks(0, 0, 1) == pattern(512, 1), "the data of the file that was open");
}

#[test]
fn roll_back_serves_a_disk_with_an_image_header() {
    let server = Server::start(&configuration(&lun(0, "disk.img", "")));
    let [socket, toml, new] = ["admin.sock", "lunar.toml", "new.toml"].map(|n| server.dir().join(n));
    let changed = std::fs::read_to_string(toml).expect("a configuration").replace("disk.img", "other.img");
    std::fs::write(&new, changed).expect("written");
    let [socket, new] = [&socket, &new].map(|path| path.to_str().expect("a path"));
    let apply = |arguments: &[&str]| {
        interop::command::lunar(&[&["apply", "--socket", socket][..], arguments].concat())
    };
    let mut raw = session(&server);
    let header = [&b"QFI\xfb\0\0\0\x03"[..], &[0; 504]].concat();
    raw.write_blocks(0, 0, &header).good();
    let (_, said, status) = apply(&[new, "--confirm-within", "1h", "--force"]);
    assert_eq!(status, 0, "{said}");
    let (_, said, status) = apply(&["--rollback"]);
    assert_eq!(status, 0, "{said}");
    raw.clear_attentions(0);
    assert!(raw.read_blocks(0, 0, 1) == header, "the data of the previous disk");
}

/// Writes wait for their data while two disks swap their LUNs. None of them may reach a medium: they were meant for
/// the disk that had the LUN before.
#[test]
fn waiting_writes_do_not_reach_another_disk() {
    let disks = |a, b| lun(a, "a.img", "") + &lun(b, "b.img", "block_size = 4096");
    let mut server = Server::start(&configuration(&disks(0, 1)));
    let mut raw = session(&server);
    let waiting: Vec<_> = [100, 200, 300, 400, 500]
        .map(|lba| {
            let write = raw.command(0, 0x80 | interop::scsi::WRITE, &write10(lba, 8), 4096);
            raw.send(&write);
            raw.recv_for(write.tag())
        })
        .into();
    assert!(reload(&mut server, &disks(1, 0)));
    for r2t in waiting {
        raw.answer(&r2t, &pattern(4096, 77));
        let reply = raw.collect(r2t.tag(), &[]);
        assert_ne!(reply.status, GOOD, "{reply:?}");
    }
    server.stop();
    for image in ["a.img", "b.img"] {
        let bytes = std::fs::read(server.dir().join(image)).expect("an image");
        assert!(bytes.iter().all(|byte| *byte == 0), "{image} was written");
    }
}

/// A host that may read without a password loses its access entry. It must not get the access that the next entry grants to
/// a CHAP user. The session of that user stays.
#[test]
fn session_of_a_removed_access_entry_gains_nothing() {
    const READER: &str = "iqn.2026-11.org.example:reader";
    let secret = b"annsecret1234";
    let tables = |reader: &str| {
        lun(0, "a.img", "")
            + &format!("[[target.access]]\ninitiators = [\"{reader}\"]\nread_only = true\n")
            + "[[target.access]]\nchap = [\"ann\"]\n[[chap_user]]\nname = \"ann\"\nsecret_file = \"ann.secret\"\n"
    };
    let dir = Folder::fresh();
    let file = dir.join("ann.secret");
    std::fs::write(&file, secret).expect("write a secret");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("mode 0600");
    let mut server = Server::start_in(dir, &configuration(&tables(READER)));
    let mut reader = Login::new().initiator(READER).on(server.portal());
    reader.clear_attentions(0);
    reader.write_blocks(0, 0, &[1; 512]).check(0x072700);
    let mut ann = Chap::login(&Login::new(), server.portal(), 5, "ann", secret).expect("ann logs in");
    ann.clear_attentions(0);

    assert!(reload(&mut server, &tables("iqn.2026-11.org.example:another")));
    let end = Instant::now() + Duration::from_secs(10);
    while !matches!(reader.get(Duration::from_millis(100)), Received::Closed) {
        assert!(Instant::now() < end, "the reader's session does not end");
    }
    ann.write_blocks(0, 0, &[2; 512]).good();
    assert_eq!(ann.read_blocks(0, 0, 1), [2; 512]);
}
