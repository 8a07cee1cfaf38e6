//! Malformed and hostile input gets a response or ends its own connection. The process survives and does not grow,
//! and other sessions are not disturbed. Each test covers a class of vulnerability that some target had.

use interop::chap::{base64, hex};
use interop::scsi::{
    READ, WRITE, designator, extended_copy, pattern, read_keys, read10, reserve_out, write10,
};
use interop::{
    Chap, Folder, INITIATOR, Login, NONE, Pdu, PduOutcome, Raw, Received, Server, config, op, sense,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const C: u8 = 0x40;

/// A server, and a session of another initiator, the neighbour, which has written a pattern.
struct WatchedServer {
    server: Server,
    neighbour: Raw,
    rss_kib: u64,
}

impl WatchedServer {
    fn new(toml: &str) -> WatchedServer {
        WatchedServer::of(Server::start(toml))
    }

    fn of(server: Server) -> WatchedServer {
        let mut neighbour = Login::new().initiator(&format!("{INITIATOR}.neighbour")).on(server.portal());
        (0..2).for_each(|lun| neighbour.clear_attentions(lun));
        neighbour.write_blocks(0, 100_000, &pattern(65536, 7)).good();
        let rss_kib = server.rss_kib();
        WatchedServer { server, neighbour, rss_kib }
    }

    /// Checks that the neighbour's session and data are intact, and that the process lives and grew by less than 64
    /// MiB.
    fn unharmed(mut self) {
        assert!(self.server.lives(), "the server ended");
        self.neighbour.clear_attentions(0);
        assert!(self.neighbour.read_blocks(0, 100_000, 128) == pattern(65536, 7));
        self.neighbour.ping();
        let grown = self.server.rss_kib().saturating_sub(self.rss_kib);
        assert!(grown < 65536, "the process grew by {grown} KiB");
        let log = self.server.log();
        assert!(!log.contains("panicked"), "{log}");
    }

    fn session(&self) -> Raw {
        Raw::session(self.server.portal(), &[])
    }
}

/// xorshift64: the same numbers in every run, unless LUNAR_SEED sets another seed.
struct Random(u64);

impl Random {
    fn new(default: u64) -> Random {
        let seed = std::env::var("LUNAR_SEED").ok().and_then(|s| s.parse::<u64>().ok());
        Random(seed.map_or(default, |s| default ^ s << 20))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 24) as u8).collect()
    }
}

fn with_user(name: &str, secret: &str) -> Server {
    let dir = Folder::fresh();
    let file = dir.join("user.secret");
    fs::write(&file, secret).expect("write");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
    let tables = format!(
        "[[target.access]]\ninitiators = [\"*neighbour\"]\n[[target.access]]\nchap = [\"{name}\"]\n\
         [[chap_user]]\nname = \"{name}\"\nsecret_file = \"user.secret\"\n"
    );
    Server::start_in(dir, &config::with("", "", &tables))
}

#[test]
fn oversize_chap_values() {
    let scene = WatchedServer::of(with_user("alice", "alice's secret 1"));
    for length in [17, 100, 1024, 1025, 2800, 5000] {
        for value in
            [hex(&vec![0xaa; length]), base64(&vec![0xaa; length]), "9".repeat(length), "=".repeat(length)]
        {
            if value.len() > 7800 {
                continue;
            }
            for key in ["CHAP_R", "CHAP_C", "CHAP_N", "CHAP_I"] {
                let login = Login::new();
                let (mut raw, chap) = Chap::begin(&login, scene.server.portal(), "5").expect("a challenge");
                let proof = hex(&chap.response(b"alice's secret 1"));
                let mut keys =
                    vec![("CHAP_N", "alice"), ("CHAP_R", &proof), ("CHAP_I", "1"), ("CHAP_C", "0x00112233")];
                keys.retain(|(k, _)| *k != key);
                keys.push((key, &value));
                let answer = raw.login(&login.empty(0, Some(1)).keys(&keys));
                assert_eq!(answer.status() >> 8, 2, "{key} of {length}");
                raw.expect_close();
            }
        }
    }
    scene.unharmed();
}

