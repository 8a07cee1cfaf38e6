//! Responses of an upstream reach the host unchanged.

use super::*;
use interop::script::{HookAction, Script, Target};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const READ_10: u8 = 0x28;

fn scripted(script: Script) -> (Target, String) {
    let target = script.listen();
    let url = target.url("");
    (target, url)
}

/// Reads the first block of a disk with this path loss timeout.
fn read_first(url: String, hold_ms: u64) -> io::Result<()> {
    run(move || async move {
        let disk = open(&upstream(&[url], hold_ms)).await;
        read(&disk, 0).await.map(drop)
    })
}

#[test]
fn sense_is_passed_through() {
    for sense in [[3, 0x11, 0], [7, 0x27, 0], [7, 0x27, 7], [4, 0x44, 0], [2, 0x3a, 0], [5, 0x26, 0]] {
        let script = Script::new().scsi(READ_10, move |link, pdu| {
            link.check_condition(pdu, sense);
            HookAction::Done
        });
        let (_target, url) = scripted(script);
        let end = read_first(url, 500);
        assert_eq!(status_and_sense(end), (Status::CheckCondition, Some((sense[0], sense[1], sense[2]))));
    }
}

#[test]
fn address_of_a_medium_error_is_passed_through() {
    let script = Script::new().scsi(READ_10, |link, pdu| {
        let sense = Sense::READ_ERROR.at(5).encode(false);
        let data = [&(sense.len() as u16).to_be_bytes()[..], &sense].concat();
        link.send(Pdu::new(op::SCSI_RESPONSE).itt(pdu.tag()).byte(3, 2).data(&data));
        HookAction::Done
    });
    let (_target, url) = scripted(script);
    let end = read_first(url, 500);
    let sense = ScsiError::of(&end.expect_err("unreadable")).and_then(|error| error.sense);
    assert_eq!(sense, Some(Sense::READ_ERROR.at(5)));
}

#[test]
fn unreachable_address_is_reported() {
    let (_target, url) = scripted(Script::new());
    let end = run(move || async move {
        let disk = open(&upstream(&[url], 500)).await;
        read(&disk, 0).await.expect("a successful read");
        read(&disk, 1 << 20).await.map(drop)
    });
    assert_eq!(status_and_sense(end), (Status::CheckCondition, Some((5, 0x21, 0))));
}

#[test]
fn status_that_stays_is_passed_through() {
    for status in [Status::Busy, Status::TaskSetFull, Status::ReservationConflict] {
        let script = Script::new().scsi(READ_10, move |link, pdu| {
            link.send(Pdu::new(op::SCSI_RESPONSE).itt(pdu.tag()).byte(3, status as u8));
            HookAction::Done
        });
        let (_target, url) = scripted(script);
        let end = read_first(url, 200);
        assert_eq!(status_and_sense(end), (status, None));
    }
}

#[test]
fn another_capacity_is_seen() {
    let grown = AtomicBool::new(false);
    let script = Script::new().hook(move |link, pdu| {
        if is(pdu, READ_10) && !grown.swap(true, SeqCst) {
            link.check_condition(pdu, [6, 0x2a, 9]);
            return HookAction::Done;
        }
        if is(pdu, 0x9e) && grown.load(SeqCst) {
            let mut data = [0; 32];
            data[..8].copy_from_slice(&2047u64.to_be_bytes());
            data[8..12].copy_from_slice(&512u32.to_be_bytes());
            link.data_in(pdu, &data);
            return HookAction::Done;
        }
        HookAction::Usual
    });
    let (_target, url) = scripted(script);
    run(move || async move {
        let disk = open(&upstream(&[url], 500)).await;
        assert_eq!(disk.info().capacity, 512 << 10);
        read(&disk, 0).await.expect("a read after the unit attention");
        while !disk.refresh() || disk.info().capacity != 1 << 20 {
            pause(5).await;
        }
        assert!(!disk.refresh(), "the change is reported once");
    });
}

#[test]
fn command_that_hangs_is_given_up_before_its_host_does_so() {
    let target = Script::new().scsi(READ_10, |_, _| HookAction::Done).listen();
    let url = target.url("command_timeout=0.3&abort_timeout=0.3&operation_timeout=1");
    let started_at = Instant::now();
    assert_eq!(status_and_sense(read_first(url, 1000)), TRANSITION);
    assert!(started_at.elapsed() < Duration::from_secs(4), "{:?}", started_at.elapsed());
    assert!(!target.requests(op::TMF).is_empty(), "the command was not aborted");
}

#[test]
fn unused_session_is_logged_out() {
    let target = Script::new().listen();
    let url = target.url("");
    run(move || async move {
        let disk = open(&upstream(&[url], 500)).await;
        read(&disk, 0).await.expect("a successful read");
        // The logout of the probe.
        assert_eq!(target.requests(op::LOGOUT).len(), 1);
        drop(disk);
        while target.requests(op::LOGOUT).len() < 2 {
            pause(5).await;
        }
    });
}

/// SendTargets (RFC 7143 appendix C) lists an unreachable portal before one that responds.
#[test]
fn upstream_whose_first_named_portal_is_away_opens_the_next() {
    let target = Script::new().listen();
    let live = format!("{},1", target.address());
    let asked = Script::new().at(op::TEXT, move |link, pdu| {
        let keys = [
            ("TargetName", interop::TARGET),
            ("TargetAddress", "127.0.0.1:1,1"),
            ("TargetAddress", live.as_str()),
        ];
        link.send(Pdu::new(op::TEXT_RESPONSE).itt(pdu.tag()).ttt(u32::MAX).keys(&keys));
        HookAction::Done
    });
    let asked = asked.listen();
    let url = format!("iscsi://{}?login_tries=1", asked.address());
    run(move || async move {
        let disk = open(&upstream(&[url], 8000)).await;
        read(&disk, 0).await.expect("the second portal responds");
    });
    assert!(!target.requests(op::SCSI).is_empty());
}
