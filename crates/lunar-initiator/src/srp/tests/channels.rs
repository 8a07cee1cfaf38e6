//! A session with two channels.

use super::manage::managed;
use super::*;
use crate::session::transport;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::srp::task_status;

/// A session with two channels, and the target's endpoints.
struct Two {
    state: SessionState,
    datamover: Rc<dyn transport::Datamover>,
    targets: [Rc<dyn Endpoint>; 2],
}

impl Two {
    /// Grants this number of credits on each channel.
    fn new(credits: u32) -> Two {
        let options = options();
        let (mut wires, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (request, connected) = ask(&options, &Default::default(), |asked| {
                let terms = ConnParam { ord: 16, ird: 0, receives: (4096, srp::LINUX_IU_LEN) };
                targets.extend(now(asked.accept(granted(credits, true).encode().to_vec(), terms)));
            });
            wires.push(finish(connected, &request, &options).unwrap_or_else(|e| panic!("a login: {e}")));
        }
        let [mut first, second] = wires.try_into().unwrap_or_else(|_| panic!("two"));
        first.join(second);
        let login = first.login().clone();
        let command_window = CommandWindow {
            cmd_sn: login.cmd_sn,
            exp_cmd_sn: login.exp_cmd_sn,
            max_cmd_sn: login.max_cmd_sn,
        };
        let (datamover, mut state) =
            (first.into_datamover(), SessionState::new(options.commands, Instant::now));
        state.port = Some(TargetPort::Srp(lunar_wire::srp::PortId::default()));
        state.connect(
            login.parameters,
            command_window,
            login.exp_stat_sn,
            TransportSender::Datamover(datamover.clone()),
        );
        state.online = Online::Yes;
        Two { state, datamover, targets: targets.try_into().unwrap_or_else(|_| panic!("two")) }
    }

    fn test(&mut self) -> u32 {
        let command = Command::new(LUN, cdb::test_unit_ready(), Direction::None);
        self.state.submit(command, Waiter::Unknown).expect("room")
    }

    /// The information units sent on each channel since the last call.
    fn sent(&mut self) -> [Vec<Vec<u8>>; 2] {
        self.datamover.flush().expect("connections");
        self.state.settle();
        self.targets.each_ref().map(|target| {
            let mut events = EndpointEvents::default();
            target.poll(&mut events);
            let unit = |event| match event {
                EndpointEvent::Message(range, _) => events.bytes[range].to_vec(),
                other => panic!("{other:?}"),
            };
            events.list.into_iter().map(unit).collect()
        })
    }

    fn answer(&mut self, channel: usize, response: SrpResponse<'_>) {
        let mut unit = Vec::new();
        SrpResponse { credits: 1, ..response }.encode(&mut unit);
        self.targets[channel].send(&unit, Payload::Empty, None);
        self.targets[channel].flush().expect("a connection");
        assert!(matches!(self.datamover.receive(&mut self.state), Ok(ReceiveStatus::More)));
    }
}

#[test]
fn commands_are_dealt_out_and_answered_where_they_went() {
    let mut two = Two::new(4);
    let mut tags: Vec<u32> = (0..8).map(|_| two.test()).collect();
    let sent = two.sent();
    assert_eq!(sent.each_ref().map(Vec::len), [3, 3], "one credit of each channel is reserved");
    // Complete those of the second channel first: queued commands then use it.
    for unit in &sent[1] {
        two.answer(1, SrpResponse { tag: command(unit).tag, ..SrpResponse::default() });
    }
    assert_eq!(two.sent().each_ref().map(Vec::len), [0, 2]);
    tags.retain(|tag| two.state.poll(*tag, Waker::noop()).is_none());
    assert_eq!(tags.len(), 5);
    for unit in &sent[0] {
        two.answer(0, SrpResponse { tag: command(unit).tag, ..SrpResponse::default() });
    }
    tags.retain(|tag| two.state.poll(*tag, Waker::noop()).is_none());
    assert_eq!(tags.len(), 2);
}

