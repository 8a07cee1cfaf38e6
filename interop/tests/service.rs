//! A server under a service manager: its reports, and its sockets over a restart.

use interop::scsi::{reserve_out, write10};
use interop::service_manager::ServiceManager;
use interop::stopped_thread::StoppedThread;
use interop::{Login, Raw, Server, TARGET, lunar_bin, ports};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

const TERM: i32 = 15;
const HUP: i32 = 1;
const RESERVATION_CONFLICT: u8 = 0x18;

fn toml(portal: &str, luns: u16) -> String {
    let luns: String = (0..luns)
        .map(|lun| format!("[[target.lun]]\nlun = {lun}\nbackend = \"null\"\nsize = \"1G\"\n"))
        .collect();
    format!("[[portal_group]]\ntag = 1\nportals = [\"{portal}\"]\n[[target]]\nname = \"{TARGET}\"\n{luns}")
}

fn end(mut server: Server) -> String {
    server.signal(TERM);
    assert!(server.wait(Duration::from_secs(60)).success(), "{}", server.log());
    server.log()
}

/// Waits until the last holder has closed the socket. A process of another test may have it until its exec.
fn assert_closed(address: SocketAddr) {
    let end = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < end, "the socket at {address} stays open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn service_manager_learns_state_and_status() {
    let manager = ServiceManager::start();
    let mut server = manager.server(&toml("127.0.0.1:0", 2), &[], "");
    manager.until("STATUS=1 target, 2 LUNs, 0 sessions");
    manager.until("READY=1");
    let host = Login::new().on(server.portal());
    manager.until("STATUS=1 target, 2 LUNs, 1 session");
    server.rewrite(&toml("127.0.0.1:0", 3));
    server.signal(HUP);
    let reloading = manager.until("RELOADING=1");
    assert!(reloading.value("MONOTONIC_USEC").is_some_and(|time| time.parse::<u64>().is_ok()));
    manager.until("STATUS=1 target, 3 LUNs, 1 session");
    manager.until("READY=1");
    drop(host);
    server.signal(TERM);
    let stopping = manager.until("STOPPING=1");
    assert!(stopping.value("STATUS").is_some_and(|status| status.starts_with("stopping: ")), "{stopping:?}");
    assert!(server.wait(Duration::from_secs(60)).success());
}

#[test]
fn watchdog_hears_of_running_loops() {
    let manager = ServiceManager::start();
    let server = manager.server(&toml("127.0.0.1:0", 1), &[], "WATCHDOG_USEC=300000");
    for _ in 0..3 {
        manager.until("WATCHDOG=1");
    }
    server.pause();
    // Messages from before may still be on their way.
    assert!((0..100).any(|_| manager.next_within(Duration::from_millis(500)).is_none()));
    server.resume();
    manager.until("WATCHDOG=1");
    end(server);
}

/// A main thread that hangs in a reload leaves hosts alone for a while.
#[test]
fn watchdog_hears_of_a_main_thread_that_hangs() {
    let manager = ServiceManager::start();
    let server = manager.server(&toml("127.0.0.1:0", 1), &[], "WATCHDOG_USEC=300000");
    let mut host = Login::new().on(server.portal());
    manager.until("WATCHDOG=1");
    let main = i32::try_from(server.pid()).expect("a number");
    let held = match StoppedThread::hold(main) {
        Ok(held) => held,
        Err(why) => return println!("skipped: {why}"),
    };
    manager.until("WATCHDOG=1");
    assert!((0..100).any(|_| manager.next_within(Duration::from_secs(1)).is_none()));
    host.ping();
    assert!(server.log().contains("the watchdog gets no signs of life"), "{}", server.log());
    held.resume();
    manager.until("WATCHDOG=1");
    end(server);
}

