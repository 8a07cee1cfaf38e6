//! Discovery of an upstream, and reports of changes.

use super::*;
use interop::Relay;
use interop::script::{HookAction, Script};
use lunar_router::Found;
use lunar_router::loops::LoopDetector;
use lunar_router::watch::{ProbeSchedule, watch};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn two_targets() -> Server {
    let target =
        |name: &str, luns: &str| format!("[[target]]\nname = \"iqn.2026-11.org.example:{name}\"\n{luns}");
    let lun = |n: u8, keys: &str| {
        format!("[[target.lun]]\nlun = {n}\nbackend = \"memory\"\nsize = \"1MiB\"\n{keys}")
    };
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n{}{}",
        target("a", &(lun(0, "serial = \"S0\"\n") + &lun(3, "read_only = true\nblock_size = 4096\n"))),
        target("b", &lun(1, "vendor = \"ACME\"\nproduct = \"DISK\"\n")),
    ))
}

#[test]
fn portal_a_target_or_a_lun_is_looked_at() {
    let server = two_targets();
    let portal = server.portal();
    let looked = move |path: &str| {
        let urls = [format!("iscsi://{portal}{path}")];
        run(move || async move { probe(&upstream(&urls, 500), &LoopDetector::default()).await })
            .expect("a reachable upstream")
    };
    let all = looked("");
    let names: Vec<_> =
        all.iter().map(|t| (&t.name[23..], t.luns.keys().copied().collect::<Vec<_>>())).collect();
    assert_eq!(names, [(":a", vec![0, 3]), (":b", vec![1])]);
    let (first, last) = (&all[0].luns[&0], &all[0].luns[&3]);
    assert_eq!((first.block_size, first.capacity, first.serial.as_str()), (512, 1 << 20, "S0"));
    assert_eq!((last.block_size, last.read_only, first.read_only), (4096, true, false));
    assert_eq!((all[1].luns[&1].vendor.as_str(), all[1].luns[&1].product.as_str()), ("ACME", "DISK"));
    assert!(!first.naa.is_empty() && first.designators.windows(first.naa.len()).any(|w| w == first.naa));
    assert_eq!(looked("/iqn.2026-11.org.example:b"), all[1..]);
    let one = looked("/iqn.2026-11.org.example:a/3");
    assert_eq!(one[0].luns.keys().collect::<Vec<_>>(), [&3]);
}

#[test]
fn failed_url_is_followed_by_the_next() {
    let server = server();
    let relay = Relay::to(server.portal());
    relay.cut();
    let urls = [url(relay.address()), url(server.portal())];
    let found = run(move || async move { probe(&upstream(&urls, 500), &LoopDetector::default()).await })
        .expect("the second path works");
    assert_eq!(found[0].name, interop::TARGET);
}

/// STGT and istgt do not support text requests.
#[test]
fn route_query_that_fails_is_sent_once() {
    for (rejects, closes) in [(false, true), (true, true), (true, false)] {
        let target = Script::new().at(op::TEXT, move |link, pdu| {
            if rejects {
                link.send(Pdu::new(op::REJECT).byte(2, 5).itt(interop::NONE).data(&pdu.header()));
            }
            if closes { HookAction::Close } else { HookAction::Done }
        });
        let target = target.listen();
        let urls = [target.url("")];
        run(move || async move {
            let (upstream, loops) = (upstream(&urls, 500), LoopDetector::default());
            for _ in 0..3 {
                assert_eq!(probe(&upstream, &loops).await.expect("a reachable upstream")[0].luns.len(), 1);
            }
            assert_eq!(target.requests(op::TEXT).len(), 1, "{rejects} {closes}");
        });
    }
}

/// The LUNs of a discovered target.
fn luns(found: &Found) -> Vec<u16> {
    found.targets("r1", "a").iter().flat_map(|t| t.luns.keys().copied()).collect()
}

#[test]
fn probe_reports_first_result_and_changes() {
    let (two, is_reported) = (AtomicBool::new(false), AtomicBool::new(false));
    let target = Script::new().hook(move |link, pdu| {
        if is(pdu, 0x2a) && !is_reported.swap(true, SeqCst) {
            two.store(true, SeqCst);
            link.check_condition(pdu, [6, 0x3f, 0x0e]);
            return HookAction::Done;
        }
        if is(pdu, 0xa0) && two.load(SeqCst) {
            link.data_in(pdu, &[&[0, 0, 0, 16, 0, 0, 0, 0][..], &[0; 9], &[5], &[0; 6]].concat());
            return HookAction::Done;
        }
        HookAction::Usual
    });
    let target = target.listen();
    let relay = Relay::to(target.address());
    relay.cut();
    let whole = format!("iscsi://{}/{}", relay.address(), interop::TARGET);
    run(move || async move {
        let upstream = upstream(&[whole], 2000);
        let (sender, changes) = flume::unbounded();
        let pace = ProbeSchedule { first: MS(20), longest: MS(100), refresh: Duration::from_secs(3600) };
        let task = compio::runtime::spawn(watch(
            vec![upstream.clone()],
            pace,
            Found::default(),
            Arc::default(),
            |hint| hint,
            sender,
        ));
        pause(200).await;
        assert!(changes.is_empty(), "no discovery before the target exists");
        relay.restore();
        let found = changes.recv_async().await.expect("a discovery");
        assert_eq!(luns(&found), [0]);
        // Without a change there is no report.
        upstream.rediscover.notify(usize::MAX);
        pause(200).await;
        assert!(changes.is_empty());
        let lun = found.targets("r1", "a")[0].luns[&0].clone();
        let disk = UpstreamLu::open(&upstream, interop::TARGET, 0, lun).expect("a disk");
        write(&disk, 1).await.expect("a write after the unit attention");
        assert_eq!(luns(&changes.recv_async().await.expect("a discovery after the unit attention")), [0, 5]);
        drop(changes);
        drop(task);
    });
}
