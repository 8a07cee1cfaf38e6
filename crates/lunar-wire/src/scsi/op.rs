//! Operation codes (SPC-5, SBC-4, MMC-6).

/// It changes neither the medium nor a state of a device of any type; at most it moves a tape. A nexus with read-only
/// access may send it. It may be repeated, and late execution is harmless.
const READS: u8 = 0x01;
/// It changes something, but a repetition has the same result.
const REPEATS: u8 = 0x02;
/// On a tape, the command of this operation code moves the tape, or writes at its current position.
const TAPE: u8 = 0x04;
/// READ: Data-In is the content of logical blocks.
const BLOCKS: u8 = 0x08;
/// WRITE of more than 256 blocks, which WRITE(6) cannot address.
const LONG: u8 = 0x10;
/// [`READS`] holds only for the service actions in [`READING_ACTIONS`].
const BY_ACTION: u8 = 0x20;

/// Service actions that only read: bit n stands for service action n (SPC-5 table 95, SBC-4 table 33). Other service
/// actions of the first control streams or remove storage elements. On a CD/DVD device the second is SEND KEY if the
/// service action field is zero.
const READING_ACTIONS: [(u8, u32); 2] = [
    (SERVICE_ACTION_IN_16, 1 << 0x10 | 1 << 0x11 | 1 << 0x12 | 1 << 0x13 | 1 << 0x16 | 1 << 0x17),
    (
        MAINTENANCE_IN,
        1 << 0x05 | 1 << 0x0a | 1 << 0x0b | 1 << 0x0c | 1 << 0x0d | 1 << 0x0e | 1 << 0x0f | 1 << 0x10,
    ),
];

#[inline]
fn of_opcode(cdb: &[u8]) -> u8 {
    cdb.first().map_or(0, |opcode| ATTRIBUTES[usize::from(*opcode)])
}

/// The attributes of a command. An unknown command has none, because it may change something.
#[inline]
fn attributes(cdb: &[u8]) -> u8 {
    let attributes = of_opcode(cdb);
    if attributes & BY_ACTION != 0 && !is_reading_action(cdb) { 0 } else { attributes }
}

fn is_reading_action(cdb: &[u8]) -> bool {
    let [opcode, action, ..] = *cdb else { return false };
    READING_ACTIONS.iter().any(|(code, actions)| *code == opcode && actions >> (action & 0x1f) & 1 != 0)
}

/// Whether the command changes nothing on a device of any type, except the position of a tape.
#[inline]
pub fn only_reads(cdb: &[u8]) -> bool {
    attributes(cdb) & READS != 0
}

/// Whether a repetition of the command has the same result, unless it moves a tape.
#[inline]
pub fn is_repeatable(cdb: &[u8]) -> bool {
    attributes(cdb) & (READS | REPEATS) != 0
}

/// Whether the command of this operation code moves a tape, or writes at its current position.
#[inline]
pub fn moves_tape(cdb: &[u8]) -> bool {
    of_opcode(cdb) & TAPE != 0
}

/// Whether the command is a READ.
#[inline]
pub fn is_read(cdb: &[u8]) -> bool {
    of_opcode(cdb) & BLOCKS != 0
}

/// Whether the command is a WRITE that can address more than 256 blocks.
#[inline]
pub fn is_long_write(cdb: &[u8]) -> bool {
    of_opcode(cdb) & LONG != 0
}

/// One row per operation code: constant, value, name in the standard, and attributes of the command, if any.
macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal $(, $attributes:expr)?;)*) => {
        $(#[doc = $text] pub const $name: u8 = $value;)*

        /// Attributes, by operation code.
        static ATTRIBUTES: [u8; 256] = {
            let mut attributes = [0; 256];
            $($(attributes[$value] = $attributes;)?)*
            attributes
        };

        /// The name of an operation code, or of its family of service actions; `None` if it is unknown.
        pub fn name(opcode: u8) -> Option<&'static str> {
            match opcode {
                $($value => Some($text),)*
                _ => None,
            }
        }
    };
}

/// Service actions: operation code, service action, name in the standard.
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

/// The name of a command: that of its service action if known, else that of its operation code.
pub fn command(opcode: u8, action: Option<u16>) -> Option<&'static str> {
    let row = ACTIONS.iter().find(|row| row.0 == opcode && Some(row.1) == action);
    row.map(|row| row.2).or_else(|| name(opcode))
}

