//! Statuses as errors.

use crate::{Error, ErrorCode};
use lunar_proto::nvme::to_scsi;
use lunar_wire::nvme::{NvmeStatus, TermRequest};
use lunar_wire::scsi::Status;

/// Command Aborted By Host (3/71h): a status that a host gives itself. The command has more data than the controller takes since
/// the last reconnection, and was not sent.
pub const ABORTED_BY_HOST: NvmeStatus = NvmeStatus { code: 0x71, ..NvmeStatus::PATH_ERROR };

/// The error of a command that ended with this status. Its sense data are those of the SCSI command of the same meaning.
pub fn error_of(status: NvmeStatus) -> Error {
    let (scsi, sense) = to_scsi(status);
    let code = match scsi {
        Status::ReservationConflict => ErrorCode::ReservationConflict,
        _ => ErrorCode::ScsiError,
    };
    let error = Error::new(code, format!("the controller answered: {status}")).with_nvme_status(status);
    let error = error.with_status(scsi as u8).with_sense(sense);
    match code {
        ErrorCode::ScsiError => error.with_hint(hint_of(status)),
        _ => error,
    }
}

fn hint_of(status: NvmeStatus) -> &'static str {
    match (status.kind, status.code) {
        (0, code) if code == NvmeStatus::WRITE_PROTECTED.code => {
            "the target lets this host only read: look for read_only of the subsystem, of the namespace or of its LUN there, or \
             for a write-protected medium"
        }
        (0, code) if code == NvmeStatus::INVALID_NAMESPACE.code => {
            "the namespace was removed, or the target hides it from this host: look at the namespaces of the subsystem there"
        }
        _ => "see the log of the target, and the error log of the controller (nvme error-log)",
    }
}

/// The error of a refused Connect. `result` shows which parameter was wrong, if it is not 0.
pub fn refused(status: NvmeStatus, result: u64) -> Error {
    let place = match (result & 0xffff, result >> 16 & 1) {
        (0, 0) => String::new(),
        (offset, 0) => format!(", byte {offset} of the command"),
        (offset, _) => format!(", byte {offset} of the data"),
    };
    let (code, hint) = match (status.kind, status.code) {
        (1, 0x82) => (
            ErrorCode::NotFound,
            "check the name of the subsystem, and that the port does not only serve discovery, as 8009; lunar discover \
             nvme://HOST:8009 lists the subsystems",
        ),
        (1, 0x84) => (
            ErrorCode::Refused,
            "let the subsystem admit the name and the address of this host, or name another host with host_nqn= in the URL; a host \
             with a TLS key needs a portal with TLS: Lunar's own initiator has no TLS",
        ),
        (1, 0x81) => (
            ErrorCode::Unreachable,
            "the target has no room for more connections, or the subsystem is offline or waits for its storage: see its log",
        ),
        (1, 0x91) => (ErrorCode::AuthenticationFailed, "add secret_file=FILE to the URL"),
        _ => (ErrorCode::Refused, "see the log of the target"),
    };
    let what = format!("the controller refused Connect: {status}{place}");
    Error::new(code, what).with_hint(hint)
}

/// The error of a controller that has ended.
pub fn closed() -> Error {
    Error::new(ErrorCode::SessionClosed, "the controller was closed")
}

/// The error of a command that was never sent: it certainly was not executed.
pub fn of_unsent(error: &Error) -> Error {
    if error.code != ErrorCode::ConnectionLost {
        return error.clone();
    }
    let unsent = Error::new(ErrorCode::Unreachable, error.what.clone());
    match &error.hint {
        Some(hint) => unsent.with_hint(hint.clone()),
        None => unsent,
    }
}

/// The error of a connection that the controller has ended.
pub fn terminated(header: &[u8], copied: &[u8]) -> Error {
    let whole = [header, copied].concat();
    let fault = TermRequest::decode(&whole).map_or(String::new(), |request| format!(": {}", request.error));
    Error::new(ErrorCode::ProtocolError, format!("the controller ended the connection{fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn status_has_the_error_kind_of_a_local_disk() {
        for (status, kind) in [
            (NvmeStatus::CAPACITY_EXCEEDED, io::ErrorKind::StorageFull),
            (NvmeStatus::WRITE_PROTECTED, io::ErrorKind::ReadOnlyFilesystem),
            (NvmeStatus::INVALID_OPCODE, io::ErrorKind::Unsupported),
            (NvmeStatus::LBA_OUT_OF_RANGE, io::ErrorKind::InvalidInput),
            (NvmeStatus::RESERVATION_CONFLICT, io::ErrorKind::PermissionDenied),
            (NvmeStatus::READ_ERROR, io::ErrorKind::Other),
        ] {
            assert_eq!(io::Error::from(error_of(status)).kind(), kind, "{status}");
        }
    }

    #[test]
    fn each_status_has_a_hint_in_words_of_nvme() {
        let hint = |status| error_of(status).hint.as_ref().map(|hint| hint.to_string()).unwrap_or_default();
        assert!(hint(NvmeStatus::WRITE_PROTECTED).contains("read_only of the subsystem"));
        assert!(hint(NvmeStatus::INVALID_NAMESPACE).contains("namespaces of the subsystem"));
        assert!(hint(NvmeStatus::READ_ERROR).contains("error log of the controller"));
        // The program has a better one for conflicts.
        assert_eq!(hint(NvmeStatus::RESERVATION_CONFLICT), "");
    }

    #[test]
    fn refused_connect_names_the_parameter() {
        let error = refused(NvmeStatus::CONNECT_PARAMETERS, 0x1_0100);
        assert!(error.code == ErrorCode::NotFound && error.what.ends_with("byte 256 of the data"), "{error}");
        assert_eq!(refused(NvmeStatus::CONNECT_HOST, 0x1_0200).code, ErrorCode::Refused);
        let error = refused(NvmeStatus::CONNECT_PARAMETERS, 42);
        assert!(error.what.ends_with("byte 42 of the command"), "{error}");
        let error = refused(NvmeStatus::CONNECT_HOST, 0);
        assert!(error.what.ends_with("(1h/84h)"), "SPDK names no parameter: {error}");
    }
}
