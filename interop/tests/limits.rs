//! Limits of the process, and floods: file descriptors, file sizes, log lines, abandoned connections.

use interop::scsi::{WRITE, reserve_out, write10};
use interop::{Login, Raw, Received, Server, config};
use std::fs;
use std::time::{Duration, Instant};

const APTPL: u8 = 1;

fn login(last: u8) -> Login {
    Login::new().isid([0x80, 0, 0, 3, 0, last])
}

/// Logs in. None: the login failed, or the target closed the connection.
fn try_login(server: &Server, login: &Login) -> Option<Raw> {
    let mut raw = Raw::connect(server.portal());
    raw.send(&login.request(1, Some(3)));
    matches!(raw.get(Duration::from_secs(20)), Received::Pdu(pdu) if pdu.bhs[36] == 0).then_some(raw)
}

/// The soft and the hard limit on open files.
fn open_files(server: &Server) -> (String, String) {
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("the server lives");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("Linux has it");
    let mut words = line.split_whitespace().skip(3).map(str::to_owned);
    (words.next().expect("soft"), words.next().expect("hard"))
}

#[test]
fn soft_limit_on_open_files_is_raised() {
    let server = Server::start_by_shell(&config::standard(), "ulimit -Sn 256; ulimit -Hn 2000", "");
    assert_eq!(open_files(&server), ("2000".into(), "2000".into()));
    assert!(
        server.log().contains("`connections` of [limits] exceeds the limit of this process on open files"),
        "{}",
        server.log()
    );
}

/// Connections leave descriptors for state files, and the log has no line for each connection.
#[test]
fn connections_leave_descriptors_for_state_files() {
    let limits = "[limits]\nconnections = 500\nconnections_before_login = 500\n";
    let mut server = Server::start_by_shell(&config::with("", "", limits), "ulimit -n 128", "");
    let mut raw = login(1).on(server.portal());
    raw.clear_attentions(0);
    let crowd: Vec<Raw> = (0..300).map(|_| Raw::connect(server.portal())).collect();
    reserve_out(&mut raw, 0, 0, 0, 0, 0xabc, APTPL).good();
    assert!(server.lives());
    assert!(server.log().lines().count() < 50, "{}", server.log());
    drop(crowd);
    let end = Instant::now() + Duration::from_secs(20);
    while try_login(&server, &login(2)).is_none() {
        assert!(Instant::now() < end, "{}", server.log());
    }
}

/// `connections` exceeds the number of descriptors. One address then gets only its share of the descriptors.
#[test]
fn address_leaves_descriptors_for_others() {
    let limits = "[limits]\nconnections = 4096\nconnections_before_login = 4096\n";
    let server = Server::start_by_shell(&config::with("", "", limits), "ulimit -n 256", "");
    let crowd: Vec<Raw> = (0..300).map(|_| Raw::connect(server.portal())).collect();
    let closed = "the limit of this process on open files, or the share";
    interop::routed::until("the log", || server.log().contains(closed).then_some(()));
    login(1).source([127, 0, 0, 2].into()).on(server.portal()).ping();
    drop(crowd);
}

