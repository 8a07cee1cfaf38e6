//! Processes the bytes of a server without a socket, for tests and fuzzers.

use super::machine::{ClientMachine, CommandRequest, ReplyWaiter};
use super::receive::ReplyReceiver;
use lunar_proto::nbd::NbdCommand;
use lunar_proto::nbd::client::{ClientNegotiation, ExtentStatus, NegotiationStep};
use lunar_runtime::Buf;
use std::io;
use std::task::{Context, Poll, Waker};

/// The result of a command, an error by its kind, and the bytes of its buffer; None while it is in flight.
pub type ReplyOutcome = Option<(Result<Option<ExtentStatus>, io::ErrorKind>, Vec<u8>)>;

/// A client's reaction to the bytes of a server.
#[derive(Debug, PartialEq, Eq)]
pub struct ServerTranscript {
    /// The bytes that the client sent during the handshake.
    pub said: Vec<u8>,
    /// The result of the handshake; None if the bytes ended first.
    pub negotiated: Option<NegotiationStep>,
    /// The results of the commands, in order.
    pub outcomes: Vec<ReplyOutcome>,
    /// Whether the client ended the connection because of a protocol violation.
    pub broken: bool,
}

/// Feeds the bytes of a server, `step` at a time, to a client of the export `disk`. After the handshake the client
/// submits all `commands` at once, each with its offset and its length in bytes.
pub fn talk(commands: &[(NbdCommand, u64, u32)], bytes: &[u8], step: usize) -> ServerTranscript {
    let mut talk =
        ServerTranscript { said: Vec::new(), negotiated: None, outcomes: Vec::new(), broken: false };
    let (mut client, mut input) = (ClientNegotiation::new("disk"), Vec::new());
    let mut chunks = bytes.chunks(step.max(1));
    let export = loop {
        let (used, next) = client.feed(&input, &mut talk.said);
        input.drain(..used);
        match next {
            NegotiationStep::More if used > 0 => {}
            NegotiationStep::More => match chunks.next() {
                Some(chunk) => input.extend_from_slice(chunk),
                None => return talk,
            },
            end => {
                talk.negotiated = Some(end.clone());
                let NegotiationStep::Agreed(export) = end else { return talk };
                break export;
            }
        }
    };
    let (mut machine, mut receiver) = (ClientMachine::new(export), ReplyReceiver::new(Vec::new()));
    let asked: Vec<u64> = commands.iter().map(|command| submit(&mut machine, *command)).collect();
    talk.broken =
        std::iter::once(&input[..]).chain(chunks).any(|chunk| receiver.feed(chunk, &mut machine).is_err());
    machine.out.take_bytes();
    let waker = Waker::noop();
    talk.outcomes = asked
        .into_iter()
        .map(|cookie| match machine.poll(cookie, &mut Context::from_waker(waker)) {
            Poll::Pending => None,
            Poll::Ready((result, buf)) => {
                Some((result.map_err(|e| e.kind()), buf.map_or(Vec::new(), |buf| buf.to_vec())))
            }
        })
        .collect();
    talk
}

fn submit(machine: &mut ClientMachine, (command, offset, len): (NbdCommand, u64, u32)) -> u64 {
    let moves = matches!(command, NbdCommand::Read { .. } | NbdCommand::Write { .. });
    let buf = moves.then(|| Buf::zeroed(len as usize));
    match machine.submit(CommandRequest { command, offset, len, buf }, ReplyWaiter::Unknown) {
        Ok(cookie) => cookie,
        Err(_) => unreachable!("the connection has not ended"),
    }
}
