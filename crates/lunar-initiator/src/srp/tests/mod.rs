//! The Datamover and its session against a scripted target, unit by unit.

mod channels;
mod data;
mod flow;
mod hostile;
mod login;
mod manage;
mod sessions;

use super::datamover::SrpDatamover;
use super::login::{finish, request, terms};
use crate::nexus::{LoginTarget, TargetPort};
use crate::options::{Options, Transport};
use crate::portal::Portal;
use crate::session::command_window::CommandWindow;
use crate::session::session_state::{Online, SessionState};
use crate::session::task::Waiter;
use crate::session::transport::{Datamover as _, TransportSender};
use crate::{Command, CommandResult, Completion, Direction, Error};
use lunar_rdma::mem::{self, Faults};
use lunar_rdma::{
    ConnParam, ConnectError, ConnectRequest, ConnectedEndpoint, Endpoint, EndpointEvent, EndpointEvents,
    RemoteAddress,
};
use lunar_runtime::Buf;
use lunar_runtime::iscsi::receive::{ReceiveError, ReceiveStatus};
use lunar_runtime::send_queue::Payload;
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::srp::{
    self, DataBuffer, FromInitiator, LoginFormat, LoginRequest, LoginResponse, MemoryDescriptor,
    PreviousChannels, SrpResponse,
};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

const LUN: u64 = 1 << 48;
const TARGET: &str = "0002c90300a0b0c0:0002c90300a0b0c1";
const ISID: [u8; 6] = [0x80, 1, 2, 3, 4, 5];

/// The result of a future that must be ready.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the future is not ready"),
    }
}

fn options() -> Options {
    let mut options = Options::new("iqn.2026-11.org.example:host");
    (options.transport, options.initiator_guid) = (Transport::Srp, Some(0x0102_0304_0506_0708));
    options
}

fn login_target(target: Option<&str>) -> LoginTarget {
    let portal = Portal { host: "192.0.2.1".into(), port: 5555 };
    LoginTarget { portal, target: target.map(Into::into), isid: ISID, is_extra_channel: false }
}

fn granted(credits: u32, immediate: bool) -> LoginResponse {
    LoginResponse {
        credits,
        tag: 0,
        it_iu_len: srp::LINUX_IU_LEN as u32,
        ti_iu_len: 256,
        formats: srp::format::DIRECT | srp::format::INDIRECT,
        previous: PreviousChannels::None,
        immediate,
    }
}

/// Sends a login request. Returns it with the result of the target's answer.
fn ask(
    options: &Options,
    faults: &[Rc<Faults>; 2],
    answer: impl FnOnce(Box<dyn ConnectRequest>),
) -> (LoginRequest, Result<ConnectedEndpoint, ConnectError>) {
    let request = request(&login_target(Some(TARGET)), options).expect("a login request");
    let private = request.encode(LoginFormat::RdmaCm);
    let (asked, connecting) = mem::request_with(&private, terms(options), faults.clone());
    answer(asked);
    (request, now(connecting))
}

/// A logged-in session and the scripted target.
struct Peer {
    state: SessionState,
    datamover: Rc<SrpDatamover>,
    target: Rc<dyn Endpoint>,
    /// Faults to inject at the session's end.
    faults: Rc<Faults>,
    /// Data that the target has read, by request id.
    read: Vec<(u64, Buf)>,
}

impl Peer {
    fn new(credits: u32, immediate: bool) -> Peer {
        Peer::of(&options(), &granted(credits, immediate))
    }

