//! Routing loops.

use crate::*;
use interop::script::{HookAction, Script};
use interop::{Pdu, op};

const REFUSED: &str = "routing loop: ";

/// Two routers with targets of their own. Each has the other as its upstream `o`, with these mappings.
fn each_other(rest: &str, map: [&str; 2], own: [&str; 2]) -> [Server; 2] {
    // The first has no upstream before the second exists.
    let mut first =
        Server::start(&format!("{HEAD}{}", interop::config::target("iqn.2026-11.org.example:early", "")));
    let text = |other: &Server, n: usize| {
        router_text(
            "",
            &(upstream("o", &url(other, rest.replace('N', &(1 - n).to_string()).as_str()), "") + map[n]),
        ) + own[n]
    };
    let mut second = Server::start(&text(&first, 1));
    first.rewrite(&text(&second, 0));
    first.restart();
    // The second has probed the first at its start, and would probe it again only later.
    second.restart();
    [first, second]
}

/// A target may end the probe session. The router must not log a warning for that.
#[test]
fn target_that_ends_the_probe_session_is_served() {
    for rejects in [false, true] {
        let target = Script::new().at(op::TEXT, move |link, pdu| {
            if rejects {
                link.send(Pdu::new(op::REJECT).byte(2, 5).itt(interop::NONE).data(&pdu.header()));
            }
            HookAction::Close
        });
        let target = target.listen();
        let router = router_to(&format!("iscsi://{}/{}", target.address(), interop::TARGET), "");
        drop(session(router.portal(), T, &[0]));
        assert_eq!(target.requests(op::TEXT).len(), 1);
        assert!(!router.log().contains("WARN"), "{}", router.log());
    }
}

fn log(routers: &[Server]) -> String {
    routers.iter().map(Server::log).collect()
}

#[test]
fn targets_that_lead_to_each_other_are_rejected() {
    let name = |n: usize| format!("iqn.2026-11.org.example:t{n}");
    let maps = [0, 1].map(|n| map_target(&name(n), "o"));
    let routers = each_other("/iqn.2026-11.org.example:tN", [&maps[0], &maps[1]], ["", ""]);
    until("the error in the log", || log(&routers).contains(REFUSED).then_some(()));
    let text = log(&routers);
    let line = text.lines().find(|line| line.contains(REFUSED)).expect("a log line");
    assert!(
        line.contains("upstream o of router r1 leads back to the target iqn.2026-11.org.example:t"),
        "{line}"
    );
    assert!(line.contains("hint=\"remove the upstream from the configuration of one router"), "{line}");
}

#[test]
fn routers_of_each_others_own_disks_are_no_loop() {
    let disks = [target(A, &disk(0, "a0")), target(B, &disk(0, "b0"))];
    let transparent = map("map = \"transparent\"\nupstream = \"o\"");
    let mut routers = each_other("", [&transparent, &transparent], [&disks[0], &disks[1]]);
    for restarted in [0, 1] {
        assert_eq!(serial(&mut session(routers[1].portal(), A, &[0]), 0), "a0");
        // The router restarts while the other one already shows its disk.
        routers[restarted].restart();
        assert_eq!(serial(&mut session(routers[0].portal(), B, &[0]), 0), "b0");
    }
    let pairs = Raw::discovery(routers[0].portal(), &[]).text(&[("SendTargets", "All")]).pairs();
    assert_eq!(pairs.iter().filter(|(key, _)| key == "TargetName").count(), 2, "{pairs:?}");
    assert!(!log(&routers).contains("duplicate target name"), "{}", log(&routers));
}

/// Two routers show all disks of each other. The only disk is that of a third server.
#[test]
fn mutual_transparent_routers_show_each_disk_once() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let more = upstream("s", &url(&storage, ""), "") + &map("map = \"transparent\"\nupstream = \"s\"");
    let transparent = map("map = \"transparent\"\nupstream = \"o\"");
    let first_map = format!("{transparent}{more}");
    let mut routers = each_other("", [&first_map, &transparent], ["", ""]);
    for restarted in [1, 0, 1] {
        assert_eq!(serial(&mut session(routers[0].portal(), A, &[0]), 0), "a0");
        routers[restarted].restart();
    }
    for router in &routers {
        assert_eq!(serial(&mut session(router.portal(), A, &[0]), 0), "a0");
    }
    assert!(!log(&routers).contains("duplicate target name"), "{}", log(&routers));
}
