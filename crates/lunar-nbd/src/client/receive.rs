//! Framing: one receive returns many replies. The data of a read is copied into its buffer, but the kernel receives
//! the rest of a large read directly into it.

use super::machine::ClientMachine;
use lunar_proto::nbd::client::{BufferFill, ServerMessage};
use lunar_runtime::{Stream, with_scratch};
use std::io::{self, IoSliceMut};
use std::ops::Range;

/// An error that ends a connection.
#[derive(Debug, thiserror::Error)]
pub enum ReplyStreamError {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server violated the protocol, so message boundaries are unknown.
    #[error("the server violates the protocol: {0}")]
    Rules(&'static str),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    End,
}

/// The part of a read's data that has not arrived yet.
struct ReadPayload {
    cookie: u64,
    place: Range<usize>,
    done: bool,
}

/// The receiving side of a connection.
pub struct ReplyReceiver {
    /// The start of an incomplete message. Never longer than the longest message without its payload.
    partial: Vec<u8>,
    coming: Option<ReadPayload>,
}

impl ReplyReceiver {
    /// Creates a receiver. `begun` has the bytes received after the handshake.
    pub fn new(begun: Vec<u8>) -> ReplyReceiver {
        ReplyReceiver { partial: begun, coming: None }
    }

    /// Receives once, and processes all complete messages. Returns immediately if there is nothing to receive.
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

    /// The same as [`ReplyReceiver::receive`], with these bytes instead of the socket's.
    pub fn feed(&mut self, bytes: &[u8], machine: &mut ClientMachine) -> Result<(), ReplyStreamError> {
        let all = [&std::mem::take(&mut self.partial)[..], bytes].concat();
        self.parse(&all, machine)
    }

    /// Accounts for received bytes. Returns how many the kernel placed directly in the buffer of a read.
    fn landed(&mut self, got: usize, machine: &mut ClientMachine) -> usize {
        let Some(coming) = &mut self.coming else { return 0 };
        let landed = got.min(coming.place.len());
        coming.place.start += landed;
        self.arrived(machine);
        landed
    }

    /// Ends the payload of a read once it is complete.
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