#[test]
fn user_names_that_begin_with_0x() {
    let scene = WatchedServer::of(with_user("0x616c696365", "alice's secret 1"));
    let secret = b"alice's secret 1";
    Chap::login(&Login::new(), scene.server.portal(), 5, "0x616c696365", secret)
        .expect("the user name as configured")
        .ping();
    for name in ["alice", "616c696365", "0X616c696365"] {
        let status = Chap::login(&Login::new(), scene.server.portal(), 5, name, secret).err();
        assert_eq!(status, Some(0x0201), "{name}");
    }
    scene.unharmed();
}

#[test]
fn keys_of_63_64_255_and_64k_bytes() {
    let scene = WatchedServer::new(&config::standard());
    for length in [63, 64, 255, 4096] {
        for (key, value) in [("K".repeat(length), "1".into()), ("X-k".into(), "v".repeat(length))] {
            let answer = interop::negotiate(scene.server.portal(), &key, &value);
            assert!(answer.is("NotUnderstood") || answer.refused(), "{length}: {answer:?}");
        }
    }
    for byte in [b'K', b'=', 0, 0xff] {
        let login = Login::new();
        let mut raw = login.connect(scene.server.portal());
        raw.login(&login.request(1, None).flags(C | 4));
        for _ in 0..20 {
            match raw
                .outcome(&login.empty(1, None).flags(C | 4).data(&[byte; 8192]).exp_stat_sn(raw.exp_stat_sn))
            {
                PduOutcome::Answered(answer) if answer.status() == 0 => {}
                _ => break,
            }
        }
    }
    for _ in 0..5 {
        let mut raw = scene.session();
        let mut ttt = NONE;
        let itt = raw.new_itt();
        for _ in 0..40 {
            let part = raw.request(op::TEXT | 0x40).itt(itt).ttt(ttt).flags(C).data(&[b'k'; 8192]);
            match raw.outcome(&part) {
                PduOutcome::Answered(answer) => ttt = answer.transfer_tag(),
                _ => break,
            }
        }
    }
    scene.unharmed();
}

#[test]
fn pdus_before_login() {
    let scene = WatchedServer::new(&config::standard());
    for first in 0..=255u8 {
        for length in [0u32, 512, 0xff_ffff] {
            if first & 0x3f == op::LOGIN && length == 0 {
                continue;
            }
            let mut raw = Raw::connect(scene.server.portal());
            let pdu = Pdu::new(first).itt(1).bytes(5, &length.to_be_bytes()[1..]);
            raw.send_bytes(&pdu.bhs);
            raw.send_bytes(&[0; 64]);
            let _ = raw.stream.shutdown(std::net::Shutdown::Write);
            assert!(
                raw.until_close().iter().all(|p| p.opcode() == op::LOGIN_RESPONSE && p.status() != 0),
                "{first:#x}"
            );
        }
    }
    scene.unharmed();
}

#[test]
fn login_requests_cut_short_at_every_byte() {
    let scene = WatchedServer::new(&config::standard());
    let whole = Login::new().request(1, Some(3)).encode(false, false);
    for length in 0..whole.len() {
        let mut raw = Raw::connect(scene.server.portal());
        raw.send_bytes(&whole[..length]);
        let _ = raw.stream.shutdown(std::net::Shutdown::Write);
        assert!(raw.until_close().is_empty(), "{length}");
    }
    scene.unharmed();
}

#[test]
fn huge_lengths_in_login() {
    let scene = WatchedServer::new(&config::standard());
    for (ahs, length) in [(255u8, 0u32), (0, 0xff_ffff), (255, 0xff_ffff), (1, 8193)] {
        let mut raw = Raw::connect(scene.server.portal());
        raw.send_bytes(&Login::new().empty(1, Some(3)).byte(4, ahs).bytes(5, &length.to_be_bytes()[1..]).bhs);
        raw.send_bytes(&vec![b'x'; 1 << 20]);
        let seen = raw.until_close();
        assert!(seen.iter().all(|p| p.status() >> 8 == 2), "{ahs} {length}: {seen:?}");
    }
    scene.unharmed();
}

