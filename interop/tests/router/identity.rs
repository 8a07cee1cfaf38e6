//! The identity of a disk is the same through a router.

use crate::*;
use interop::script::{HookAction, Script};

/// The identity of a disk: vendor, product and revision; VPD page 80h; the designators of the logical unit.
fn identity(raw: &mut Raw, lun: u16) -> (Vec<u8>, Vec<u8>, Vec<Vec<u8>>) {
    let standard = raw.read(lun, &inquiry(None, 96), 96).good();
    let number = raw.read(lun, &inquiry(Some(0x80), 255), 255).good();
    let page = raw.read(lun, &inquiry(Some(0x83), 1024), 1024).good();
    let (mut designators, mut rest) = (Vec::new(), &page[4..]);
    while let Some(len) = rest.get(3).map(|len| usize::from(*len) + 4) {
        let (one, more) = rest.split_at(len);
        // Association 0 is the logical unit. The designators of ports differ.
        if one[1] & 0x30 == 0 {
            designators.push(one.to_vec());
        }
        rest = more;
    }
    (standard[8..36].to_vec(), number, designators)
}

#[test]
fn identity_is_that_of_the_upstream_in_both_modes() {
    let storage = storage_of(&target(A, &(disk(0, "a0") + "vendor = \"ACME\"\nproduct = \"STORE 9\"\n")));
    let direct = identity(&mut session(storage.portal(), A, &[0]), 0);
    assert!(direct.0.starts_with(b"ACME    STORE 9") && !direct.2.is_empty(), "{direct:?}");
    let place = url(&storage, &format!("/{A}"));
    let upstreams = upstream("block", &place, "")
        + &upstream("passthrough", &place, "mode = \"passthrough\"\n")
        + &upstream("other", &format!("{place}/0"), "serial = \"another\"\n");
    let one = format!("map = \"lun\"\nname = \"{B}\"\nlun = [{{ lun = 0, upstream = \"other\" }}]");
    let maps = map_target(T, "block") + &map_target(U, "passthrough") + &map(&one);
    let router = Server::start(&router_text("", &(upstreams + &maps)));
    for name in [T, U] {
        assert_eq!(identity(&mut session(router.portal(), name, &[0]), 0), direct, "{name}");
    }
    let mut other = session(router.portal(), B, &[0]);
    let (texts, _, designators) = identity(&mut other, 0);
    assert_eq!((serial(&mut other, 0).as_str(), &texts[..15]), ("another", &direct.0[..15]));
    assert!(designators.iter().all(|d| !direct.2.contains(d)), "hosts would take it for the upstream disk");
}

/// STGT pads its serial numbers with spaces on the left.
#[test]
fn serial_number_keeps_the_spaces_before_it() {
    const NUMBER: &[u8] = b"\0\x80\0\x0a    beaf11";
    for mode in ["block", "passthrough"] {
        let target = Script::new().scsi(0x12, |link, pdu| {
            match (pdu.bhs[33] & 1, pdu.bhs[34]) {
                (1, 0x00) => link.data_in(pdu, &[0, 0, 0, 3, 0, 0x80, 0x83]),
                (1, 0x80) => link.data_in(pdu, NUMBER),
                _ => return HookAction::Usual,
            }
            HookAction::Done
        });
        let target = target.listen();
        let place = format!("iscsi://{}/{}", target.address(), interop::TARGET);
        let router = router_to(&place, &format!("mode = \"{mode}\"\n"));
        let mut raw = session(router.portal(), T, &[0]);
        assert!(raw.read(0, &inquiry(Some(0x80), 255), 255).good() == NUMBER, "{mode}");
    }
}

