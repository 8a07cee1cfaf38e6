//! Upstreams at NVMe subsystems: iSCSI faces of namespaces.

use crate::*;
use interop::Relay;
use interop::scsi::{pattern, read10};
use std::thread::sleep;

/// The subsystem of the storage.
const NQN: &str = "nqn.2026-11.org.example:disks";
/// The last block of 8 MiB and of 16 MiB.
const BLOCKS_8M: u32 = 16383;
const BLOCKS_16M: u32 = 32767;

/// A namespace of 8 MiB in a file. `serial` makes its identity.
fn namespace(nsid: u16, name: &str) -> String {
    format!(
        "[[subsystem.namespace]]\nnsid = {nsid}\nbackend = \"file\"\npath = \"{name}.img\"\nsize = \"8MiB\"\nserial = \"{name}\"\n"
    )
}

fn storage_text(namespaces: &str) -> String {
    format!(
        "[[portal_group]]\ntag = 1\nportals = [{{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}]\n\
         [[subsystem]]\nnqn = \"{NQN}\"\n{namespaces}"
    )
}

fn nvme_storage(namespaces: &str) -> Server {
    Server::start(&storage_text(namespaces))
}

fn at(portal: SocketAddr, rest: &str) -> String {
    format!("nvme://{portal}/{NQN}{rest}")
}

/// The last block address (READ CAPACITY), or None with the sense of the reply.
fn last_block(raw: &mut Raw, lun: u16) -> Option<u32> {
    let reply = raw.read(lun, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8);
    (reply.status == 0).then(|| u32::from_be_bytes(reply.data[..4].try_into().expect("4 bytes")))
}

/// The sense data of a read of the first blocks; 0 if it succeeds. Unit attentions are cleared.
fn read_sense(raw: &mut Raw) -> u32 {
    loop {
        let reply = raw.read(0, &read10(0, 8), 4096);
        match reply.status {
            0 => return 0,
            _ if reply.sense() >> 16 == 6 => {}
            _ => return reply.sense(),
        }
    }
}

fn health(router: &Server) -> Value {
    r1(router)["targets"][0]["luns"][0]["health"].clone()
}

#[test]
fn namespaces_are_luns_of_an_iscsi_target() {
    let storage = nvme_storage(&(namespace(1, "n1") + &namespace(4, "n4")));
    let upstreams =
        upstream("all", &at(storage.portal(), ""), "") + &upstream("one", &at(storage.portal(), "/4"), "");
    let luns = "lun = [{ lun = 7, upstream = \"one\" }]";
    let maps = map_target(T, "all") + &map(&format!("map = \"lun\"\nname = \"{U}\"\n{luns}"));
    let router = Server::start(&router_text("", &(upstreams + &maps)));
    let mut raw = session(router.portal(), T, &[0, 3]);
    raw.write_blocks(0, 8, &pattern(4096, 1)).good();
    raw.write_blocks(3, 16, &pattern(1 << 20, 4)).good();
    let file = |name: &str| std::fs::read(storage.dir().join(name)).expect("the medium");
    raw.simple(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]).good();
    raw.simple(3, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]).good();
    assert!(file("n1.img")[4096..8192] == pattern(4096, 1));
    assert!(file("n4.img")[8192..8192 + (1 << 20)] == pattern(1 << 20, 4));
    assert_eq!([last_block(&mut raw, 0), last_block(&mut raw, 3)], [Some(BLOCKS_8M); 2]);
    let mut one = session(router.portal(), U, &[7]);
    assert!(one.read_blocks(7, 16, 2048) == pattern(1 << 20, 4), "both LUNs are one namespace");
    assert_eq!(serial(&mut one, 7), serial(&mut raw, 3));
    assert_ne!(serial(&mut raw, 0), serial(&mut raw, 3));
    let standard = raw.read(0, &inquiry(None, 96), 96).good();
    assert_eq!(&standard[8..21], b"NVMe    Lunar");
    let show = router.said(&["router", "paths", "r1"]);
    assert!(
        show.contains(&at(storage.portal(), "/1")) && show.contains(&at(storage.portal(), "/4")),
        "{show}"
    );
    for nsid in [1, 4] {
        assert!(show.contains(&format!(" {NQN}/{nsid} ")), "the namespace, not its LUN here: {show}");
    }
    let luns = router.said(&["router", "show", "r1"]);
    assert!(luns.contains(&format!("LUN 3: router r1, upstream all, namespace 4 of {NQN} (up)\n")), "{luns}");
    let stats = router.said(&["router", "stats", "r1"]);
    assert!(stats.contains("upstream"), "{stats}");
}