codes! {
    TEST_UNIT_READY = 0x00, "TEST UNIT READY", READS;
    REZERO_UNIT = 0x01, "REZERO UNIT";
    REQUEST_SENSE = 0x03, "REQUEST SENSE", READS;
    FORMAT_UNIT = 0x04, "FORMAT UNIT";
    READ_BLOCK_LIMITS = 0x05, "READ BLOCK LIMITS", READS;
    REASSIGN_BLOCKS = 0x07, "REASSIGN BLOCKS";
    READ_6 = 0x08, "READ(6)", READS | TAPE | BLOCKS;
    WRITE_6 = 0x0a, "WRITE(6)";
    SEEK_6 = 0x0b, "SEEK(6)";
    WRITE_FILEMARKS_6 = 0x10, "WRITE FILEMARKS(6)";
    SPACE_6 = 0x11, "SPACE(6)";
    INQUIRY = 0x12, "INQUIRY", READS;
    VERIFY_6 = 0x13, "VERIFY(6)";
    MODE_SELECT_6 = 0x15, "MODE SELECT(6)";
    RESERVE_6 = 0x16, "RESERVE(6)", REPEATS;
    RELEASE_6 = 0x17, "RELEASE(6)", REPEATS;
    COPY = 0x18, "COPY";
    ERASE_6 = 0x19, "ERASE(6)";
    MODE_SENSE_6 = 0x1a, "MODE SENSE(6)", READS;
    START_STOP_UNIT = 0x1b, "START STOP UNIT";
    RECEIVE_DIAGNOSTIC = 0x1c, "RECEIVE DIAGNOSTIC RESULTS", READS;
    SEND_DIAGNOSTIC = 0x1d, "SEND DIAGNOSTIC";
    PREVENT_ALLOW = 0x1e, "PREVENT ALLOW MEDIUM REMOVAL", REPEATS;
    READ_FORMAT_CAPACITIES = 0x23, "READ FORMAT CAPACITIES";
    READ_CAPACITY_10 = 0x25, "READ CAPACITY(10)", READS;
    READ_10 = 0x28, "READ(10)", READS | BLOCKS;
    WRITE_10 = 0x2a, "WRITE(10)", REPEATS | LONG;
    SEEK_10 = 0x2b, "SEEK(10)";
    WRITE_VERIFY_10 = 0x2e, "WRITE AND VERIFY(10)", REPEATS;
    VERIFY_10 = 0x2f, "VERIFY(10)", READS;
    SET_LIMITS_10 = 0x33, "SET LIMITS(10)";
    PRE_FETCH_10 = 0x34, "PRE-FETCH(10)", READS;
    SYNCHRONIZE_CACHE_10 = 0x35, "SYNCHRONIZE CACHE(10)", READS;
    LOCK_UNLOCK_CACHE_10 = 0x36, "LOCK UNLOCK CACHE(10)";
    READ_DEFECT_DATA_10 = 0x37, "READ DEFECT DATA(10)", READS;
    COMPARE = 0x39, "COMPARE";
    COPY_AND_VERIFY = 0x3a, "COPY AND VERIFY";
    WRITE_BUFFER = 0x3b, "WRITE BUFFER";
    READ_BUFFER_10 = 0x3c, "READ BUFFER(10)", READS;
    READ_LONG_10 = 0x3e, "READ LONG(10)";
    WRITE_LONG_10 = 0x3f, "WRITE LONG(10)";
    CHANGE_DEFINITION = 0x40, "CHANGE DEFINITION";
    WRITE_SAME_10 = 0x41, "WRITE SAME(10)", REPEATS;
    UNMAP = 0x42, "UNMAP", REPEATS;
    READ_TOC = 0x43, "READ TOC/PMA/ATIP", READS;
    REPORT_DENSITY_SUPPORT = 0x44, "REPORT DENSITY SUPPORT", READS;
    PLAY_AUDIO_10 = 0x45, "PLAY AUDIO(10)";
    GET_CONFIGURATION = 0x46, "GET CONFIGURATION", READS;
    PLAY_AUDIO_MSF = 0x47, "PLAY AUDIO MSF";
    SANITIZE = 0x48, "SANITIZE";
    GET_EVENT_STATUS = 0x4a, "GET EVENT STATUS NOTIFICATION";
    PAUSE_RESUME = 0x4b, "PAUSE/RESUME";
    LOG_SELECT = 0x4c, "LOG SELECT";
    LOG_SENSE = 0x4d, "LOG SENSE", READS;
    STOP_PLAY_SCAN = 0x4e, "STOP PLAY/SCAN";
    XDWRITE_10 = 0x50, "XDWRITE(10)";
    READ_DISC_INFORMATION = 0x51, "READ DISC INFORMATION";
    READ_TRACK_INFORMATION = 0x52, "READ TRACK INFORMATION";
    RESERVE_TRACK = 0x53, "RESERVE TRACK";
    SEND_OPC_INFORMATION = 0x54, "SEND OPC INFORMATION";
    MODE_SELECT_10 = 0x55, "MODE SELECT(10)";
    RESERVE_10 = 0x56, "RESERVE(10)";
    RELEASE_10 = 0x57, "RELEASE(10)";
    REPAIR_TRACK = 0x58, "REPAIR TRACK";
    MODE_SENSE_10 = 0x5a, "MODE SENSE(10)", READS;
    CLOSE_TRACK_SESSION = 0x5b, "CLOSE TRACK/SESSION";
    READ_BUFFER_CAPACITY = 0x5c, "READ BUFFER CAPACITY";
    SEND_CUE_SHEET = 0x5d, "SEND CUE SHEET";
    PERSISTENT_RESERVE_IN = 0x5e, "PERSISTENT RESERVE IN", READS;
    PERSISTENT_RESERVE_OUT = 0x5f, "PERSISTENT RESERVE OUT";
    EXTENDED_CDB = 0x7e, "extended CDB";
    VARIABLE_LENGTH = 0x7f, "variable-length CDB";
    WRITE_FILEMARKS_16 = 0x80, "WRITE FILEMARKS(16)";
    READ_REVERSE_16 = 0x81, "READ REVERSE(16)";
    ALLOW_OVERWRITE = 0x82, "ALLOW OVERWRITE";
    EXTENDED_COPY = 0x83, "EXTENDED COPY";
    RECEIVE_COPY_RESULTS = 0x84, "RECEIVE COPY RESULTS", READS;
    ATA_PASS_THROUGH_16 = 0x85, "ATA PASS-THROUGH(16)";
    ACCESS_CONTROL_IN = 0x86, "ACCESS CONTROL IN";
    ACCESS_CONTROL_OUT = 0x87, "ACCESS CONTROL OUT";
    READ_16 = 0x88, "READ(16)", READS | TAPE | BLOCKS;
    COMPARE_AND_WRITE = 0x89, "COMPARE AND WRITE";
    WRITE_16 = 0x8a, "WRITE(16)", REPEATS | TAPE | LONG;
    ORWRITE_16 = 0x8b, "ORWRITE(16)";
    READ_ATTRIBUTE = 0x8c, "READ ATTRIBUTE";
    WRITE_ATTRIBUTE = 0x8d, "WRITE ATTRIBUTE";
    WRITE_VERIFY_16 = 0x8e, "WRITE AND VERIFY(16)", REPEATS;
    VERIFY_16 = 0x8f, "VERIFY(16)", READS | TAPE;
    PRE_FETCH_16 = 0x90, "PRE-FETCH(16)", READS;
    SYNCHRONIZE_CACHE_16 = 0x91, "SYNCHRONIZE CACHE(16)", READS | TAPE;
    LOCATE_16 = 0x92, "LOCATE(16)";
    WRITE_SAME_16 = 0x93, "WRITE SAME(16)", REPEATS;
    ZBC_OUT = 0x94, "ZBC OUT";
    ZBC_IN = 0x95, "ZBC IN";
    WRITE_STREAM_16 = 0x9a, "WRITE STREAM(16)";
    READ_BUFFER_16 = 0x9b, "READ BUFFER(16)";
    WRITE_ATOMIC_16 = 0x9c, "WRITE ATOMIC(16)";
    SERVICE_ACTION_BIDIRECTIONAL = 0x9d, "SERVICE ACTION BIDIRECTIONAL";
    SERVICE_ACTION_IN_16 = 0x9e, "SERVICE ACTION IN(16)", READS | BY_ACTION;
    SERVICE_ACTION_OUT_16 = 0x9f, "SERVICE ACTION OUT(16)";
    REPORT_LUNS = 0xa0, "REPORT LUNS", READS;
    ATA_PASS_THROUGH_12 = 0xa1, "ATA PASS-THROUGH(12)";
    SECURITY_PROTOCOL_IN = 0xa2, "SECURITY PROTOCOL IN";
    MAINTENANCE_IN = 0xa3, "MAINTENANCE IN", READS | BY_ACTION;
    MAINTENANCE_OUT = 0xa4, "MAINTENANCE OUT";
    MOVE_MEDIUM = 0xa5, "MOVE MEDIUM";
    EXCHANGE_MEDIUM = 0xa6, "EXCHANGE MEDIUM";
    MOVE_MEDIUM_ATTACHED = 0xa7, "MOVE MEDIUM ATTACHED";
    READ_12 = 0xa8, "READ(12)", READS | BLOCKS;
    SERVICE_ACTION_OUT_12 = 0xa9, "SERVICE ACTION OUT(12)";
    WRITE_12 = 0xaa, "WRITE(12)", REPEATS | LONG;
    SERVICE_ACTION_IN_12 = 0xab, "SERVICE ACTION IN(12)";
    GET_PERFORMANCE = 0xac, "GET PERFORMANCE";
    READ_DISC_STRUCTURE = 0xad, "READ DISC STRUCTURE";
    WRITE_VERIFY_12 = 0xae, "WRITE AND VERIFY(12)", REPEATS;
    VERIFY_12 = 0xaf, "VERIFY(12)", READS;
    SET_LIMITS_12 = 0xb3, "SET LIMITS(12)";
    READ_ELEMENT_STATUS_ATTACHED = 0xb4, "READ ELEMENT STATUS ATTACHED";
    SECURITY_PROTOCOL_OUT = 0xb5, "SECURITY PROTOCOL OUT";
    SET_STREAMING = 0xb6, "SET STREAMING";
    READ_DEFECT_DATA_12 = 0xb7, "READ DEFECT DATA(12)", READS;
    READ_ELEMENT_STATUS = 0xb8, "READ ELEMENT STATUS";
    READ_CD_MSF = 0xb9, "READ CD MSF";
    SET_CD_SPEED = 0xbb, "SET CD SPEED";
    MECHANISM_STATUS = 0xbd, "MECHANISM STATUS";
    READ_CD = 0xbe, "READ CD";
    SEND_DISC_STRUCTURE = 0xbf, "SEND DISC STRUCTURE";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_follow_from_operation_code_and_action() {
        for cdb in [[READ_10, 0], [INQUIRY, 1], [SERVICE_ACTION_IN_16, 0x10], [MAINTENANCE_IN, 0x2a]] {
            assert!(only_reads(&cdb) && is_repeatable(&cdb) && !moves_tape(&cdb), "{cdb:02x?}");
        }
        for cdb in [[WRITE_10, 0], [RESERVE_6, 0], [UNMAP, 0]] {
            assert!(!only_reads(&cdb) && is_repeatable(&cdb), "{cdb:02x?}");
        }
        // SEND KEY; STREAM CONTROL; REMOVE ELEMENT AND TRUNCATE; COMPARE AND WRITE; an unknown command.
        let changing = [
            [MAINTENANCE_IN, 0],
            [SERVICE_ACTION_IN_16, 0x14],
            [SERVICE_ACTION_IN_16, 0x18],
            [COMPARE_AND_WRITE, 0],
            [0xff, 0],
        ];
        for cdb in changing {
            assert!(!only_reads(&cdb) && !is_repeatable(&cdb), "{cdb:02x?}");
        }
        assert!(!only_reads(&[]) && !is_repeatable(&[]) && !is_read(&[]) && !moves_tape(&[]));
        assert!(!only_reads(&[MAINTENANCE_IN]), "a CDB without a service action");
    }

    #[test]
    fn read_and_write_commands_are_marked() {
        let reads: Vec<u8> = (0..=255).filter(|code| is_read(&[*code])).collect();
        assert_eq!(reads, [READ_6, READ_10, READ_16, READ_12]);
        let writes: Vec<u8> = (0..=255).filter(|code| is_long_write(&[*code])).collect();
        assert_eq!(writes, [WRITE_10, WRITE_16, WRITE_12]);
    }

    #[test]
    fn command_names_match_the_standard() {
        assert_eq!(command(0x28, None), Some("READ(10)"));
        assert_eq!(command(0x9e, Some(0x10)), Some("READ CAPACITY(16)"));
        assert_eq!(command(0x9e, Some(0x1f)), Some("SERVICE ACTION IN(16)"));
        assert_eq!(command(0xff, None), None);
        // Codes that STGT, SCST, LIO and disks report.
        for (code, name) in [
            (0x04, "FORMAT UNIT"),
            (0x3e, "READ LONG(10)"),
            (0x85, "ATA PASS-THROUGH(16)"),
            (0xa2, "SECURITY PROTOCOL IN"),
            (0xb5, "SECURITY PROTOCOL OUT"),
            (0xbe, "READ CD"),
        ] {
            assert_eq!(command(code, None), Some(name));
        }
    }
}