    fn of(options: &Options, granted: &LoginResponse) -> Peer {
        let mut target = None;
        let faults: [Rc<Faults>; 2] = Default::default();
        let (request, connected) = ask(options, &faults, |asked| {
            let terms = ConnParam { ord: 16, ird: 0, receives: (4096, srp::LINUX_IU_LEN) };
            target = now(asked.accept(granted.encode().to_vec(), terms)).ok();
        });
        let wire = finish(connected, &request, options).unwrap_or_else(|e| panic!("the login failed: {e}"));
        let login = wire.login().clone();
        let datamover = wire.first();
        let command_window = CommandWindow {
            cmd_sn: login.cmd_sn,
            exp_cmd_sn: login.exp_cmd_sn,
            max_cmd_sn: login.max_cmd_sn,
        };
        let mut state = SessionState::new(options.commands, Instant::now);
        state.port = Some(TargetPort::Srp(lunar_wire::srp::PortId::default()));
        state.connect(
            login.parameters,
            command_window,
            login.exp_stat_sn,
            TransportSender::Datamover(datamover.clone()),
        );
        state.online = Online::Yes;
        let [faults, _] = faults;
        Peer { state, datamover, target: target.expect("accepted"), faults, read: Vec::new() }
    }

    fn submit(&mut self, cdb: Cdb, data: Direction) -> u32 {
        self.state.submit(Command::new(LUN, cdb, data), Waiter::Unknown).expect("room")
    }

    fn read(&mut self, len: usize) -> u32 {
        self.submit(cdb::read_10(0, 1), Direction::In(Buf::zeroed(len)))
    }

    fn write(&mut self, data: &[u8]) -> u32 {
        self.submit(cdb::write_10(0, 1, false), Direction::Out(buf(data)))
    }

    fn test(&mut self) -> u32 {
        self.submit(cdb::test_unit_ready(), Direction::None)
    }

    /// The units that the target has received since the last call.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        self.datamover.flush().expect("a connection");
        let mut events = EndpointEvents::default();
        self.target.poll(&mut events);
        let (list, bytes) = (events.list, events.bytes);
        let mut units = Vec::new();
        for event in list {
            match event {
                EndpointEvent::Message(range, _) => units.push(bytes[range].to_vec()),
                EndpointEvent::Read(id, buf, done) => {
                    done.expect("the RDMA Read succeeded");
                    self.read.push((id, buf));
                }
                EndpointEvent::End(why) => panic!("the connection has ended: {why:?}"),
            }
        }
        self.state.settle();
        units
    }

    /// The only unit received since the last call.
    fn one(&mut self) -> Vec<u8> {
        let mut units = self.sent();
        assert_eq!(units.len(), 1, "{units:02x?}");
        units.remove(0)
    }

    /// Sends a unit to the session, which handles it.
    fn say(&mut self, unit: &[u8]) -> Result<ReceiveStatus, ReceiveError> {
        self.target.send(unit, Payload::Empty, None);
        self.target.flush().expect("a connection");
        self.datamover.receive(&mut self.state)
    }

    fn answer(&mut self, response: SrpResponse<'_>) {
        let mut unit = Vec::new();
        response.encode(&mut unit);
        assert!(matches!(self.say(&unit), Ok(ReceiveStatus::More)), "{:?}", self.state.connection.fault());
    }

    /// Sends a GOOD response, with a credit.
    fn good(&mut self, tag: u64) {
        self.answer(SrpResponse { tag, credits: 1, ..SrpResponse::default() });
    }

    fn end(&mut self, tag: u32) -> Option<CommandResult> {
        self.state.poll(tag, Waker::noop())
    }

    fn done(&mut self, tag: u32) -> (Completion, Option<Buf>) {
        let (result, buf) = self.end(tag).expect("the command has ended");
        (result.expect("a response"), buf)
    }

    fn failed(&mut self, tag: u32) -> Error {
        self.end(tag).expect("the command has ended").0.expect_err("an error")
    }
}

fn buf(data: &[u8]) -> Buf {
    Buf::copy_of(data)
}

/// Bytes that depend on their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Decodes a unit as a command.
fn command(unit: &[u8]) -> srp::SrpCommand<'_> {
    match FromInitiator::decode(unit, Some(srp::IMMEDIATE_OFFSET)) {
        Ok(FromInitiator::Command(command)) => command,
        other => panic!("{other:?}"),
    }
}

fn direct(data: DataBuffer<'_>) -> MemoryDescriptor {
    match data {
        DataBuffer::Direct(descriptor) => descriptor,
        other => panic!("{other:?}"),
    }
}

fn remote(at: MemoryDescriptor) -> RemoteAddress {
    RemoteAddress { stag: at.key, offset: at.address }
}
