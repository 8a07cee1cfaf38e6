//! Task management, pings, and requests that SRP does not define.

use super::*;
use crate::ErrorCode;
use crate::session::control_request::ControlResponse;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::srp::{TaskManagement, task_status};

/// Decodes a unit as a task management function.
pub fn managed(unit: &[u8]) -> TaskManagement {
    match FromInitiator::decode(unit, None) {
        Ok(FromInitiator::TaskManagement(one)) => one,
        other => panic!("{other:?}"),
    }
}

impl Peer {
    fn receive_answer(&mut self, answer: &ControlResponse) -> Option<Result<u8, Error>> {
        assert!(matches!(self.datamover.receive(&mut self.state), Ok(ReceiveStatus::More)));
        answer.try_recv().ok()
    }

    fn abort(&mut self, tag: u32) -> ControlResponse {
        let sent =
            self.state.abort(tag, &Error::new(ErrorCode::Aborted, "on demand")).expect("the task exists");
        self.state.manage(TaskManagementFunction::AbortTask, LUN, Some((tag, sent.cmd_sn)))
    }

    fn answer_managed(&mut self, tag: u64, status: u8) {
        self.answer(SrpResponse { tag, credits: 1, data: &[0, 0, 0, status], ..SrpResponse::default() });
    }
}

#[test]
fn abort_names_the_command_and_takes_its_memory_back() {
    let mut peer = Peer::new(2, true);
    let tag = peer.read(512);
    let unit = peer.one();
    let (task_tag, at) = (command(&unit).tag, direct(command(&unit).data_in));
    let answer = peer.abort(tag);
    let unit = peer.one();
    let asked = managed(&unit);
    assert_eq!((asked.function, asked.task_tag, asked.lun), (1, task_tag, LUN));
    assert_eq!((unit.len(), asked.tag >> 31), (48, 1), "the reserved credit, with a control tag");
    peer.answer_managed(asked.tag, task_status::COMPLETE);
    assert_eq!(peer.receive_answer(&answer), Some(Ok(0)));
    peer.state.ended_by_abort([tag], "aborted");
    assert_eq!(peer.failed(tag).code, ErrorCode::Aborted);
    peer.target.write(remote(at), Payload::Bytes(vec![1]));
    let flushed = peer.target.flush();
    assert!(
        flushed.is_err() || peer.datamover.receive(&mut peer.state).is_err(),
        "the memory is no longer registered"
    );
}

/// A resent command has a new SRP tag: the target may still respond to the first one.
#[test]
fn command_that_is_sent_again_has_another_tag() {
    let mut peer = Peer::new(8, true);
    let tag = peer.read(512);
    let first = command(&peer.one()).tag;
    peer.state.ended_by_abort([tag], "late");
    let unit = peer.one();
    let second = command(&unit).tag;
    assert!(first != second && first as u32 == second as u32);
    peer.good(first);
    assert!(peer.end(tag).is_none());
    peer.target.write(remote(direct(command(&unit).data_in)), Payload::Bytes(vec![9; 512]));
    peer.good(second);
    assert_eq!(peer.done(tag).1.expect("its buffer")[..], [9; 512]);
}

#[test]
fn functions_and_their_answers_are_translated() {
    for (function, code) in [
        (TaskManagementFunction::AbortTaskSet, 2),
        (TaskManagementFunction::ClearTaskSet, 4),
        (TaskManagementFunction::LunReset, 8),
    ] {
        for (status, response) in [(0, 0), (2, 255), (4, 5), (5, 255)] {
            let mut peer = Peer::new(8, true);
            let answer = peer.state.manage(function, LUN, None);
            let asked = managed(&peer.one());
            assert_eq!((asked.function, asked.task_tag), (code, 0));
            peer.answer_managed(asked.tag, status);
            assert_eq!(peer.receive_answer(&answer), Some(Ok(response)));
        }
    }
    let mut peer = Peer::new(8, true);
    let answer = peer.state.manage(TaskManagementFunction::LunReset, LUN, None);
    let tag = managed(&peer.one()).tag;
    peer.good(tag);
    assert_eq!(peer.receive_answer(&answer), Some(Ok(255)), "a response without a status is a failure");
}