#[test]
fn send_targets_at_512_bytes() {
    let more: String = (0..50)
        .map(|i| config::target(&format!("iqn.2026-11.org.example:{}{i}", "long.".repeat(30)), ""))
        .collect();
    let scene = WatchedServer::new(&(config::standard() + &more));
    let mut raw = Raw::discovery(scene.server.portal(), &[("MaxRecvDataSegmentLength", "512")]);
    let first = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("SendTargets", "All")]);
    let (mut answer, mut text) = (raw.ask(&first), Vec::new());
    while !answer.is_final() {
        text.extend_from_slice(&answer.data);
        let next = raw.request(op::TEXT | 0x40).itt(first.tag()).ttt(answer.transfer_tag());
        answer = raw.ask(&next);
    }
    text.extend_from_slice(&answer.data);
    assert_eq!(String::from_utf8_lossy(&text).matches("TargetName=").count(), 51);
    scene.unharmed();
}

#[test]
fn text_with_the_c_bit_and_no_data() {
    let scene = WatchedServer::new(&config::standard());
    let mut raw = scene.session();
    let (itt, mut ttt) = (raw.new_itt(), NONE);
    for _ in 0..100 {
        let text = raw.request(op::TEXT | 0x40).itt(itt).ttt(ttt).flags(C);
        match raw.outcome(&text) {
            PduOutcome::Answered(answer) => ttt = answer.transfer_tag(),
            _ => break,
        }
    }
    let login = Login::new();
    let mut raw = login.connect(scene.server.portal());
    for _ in 0..100 {
        match raw.outcome(&login.empty(1, None).flags(C | 4).exp_stat_sn(raw.exp_stat_sn)) {
            PduOutcome::Answered(answer) if answer.status() == 0 => assert!(answer.data.is_empty()),
            _ => break,
        }
    }
    scene.unharmed();
}

#[test]
fn write_same_with_ndob_and_no_buffer() {
    let scene = WatchedServer::new(&config::standard());
    let mut raw = scene.session();
    raw.write_blocks(0, 50, &[7; 2048]).good();
    for (flags, expected) in [(0x80, 0), (0x80 | WRITE, 0), (0x80 | WRITE, 512), (0x80 | READ, 512)] {
        for byte1 in [1, 9, 0, 8] {
            let cdb = [0x93, byte1, 0, 0, 0, 0, 0, 0, 0, 50, 0, 0, 0, 4, 0, 0];
            let command = raw.command(0, flags, &cdb, expected);
            let reply = raw.execute(&command, &[9; 512]);
            let fine = reply.status == 0 || reply.status == 2 && matches!(reply.sense() >> 16, 5 | 0xb);
            assert!(fine, "{flags:#x} {byte1}: {reply:?}");
            let stored = raw.read_blocks(0, 50, 4);
            assert!(
                stored.iter().all(|b| *b == stored[0]) && matches!(stored[0], 0 | 7 | 9),
                "the blocks hold other data"
            );
        }
    }
    scene.unharmed();
}

/// Operation code and CDB length of commands with Data-Out.
const DATA_OUT: &[(u8, usize)] = &[
    (0x04, 6),
    (0x0a, 6),
    (0x15, 6),
    (0x1d, 6),
    (0x2a, 10),
    (0x2e, 10),
    (0x2f, 10),
    (0x3b, 10),
    (0x41, 10),
    (0x42, 10),
    (0x4c, 10),
    (0x55, 10),
    (0x5f, 10),
    (0x83, 16),
    (0x89, 16),
    (0x8a, 16),
    (0x8b, 16),
    (0x8e, 16),
    (0x8f, 16),
    (0x93, 16),
    (0x9c, 16),
    (0xa4, 12),
    (0xaa, 12),
    (0xae, 12),
    (0xaf, 12),
];

