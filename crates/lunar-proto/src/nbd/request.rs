//! Validation of requests ("Request types", "Error values").

use lunar_wire::nbd::{Errno, Request, command, command_flag, transmission_flag};

/// The negotiated options by which the requests of a connection are validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedOptions {
    /// Size of the export in bytes.
    pub size: u64,
    /// Minimum block size in bytes: offsets and lengths are multiples of it.
    pub block_size: u32,
    /// Maximum length of READ and WRITE in bytes.
    pub max_payload: u32,
    /// Transmission flags.
    pub flags: u16,
    /// Structured replies are negotiated.
    pub structured: bool,
    /// The metadata context `base:allocation` was selected.
    pub allocation: bool,
}

/// A valid command. Its range and cookie are in the [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdCommand {
    /// Reads a range.
    Read {
        /// The flag DF: the reply is a single chunk.
        whole: bool,
    },
    /// Writes the payload to a range.
    Write {
        /// The flag FUA.
        fua: bool,
    },
    /// Ends the session.
    Disconnect,
    /// Makes completed writes durable.
    Flush,
    /// Deallocates a range.
    Trim {
        /// The flag FUA.
        fua: bool,
    },
    /// Prefetches a range into a cache.
    Cache,
    /// Writes zeros to a range.
    WriteZeroes {
        /// The flag FUA.
        fua: bool,
        /// The flag NO_HOLE is not set: the range may be deallocated.
        unmap: bool,
        /// The flag FAST_ZERO.
        fast: bool,
    },
    /// Reports the allocation status of a range.
    BlockStatus {
        /// The flag REQ_ONE: the reply describes one extent.
        one: bool,
    },
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// The error value of the reply.
    pub errno: Errno,
    /// A message for people.
    pub why: &'static str,
}

/// The rules for a command.
struct Row {
    command: u16,
    /// Allowed flags except FUA, which every command accepts.
    flags: u16,
    /// The transmission flag that offers the command.
    offered_by: u16,
    writes: bool,
    /// The request or its reply has a payload.
    payload: bool,
    /// The error for a range beyond the end of the export.
    beyond: Errno,
}

const fn row(command: u16, offered_by: u16) -> Row {
    Row { command, flags: 0, offered_by, writes: false, payload: false, beyond: Errno::Inval }
}

const COMMANDS: [Row; 7] = [
    Row { flags: command_flag::DF, payload: true, ..row(command::READ, transmission_flag::HAS_FLAGS) },
    Row {
        writes: true,
        payload: true,
        beyond: Errno::NoSpc,
        ..row(command::WRITE, transmission_flag::HAS_FLAGS)
    },
    row(command::FLUSH, transmission_flag::SEND_FLUSH),
    Row { writes: true, ..row(command::TRIM, transmission_flag::SEND_TRIM) },
    row(command::CACHE, transmission_flag::SEND_CACHE),
    Row {
        flags: command_flag::NO_HOLE | command_flag::FAST_ZERO,
        writes: true,
        beyond: Errno::NoSpc,
        ..row(command::WRITE_ZEROES, transmission_flag::SEND_WRITE_ZEROES)
    },
    Row { flags: command_flag::REQ_ONE, ..row(command::BLOCK_STATUS, transmission_flag::HAS_FLAGS) },
];

fn refuse<T>(errno: Errno, why: &'static str) -> Result<T, RequestError> {
    Err(RequestError { errno, why })
}