#[test]
fn identity_of_a_namespace_survives_restarts() {
    let mut storage = nvme_storage(&namespace(1, "n1"));
    let mut router = router_to(&at(storage.portal(), ""), "");
    let page = |router: &Server| {
        let mut raw = session(router.portal(), T, &[0]);
        raw.read(0, &inquiry(Some(0x83), 1024), 1024).good()
    };
    let before = page(&router);
    // EUI-64 with 16 bytes (NGUID), and UUID, both of the logical unit.
    assert_eq!((&before[4..8], &before[24..28]), (&[1, 2, 0, 16][..], &[1, 10, 0, 18][..]), "{before:x?}");
    storage.restart();
    router.restart();
    assert!(page(&router) == before);
}

#[test]
fn resized_namespace_is_seen_by_hosts() {
    let storage = nvme_storage(&namespace(1, "n1"));
    let router = router_to(&at(storage.portal(), ""), "");
    let mut hosts = [(); 2].map(|()| session(router.portal(), T, &[0]));
    hosts[0].write_blocks(0, 16, &pattern(4096, 5)).good();
    let file = std::fs::File::options().write(true).open(storage.dir().join("n1.img")).expect("the medium");
    file.set_len(16 << 20).expect("a larger medium");
    for raw in &mut hosts {
        until("the capacity grows", || {
            // A command makes the storage look at the size of its file.
            raw.read(0, &read10(0, 1), 512);
            last_block(raw, 0).filter(|last| *last == BLOCKS_16M)
        });
    }
    hosts[1].write_blocks(0, BLOCKS_16M - 7, &pattern(4096, 6)).good();
    assert!(hosts[0].read_blocks(0, BLOCKS_16M - 7, 8) == pattern(4096, 6));
}

#[test]
fn namespaces_come_and_go() {
    let mut storage = nvme_storage(&namespace(1, "n1"));
    let router = router_to(&at(storage.portal(), ""), "");
    let mut raw = session(router.portal(), T, &[0]);
    raw.write_blocks(0, 0, &pattern(512, 1)).good();
    storage.rewrite(&storage_text(&(namespace(1, "n1") + &namespace(2, "n2"))));
    storage.signal(1);
    until("the new namespace", || {
        raw.clear_attentions(0);
        (raw.luns() == [0, 1]).then_some(())
    });
    raw.clear_attentions(1);
    raw.write_blocks(1, 0, &pattern(512, 2)).good();
    assert!(raw.read_blocks(0, 0, 1) == pattern(512, 1));
}

#[test]
fn outage_of_nvme_storage_within_the_time_limit_is_hidden() {
    let mut storage = nvme_storage(&namespace(1, "n1"));
    let router = router_to(&at(storage.portal(), ""), "");
    faults::under_writes(&router, || {
        for away in [0, 1500] {
            storage.kill9();
            sleep(Duration::from_millis(away));
            storage.restart();
            faults::await_writes(&router, 200);
        }
    });
    assert!(!router.log().contains("commands fail"), "{}", router.log());
}