#[test]
fn data_out_commands_with_zero_or_wrong_expected_length() {
    let scene = WatchedServer::new(&config::standard());
    let mut raw = scene.session();
    for (opcode, length) in DATA_OUT {
        for (byte1, low) in [(0u8, 1u8), (0, 24), (2, 1), (6, 2), (0, 0)] {
            for (flags, expected) in
                [(0x80, 0), (0x80 | WRITE, 0), (0x80 | WRITE, 1), (0x80 | WRITE, 511), (0x80 | READ, 512)]
            {
                let mut cdb = vec![0u8; *length];
                (cdb[0], cdb[1], cdb[length - 2]) = (*opcode, byte1, low);
                let command = raw.command(1, flags, &cdb, expected);
                let reply = raw.execute(&command, &vec![0; expected as usize]);
                assert!(matches!(reply.status, 0 | 2 | CONFLICT), "{opcode:#x}: {reply:?}");
                assert!(reply.data.len() <= expected as usize);
            }
        }
    }
    scene.unharmed();
}

const CONFLICT: u8 = 0x18;
/// GET LBA STATUS returns whole descriptors only, as many as fit.
const GET_LBA_STATUS: [u8; 2] = [0x9e, 0x12];

/// CDB without its allocation length; offset and size of that field.
const ALLOCATING: &[(&[u8], usize, usize)] = &[
    (&[0x12, 0, 0, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0x00, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0x80, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0x83, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0x85, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0x86, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0x87, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0x88, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0xb0, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0xb1, 0, 0, 0], 3, 2),
    (&[0x12, 1, 0xb2, 0, 0, 0], 3, 2),
    (&[0x03, 0, 0, 0, 0, 0], 4, 1),
    (&[0x03, 1, 0, 0, 0, 0], 4, 1),
    (&[0x1a, 0, 0x3f, 0, 0, 0], 4, 1),
    (&[0x1a, 8, 0x3f, 0xff, 0, 0], 4, 1),
    (&[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0x4d, 0, 0x7f, 0xff, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 6, 4),
    (&[0xa0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0], 6, 4),
    (&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 10, 4),
    (&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 10, 4),
    (&[0x5e, 0, 0, 0, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0x5e, 1, 0, 0, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0x5e, 2, 0, 0, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0x5e, 3, 0, 0, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 6, 4),
    (&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 6, 4),
    (&[0xa3, 0x0c, 0x81, 0x28, 0, 0, 0, 0, 0, 0, 0, 0], 6, 4),
    (&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 6, 4),
    (&[0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 10, 4),
    (&[0x37, 0, 8, 0, 0, 0, 0, 0, 0, 0], 7, 2),
    (&[0xb7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 6, 4),
    (&[0x3c, 3, 0, 0, 0, 0, 0, 0, 0, 0], 6, 3),
    (&[0x3c, 2, 0, 0, 0, 0, 0, 0, 0, 0], 6, 3),
    (&[0x1c, 1, 0, 0, 0, 0], 3, 2),
];

#[test]
fn allocation_lengths_from_0_to_65535() {
    let scene = WatchedServer::new(&config::standard());
    let mut raw = scene.session();
    let lengths: Vec<u32> = (0..=300).chain([511, 512, 513, 1023, 4095, 8192, 32767, 65534, 65535]).collect();
    for (form, at, size) in ALLOCATING {
        let cdb = |length: u32| {
            let mut cdb = form.to_vec();
            cdb[*at..at + size].copy_from_slice(&length.to_be_bytes()[4 - size..]);
            cdb
        };
        let whole = raw.read(0, &cdb(if *size == 1 { 255 } else { 65535 }), 65535);
        if whole.status != 0 {
            assert_eq!((whole.status, whole.sense() >> 16), (2, 5), "{form:02x?}: {whole:?}");
        }
        for length in lengths.iter().copied().filter(|l| (*l as u64) < 1 << (8 * size)) {
            let reply = raw.read(0, &cdb(length), 65535);
            assert!(reply.data.len() <= length as usize, "{form:02x?} {length}: {}", reply.data.len());
            if reply.status == 0 && whole.status == 0 && form[..2] != GET_LBA_STATUS {
                assert_eq!(reply.data.len(), whole.data.len().min(length as usize), "{form:02x?} {length}");
            } else {
                assert!(reply.status == 0 || reply.sense() >> 16 == 5, "{form:02x?} {length}: {reply:?}");
            }
        }
    }
    scene.unharmed();
}

/// Registers ten thousand initiator ports, a hundred with each command, with SPEC_I_PT.
#[test]
fn ten_thousand_registrants() {
    let scene = WatchedServer::new(&config::standard());
    let mut raw = scene.session();
    let mut refused = 0;
    for round in 0..100 {
        let mut ids = Vec::new();
        for port in 0..100 {
            let name =
                format!("iqn.2026-11.org.example:h{round:03}{port:03},i,0x8000{round:04x}{port:04x}\0");
            let padded = name.len().next_multiple_of(4);
            ids.extend_from_slice(&[0x45, 0, (padded >> 8) as u8, padded as u8]);
            ids.extend_from_slice(name.as_bytes());
            ids.resize(ids.len() + padded - name.len(), 0);
        }
        let mut list = vec![0; 24];
        list[14..16].copy_from_slice(&(round as u16 + 1).to_be_bytes());
        list[20] = 8;
        list.extend_from_slice(&(ids.len() as u32).to_be_bytes());
        list.extend_from_slice(&ids);
        let [.., b1, b0] = (list.len() as u32).to_be_bytes();
        let reply = raw.write(0, &[0x5f, 0, 0, 0, 0, 0, 0, b1, b0, 0], &list);
        if reply.status == 2 {
            assert_eq!(reply.sense(), 0x05_5504, "INSUFFICIENT REGISTRATION RESOURCES");
            refused += 1;
        } else {
            assert_eq!(reply.status, 0, "{reply:?}");
            reserve_out(&mut raw, 0, 0, 0, round as u64 + 1, 0, 0).good();
        }
    }
    let keys = read_keys(&mut raw, 0).len();
    assert!(
        keys <= 1024 && keys.is_multiple_of(100) && keys >= 900,
        "{keys} registrants; the target must register all of a list or none"
    );
    assert!(refused >= 89, "{refused}");
    raw.simple(0, &[0; 6]).good();
    scene.unharmed();
}

#[test]
fn corrupt_state_files_are_refused_and_kept() {
    let mut server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    reserve_out(&mut raw, 0, 0, 0, 0, 0xa, 1).good();
    server.kill9();
    let state = files(server.dir());
    let state: Vec<_> = state.into_iter().filter(|(path, _)| !is_ours(path)).collect();
    assert!(!state.is_empty(), "no file holds the reservation");
    for rubbish in [&b"{"[..], b"\xff\xff\xff\xff rubbish", b"", &[b'9'; 100_000]] {
        for (path, good) in &state {
            fs::write(path, rubbish).expect("write");
            let said = Server::refused(server.dir(), &config::standard());
            let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
            assert!(said.contains(name), "the message does not name {name}: {said}");
            assert!(fs::read(path).expect("still there") == rubbish, "{name} was overwritten");
            fs::write(path, good).expect("write");
        }
    }
    server.restart();
    assert_eq!(read_keys(&mut Raw::session(server.portal(), &[]), 0), [0xa]);
}

fn is_ours(path: &std::path::Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    matches!(name, "lunar.toml" | "stderr" | "admin.sock")
        || name.ends_with(".lock")
        || name.ends_with(".tmp")
        // A damaged tree of the history stops no server.
        || path.components().any(|part| part.as_os_str() == "history")
}

/// All regular files below a folder, with their contents.
fn files(dir: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(dir).expect("a folder").flatten().map(|e| e.path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false if path.is_file() => vec![(path.clone(), fs::read(&path).expect("read"))],
            false => Vec::new(),
        })
        .collect()
}

#[test]
fn control_characters_in_names() {
    let scene = WatchedServer::new(&config::standard());
    for bad in ["\u{7}", "\n", "\u{1b}[31m", "\r", "\u{7f}", "\u{9b}", "%n%s"] {
        let name = format!("iqn.2026-11.org.example:a{bad}b");
        let status = Login::new().initiator(&name).try_on(scene.server.portal()).err();
        assert!(status.is_some_and(|s| s >> 8 == 2), "{bad:?}: {status:#06x?}");
        let status = Login::new().target(&name).try_on(scene.server.portal()).err();
        assert!(status.is_some_and(|s| s >> 8 == 2), "{bad:?}: {status:#06x?}");
        Login::new().key("InitiatorAlias", &format!("a{bad}b")).try_on(scene.server.portal()).ok();
        let mut raw = Raw::discovery(scene.server.portal(), &[]);
        let text = raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("SendTargets", &name)]);
        if let PduOutcome::Answered(answer) = raw.outcome(&text) {
            assert!(answer.data.iter().all(|b| *b == 0 || (0x20..0x7f).contains(b)), "{answer:?}");
        }
    }
    let log = scene.server.log();
    assert!(log.chars().all(|c| c == '\n' || !c.is_control()), "{log:?}");
    scene.unharmed();
}

/// One address may have 16 of the 21 sessions, so a session that is not released soon causes a failure.
#[test]
fn connect_abort_and_reinstate_storms() {
    let toml = format!("[limits]\nsessions = 21\n{}", config::standard());
    let scene = WatchedServer::new(&toml);
    let portal = scene.server.portal();
    let storm = move |seed: u64| {
        let mut random = Random::new(seed);
        let keys = [("DefaultTime2Wait", "0"), ("DefaultTime2Retain", "0"), ("ImmediateData", "No")];
        let login = Login::new().with(&keys);
        for _ in 0..100 {
            let Ok(mut raw) = login.try_on(portal) else { continue };
            for _ in 0..random.next() % 4 {
                let lun = (random.next() % 3) as u16;
                let command = match random.next() % 3 {
                    0 => raw.command(lun, 0x80 | READ, &read10(0, 64), 32768),
                    1 => raw.command(lun, 0x80 | WRITE, &write10(0, 64), 32768),
                    _ => raw.tmf(2, lun, NONE, 0),
                };
                raw.send(&command);
            }
            match random.next() % 4 {
                0 => raw.cut(),
                1 => drop(raw),
                2 => raw.send_bytes(&[0; 20]),
                _ => drop(login.try_on(portal)),
            }
        }
    };
    let threads: Vec<_> = (1..=4).map(|seed| std::thread::spawn(move || storm(seed * 7919))).collect();
    threads.into_iter().for_each(|t| t.join().expect("a storm"));
    std::thread::sleep(Duration::from_millis(1500));
    let all: Vec<Raw> = (0..15).map(|_| Raw::session(portal, &[])).collect();
    drop(all);
    scene.unharmed();
}

#[test]
fn report_of_any_operation_code_is_valid_or_rejected() {
    let scene = WatchedServer::new(&config::standard());
    let mut raw = scene.session();
    for option in 0..8u8 {
        for opcode in 0..=255u8 {
            for action in [0u16, 1, 0x10, 0x1f, 0xffff] {
                let [high, low] = action.to_be_bytes();
                let cdb = [0xa3, 0x0c, option, opcode, high, low, 0, 0, 4, 0, 0, 0];
                let reply = raw.read(0, &cdb, 1024);
                assert!(reply.status == 0 || reply.sense() == 0x05_2400, "{cdb:02x?}: {reply:?}");
            }
        }
    }
    scene.unharmed();
}

#[test]
fn persistent_reserve_out_with_odd_parameter_lists() {
    let scene = WatchedServer::new(&config::standard());
    let mut raw = scene.session();
    for action in 0..=9u8 {
        for length in (0..40u8).chain([64, 255]) {
            for flags in [0u8, 8, 0xff] {
                let mut list = vec![0xff; length as usize];
                if length > 20 {
                    list[20] = flags;
                }
                let reply = raw.write(1, &[0x5f, action, 0, 0, 0, 0, 0, 0, length, 0], &list);
                assert!(
                    matches!(reply.status, 0 | CONFLICT) || reply.sense() >> 16 == 5,
                    "{action} {length}: {reply:?}"
                );
            }
        }
    }
    scene.unharmed();
}

/// A LUN of each kind, from LUN 3 on.
const KINDS: &str = r#"
[[target.lun]]
lun = 3
backend = "file"
path = "disk.img"
size = "8MiB"
block_size = 4096
[[target.lun]]
lun = 4
backend = "memory"
size = "8MiB"
removable = true
write_cache = false
[[target.lun]]
lun = 5
backend = "memory"
size = "8MiB"
read_only = true
[[target.lun]]
lun = 6
backend = "file"
path = "disc.iso"
kind = "cdrom"
"#;

/// Sends random commands to LUNs of every kind.
#[test]
fn random_commands_are_all_answered() {
    let dir = Folder::fresh();
    fs::write(dir.join("disc.iso"), pattern(1 << 20, 1)).expect("write");
    let scene = WatchedServer::of(Server::start_in(dir, &config::with("", "", KINDS)));
    let keys = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C"), ("MaxRecvDataSegmentLength", "4096")];
    let mut raw = Raw::session(scene.server.portal(), &keys);
    let mut random = Random::new(0x1234_5678_9abc);
    for i in 0..6000 {
        let mut cdb = random.bytes(16);
        cdb[0] = if random.next().is_multiple_of(2) {
            DATA_OUT[random.next() as usize % DATA_OUT.len()].0
        } else {
            cdb[0]
        };
        if random.next().is_multiple_of(2) {
            cdb[2..9].fill(0);
        }
        let flags = [0x80 | READ, 0x80 | WRITE, 0x80][random.next() as usize % 3];
        let expected = if flags == 0x80 { 0 } else { (random.next() % 20_000) as u32 };
        let data = random.bytes(expected as usize);
        let lun = [1, 3, 4, 5, 6, 7][i % 6];
        let command = raw.command(lun, flags, &cdb, expected);
        let now = data.len().min(random.next() as usize % 8192);
        let reply = raw.execute(&command.data(if flags & WRITE != 0 { &data[..now] } else { &[] }), &data);
        assert!(matches!(reply.status, 0 | 2 | 8 | CONFLICT | 0x28 | 0x30), "{cdb:02x?}: {reply:?}");
        assert!(reply.status != 2 || reply.sense() != 0, "{cdb:02x?}: {reply:?}");
    }
    scene.unharmed();
}

/// In full feature phase, each response is well formed, or the connection ends.
#[test]
fn random_headers_leave_the_server_unharmed() {
    let scene = WatchedServer::new(&config::standard());
    let mut random = Random::new(0xfeed_beef);
    for _ in 0..300 {
        let mut raw = Login::new().on(scene.server.portal());
        for _ in 0..20 {
            let mut pdu = Pdu::new(0).bytes(0, &random.bytes(48)).lun(1);
            pdu.bhs[0] =
                [0x00, 0x40, 0x01, 0x41, 0x42, 0x04, 0x05, 0x10, 0x43, 0x06][random.next() as usize % 10];
            if pdu.opcode() == op::TMF && pdu.bhs[1] & 0x7f == 7 {
                pdu.bhs[1] = 6;
            }
            if random.next().is_multiple_of(2) {
                pdu = pdu.cmd_sn(raw.cmd_sn).itt(raw.new_itt());
            }
            let data = random.next() as usize % 600;
            raw.send(&pdu.data(&random.bytes(data)));
        }
        while let Received::Pdu(_) = raw.get(Duration::from_millis(2)) {}
    }
    scene.unharmed();
}

/// A client that sends many reads and receives no data holds only its share of memory, and delays no other client.
#[test]
fn client_that_reads_nothing_harms_no_other() {
    let scene = WatchedServer::new(&format!("[limits]\nmemory = \"40MiB\"\n{}", config::standard()));
    let mut greedy: Vec<Raw> = (0..4).map(|_| scene.session()).collect();
    for raw in &mut greedy {
        let reads: Vec<Pdu> =
            (0..100).map(|_| raw.command(0, 0x80 | READ, &read10(0, 2048), 1 << 20)).collect();
        raw.send_all(&reads);
    }
    std::thread::sleep(Duration::from_millis(300));
    let mut other = scene.session();
    for _ in 0..20 {
        other.write_blocks(0, 20_000, &pattern(65536, 3)).good();
        assert!(other.read_blocks(0, 20_000, 128) == pattern(65536, 3));
    }
    drop(greedy);
    other.ping();
    scene.unharmed();
}

/// A client that sends many writes without data holds only its share of memory, and delays no other client.
#[test]
fn client_that_writes_nothing_harms_no_other() {
    let scene = WatchedServer::new(&format!("[limits]\nmemory = \"40MiB\"\n{}", config::standard()));
    let mut silent: Vec<Raw> = (0..4).map(|_| scene.session()).collect();
    for raw in &mut silent {
        let writes: Vec<Pdu> =
            (0..100).map(|_| raw.command(0, 0x80 | WRITE, &write10(0, 2048), 1 << 20)).collect();
        raw.send_all(&writes);
    }
    std::thread::sleep(Duration::from_millis(300));
    let mut other = scene.session();
    for _ in 0..20 {
        other.write_blocks(0, 20_000, &pattern(65536, 3)).good();
        assert!(other.read_blocks(0, 20_000, 128) == pattern(65536, 3));
    }
    drop(silent);
    other.ping();
    scene.unharmed();
}

/// The server limits the number and time of connections that do not log in, and existing sessions are not disturbed.
#[test]
fn connections_that_never_log_in() {
    let limits = "[limits]\nconnections_before_login = 16\nlogin_timeout_s = 1\n";
    let scene = WatchedServer::new(&format!("{limits}{}", config::standard()));
    let mut idle: Vec<Raw> = (0..100).map(|_| Raw::connect(scene.server.portal())).collect();
    idle.iter_mut().for_each(|raw| assert!(raw.until_close().is_empty()));
    scene.session().ping();
    scene.unharmed();
}

/// EXTENDED COPY does not read a logical unit that its initiator has no access to.
#[test]
fn extended_copy_stays_within_the_access_list() {
    let access = "[[target.access]]\ninitiators = [\"*masked\"]\nluns = [0]\n[[target.access]]\ninitiators = [\"*\"]\n";
    let mut scene = WatchedServer::new(&config::with("", "", access));
    let mut masked = Login::new().initiator(&format!("{INITIATOR}.masked")).on(scene.server.portal());
    masked.clear_attentions(0);
    scene.neighbour.clear_attentions(2);
    scene.neighbour.write_blocks(2, 0, &[0x5e; 512]).good();
    let (hidden, seen) = (designator(&mut scene.neighbour, 2), designator(&mut scene.neighbour, 0));
    let copy = |raw: &mut Raw| {
        let (cdb, list) = extended_copy(&hidden, &seen, 1);
        raw.write(0, &cdb, &list)
    };
    let refused = copy(&mut masked);
    assert_eq!(refused.status, 2);
    assert!(matches!(refused.sense() >> 16, 5 | 0x0a), "{:06x}", sense(&refused.sense));
    assert_ne!(masked.read_blocks(0, 9, 1), [0x5e; 512]);
    copy(&mut scene.neighbour).good();
    assert_eq!(
        scene.neighbour.read_blocks(0, 9, 1),
        [0x5e; 512],
        "an initiator with access to both can copy"
    );
    scene.unharmed();
}

#[test]
fn admin_socket_is_private() {
    let server = Server::start(&config::standard());
    let mode = fs::metadata(server.dir().join("admin.sock")).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