impl NegotiatedOptions {
    /// Validates a request.
    ///
    /// # Errors
    /// The command or flag is unknown or was not offered, the export is read-only, or the range is invalid. The error
    /// values are those of "Error values".
    #[inline]
    pub fn check(&self, request: &Request) -> Result<NbdCommand, RequestError> {
        if request.command == command::DISC {
            return Ok(NbdCommand::Disconnect);
        }
        let Some(row) = COMMANDS.iter().find(|row| row.command == request.command) else {
            return refuse(Errno::Inval, "the command type is unknown");
        };
        if request.flags & !(row.flags | command_flag::FUA) != 0 {
            return refuse(Errno::Inval, "the request has a flag that is not valid for its command");
        }
        if row.writes && self.flags & transmission_flag::READ_ONLY != 0 {
            return refuse(Errno::Perm, "the export is read-only");
        }
        if !self.offers(row, request) {
            return refuse(Errno::Inval, "the request has a command or flag that the server did not offer");
        }
        self.check_range(row, request)?;
        Ok(command_of(request))
    }

    fn offers(&self, row: &Row, request: &Request) -> bool {
        let by_flags = [
            (command_flag::DF, transmission_flag::SEND_DF),
            (command_flag::FAST_ZERO, transmission_flag::SEND_FAST_ZERO),
        ];
        let wanted = by_flags.iter().filter(|(flag, _)| request.flags & flag != 0);
        let needed = wanted.fold(row.offered_by, |all, (_, by)| all | by);
        self.flags & needed == needed && (row.command != command::BLOCK_STATUS || self.allocation)
    }

    fn check_range(&self, row: &Row, request: &Request) -> Result<(), RequestError> {
        let (offset, len) = (request.offset, u64::from(request.len));
        if row.command == command::FLUSH {
            return match offset | len {
                0 => Ok(()),
                _ => refuse(Errno::Inval, "the flush request has an offset or a length other than 0"),
            };
        }
        if row.command == command::BLOCK_STATUS && len == 0 {
            return refuse(Errno::Inval, "the block status request has a length of 0");
        }
        if (offset | len) & u64::from(self.block_size - 1) != 0 {
            return refuse(Errno::Inval, "offset or length of the request is not aligned to the block size");
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return refuse(row.beyond, "the range of the request is beyond the end of the export");
        }
        if row.payload && request.len > self.max_payload {
            let overflow = row.command == command::READ && self.structured;
            return refuse(
                if overflow { Errno::Overflow } else { Errno::Inval },
                "the request is longer than the maximum payload size",
            );
        }
        Ok(())
    }
}