#[test]
fn loss_of_one_of_two_nvme_paths_is_hidden() {
    let storage = nvme_storage(&namespace(1, "n1"));
    let relays = [(); 2].map(|()| Relay::to(storage.portal()));
    let [first, second] = [0, 1].map(|n: usize| at(relays[n].address(), ""));
    let urls = format!("[router.r1.upstream.a]\nurls = [\"{first}\", \"{second}\"]\n");
    let router = Server::start(&router_text("", &(urls + &map_target(T, "a"))));
    faults::under_writes(&router, || {
        for relay in [&relays[0], &relays[1], &relays[0]] {
            relay.cut();
            faults::await_writes(&router, 200);
            relay.restore();
            until("the path is back", || (!faults::has_path_that_is_down(&router)).then_some(()));
        }
    });
    assert!(!router.log().contains("no path to the upstream LUN"), "{}", router.log());
}

#[test]
fn lost_nvme_storage_fails_commands_until_it_is_back() {
    let mut storage = nvme_storage(&namespace(1, "n1"));
    let router = router_to(&at(storage.portal(), ""), "path_loss_timeout_s = 2\n");
    let mut raw = session(router.portal(), T, &[0]);
    raw.write_blocks(0, 0, &pattern(4096, 3)).good();
    assert_eq!(health(&router), "up");
    storage.kill9();
    until("commands wait", || (health(&router) == "holding").then_some(()));
    until("commands fail", || (health(&router) == "lost").then_some(()));
    assert_eq!(read_sense(&mut raw), TRANSITION);
    assert_eq!(r1(&router)["state"], "no path");
    storage.restart();
    until("it is served again", || (read_sense(&mut raw) == 0).then_some(()));
    until("it is up", || (health(&router) == "up").then_some(()));
    assert!(raw.read_blocks(0, 0, 8) == pattern(4096, 3));
}

#[test]
fn another_namespace_in_its_place_gets_no_commands() {
    let mut storage = nvme_storage(&namespace(1, "first"));
    let router = router_to(&at(storage.portal(), ""), "");
    let mut raw = session(router.portal(), T, &[0]);
    raw.write_blocks(0, 0, &pattern(4096, 4)).good();
    // Once while the storage is away, and once by a reload of its configuration.
    for restarts in [true, false] {
        for (name, is_other) in [("second", true), ("first", false)] {
            storage.rewrite(&storage_text(&namespace(1, name)));
            if restarts {
                storage.restart()
            } else {
                storage.signal(1)
            }
            let case = format!("{name}, after a restart: {restarts}");
            if !is_other {
                until(&case, || (read_sense(&mut raw) == 0).then_some(()));
                continue;
            }
            until(&case, || (health(&router) == "another").then_some(()));
            // NOT READY, whatever the reason: the port is unavailable, or an administrator must help.
            assert_eq!(read_sense(&mut raw) >> 16, 2, "{case}");
            assert!(raw.write_blocks(0, 0, &[1; 4096]).status != 0, "the write reached the wrong namespace");
        }
    }
    let second = std::fs::read(storage.dir().join("second.img")).expect("the other medium");
    assert!(second.iter().all(|byte| *byte == 0), "the other namespace was written");
    assert!(router.log().contains("the path leads to another logical unit"), "{}", router.log());
    assert!(raw.read_blocks(0, 0, 8) == pattern(4096, 4));
}

#[test]
fn unreachable_subsystem_is_awaited() {
    let mut storage = nvme_storage(&namespace(1, "n1"));
    storage.kill9();
    let one = format!("map = \"lun\"\nname = \"{T}\"\nlun = [{{ lun = 0, upstream = \"a\" }}]");
    let text = upstream("a", &at(storage.portal(), "/1"), "") + &map(&one);
    let router = Server::start(&router_text("", &text));
    until("the reason in the log", || router.log().contains("cannot probe the upstream").then_some(()));
    assert_eq!(health(&router), "awaited");
    storage.restart();
    let mut raw = session(router.portal(), T, &[0]);
    until("it is written", || (raw.write_blocks(0, 0, &pattern(512, 9)).status == 0).then_some(()));
}
