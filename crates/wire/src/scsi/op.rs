//! Operation codes (SPC-5, SBC-4, MMC-6).

/// One row per operation code: constant, value, the standard's name.
macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(#[doc = $text] pub const $name: u8 = $value;)*

        /// The standard's name of an operation code, where it is a command by itself or a family of service
        /// actions.
        pub fn name(opcode: u8) -> Option<&'static str> {
            match opcode {
                $($value => Some($text),)*
                _ => None,
            }
        }
    };
}

/// Service actions: operation code, service action, the standard's name.
const ACTIONS: &[(u8, u16, &str)] = &[
    (SANITIZE, 1, "SANITIZE (overwrite)"),
    (SANITIZE, 2, "SANITIZE (block erase)"),
    (SANITIZE, 3, "SANITIZE (cryptographic erase)"),
    (SANITIZE, 0x1f, "SANITIZE (exit failure mode)"),
    (PERSISTENT_RESERVE_IN, 0, "READ KEYS"),
    (PERSISTENT_RESERVE_IN, 1, "READ RESERVATION"),
    (PERSISTENT_RESERVE_IN, 2, "REPORT CAPABILITIES"),
    (PERSISTENT_RESERVE_IN, 3, "READ FULL STATUS"),
    (PERSISTENT_RESERVE_OUT, 0, "REGISTER"),
    (PERSISTENT_RESERVE_OUT, 1, "RESERVE"),
    (PERSISTENT_RESERVE_OUT, 2, "RELEASE"),
    (PERSISTENT_RESERVE_OUT, 3, "CLEAR"),
    (PERSISTENT_RESERVE_OUT, 4, "PREEMPT"),
    (PERSISTENT_RESERVE_OUT, 5, "PREEMPT AND ABORT"),
    (PERSISTENT_RESERVE_OUT, 6, "REGISTER AND IGNORE EXISTING KEY"),
    (PERSISTENT_RESERVE_OUT, 7, "REGISTER AND MOVE"),
    (SERVICE_ACTION_IN_16, 0x10, "READ CAPACITY(16)"),
    (SERVICE_ACTION_IN_16, 0x12, "GET LBA STATUS"),
    (MAINTENANCE_IN, 0x05, "REPORT IDENTIFYING INFORMATION"),
    (MAINTENANCE_IN, 0x0a, "REPORT TARGET PORT GROUPS"),
    (MAINTENANCE_IN, 0x0c, "REPORT SUPPORTED OPERATION CODES"),
    (MAINTENANCE_IN, 0x0d, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS"),
    (MAINTENANCE_IN, 0x0f, "REPORT TIMESTAMP"),
    (MAINTENANCE_OUT, 0x0a, "SET TARGET PORT GROUPS"),
    (MAINTENANCE_OUT, 0x0f, "SET TIMESTAMP"),
];

/// The standard's name of a command.
pub fn command(opcode: u8, action: Option<u16>) -> Option<&'static str> {
    let row = ACTIONS.iter().find(|row| row.0 == opcode && Some(row.1) == action);
    row.map(|row| row.2).or_else(|| name(opcode))
}