#[test]
fn one_command_after_the_other_goes_on_the_first_channel() {
    let mut two = Two::new(4);
    for _ in 0..3 {
        let tag = two.test();
        let sent = two.sent();
        assert_eq!(sent.each_ref().map(Vec::len), [1, 0]);
        two.answer(0, SrpResponse { tag: command(&sent[0][0]).tag, ..SrpResponse::default() });
        assert!(two.state.poll(tag, Waker::noop()).is_some());
    }
}

#[test]
fn abort_goes_to_the_channel_of_its_command() {
    let mut two = Two::new(4);
    let tags = [two.test(), two.test()];
    let sent = two.sent();
    assert_eq!(sent.each_ref().map(Vec::len), [1, 1]);
    for channel in [1, 0] {
        let wanted = command(&sent[channel][0]).tag;
        let tag = *tags.iter().find(|tag| **tag == wanted as u32).expect("one of the two tags");
        let aborted =
            two.state.abort(tag, &Error::new(crate::ErrorCode::Aborted, "late")).expect("the task exists");
        let answer = two.state.manage(TaskManagementFunction::AbortTask, LUN, Some((tag, aborted.cmd_sn)));
        let asked = two.sent();
        assert_eq!((asked[channel].len(), asked[1 - channel].len()), (1, 0));
        let asked = managed(&asked[channel][0]);
        assert_eq!((asked.function, asked.task_tag), (1, wanted));
        let data = [0, 0, 0, task_status::COMPLETE];
        two.answer(channel, SrpResponse { tag: asked.tag, data: &data, ..SrpResponse::default() });
        assert_eq!(answer.try_recv().ok(), Some(Ok(0)));
    }
}

const OF_A_UNIT: [TaskManagementFunction; 3] = [
    TaskManagementFunction::AbortTaskSet,
    TaskManagementFunction::ClearTaskSet,
    TaskManagementFunction::LunReset,
];

/// A command on another channel could reach the target after the function, and be executed although it was reported
/// as ended.
#[test]
fn abort_task_set_over_several_busy_channels_is_refused() {
    for function in OF_A_UNIT {
        let mut two = Two::new(4);
        let tags = [two.test(), two.test()];
        let sent = two.sent();
        assert_eq!(sent.each_ref().map(Vec::len), [1, 1]);
        let answer = two.state.manage(function, LUN, None);
        assert_eq!(two.sent().each_ref().map(Vec::len), [0, 0], "{function:?}");
        assert!(matches!(two.datamover.receive(&mut two.state), Ok(ReceiveStatus::More)));
        assert_eq!(answer.try_recv().ok(), Some(Ok(5)));
        assert!(
            tags.iter().all(|tag| two.state.poll(*tag, Waker::noop()).is_none()),
            "the commands continue"
        );
        two.answer(0, SrpResponse { tag: command(&sent[0][0]).tag, ..SrpResponse::default() });
        two.state.manage(function, LUN, None);
        assert_eq!(two.sent().each_ref().map(Vec::len), [0, 1], "{function:?}");
    }
}

#[test]
fn abort_task_set_goes_to_the_channel_with_the_commands() {
    for function in OF_A_UNIT {
        let mut two = Two::new(4);
        two.state.manage(function, LUN, None);
        assert_eq!(two.sent().each_ref().map(Vec::len), [1, 0], "no command is in flight");
        let mut two = Two::new(4);
        two.test();
        two.test();
        let sent = two.sent();
        two.answer(0, SrpResponse { tag: command(&sent[0][0]).tag, ..SrpResponse::default() });
        two.state.manage(function, LUN, None);
        assert_eq!(two.sent().each_ref().map(Vec::len), [0, 1], "{function:?}");
    }
}

#[test]
fn end_of_any_channel_is_that_of_the_session() {
    for channel in [0, 1] {
        let mut two = Two::new(4);
        two.targets[channel].close();
        assert!(!matches!(two.datamover.receive(&mut two.state), Ok(ReceiveStatus::More)), "{channel}");
    }
}

#[test]
fn further_channel_leaves_those_before_it() {
    let options = options();
    let keeps = |is_extra_channel| {
        request(&LoginTarget { is_extra_channel, ..login_target(Some(TARGET)) }, &options)
            .expect("a request")
            .keep_channels
    };
    assert_eq!([keeps(false), keeps(true)], [false, true]);
}
