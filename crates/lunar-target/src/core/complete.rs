//! The end of commands: all that is counted, and what the initiator hears.

use super::command::Command;
use super::data_in::DataIn;
use super::front_end::FrontEnd;
use super::nexus::State;
use super::response::{Residual, Response, Sent};
use crate::Reply;
use crate::exec::{Ended, Outcome};
use lunar_runtime::Buf;
use lunar_scsi::Failure;
use lunar_wire::scsi::Status;

impl Response {
    /// A status alone, of a command that moves so many bytes.
    #[inline]
    fn status(c: &Command, status: Status, moved: u64) -> Response {
        let residual = Residual::new(c.expected_len, moved);
        Response {
            status: status as u8,
            sense: Vec::new(),
            residual,
            data: DataIn::None,
            sent: Sent::default(),
        }
    }

    /// GOOD with `len` bytes, or as many as the initiator takes.
    #[inline]
    fn data(c: &Command, data: impl FnOnce(usize) -> DataIn, len: usize) -> Response {
        let send = len.min(c.room() as usize);
        if send == 0 {
            // An initiator that meant to send data gets none, and none of it was taken.
            let moved = if c.offered() > 0 { 0 } else { len };
            return Response::status(c, Status::Good, moved as u64);
        }
        Response {
            status: Status::Good as u8,
            sense: Vec::new(),
            residual: Residual::new(c.room().max(c.offered()), len as u64),
            data: data(send),
            sent: Sent::default(),
        }
    }

    fn failure(c: &Command, failure: Failure, descriptor: bool, moved: u64) -> Response {
        let sense = failure.sense.map_or(Vec::new(), |sense| sense.encode(descriptor));
        Response { sense, ..Response::status(c, failure.status, moved) }
    }

    /// What a logical unit elsewhere answered: its data, whatever its status, and its sense data.
    fn passed(c: &Command, reply: Reply) -> Response {
        let Reply { status, sense, data, moved, fate: _ } = reply;
        let room = c.room() as usize;
        match data.filter(|data| c.reads && (status == Status::Good as u8 || !data.is_empty())) {
            Some(buf) if status == Status::Good as u8 => {
                let moved = if buf.len() < room { buf.len() } else { moved as usize };
                Response::data(c, |send| DataIn::Buf(buf, send), moved)
            }
            data => Response {
                status,
                sense: sense.into_vec(),
                residual: Residual::new(c.room().max(c.offered()), moved),
                data: data.map_or(DataIn::None, |buf| whole(buf, room)),
                sent: Sent::default(),
            },
        }
    }
}

fn whole(buf: Buf, room: usize) -> DataIn {
    let len = buf.len().min(room);
    DataIn::Buf(buf, len)
}

/// How a command ended.
pub(super) struct Completion {
    /// What it came to.
    pub ended: Ended,
    /// Bytes that its CDB asked for: of Data-Out, or of a READ whose buffer has no room for more than the initiator takes.
    pub moved: u64,
    /// Bytes that a WRITE has put on the medium.
    pub written: Option<u32>,
    /// Sense data in descriptor format.
    pub descriptor: bool,
    /// Data-In that has gone before.
    pub sent: Sent,
}

impl Completion {
    /// Without more than how it ended.
    #[inline]
    pub fn of(ended: Ended) -> Completion {
        Completion { ended, moved: 0, written: None, descriptor: false, sent: Sent::default() }
    }

    #[inline]
    fn response(self, c: &Command) -> Response {
        let Completion { ended, moved, descriptor, sent, .. } = self;
        match ended {
            // An initiator that waits for data sends none.
            Ok(Outcome::Good) if c.offered() == 0 && c.room() > 0 => Response::status(c, Status::Good, 0),
            Ok(Outcome::Good) => Response::status(c, Status::Good, moved),
            Ok(Outcome::Data(mut bytes)) => {
                let len = bytes.len();
                let cut = |send| {
                    bytes.truncate(send);
                    DataIn::Bytes(bytes)
                };
                Response::data(c, cut, len)
            }
            Ok(Outcome::Medium(rest)) if sent.bytes > 0 => {
                let (len, most) = (rest.len(), c.room().max(c.offered()));
                let residual = Residual::new(most, (sent.bytes + len) as u64);
                let data = DataIn::Buf(rest, len);
                Response { residual, data, sent, ..Response::status(c, Status::Good, 0) }
            }
            Ok(Outcome::Medium(buf)) => {
                let len = buf.len().max(moved as usize);
                Response::data(c, |send| DataIn::Buf(buf, send), len)
            }
            Ok(Outcome::Zeros(len)) => Response::data(c, DataIn::Zeros, len),
            Ok(Outcome::Passed(reply)) => Response::passed(c, reply),
            Err(failure) if sent.bytes > 0 => {
                Response { sent, ..Response::failure(c, failure, descriptor, sent.bytes as u64) }
            }
            // The residual shows how much more the command needs (RFC 7143 section 11.4.5.2).
            Err(failure) if c.room() == 0 && moved > c.offered().into() => {
                Response::failure(c, failure, descriptor, moved)
            }
            Err(failure) => Response::failure(c, failure, descriptor, 0),
        }
    }
}

impl<F: FrontEnd> State<F> {
    /// Ends a command: all that is counted is counted here, its place among the commands of the initiator is free, and the
    /// initiator hears of it.
    #[inline]
    pub(super) fn complete(&mut self, c: &Command, completion: Completion) {
        self.count(&completion);
        self.front.release(c);
        self.front.respond(c, completion.response(c));
    }

    #[inline]
    fn count(&self, Completion { ended, moved, written, .. }: &Completion) {
        let counters = &self.info.counters;
        let read = match ended {
            Ok(Outcome::Medium(buf)) => buf.len().max(*moved as usize),
            Ok(Outcome::Zeros(len)) => *len,
            Ok(Outcome::Passed(reply)) if reply.status != Status::Good as u8 => {
                return counters.failures.add(1);
            }
            Err(_) => return counters.failures.add(1),
            Ok(Outcome::Good | Outcome::Data(_) | Outcome::Passed(_)) => {
                if let Some(bytes) = written {
                    counters.writes.add(1);
                    counters.write_bytes.add(u64::from(*bytes));
                }
                return;
            }
        };
        counters.reads.add(1);
        counters.read_bytes.add(read as u64);
    }

    /// Sends a part of a command's Data-In; more follows.
    pub(super) fn data_in_part(&mut self, c: &Command, part: Buf, sent: Sent) -> Sent {
        let len = part.len();
        self.info.counters.read_bytes.add(len as u64);
        self.front.data_in(c, DataIn::Buf(part, len), sent)
    }
}
