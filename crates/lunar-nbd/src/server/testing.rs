//! Processes the bytes of a client without a socket, for tests and fuzzers.

use super::receive::{
    Admission, ReceivedRequest, RequestData, RequestHandler, RequestReceive, RequestReceiver,
};
use lunar_proto::nbd::{ExportOffer, Handshake, HandshakeStep, NbdCommand, NegotiatedExport};
use lunar_runtime::Buf;
use lunar_wire::nbd::{Errno, Request};

/// A server's reaction to the bytes of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTranscript {
    /// The bytes that the server sent during the handshake.
    pub said: Vec<u8>,
    /// The negotiated export. None if the handshake did not end with one.
    pub agreed: Option<NegotiatedExport>,
    /// The requests, each with its command or error, and its payload.
    pub requests: Vec<(Request, Result<NbdCommand, Errno>, Vec<u8>)>,
    /// Whether the server ended the connection because of a protocol violation.
    pub broken: bool,
}

struct TestRequests<'a> {
    talk: &'a mut ClientTranscript,
    /// Alternates, so that every second call for a buffer fails.
    starved: bool,
}

impl RequestHandler for TestRequests<'_> {
    fn is_full(&self) -> bool {
        false
    }

    fn buffer(&mut self, len: usize) -> Option<Buf> {
        self.starved = !self.starved;
        (!self.starved).then(|| Buf::zeroed(len))
    }

    fn take(&mut self, arrived: ReceivedRequest<'_>) -> Admission {
        let payload = match &arrived.data {
            RequestData::Bytes(bytes) => bytes.to_vec(),
            RequestData::Buf(buf) => buf.to_vec(),
        };
        let verdict = arrived.verdict.map_err(|refusal| refusal.errno);
        self.talk.requests.push((arrived.request, verdict, payload));
        if verdict == Ok(NbdCommand::Disconnect) { Admission::Last } else { Admission::Yes }
    }
}

/// Feeds the bytes of a client, `step` at a time, to a server of these exports.
pub fn talk(offers: Vec<ExportOffer>, bytes: &[u8], step: usize) -> ClientTranscript {
    let mut talk = ClientTranscript { said: Vec::new(), agreed: None, requests: Vec::new(), broken: false };
    let (mut machine, mut input) = (Handshake::new(offers), Vec::new());
    let mut chunks = bytes.chunks(step.max(1));
    let agreed = loop {
        let (used, next) = machine.feed(&input, &mut talk.said);
        input.drain(..used);
        match (next, used) {
            (HandshakeStep::Agreed(agreed), _) => break agreed,
            (HandshakeStep::End(_), _) => return talk,
            (HandshakeStep::More, 0) => match chunks.next() {
                Some(chunk) => input.extend_from_slice(chunk),
                None => return talk,
            },
            (HandshakeStep::More, _) => {}
        }
    };
    talk.agreed = Some(agreed);
    let mut receiver = RequestReceiver::new(agreed.terms, input);
    let mut sink = TestRequests { talk: &mut talk, starved: true };
    let mut next = receiver.resume(&mut sink);
    loop {
        next = match next {
            Ok(RequestReceive::End) => return talk,
            Ok(RequestReceive::Starved(_) | RequestReceive::Full) => receiver.resume(&mut sink),
            Ok(RequestReceive::More) => match chunks.next() {
                Some(chunk) => receiver.feed(chunk, &mut sink),
                None => return talk,
            },
            Err(_) => {
                talk.broken = true;
                return talk;
            }
        };
    }
}
