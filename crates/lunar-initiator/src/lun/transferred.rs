//! The result of a block transfer.

use crate::{Completion, Error, ErrorCode};
use lunar_runtime::Buf;
use lunar_wire::scsi::{Sense, Status};

/// The result of a block transfer, and its buffer.
pub(super) type Transfer = (Result<(), Error>, Buf);

/// The result of a write, and its data. If they are lost, an error becomes [`ErrorCode::InvalidArgument`], so that no other
/// path writes the replacement buffer.
pub(crate) fn with_buffer<T>(
    result: Result<T, Error>,
    data: Option<Buf>,
    len: usize,
) -> (Result<T, Error>, Buf) {
    let gone = |e: Error| {
        Error::new(
            ErrorCode::InvalidArgument,
            format!("the write failed, and its data is no longer in memory for a retry on another path: {e}"),
        )
    };
    match data {
        Some(data) => (result, data),
        None => (result.map_err(gone), Buf::zeroed(len)),
    }
}

/// The result of a read of `len` bytes.
#[inline]
pub(super) fn read_result(result: Result<Completion, Error>, buf: Option<Buf>, len: usize) -> Transfer {
    (result.and_then(|c| whole(&c, len)), buf.unwrap_or_else(|| Buf::zeroed(len)))
}

/// The result of a write of `len` bytes.
#[inline]
pub(super) fn write_result(result: Result<Completion, Error>, data: Option<Buf>, len: usize) -> Transfer {
    with_buffer(result.and_then(|c| whole(&c, len)), data, len)
}

/// The error of a command that belongs to an operation, part of which has changed the medium. A status that means that
/// nothing was done does not hold for the operation: sense data replace it.
pub(super) fn has_begun(e: Error) -> Error {
    if !Status::NOT_EXECUTED.iter().any(|status| e.status == Some(*status as u8)) {
        return e;
    }
    e.with_status(Status::CheckCondition as u8).with_sense(Some(Sense::COMMAND_ABORTED))
}

/// The error of a command of an operation. `begun`: an earlier command has changed the medium.
pub(super) fn of_step(begun: bool) -> impl Fn(Error) -> Error {
    move |e| if begun { has_begun(e) } else { e }
}

/// Checks that all bytes were transferred.
fn whole(c: &Completion, wanted: usize) -> Result<(), Error> {
    if c.transferred == wanted {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::ScsiError,
        format!("the target transferred {} of {wanted} bytes of the command", c.transferred),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_whose_data_are_gone_is_not_repeated_on_another_path() {
        let lost = || Err::<(), _>(Error::new(ErrorCode::SessionClosed, "the session is closed"));
        let kind = |data| with_buffer(lost(), data, 512).0.map_err(|e| e.code);
        assert_eq!(kind(Some(Buf::zeroed(512))), Err(ErrorCode::SessionClosed));
        assert_eq!(kind(None), Err(ErrorCode::InvalidArgument));
        assert!(with_buffer(Ok(()), None, 512).0.is_ok());
    }
}
