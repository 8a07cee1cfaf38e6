//! Framing: one receive, many answers. Bytes of a read land in its buffer; of a large one, the kernel puts them
//! there.

use super::machine::ClientMachine;
use lunar_proto::nbd::client::{BufferFill, ServerMessage};
use lunar_runtime::{Stream, with_scratch};
use std::io::{self, IoSliceMut};
use std::ops::Range;

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplyStreamError {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nothing that follows can be trusted.
    #[error("the server breaks the protocol: {0}")]
    Rules(&'static str),
    /// The server has left.
    #[error("the server closed it")]
    End,
}

/// Bytes of a read that are to come.
struct ReadPayload {
    cookie: u64,
    place: Range<usize>,
    done: bool,
}

/// The receiving side of a connection.
pub struct ReplyReceiver {
    /// The start of a message; never longer than the longest one without its payload.
    partial: Vec<u8>,
    coming: Option<ReadPayload>,
}

impl ReplyReceiver {
    /// A receiver that begins with bytes that came with the handshake.
    pub fn new(begun: Vec<u8>) -> ReplyReceiver {
        ReplyReceiver { partial: begun, coming: None }
    }

    /// Receives once, and tells of all that is whole. Nothing may be there.
    pub fn receive(&mut self, stream: &Stream, machine: &mut ClientMachine) -> Result<(), ReplyStreamError> {
        with_scratch(|scratch| {
            let have = self.partial.len();
            scratch[..have].copy_from_slice(&self.partial);
            let got = match &self.coming {
                Some(coming) => {
                    let place = machine.place(coming.cookie, coming.place.clone());
                    stream.receive_vectored(&mut [IoSliceMut::new(place), IoSliceMut::new(scratch)])?
                }
                None => stream.receive(&mut scratch[have..])?,
            };
            match got {
                None => Ok(()),
                Some(0) => Err(ReplyStreamError::End),
                Some(got) => {
                    self.partial.clear();
                    let landed = self.landed(got, machine);
                    self.parse(&scratch[..have + got - landed], machine)
                }
            }
        })
    }

    /// As [`ReplyReceiver::receive`], with bytes that a receive would have brought.
    pub fn feed(&mut self, bytes: &[u8], machine: &mut ClientMachine) -> Result<(), ReplyStreamError> {
        let all = [&std::mem::take(&mut self.partial)[..], bytes].concat();
        self.parse(&all, machine)
    }

    /// Counts what a receive brought; the bytes of it that went to their place.
    fn landed(&mut self, got: usize, machine: &mut ClientMachine) -> usize {
        let Some(coming) = &mut self.coming else { return 0 };
        let landed = got.min(coming.place.len());
        coming.place.start += landed;
        self.arrived(machine);
        landed
    }

    /// Ends what has come whole.
    fn arrived(&mut self, machine: &mut ClientMachine) {
        if let Some(coming) = self.coming.take_if(|coming| coming.place.is_empty())
            && coming.done
        {
            machine.answered(coming.cookie);
        }
    }

    fn parse(&mut self, mut bytes: &[u8], machine: &mut ClientMachine) -> Result<(), ReplyStreamError> {
        loop {
            if let Some(coming) = &mut self.coming {
                let (now, rest) = bytes.split_at(bytes.len().min(coming.place.len()));
                let place = coming.place.start..coming.place.start + now.len();
                coming.place.start = place.end;
                machine.place(coming.cookie, place).copy_from_slice(now);
                self.arrived(machine);
                bytes = rest;
                if self.coming.is_some() {
                    return Ok(());
                }
            }
            let Some(ServerMessage { used, cookie, fill, done }) = machine.message(bytes)? else {
                self.partial.extend_from_slice(bytes);
                return Ok(());
            };
            bytes = &bytes[used..];
            match fill {
                BufferFill::Payload(place) => self.coming = Some(ReadPayload { cookie, place, done }),
                BufferFill::Nothing | BufferFill::Zeros(_) if done => machine.answered(cookie),
                BufferFill::Nothing | BufferFill::Zeros(_) => {}
            }
        }
    }
}