#[test]
fn resets_of_a_target_are_not_there() {
    for function in [TaskManagementFunction::TargetWarmReset, TaskManagementFunction::TargetColdReset] {
        let mut peer = Peer::new(8, true);
        let answer = peer.state.manage(function, LUN, None);
        assert!(peer.sent().is_empty());
        now(peer.datamover.readable()).expect("a local response");
        assert_eq!(peer.receive_answer(&answer), Some(Ok(5)));
    }
}

/// The affected commands must reach the target before the function.
#[test]
fn task_management_that_waits_for_a_credit_keeps_its_place() {
    let mut peer = Peer::new(2, true);
    let tag = peer.test();
    let answers = [(); 2].map(|()| peer.state.manage(TaskManagementFunction::LunReset, LUN, None));
    let units = peer.sent();
    assert_eq!(units.len(), 2, "a command, and a function with the reserved credit");
    peer.answer_managed(managed(&units[1]).tag, 0);
    assert_eq!(peer.receive_answer(&answers[0]), Some(Ok(0)));
    let unit = peer.one();
    peer.answer_managed(managed(&unit).tag, 0);
    assert_eq!(peer.receive_answer(&answers[1]), Some(Ok(0)));
    peer.good(command(&units[0]).tag);
    peer.done(tag);
}

/// The window was open, but no credit was left. The queued command is aborted and never sent.
#[test]
fn queued_command_given_up_is_not_sent() {
    let mut peer = Peer::new(3, true);
    let functions = [(); 3].map(|()| peer.state.manage(TaskManagementFunction::LunReset, LUN, None));
    let tag = peer.read(512);
    assert_eq!(peer.sent().len(), 3, "three functions are sent, the command is queued");
    peer.state.finish(tag, Err(Error::new(ErrorCode::Aborted, "on demand")));
    assert!(peer.say(&srp::CreditRequest { solicited: false, credits: 5, tag: 1 }.encode()).is_ok());
    assert_eq!(peer.sent().len(), 1, "only the reply is sent");
    drop(functions);
}

#[test]
fn ping_is_an_inquiry_for_nothing() {
    let mut peer = Peer::new(2, true);
    peer.state.ping();
    let unit = peer.one();
    let asked = command(&unit);
    assert_eq!((unit.len(), asked.lun, asked.cdb[0], asked.cdb[1..] == [0; 15]), (48, 0, 0x12, true));
    assert!(peer.state.oldest_ping().is_some());
    // Any status shows that the target responds.
    peer.answer(SrpResponse { tag: asked.tag, credits: 1, status: 8, ..SrpResponse::default() });
    assert!(peer.state.oldest_ping().is_none());
    // Pings do not use the reserved credit.
    peer.test();
    peer.state.ping();
    assert_eq!(peer.sent().len(), 1);
    assert!(peer.datamover.receive(&mut peer.state).is_ok() && peer.state.oldest_ping().is_none());
}

#[test]
fn text_is_refused_and_a_logout_granted_here() {
    let mut peer = Peer::new(8, true);
    let answers = [(); 2].map(|()| peer.state.start_text(b"SendTargets=\0".to_vec()));
    assert!(peer.datamover.receive(&mut peer.state).is_ok());
    for answer in answers {
        assert_eq!(
            answer.try_recv().expect("a result").expect_err("text requests are rejected").code,
            ErrorCode::Refused
        );
    }
    let answer = peer.state.log_out();
    assert_eq!(peer.receive_answer(&answer), Some(Ok(0)));
    assert!(peer.sent().is_empty() && peer.state.connection.fault().is_none());
}
