//! Mappings of upstream LUNs to targets.

use crate::*;
use interop::scsi::{pattern, read10};

#[test]
fn three_mappings_lead_to_the_same_disks() {
    let storage = storage();
    let upstreams = upstream("portal", &url(&storage, ""), "")
        + &upstream("a", &url(&storage, &format!("/{A}")), "")
        + &upstream("b1", &url(&storage, &format!("/{B}/1")), "");
    let luns = "lun = [{ lun = 5, upstream = \"a\", from = 3 }, { lun = 0, upstream = \"b1\" }]";
    let maps = map("map = \"transparent\"\nupstream = \"portal\"")
        + &map_target(T, "a")
        + &map(&format!("map = \"lun\"\nname = \"{U}\"\n{luns}"));
    let router = Server::start(&router_text("", &(upstreams + &maps)));
    let seen: [(&str, &[(u16, &str)]); 4] = [
        (A, &[(0, "a0"), (3, "a3")]),
        (B, &[(1, "b1")]),
        (T, &[(0, "a0"), (3, "a3")]),
        (U, &[(0, "b1"), (5, "a3")]),
    ];
    for (name, disks) in seen {
        let numbers: Vec<u16> = disks.iter().map(|(lun, _)| *lun).collect();
        let mut raw = session(router.portal(), name, &numbers);
        for (lun, expected) in disks {
            assert_eq!(serial(&mut raw, *lun), *expected, "LUN {lun} of {name}");
        }
    }
    session(router.portal(), U, &[0, 5]).write_blocks(5, 8, &pattern(4096, 1)).good();
    for (portal, name) in [(storage.portal(), A), (router.portal(), A), (router.portal(), T)] {
        let mut raw = session(portal, name, &[0, 3]);
        assert!(raw.read_blocks(3, 8, 8) == pattern(4096, 1), "{name} at {portal}");
        assert!(raw.read_blocks(0, 8, 8) == [0; 4096], "{name} at {portal}");
    }
    let mut discovery = Raw::discovery(router.portal(), &[]);
    let pairs = discovery.text(&[("SendTargets", "All")]).pairs();
    let mut names: Vec<&str> =
        pairs.iter().filter(|(key, _)| key == "TargetName").map(|(_, name)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, [A, B, T, U]);
}

#[test]
fn local_disks_are_routed_like_remote_ones() {
    let dir = Folder::fresh();
    std::fs::write(dir.join("local.img"), pattern(1 << 20, 3)).expect("a disk");
    let upstreams = "[router.r1.upstream.f]\nfile = \"local.img\"\n[router.r1.upstream.m]\nmemory = \"1MiB\"\n\
                     [router.r1.upstream.n]\nnull = \"1GiB\"\n";
    let luns =
        "lun = [{ lun = 0, upstream = \"m\" }, { lun = 1, upstream = \"f\" }, { lun = 2, upstream = \"n\" }]";
    let text =
        router_text("", &format!("{upstreams}{}", map(&format!("map = \"lun\"\nname = \"{T}\"\n{luns}"))));
    let router = Server::start_in(dir, &text);
    let mut raw = session(router.portal(), T, &[0, 1, 2]);
    assert!(raw.read_blocks(1, 4, 8) == pattern(1 << 20, 3)[2048..2048 + 4096]);
    raw.write_blocks(0, 4, &pattern(4096, 4)).good();
    assert!(raw.read_blocks(0, 4, 8) == pattern(4096, 4));
}

/// A second disk exists from the start, so that hosts have a LUN for unit attentions.
#[test]
fn late_upstream_adds_luns_and_raises_attentions() {
    let mut storage = storage();
    storage.kill9();
    let upstreams =
        upstream("a", &url(&storage, &format!("/{A}")), "") + "[router.r1.upstream.m]\nmemory = \"1MiB\"\n";
    let luns = "lun = [{ lun = 0, upstream = \"m\" }, { lun = 7, upstream = \"a\", from = 3 }]";
    let maps = map(&format!("map = \"lun\"\nname = \"{T}\"\n{luns}")) + &map_target(U, "a");
    // After `path_loss_timeout_s`, the router serves T without its missing LUN.
    let router = Server::start(&router_text("path_loss_timeout_s = 1\n", &(upstreams + &maps)));
    let mut early = session(router.portal(), T, &[0]);
    let mut other = session(router.portal(), T, &[0]);
    early.simple(7, &[0; 6]).check(NO_SUCH_LUN);
    let later = Login::new().target(U).try_on(router.portal()).err();
    assert_eq!(later, Some(0x0301), "the host must retry, and not give up its disk");
    until("the reason in the log", || router.log().contains("cannot probe the upstream").then_some(()));
    storage.restart();
    for raw in [&mut early, &mut other] {
        until("every host hears of the LUN", || {
            (raw.simple(0, &[0; 6]).sense() == LUNS_CHANGED).then_some(())
        });
        assert_eq!(raw.luns(), [0, 7]);
        raw.clear_attentions(7);
        assert_eq!(serial(raw, 7), "a3");
    }
    // Each core may need more than `path_loss_timeout_s` for a session of its own.
    let mut late = session(router.portal(), U, &[0, 3]);
    let is_done = |reply: interop::Reply| (reply.status == 0).then_some(reply);
    until("it is written", || is_done(late.write_blocks(3, 0, &pattern(512, 9))));
    let read = until("it is read", || is_done(early.read(7, &read10(0, 1), 512)));
    assert!(read.data == pattern(512, 9));
}