#[test]
fn stored_socket_stays_open_over_a_restart() {
    let manager = ServiceManager::start();
    let portal = format!("127.0.0.1:{}", ports::free());
    let server = manager.server(&toml(&portal, 1), &[], "");
    let mut stored = manager.until("FDSTORE=1");
    let name = format!("kept-{}", portal.replace(':', "-"));
    assert_eq!((stored.value("FDNAME"), stored.fds.len()), (Some(name.as_str()), 1));
    let socket = stored.fds.remove(0);
    let address = server.portal();
    end(server);
    // No server runs, and the connection waits in the backlog.
    let login = Login::new();
    let mut waiting = login.connect(address);
    let server = manager.server(&toml(&portal, 1), &[(&name, &socket)], "");
    assert_eq!(server.portal(), address);
    drop(socket);
    login.finish(&mut waiting, login.request(1, Some(3))).expect("the new server answers");
    assert!(server.log().contains(&format!("listening socket \"{name}\" of the service manager used")));
    // The socket is stored again, for the next process.
    assert_eq!(manager.until("FDSTORE=1").value("FDNAME"), Some(name.as_str()));
    end(server);
    assert_closed(address);
}

#[test]
fn store_follows_portals_that_come_and_go() {
    let manager = ServiceManager::start();
    let [one, two] = [(); 2].map(|()| format!("127.0.0.1:{}", ports::free()));
    let server = manager.server(&toml(&one, 1), &[], "");
    let name = |portal: &str| format!("kept-{}", portal.replace(':', "-"));
    assert_eq!(manager.until("FDSTORE=1").value("FDNAME"), Some(name(&one).as_str()));
    manager.until("READY=1");
    server.said(&["portal", "add", "2", &two]);
    // The sockets that stay are stored again, which has no effect.
    let stored = [(); 2].map(|()| manager.until("FDSTORE=1"));
    let mut stored = stored.into_iter().find(|one| one.value("FDNAME") == Some(&name(&two))).expect("stored");
    server.said(&["portal", "remove", "2"]);
    assert_eq!(manager.until("FDSTOREREMOVE=1").value("FDNAME"), Some(name(&two).as_str()));
    // The service manager has the socket too, and would keep it open.
    let socket = TcpListener::from(stored.fds.remove(0));
    let error = TcpStream::connect(&two).expect_err("the socket is closed");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    drop(socket);
    Login::new().on(server.portal());
    end(server);
}

#[test]
fn socket_of_a_unit_outlives_its_portal() {
    let manager = ServiceManager::start();
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address").to_string();
    let first = format!("127.0.0.1:{}", ports::free());
    let both = format!("{}[[portal_group]]\ntag = 2\nportals = [\"{address}\"]\n", toml(&first, 1));
    let unit = OwnedFd::from(socket);
    let mut server = manager.server(&both, &[("lunar.socket", &unit)], "");
    server.rewrite(&toml(&first, 1));
    server.said(&["reload"]);
    let warning = format!("the service manager listens at {address}, where no portal is now");
    assert!(server.log().contains(&warning), "{}", server.log());
    server.rewrite(&both);
    server.said(&["reload"]);
    Login::new().on(address.parse().expect("an address"));
    end(server);
}

#[test]
fn reservation_without_aptpl_survives_a_restart() {
    let manager = ServiceManager::start();
    let server = manager.server(&toml("127.0.0.1:0", 1), &[], "");
    manager.until("READY=1");
    let mut host = Raw::session(server.portal(), &[]);
    host.clear_attentions(0);
    reserve_out(&mut host, 0, 0, 0, 0, 7, 0).good();
    reserve_out(&mut host, 0, 1, 1, 7, 0, 0).good();
    drop(host);
    let stop = end(server);
    let mut handed = manager.until("FDNAME=state");
    assert!(handed.has("FDSTORE=1"), "{handed:?} {stop}");
    let state = handed.fds.remove(0);

    let faulty = toml("127.0.0.1:0", 1).replace("[[target]]", "[[tarjet]]");
    let fault = manager.try_server(&faulty, &[("state", &state)], "").err().expect("a fault");
    assert!(fault.contains("tarjet"), "{fault}");
    let server = manager.server(&toml("127.0.0.1:0", 1), &[("state", &state)], "");
    let messages = std::iter::from_fn(|| manager.next_within(Duration::from_secs(60)));
    let messages: Vec<_> = messages.take_while(|message| !message.has("READY=1")).collect();
    let removals = messages.iter().filter(|message| message.has("FDSTOREREMOVE=1"));
    assert_eq!(removals.count(), 1, "by the process that serves: {messages:?}");
    let mut other = Raw::session(server.portal(), &[("InitiatorName", "iqn.2026-11.org.example:other")]);
    other.clear_attentions(0);
    let keys = other.read(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], 255).good();
    assert_eq!(keys[8..], 7u64.to_be_bytes(), "the registration");
    let write = other.write(0, &write10(0, 1), &[0; 512]);
    assert_eq!(write.status, RESERVATION_CONFLICT);
    assert!(end(server).contains("state of the earlier process taken over"));
}