#[test]
fn wrong_upstream_disk_is_not_served() {
    let storage = storage();
    let place = url(&storage, &format!("/{A}/0"));
    let upstreams = upstream("a", &place, "identity = \"naa.6001405000000000000000000000000f\"\n");
    let one = format!("map = \"lun\"\nname = \"{T}\"\nlun = [{{ lun = 0, upstream = \"a\" }}]");
    let router = Server::start(&router_text("", &(upstreams + &map(&one))));
    until("why it is not served", || {
        router.log().contains("`identity` requires naa.6001405000000000000000000000000f").then_some(())
    });
    assert_eq!(Login::new().target(T).try_on(router.portal()).err(), Some(0x0301), "no login is admitted");
}

#[test]
fn command_window_is_limited_by_the_upstream() {
    let script = Script::new().window(5).listen();
    let place = format!("iscsi://{}/{}", script.address(), interop::TARGET);
    let router = router_to(&place, "");
    let mut raw = session(router.portal(), T, &[0]);
    raw.ping();
    let (exp, max) = raw.window.expect("a window");
    assert_eq!(max.wrapping_sub(exp).wrapping_add(1), 5);
}

/// The sessions (TSIH) of these ISIDs at this storage.
fn sessions_of(storage: &Server, isids: &[String]) -> Vec<u64> {
    let sessions = json_output(storage, &["session", "list"])["items"].take();
    let isid =
        |session: &&Value| session["isid"].as_str().is_some_and(|isid| isids.iter().any(|i| i == isid));
    sessions.as_array().expect("a list").iter().filter(isid).filter_map(|s| s["tsih"].as_u64()).collect()
}

/// Whether one of these ISIDs has a session at this storage.
fn has_one_of(storage: &Server, isids: &[String]) -> bool {
    !sessions_of(storage, isids).is_empty()
}

#[test]
fn killed_router_comes_back_with_its_isids() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let to_storage = url(&storage, &format!("/{A}"));
    let mut router = router_to(&to_storage, "");
    let read = |router: &Server| drop(session(router.portal(), T, &[0]).read_blocks(0, 0, 8));
    read(&router);
    let before = isids(&router);
    assert!(!before.is_empty() && has_one_of(&storage, &before), "{before:?}");
    router.kill9();
    until("its sessions are gone", || (!has_one_of(&storage, &before)).then_some(()));
    router.restart();
    read(&router);
    assert!(has_one_of(&storage, &before), "{before:?} {:?}", isids(&router));
    let other = router_to(&to_storage, "");
    read(&other);
    let others = isids(&other);
    assert!(has_one_of(&storage, &others) && others.iter().all(|isid| !before.contains(isid)), "{others:?}");
}

#[test]
fn second_server_of_a_state_folder_ends_no_session() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let upstreams = |name: &str| upstream("a", &url(&storage, &format!("/{A}")), "") + &map_target(name, "a");
    let first = Server::start(&router_text("", &upstreams(T)));
    let state = format!("[server]\nstate_dir = \"{}\"\n", first.dir().display());
    let mut host = session(first.portal(), T, &[0]);
    host.read_blocks(0, 0, 8);
    let recorded = isids(&first);
    let before = sessions_of(&storage, &recorded);
    let mut second = Server::start(&(state + &router_text("", &upstreams(U))));
    for _ in 0..2 {
        session(second.portal(), U, &[0]).read_blocks(0, 0, 8);
        assert!(second.log().contains("r1.isids: another server uses this ISID record"), "{}", second.log());
        second.restart();
    }
    host.read_blocks(0, 0, 8);
    assert_eq!((isids(&first), sessions_of(&storage, &recorded)), (recorded, before));
}

#[test]
fn router_added_by_a_reload_records_its_isids() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let mut router = Server::start(&format!("{HEAD}{}", target(B, "")));
    let upstreams = upstream("a", &url(&storage, &format!("/{A}")), "") + &map_target(T, "a");
    router.rewrite(&router_text("", &upstreams));
    router.signal(1);
    session(router.portal(), T, &[0]).read_blocks(0, 0, 8);
    assert!(has_one_of(&storage, &isids(&router)), "{}", router.log());
}