#[test]
fn grown_upstream_lun_raises_attentions() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let router = router_to(&url(&storage, &format!("/{A}")), "");
    let mut hosts = [(); 2].map(|()| session(router.portal(), T, &[0]));
    hosts[0].write_blocks(0, 16, &pattern(4096, 5)).good();
    let file = std::fs::File::options().write(true).open(storage.dir().join("a0.img")).expect("the disk");
    file.set_len(16 << 20).expect("a larger disk");
    for raw in &mut hosts {
        let last = until("the capacity grows", || {
            let reply = raw.read(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8);
            let last =
                (reply.status == 0).then(|| u32::from_be_bytes(reply.data[..4].try_into().expect("4")));
            assert!(reply.status == 0 || reply.sense() == CAPACITY_CHANGED, "{reply:?}");
            last.filter(|last| *last != 16383)
        });
        assert_eq!(last, 32767);
    }
    hosts[1].write_blocks(0, 32760, &pattern(4096, 6)).good();
    assert!(hosts[0].read_blocks(0, 32760, 8) == pattern(4096, 6), "beyond the old capacity");
    assert!(hosts[0].read_blocks(0, 16, 8) == pattern(4096, 5));
}

/// A host that logs in again after a restart must not find one of its disks missing.
#[test]
fn target_comes_back_with_all_its_luns_or_later() {
    let mut storages = [A, B].map(|name| storage_of(&target(name, &disk(0, "disk"))));
    let mut text = String::new();
    for (n, (name, storage)) in ["a", "b"].into_iter().zip(&storages).enumerate() {
        text += &upstream(name, &url(storage, &format!("/{}", [A, B][n])), "");
    }
    let luns = "[{ lun = 0, upstream = \"a\", from = 0 }, { lun = 1, upstream = \"b\", from = 0 }]";
    text += &map(&format!("map = \"lun\"\nname = \"{T}\"\nlun = {luns}"));
    let mut router = Server::start(&router_text("path_loss_timeout_s = 5\n", &text));
    drop(session(router.portal(), T, &[0, 1]));
    storages[1].kill9();
    router.restart();
    let refusal = || Login::new().target(T).try_on(router.portal()).err();
    let started_at = Instant::now();
    until("the first disk is found", || {
        router.said(&["router", "show", "r1"]).contains("1 LUN").then_some(())
    });
    assert_eq!(refusal(), Some(UNAVAILABLE), "the target is served without its second disk");
    storages[1].restart();
    drop(session(router.portal(), T, &[0, 1]));
    storages[1].kill9();
    router.restart();
    drop(session(router.portal(), T, &[0]));
    assert!(
        started_at.elapsed() > Duration::from_secs(5),
        "a missing disk delays the others only for a limited time"
    );
}

/// The router knows the names of targets only after it has found their upstream. Before that, no login is rejected
/// with "not found".
#[test]
fn transparent_target_is_unavailable_until_it_is_found() {
    let mut storage = storage_of(&target(A, &disk(0, "a0")));
    let text = upstream("a", &url(&storage, ""), "") + &map("map = \"transparent\"\nupstream = \"a\"");
    let mut router = Server::start(&router_text("", &text));
    drop(session(router.portal(), A, &[0]));
    let refusal = |router: &Server| Login::new().target(A).try_on(router.portal()).err();
    storage.kill9();
    router.restart();
    assert_eq!(refusal(&router), Some(UNAVAILABLE));
    storage.restart();
    drop(session(router.portal(), A, &[0]));
    assert_eq!(Login::new().target(B).try_on(router.portal()).err(), Some(NOT_FOUND));
}
