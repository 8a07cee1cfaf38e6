//! Logical units whose identity changes.

use super::*;
use interop::script::{HookAction, Script, Target};
use lunar_router::FoundLun;
use lunar_router::loops::LoopDetector;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const INQUIRY: u8 = 0x12;
const WRITE_10: u8 = 0x2a;
/// VPD page 83h of another logical unit.
const OTHER: [u8; 16] = [0, 0x83, 0, 12, 1, 3, 0, 8, 0x60, 9, 9, 9, 9, 9, 9, 9];

/// A disk that changes its identity on request. The change ends its sessions.
struct Changeling {
    target: Target,
    is_other: Arc<AtomicBool>,
    drops: Arc<AtomicBool>,
}

fn changeling() -> Changeling {
    let (is_other, drops) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (other, lose) = (is_other.clone(), drops.clone());
    let script = Script::new().hook(move |link, pdu| {
        if pdu.opcode() == op::SCSI && lose.swap(false, SeqCst) {
            return HookAction::Close;
        }
        if is(pdu, INQUIRY) && pdu.bhs[33] == 1 && pdu.bhs[34] == 0x83 && other.load(SeqCst) {
            link.data_in(pdu, &OTHER);
            return HookAction::Done;
        }
        HookAction::Usual
    });
    Changeling { target: script.listen(), is_other, drops }
}

impl Changeling {
    fn become_other(&self, other: bool) {
        self.is_other.store(other, SeqCst);
        self.drops.store(true, SeqCst);
    }

    fn writes(&self) -> usize {
        self.target.requests(op::SCSI).iter().filter(|pdu| is(pdu, WRITE_10)).count()
    }
}

#[test]
fn replaced_disk_is_not_written_until_it_is_back() {
    let disk = changeling();
    let url = disk.target.url("");
    run(move || async move {
        let remote = open(&upstream(&[url], 30_000)).await;
        write(&remote, 1).await.expect("the expected logical unit");
        disk.become_other(true);
        let before = disk.target.disk();
        // The first write may fail with the lost session.
        assert_eq!(status_and_sense(write(&remote, 2).await), MANUAL);
        let started_at = Instant::now();
        assert_eq!(status_and_sense(read(&remote, 1).await), MANUAL);
        assert!(started_at.elapsed() < Duration::from_secs(20), "it waited for the path loss time-out");
        assert_eq!(remote.health(), Health::Changed);
        assert!(disk.target.disk() == before && disk.writes() <= 2);
        // Restoring the original does not end any connection.
        disk.is_other.store(false, SeqCst);
        while write(&remote, 2).await.is_err() {
            pause(20).await;
        }
    });
}

#[test]
fn disk_that_is_another_from_the_start_is_not_written_on() {
    let disk = changeling();
    let url = disk.target.url("");
    run(move || async move {
        let upstream = upstream(&[url], 5000);
        let found = probe(&upstream, &LoopDetector::default()).await.expect("a reachable upstream").remove(0);
        disk.become_other(true);
        let remote = UpstreamLu::open(&upstream, &found.name, 0, found.luns[&0].clone()).expect("a disk");
        let health = remote.watch();
        assert_eq!(status_and_sense(write(&remote, 1).await), MANUAL);
        assert_eq!(disk.writes(), 0);
        assert_eq!(health.recv_async().await, Ok(Health::Changed));
        disk.is_other.store(false, SeqCst);
        while write(&remote, 1).await.is_err() {
            pause(20).await;
        }
    });
}

#[test]
fn of_two_paths_the_one_that_leads_elsewhere_is_not_used() {
    let [right, wrong] = [changeling(), changeling()];
    let urls = [right.target.url(""), wrong.target.url("")];
    run(move || async move {
        let remote = open(&upstream(&urls, 5000)).await;
        wrong.is_other.store(true, SeqCst);
        write(&remote, 1).await.expect("one path leads to the logical unit");
        while remote.paths()[1].state != Some(lunar_router::upstream::PathState::Changed) {
            pause(5).await;
        }
        for n in 0..20 {
            write(&remote, n).await.expect("one path leads to the logical unit");
        }
        assert_eq!((wrong.writes(), remote.health()), (0, Health::Up));
    });
}

#[test]
fn unexpected_identity_is_rejected() {
    let disk = changeling();
    let urls = [disk.target.url(""), disk.target.url("")];
    run(move || async move {
        let named = |name: &str| Upstream { identity: Some(name.into()), ..upstream(&urls[..1], 500) };
        let (right, wrong) = (named("naa.6001020304050607"), named("naa.6009090909090909"));
        let found = probe(&right, &LoopDetector::default()).await.expect("the required logical unit")[0].luns
            [&0]
            .clone();
        assert_eq!(
            probe(&wrong, &LoopDetector::default()).await.expect_err("another logical unit").code,
            lunar_initiator::ErrorCode::IdentityMismatch
        );
        let open = |upstream: &Upstream, found: &FoundLun| {
            UpstreamLu::open(upstream, interop::TARGET, 0, found.clone()).err().map(|e| e.code)
        };
        assert_eq!(open(&right, &found), None);
        assert_eq!(open(&wrong, &found), Some(lunar_initiator::ErrorCode::IdentityMismatch));
        let two = upstream(&urls, 500);
        let nameless = FoundLun { designators: Vec::new(), ..found.clone() };
        assert_eq!(open(&two, &nameless), Some(lunar_initiator::ErrorCode::IdentityMismatch));
        let no_disk = FoundLun { block_size: 0, ..found };
        assert_eq!(open(&right, &no_disk), Some(lunar_initiator::ErrorCode::InvalidArgument));
    });
}