/// The command of a request whose type and flags are valid.
fn command_of(request: &Request) -> NbdCommand {
    let has = |flag| request.flags & flag != 0;
    let fua = has(command_flag::FUA);
    match request.command {
        command::READ => NbdCommand::Read { whole: has(command_flag::DF) },
        command::WRITE => NbdCommand::Write { fua },
        command::FLUSH => NbdCommand::Flush,
        command::TRIM => NbdCommand::Trim { fua },
        command::CACHE => NbdCommand::Cache,
        command::WRITE_ZEROES => NbdCommand::WriteZeroes {
            fua,
            unmap: !has(command_flag::NO_HOLE),
            fast: has(command_flag::FAST_ZERO),
        },
        _ => NbdCommand::BlockStatus { one: has(command_flag::REQ_ONE) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::*;
    use command_flag::*;

    const ALL: u16 = 0x0fff & !transmission_flag::READ_ONLY;

    fn terms() -> NegotiatedOptions {
        NegotiatedOptions {
            size: 1 << 30,
            block_size: 512,
            max_payload: 32 << 20,
            flags: ALL,
            structured: true,
            allocation: true,
        }
    }

    fn request(command: u16, flags: u16, offset: u64, len: u32) -> Request {
        Request { flags, command, cookie: 1, offset, len }
    }

    #[test]
    fn valid_requests_are_decoded() {
        let cases = [
            (request(READ, 0, 0, 512), NbdCommand::Read { whole: false }),
            (request(READ, DF | FUA, (1 << 30) - 512, 512), NbdCommand::Read { whole: true }),
            (request(READ, 0, 0, 32 << 20), NbdCommand::Read { whole: false }),
            (request(READ, 0, 1 << 30, 0), NbdCommand::Read { whole: false }),
            (request(WRITE, FUA, 512, 1024), NbdCommand::Write { fua: true }),
            (request(DISC, 0xffff, 7, 7), NbdCommand::Disconnect),
            (request(FLUSH, FUA, 0, 0), NbdCommand::Flush),
            (request(TRIM, 0, 0, 1 << 30), NbdCommand::Trim { fua: false }),
            (request(CACHE, 0, 0, 1 << 30), NbdCommand::Cache),
            (
                request(WRITE_ZEROES, FAST_ZERO, 0, 512),
                NbdCommand::WriteZeroes { fua: false, unmap: true, fast: true },
            ),
            (
                request(WRITE_ZEROES, NO_HOLE | FUA, 0, 1 << 30),
                NbdCommand::WriteZeroes { fua: true, unmap: false, fast: false },
            ),
            (request(BLOCK_STATUS, REQ_ONE, 0, 512), NbdCommand::BlockStatus { one: true }),
        ];
        for (request, command) in cases {
            assert_eq!(terms().check(&request), Ok(command), "{request:?}");
        }
    }

    fn errno(terms: NegotiatedOptions, request: Request) -> Errno {
        terms.check(&request).expect_err("refused").errno
    }

    #[test]
    fn bad_requests_get_the_error_of_the_document() {
        let cases = [
            (request(8, 0, 0, 512), Errno::Inval),
            (request(0xffff, 0, 0, 0), Errno::Inval),
            (request(READ, NO_HOLE, 0, 512), Errno::Inval),
            (request(WRITE, DF, 0, 512), Errno::Inval),
            (request(TRIM, 1 << 5, 0, 512), Errno::Inval),
            (request(FLUSH, 0, 512, 0), Errno::Inval),
            (request(FLUSH, 0, 0, 512), Errno::Inval),
            (request(READ, 0, 1, 512), Errno::Inval),
            (request(WRITE, 0, 0, 511), Errno::Inval),
            (request(READ, 0, 1 << 30, 512), Errno::Inval),
            (request(READ, 0, u64::MAX - 511, 512), Errno::Inval),
            (request(WRITE, 0, 1 << 30, 512), Errno::NoSpc),
            (request(WRITE_ZEROES, 0, (1 << 30) - 512, 1024), Errno::NoSpc),
            (request(TRIM, 0, 1 << 30, 512), Errno::Inval),
            (request(BLOCK_STATUS, 0, 1 << 30, 512), Errno::Inval),
            (request(BLOCK_STATUS, 0, 0, 0), Errno::Inval),
            (request(READ, 0, 0, (32 << 20) + 512), Errno::Overflow),
            (request(WRITE, 0, 0, (32 << 20) + 512), Errno::Inval),
        ];
        for (request, expected) in cases {
            assert_eq!(errno(terms(), request), expected, "{request:?}");
        }
    }

    #[test]
    fn command_that_was_not_offered_is_rejected() {
        let read_only = NegotiatedOptions { flags: transmission_flag::READ_ONLY | ALL, ..terms() };
        for command in [WRITE, TRIM, WRITE_ZEROES] {
            assert_eq!(errno(read_only, request(command, 0, 0, 512)), Errno::Perm);
        }
        let bare = NegotiatedOptions {
            flags: transmission_flag::HAS_FLAGS,
            structured: false,
            allocation: false,
            ..terms()
        };
        for command in [TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS] {
            assert_eq!(errno(bare, request(command, 0, 0, 512)), Errno::Inval);
        }
        assert_eq!(errno(bare, request(READ, DF, 0, 512)), Errno::Inval);
        assert_eq!(errno(bare, request(READ, 0, 0, 1 << 29)), Errno::Inval);
        let slow = NegotiatedOptions { flags: ALL & !transmission_flag::SEND_FAST_ZERO, ..terms() };
        assert_eq!(errno(slow, request(WRITE_ZEROES, FAST_ZERO, 0, 512)), Errno::Inval);
    }
}