codes! {
    TEST_UNIT_READY = 0x00, "TEST UNIT READY";
    REQUEST_SENSE = 0x03, "REQUEST SENSE";
    READ_6 = 0x08, "READ(6)";
    WRITE_6 = 0x0a, "WRITE(6)";
    INQUIRY = 0x12, "INQUIRY";
    MODE_SELECT_6 = 0x15, "MODE SELECT(6)";
    RESERVE_6 = 0x16, "RESERVE(6)";
    RELEASE_6 = 0x17, "RELEASE(6)";
    MODE_SENSE_6 = 0x1a, "MODE SENSE(6)";
    START_STOP_UNIT = 0x1b, "START STOP UNIT";
    RECEIVE_DIAGNOSTIC = 0x1c, "RECEIVE DIAGNOSTIC RESULTS";
    SEND_DIAGNOSTIC = 0x1d, "SEND DIAGNOSTIC";
    PREVENT_ALLOW = 0x1e, "PREVENT ALLOW MEDIUM REMOVAL";
    READ_CAPACITY_10 = 0x25, "READ CAPACITY(10)";
    READ_10 = 0x28, "READ(10)";
    WRITE_10 = 0x2a, "WRITE(10)";
    WRITE_VERIFY_10 = 0x2e, "WRITE AND VERIFY(10)";
    VERIFY_10 = 0x2f, "VERIFY(10)";
    PRE_FETCH_10 = 0x34, "PRE-FETCH(10)";
    SYNCHRONIZE_CACHE_10 = 0x35, "SYNCHRONIZE CACHE(10)";
    READ_DEFECT_DATA_10 = 0x37, "READ DEFECT DATA(10)";
    WRITE_BUFFER = 0x3b, "WRITE BUFFER";
    READ_BUFFER_10 = 0x3c, "READ BUFFER(10)";
    WRITE_SAME_10 = 0x41, "WRITE SAME(10)";
    UNMAP = 0x42, "UNMAP";
    READ_TOC = 0x43, "READ TOC/PMA/ATIP";
    GET_CONFIGURATION = 0x46, "GET CONFIGURATION";
    SANITIZE = 0x48, "SANITIZE";
    GET_EVENT_STATUS = 0x4a, "GET EVENT STATUS NOTIFICATION";
    LOG_SELECT = 0x4c, "LOG SELECT";
    LOG_SENSE = 0x4d, "LOG SENSE";
    READ_DISC_INFORMATION = 0x51, "READ DISC INFORMATION";
    READ_TRACK_INFORMATION = 0x52, "READ TRACK INFORMATION";
    MODE_SELECT_10 = 0x55, "MODE SELECT(10)";
    RESERVE_10 = 0x56, "RESERVE(10)";
    RELEASE_10 = 0x57, "RELEASE(10)";
    MODE_SENSE_10 = 0x5a, "MODE SENSE(10)";
    PERSISTENT_RESERVE_IN = 0x5e, "PERSISTENT RESERVE IN";
    PERSISTENT_RESERVE_OUT = 0x5f, "PERSISTENT RESERVE OUT";
    EXTENDED_COPY = 0x83, "EXTENDED COPY";
    RECEIVE_COPY_RESULTS = 0x84, "RECEIVE COPY RESULTS";
    READ_16 = 0x88, "READ(16)";
    COMPARE_AND_WRITE = 0x89, "COMPARE AND WRITE";
    WRITE_16 = 0x8a, "WRITE(16)";
    ORWRITE_16 = 0x8b, "ORWRITE(16)";
    WRITE_VERIFY_16 = 0x8e, "WRITE AND VERIFY(16)";
    VERIFY_16 = 0x8f, "VERIFY(16)";
    PRE_FETCH_16 = 0x90, "PRE-FETCH(16)";
    SYNCHRONIZE_CACHE_16 = 0x91, "SYNCHRONIZE CACHE(16)";
    WRITE_SAME_16 = 0x93, "WRITE SAME(16)";
    WRITE_ATOMIC_16 = 0x9c, "WRITE ATOMIC(16)";
    SERVICE_ACTION_IN_16 = 0x9e, "SERVICE ACTION IN(16)";
    REPORT_LUNS = 0xa0, "REPORT LUNS";
    MAINTENANCE_IN = 0xa3, "MAINTENANCE IN";
    MAINTENANCE_OUT = 0xa4, "MAINTENANCE OUT";
    READ_12 = 0xa8, "READ(12)";
    WRITE_12 = 0xaa, "WRITE(12)";
    WRITE_VERIFY_12 = 0xae, "WRITE AND VERIFY(12)";
    VERIFY_12 = 0xaf, "VERIFY(12)";
    READ_DEFECT_DATA_12 = 0xb7, "READ DEFECT DATA(12)";
    MECHANISM_STATUS = 0xbd, "MECHANISM STATUS";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_names() {
        assert_eq!(command(0x28, None), Some("READ(10)"));
        assert_eq!(command(0x9e, Some(0x10)), Some("READ CAPACITY(16)"));
        assert_eq!(command(0x9e, Some(0x1f)), Some("SERVICE ACTION IN(16)"));
        assert_eq!(command(0xff, None), None);
    }
}
