//! Replies to hosts: the response of the logical unit, or a substitute if there is none.

use lunar_initiator::{Completion, Error, ErrorCode};
use lunar_runtime::Buf;
use lunar_target::{CommandFate, PassthroughResponse};
use lunar_wire::scsi::{Sense, Status};

/// ABORTED COMMAND, LOGICAL UNIT COMMUNICATION FAILURE: the command may have been executed. Hosts repeat it if that
/// is safe.
const UNCERTAIN: Sense = Sense::new(0x0b, 0x08, 0x00);
/// NOT READY, MANUAL INTERVENTION REQUIRED.
const WRONG_LU: Sense = Sense::new(0x02, 0x04, 0x03);

/// A reply with sense data.
pub fn sense(sense: Sense) -> PassthroughResponse {
    let sense = sense.encode(false).into();
    PassthroughResponse {
        status: Status::CheckCondition as u8,
        sense,
        data: None,
        moved: 0,
        fate: CommandFate::Ended,
    }
}

/// No path to the logical unit works: hosts use another path, or retry.
pub fn no_path() -> PassthroughResponse {
    sense(Sense::NOT_READY_TRANSITION)
}

/// The logical unit has an unexpected identity.
pub fn wrong_lu() -> PassthroughResponse {
    sense(WRONG_LU)
}

/// The response of the logical unit. `data`: the buffer of a read, which follows the `taken` bytes that were taken
/// before.
pub fn answered(c: Completion, data: Option<Buf>, taken: usize) -> PassthroughResponse {
    let moved = c.transferred as u64 + u64::from(c.overflow);
    let data = data.map(|mut buf| {
        buf.set_visible(c.transferred.saturating_sub(taken).min(buf.len()));
        buf
    });
    PassthroughResponse { status: c.status, sense: c.sense, data, moved, fate: CommandFate::Ended }
}

/// A command without a response. A `repeatable` command was retried without success.
pub fn failed(e: &Error, repeatable: bool) -> PassthroughResponse {
    match e.code {
        ErrorCode::IdentityMismatch => wrong_lu(),
        ErrorCode::InvalidArgument => sense(Sense::INVALID_FIELD_IN_CDB),
        _ if repeatable => no_path(),
        _ => sense(UNCERTAIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sense_of(reply: &PassthroughResponse) -> Option<Sense> {
        Sense::decode(&reply.sense)
    }

    #[test]
    fn uncertain_commands_differ_from_unsent_ones() {
        assert_eq!(sense_of(&no_path()), Some(Sense::NOT_READY_TRANSITION));
        let lost = Error::new(ErrorCode::ConnectionLost, "gone");
        assert_eq!(sense_of(&failed(&lost, true)), Some(Sense::NOT_READY_TRANSITION));
        assert_eq!(sense_of(&failed(&lost, false)), Some(UNCERTAIN), "a tape may have moved");
        assert_eq!(
            sense_of(&failed(&Error::new(ErrorCode::IdentityMismatch, "another disk"), true)),
            Some(WRONG_LU)
        );
    }

    #[test]
    fn short_read_and_overflow_keep_their_counts() {
        let c = |transferred, overflow| {
            let mut completion = Completion::default();
            (completion.transferred, completion.overflow) = (transferred, overflow);
            completion
        };
        let short = answered(c(100, 0), Some(Buf::zeroed(512)), 0);
        assert_eq!((short.data.map(|d| d.len()), short.moved), (Some(100), 100));
        let long = answered(c(512, 88), Some(Buf::zeroed(512)), 0);
        assert_eq!((long.data.map(|d| d.len()), long.moved), (Some(512), 600));
        let written = answered(c(512, 0), None, 0);
        assert_eq!((written.data.is_none(), written.moved), (true, 512));
        let rest = answered(c(8704, 0), Some(Buf::zeroed(4096)), 8192);
        assert_eq!((rest.data.map(|d| d.len()), rest.moved), (Some(512), 8704), "after a part");
    }
}
