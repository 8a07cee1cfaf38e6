//! The status of a completion.

use std::fmt;

/// The status of a command: status code type, status code and the bit Do Not Retry (NVM Express Base, status field).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NvmeStatus {
    /// Status code type: 0 generic, 1 command specific, 2 media, 3 path.
    pub kind: u8,
    /// Status code within its type.
    pub code: u8,
    /// The command would fail again (DNR).
    pub do_not_retry: bool,
    /// Which of the retry delays that Identify reports the host waits for (CRD), 0 for none.
    pub retry_delay: u8,
    /// More information is in the error log page.
    pub more: bool,
}

/// A status code, by its type and its number.
const fn of(kind: u8, code: u8, do_not_retry: bool) -> NvmeStatus {
    NvmeStatus { kind, code, do_not_retry, retry_delay: 0, more: false }
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $kind:literal, $code:literal, $dnr:literal, $text:literal;)*) => {
        impl NvmeStatus {
            $($(#[$doc])* pub const $name: NvmeStatus = of($kind, $code, $dnr);)*

            /// The name of the status, as the specification has it; `None` for a code that is not in the table.
            pub fn name(self) -> Option<&'static str> {
                match (self.kind, self.code) {
                    $(($kind, $code) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The command has succeeded.
    SUCCESS = 0, 0x00, false, "successful completion";
    /// The opcode is not supported.
    INVALID_OPCODE = 0, 0x01, true, "invalid command opcode";
    /// A field is invalid.
    INVALID_FIELD = 0, 0x02, true, "invalid field in command";
    /// Another command of the queue has this identifier.
    ID_CONFLICT = 0, 0x03, true, "command ID conflict";
    /// Data could not be transferred.
    DATA_TRANSFER_ERROR = 0, 0x04, false, "data transfer error";
    /// An internal error.
    INTERNAL_ERROR = 0, 0x06, true, "internal error";
    /// The command was aborted by an Abort command.
    ABORT_REQUESTED = 0, 0x07, true, "command abort requested";
    /// The command was aborted because its queue was deleted.
    QUEUE_DELETED = 0, 0x08, true, "command aborted due to SQ deletion";
    /// The other command of the fused pair has failed.
    FAILED_FUSED = 0, 0x09, true, "command aborted due to failed fused command";
    /// The other command of the fused pair is missing.
    MISSING_FUSED = 0, 0x0a, true, "command aborted due to missing fused command";
    /// There is no such namespace, or its format does not fit.
    INVALID_NAMESPACE = 0, 0x0b, true, "invalid namespace or format";
    /// The command is not allowed at this point.
    SEQUENCE_ERROR = 0, 0x0c, true, "command sequence error";
    /// The descriptor of the data is invalid.
    SGL_INVALID_TYPE = 0, 0x11, true, "SGL descriptor type invalid";
    /// The length of the data differs from that of the command.
    SGL_INVALID_LENGTH = 0, 0x0f, true, "data SGL length invalid";
    /// The offset in the capsule is invalid.
    SGL_INVALID_OFFSET = 0, 0x16, true, "SGL offset invalid";
    /// The form of the host identifier does not fit.
    HOST_ID_FORMAT = 0, 0x18, true, "host identifier inconsistent format";
    /// The keep-alive timer has expired.
    KEEP_ALIVE_EXPIRED = 0, 0x19, true, "keep alive timer expired";
    /// The time-out of Keep Alive is invalid.
    KEEP_ALIVE_INVALID = 0, 0x1a, true, "keep alive timeout invalid";
    /// The command was aborted by Preempt and Abort.
    PREEMPTED = 0, 0x1b, true, "command aborted due to preempt and abort";
    /// The last sanitize operation has failed.
    SANITIZE_FAILED = 0, 0x1c, true, "sanitize failed";
    /// A sanitize operation is in progress.
    SANITIZE_IN_PROGRESS = 0, 0x1d, true, "sanitize in progress";
    /// The namespace is write protected.
    WRITE_PROTECTED = 0, 0x20, true, "namespace is write protected";
    /// The command was interrupted: the host repeats it.
    INTERRUPTED = 0, 0x21, false, "command interrupted";
    /// Data were corrupted on their way: the host repeats the command.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, false, "transient transport error";
    /// The range exceeds the size of the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80, true, "LBA out of range";
    /// The storage is full.
    CAPACITY_EXCEEDED = 0, 0x81, true, "capacity exceeded";
    /// The namespace cannot be used now.
    NAMESPACE_NOT_READY = 0, 0x82, false, "namespace not ready";
    /// A reservation of another host forbids the command.
    RESERVATION_CONFLICT = 0, 0x83, true, "reservation conflict";
    /// More Abort commands than the limit.
    ABORT_LIMIT_EXCEEDED = 1, 0x03, false, "abort command limit exceeded";
    /// More Asynchronous Event Requests than the limit.
    EVENT_LIMIT_EXCEEDED = 1, 0x05, true, "asynchronous event request limit exceeded";
    /// There is no such log page.
    INVALID_LOG_PAGE = 1, 0x09, true, "invalid log page";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = 1, 0x0d, true, "feature identifier not saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, true, "feature not changeable";
    /// The feature is not one of a namespace.
    FEATURE_NOT_OF_NAMESPACE = 1, 0x0f, true, "feature not namespace specific";
    /// Connect: the format of the command is not supported.
    CONNECT_FORMAT = 1, 0x80, true, "connect incompatible format";
    /// Connect: there is no room now.
    CONNECT_BUSY = 1, 0x81, false, "connect controller busy";
    /// Connect: a parameter is invalid.
    CONNECT_PARAMETERS = 1, 0x82, true, "connect invalid parameters";
    /// Connect: the host asks the discovery service again.
    CONNECT_RESTART_DISCOVERY = 1, 0x83, true, "connect restart discovery";
    /// Connect: the host is not allowed.
    CONNECT_HOST = 1, 0x84, true, "connect invalid host";
    /// The queue does not take the command.
    INVALID_QUEUE_TYPE = 1, 0x85, true, "invalid queue type";
    /// The host reads the discovery log again.
    DISCOVER_RESTART = 1, 0x90, true, "discover restart";
    /// The host must authenticate first.
    AUTHENTICATION_REQUIRED = 1, 0x91, true, "authentication required";
    /// The medium could not be written.
    WRITE_FAULT = 2, 0x80, true, "write fault";
    /// The medium could not be read.
    READ_ERROR = 2, 0x81, true, "unrecovered read error";
    /// The data differ from those of a Compare command.
    COMPARE_FAILURE = 2, 0x85, true, "compare failure";
    /// The host may not access the namespace.
    ACCESS_DENIED = 2, 0x86, true, "access denied";
    /// An internal error of this path.
    PATH_ERROR = 3, 0x00, false, "internal path error";
    /// The namespace cannot be reached through this controller any more.
    ANA_PERSISTENT_LOSS = 3, 0x01, false, "asymmetric access persistent loss";
    /// The namespace cannot be reached through this controller now.
    ANA_INACCESSIBLE = 3, 0x02, false, "asymmetric access inaccessible";
    /// The access state changes.
    ANA_TRANSITION = 3, 0x03, false, "asymmetric access transition";
}

const MORE: u16 = 1 << 14;
const DO_NOT_RETRY: u16 = 1 << 15;

impl NvmeStatus {
    /// Copy: more blocks or ranges than a limit. The code is that of [`NvmeStatus::CONNECT_RESTART_DISCOVERY`], whose name it
    /// has.
    pub const COMMAND_SIZE_LIMIT: NvmeStatus = of(1, 0x83, true);

    /// Whether the command has succeeded.
    pub fn is_success(self) -> bool {
        (self.kind, self.code) == (0, 0)
    }

    /// Decodes bytes 14 and 15 of a completion. Bit 0, the phase, means nothing over fabrics.
    pub fn decode(field: u16) -> NvmeStatus {
        NvmeStatus {
            code: (field >> 1) as u8,
            kind: (field >> 9) as u8 & 7,
            retry_delay: (field >> 12) as u8 & 3,
            more: field & MORE != 0,
            do_not_retry: field & DO_NOT_RETRY != 0,
        }
    }

    /// Bytes 14 and 15 of a completion.
    pub fn encode(self) -> u16 {
        let flag = |is: bool, bit: u16| if is { bit } else { 0 };
        u16::from(self.code) << 1
            | u16::from(self.kind & 7) << 9
            | u16::from(self.retry_delay & 3) << 12
            | flag(self.more, MORE)
            | flag(self.do_not_retry, DO_NOT_RETRY)
    }
}

impl fmt::Display for NvmeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("unknown status");
        write!(f, "{name} ({:x}h/{:02x}h)", self.kind, self.code)
    }
}