#[test]
fn descriptor_without_a_portal_is_closed_and_forgotten() {
    let manager = ServiceManager::start();
    let stale = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = stale.local_addr().expect("an address");
    let (stale, null) =
        (OwnedFd::from(stale), OwnedFd::from(std::fs::File::open("/dev/null").expect("null")));
    let passed = [("kept-192.0.2.1-3260", &stale), ("null", &null)];
    let server = manager.server(&toml("127.0.0.1:0", 1), &passed, "");
    let forgotten = manager.until("FDSTOREREMOVE=1");
    assert_eq!(forgotten.value("FDNAME"), Some("kept-192.0.2.1-3260"));
    drop((stale, null));
    assert_closed(address);
    let log = end(server);
    assert!(log.contains(&format!(
        "\"kept-192.0.2.1-3260\" of the service manager closed: no portal is at {address}"
    )));
    assert!(log.contains("\"null\" of the service manager closed: it is no listening TCP socket"), "{log}");
}

#[test]
fn socket_of_a_unit_is_used_and_not_stored() {
    let manager = ServiceManager::start();
    let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address: SocketAddr = socket.local_addr().expect("an address");
    let socket = OwnedFd::from(socket);
    let server = manager.server(&toml(&address.to_string(), 1), &[("lunar.socket", &socket)], "");
    Login::new().on(server.portal());
    manager.until("READY=1");
    let after = end(server);
    assert!(after.contains("listening socket \"lunar.socket\" of the service manager used"), "{after}");
    while let Some(message) = manager.next_within(Duration::from_millis(10)) {
        assert!(!message.has("FDSTORE=1"), "the unit keeps its socket: {message:?}");
    }
}

#[test]
fn wrong_names_of_descriptors_are_logged_and_ignored() {
    let manager = ServiceManager::start();
    let socket = OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a socket"));
    let server = manager.server(&toml("127.0.0.1:0", 1), &[("a:b", &socket)], "");
    Login::new().on(server.portal());
    let log = end(server);
    assert!(
        log.contains("cannot take the sockets of the service manager: invalid LISTEN_FDNAMES; hint: "),
        "{log}"
    );
}

#[test]
fn captive_command_inherits_nothing_of_the_manager() {
    let script = "exec 3</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=x WATCHDOG_USEC=1000000; \
                  exec \"$0\" serve --listen 127.0.0.1:0 memory:1M --run 'env; ls /proc/self/fd/3'";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]).arg(lunar_bin()).env("NOTIFY_SOCKET", "/nonexistent/notify");
    let ran = interop::tool::run(&mut shell, Duration::from_secs(60));
    assert!(ran.said.contains("LUNAR_URL="), "{}", ran.said);
    for name in ["NOTIFY_SOCKET=", "WATCHDOG_USEC=", "LISTEN_"] {
        assert!(!ran.said.lines().any(|line| line.starts_with(name)), "{name}: {}", ran.said);
    }
    assert!(ran.said.contains("cannot notify the service manager at NOTIFY_SOCKET"), "{}", ran.said);
    assert!(ran.said.contains("\"x\" of the service manager closed"), "{}", ran.said);
}