/// The fault is the server's, so the log reports it once, however many clients it affects.
#[test]
fn log_has_one_line_when_descriptors_run_out() {
    let limits = "[limits]\nconnections = 500\nconnections_before_login = 500\n";
    let mut server = Server::start_by_shell(&config::with("", "", limits), "ulimit -n 80", "");
    let from = |last: u8| Raw::connect_from([127, 0, 1, last].into(), server.portal());
    let crowd: Vec<_> = (1..=200).map(from).collect();
    let end = Instant::now() + Duration::from_secs(20);
    while !server.log().contains("new connections are closed") {
        assert!(Instant::now() < end, "{}", server.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(crowd);
    while try_login(&server, &login(1)).is_none() {
        assert!(Instant::now() < end, "{}", server.log());
    }
    let log = server.log();
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains("the limit of this process on open files, or the share"))
        .collect();
    assert_eq!(lines.iter().filter(|line| line.contains("new connections are closed")).count(), 1, "{log}");
    assert!(lines.iter().all(|line| line.contains("WARN")), "{log}");
    assert!(server.lives());
}

/// A disk of 64 MiB, for a process whose files may have 4 MiB.
const DISK: &str = "[[target.lun]]\nlun = 7\nbackend = \"file\"\npath = \"disk.img\"\n";
const SPACE_ALLOCATION_FAILED: u32 = 0x07_27_07;

#[test]
fn write_beyond_rlimit_fsize_fails_alone() {
    let limited = "truncate -s 64M \"${1%/*}/disk.img\"; ulimit -f 8192";
    let mut server = Server::start_by_shell(&config::with("", "", DISK), limited, "2>/dev/null");
    let mut raw = login(1).on(server.portal());
    [0, 7].into_iter().for_each(|lun| raw.clear_attentions(lun));
    raw.write_blocks(7, 0, &[7; 4096]).good();
    raw.write_blocks(7, (16 << 20) / 512, &[7; 4096]).check(SPACE_ALLOCATION_FAILED);
    raw.write_blocks(7, (16 << 20) / 512, &[7; 1 << 20]).check(SPACE_ALLOCATION_FAILED);
    raw.write_blocks(0, 0, &[7; 4096]).good();
    assert_eq!(raw.read_blocks(7, 0, 1), [7; 512]);
    assert!(server.lives());
}

/// The process may not write a byte to a file, so it cannot save state.
#[test]
fn state_beyond_rlimit_fsize_fails_one_command() {
    let mut server = Server::start_by_shell(&config::standard(), "ulimit -f 0", "2>/dev/null");
    let mut raw = login(1).on(server.portal());
    raw.clear_attentions(0);
    reserve_out(&mut raw, 0, 0, 0, 0, 0xabc, APTPL).check(0x04_44_00);
    raw.write_blocks(0, 0, &[7; 512]).good();
    assert!(server.lives());
}

#[test]
fn login_flood_logs_few_lines_and_a_count() {
    let server = Server::start(&config::standard());
    for n in 0..60 {
        let mut raw = login(n).on(server.portal());
        raw.logout(0, 0);
        raw.expect_close();
    }
    for what in ["logged in", "session ended"] {
        let lines = server.log().matches(what).count();
        assert!((1..=30).contains(&lines), "{lines} lines of \"{what}\" for 60 sessions");
    }
}

/// While the server is stopped, many clients connect and disconnect. One that stayed must be served.
#[test]
fn already_closed_connections_take_no_entry() {
    let limits = "[limits]\nconnections_before_login = 2\n[server]\ncores = 1\n";
    let server = Server::start(&config::with("", "", limits));
    server.pause();
    let crowd: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(server.portal())).collect();
    drop(crowd);
    let stays = std::thread::scope(|scope| {
        let waits = scope.spawn(|| try_login(&server, &login(1)).is_some());
        // Once the kernel has established its connection, it is queued behind the others.
        while established(&server) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        server.resume();
        waits.join().expect("the thread does not panic")
    });
    assert!(stays, "{}", server.log());
}

/// Established connections of the server's portal.
fn established(server: &Server) -> usize {
    let port = format!(":{:04X}", server.portal().port());
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let is_open = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("01")
    };
    table.lines().filter(is_open).count()
}

/// A login waits for the end of the session that it replaces, and its client disconnects meanwhile.
#[test]
fn waiting_login_ends_with_its_connection() {
    let slow = "[[target.lun]]\nlun = 3\nbackend = \"memory\"\nsize = \"1MiB\"\n\
         filters = [{ kind = \"delay\", write_us = 10000000 }]\n[limits]\nconnections_before_login = 1\n";
    let server = Server::start(&config::with("", "", slow));
    let mut old = login(1).on(server.portal());
    old.clear_attentions(3);
    let write = old.command(3, 0x80 | WRITE, &write10(0, 1), 512).data(&[7; 512]);
    old.send(&write);
    old.ping();
    let mut replaces = Raw::connect(server.portal());
    replaces.send(&login(1).request(1, Some(3)));
    while !server.log().contains("the initiator logged in again") {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(replaces);
    let mut next = try_login(&server, &login(2));
    while next.is_none() {
        next = try_login(&server, &login(2));
    }
    assert!(
        !matches!(old.get(Duration::from_millis(1)), Received::Closed),
        "the old session has ended first"
    );
}

/// Memory may hold secrets.
#[test]
fn core_dump_contains_no_memory() {
    let server = Server::start_by_shell(&config::standard(), "ulimit -c unlimited 2>/dev/null", "");
    let of =
        |file: &str| fs::read_to_string(format!("/proc/{}/{file}", server.pid())).expect("the server lives");
    let limits = of("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("Linux has it");
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    assert_eq!(of("coredump_filter").trim().trim_start_matches('0'), "");
}
