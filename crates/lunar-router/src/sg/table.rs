//! Facts about commands that the kernel needs and the initiator does not send: the CDB length and the time limit.

use std::time::Duration;

/// Disk, simplified disk, host-managed zoned disk (SPC-5 section 6.6.2).
const DISKS: &[u8] = &[0x00, 0x0e, 0x14];
const TAPE: &[u8] = &[0x01];
const CDROM: &[u8] = &[0x05];
const CHANGER: &[u8] = &[0x08];
const ANY: &[u8] = &[];

const HOUR_S: u64 = 3600;

/// Device types, operation codes and seconds. The first matching row applies. An empty list matches all. The times
/// are generous: after them the command is aborted, and some host adapters reset the device.
const TIMES: &[(&[u8], &[u8], u64)] = &[
    // REWIND, FORMAT MEDIUM, WRITE FILEMARKS(6), SPACE(6), VERIFY(6), ERASE(6), LOAD UNLOAD, SEND DIAGNOSTIC, LOCATE(10)
    (TAPE, &[0x01, 0x04, 0x10, 0x11, 0x13, 0x19, 0x1b, 0x1d, 0x2b], 4 * HOUR_S),
    // WRITE FILEMARKS(16), VERIFY(16), SPACE(16), LOCATE(16), ERASE(16)
    (TAPE, &[0x80, 0x8f, 0x91, 0x92, 0x93], 4 * HOUR_S),
    // Other commands may first have to wind the tape.
    (TAPE, ANY, 15 * 60),
    // INITIALIZE ELEMENT STATUS, with and without a range
    (CHANGER, &[0x07, 0x37, 0xe7], HOUR_S),
    (CHANGER, ANY, 15 * 60),
    // BLANK, CLOSE TRACK/SESSION, FORMAT UNIT, SYNCHRONIZE CACHE
    (CDROM, &[0xa1, 0x5b, 0x04, 0x35], 2 * HOUR_S),
    // FORMAT UNIT, SANITIZE
    (ANY, &[0x04, 0x48], 24 * HOUR_S),
    // SEND DIAGNOSTIC, EXTENDED COPY
    (ANY, &[0x1d, 0x83], 2 * HOUR_S),
    // WRITE BUFFER: microcode
    (ANY, &[0x3b], 10 * 60),
    // START STOP UNIT, SYNCHRONIZE CACHE, WRITE SAME, UNMAP, VERIFY
    (DISKS, &[0x1b, 0x35, 0x91, 0x41, 0x93, 0x42, 0x2f, 0x8f, 0xaf], 5 * 60),
    (DISKS, ANY, 30),
    (ANY, ANY, 60),
];

/// The time limit of a command for a device of this type.
pub(super) fn limit(device_type: u8, opcode: u8) -> Duration {
    let fits = |list: &[u8], one| list.is_empty() || list.contains(&one);
    let row = TIMES.iter().find(|row| fits(row.0, device_type) && fits(row.1, opcode));
    Duration::from_secs(row.map_or(60, |row| row.2))
}

/// The length of the command in a longer CDB: by the group of its operation code (SPC-5 section 4.2.5.1). For
/// vendor-specific groups it is 10, 12 or 16, the shortest that omits only zeros.
pub(super) fn cdb_len(cdb: &[u8]) -> usize {
    let byte = |at: usize| cdb.get(at).copied().unwrap_or(0);
    let len = match byte(0) {
        0x00..=0x1f => 6,
        0x20..=0x5f => 10,
        0x7f => 8 + usize::from(byte(7)),
        0x80..=0x9f => 16,
        0xa0..=0xbf => 12,
        _ => {
            let used = cdb.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            [10, 12].into_iter().find(|len| used <= *len).unwrap_or(16)
        }
    };
    len.min(cdb.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_commands_have_time() {
        let seconds = |device, opcode| limit(device, opcode).as_secs();
        assert_eq!((seconds(0, 0x28), seconds(0, 0x35), seconds(0, 0x04)), (30, 300, 86400));
        assert_eq!((seconds(1, 0x01), seconds(1, 0x08), seconds(1, 0x04)), (14400, 900, 14400));
        assert_eq!((seconds(8, 0xa5), seconds(8, 0x07), seconds(3, 0x12)), (900, 3600, 60));
    }

    #[test]
    fn cdb_has_the_length_of_its_command() {
        let of = |opcode: u8| cdb_len(&[&[opcode][..], &[0; 15]].concat());
        assert_eq!([0x12, 0x28, 0x5f, 0x88, 0xa8, 0xc1].map(of), [6, 10, 10, 16, 12, 10]);
        let mut long = [0; 32];
        (long[0], long[7]) = (0x7f, 24);
        assert_eq!(cdb_len(&long), 32);
        let mut vendor = [0; 16];
        (vendor[0], vendor[11]) = (0xc0, 1);
        assert_eq!(cdb_len(&vendor), 12);
        vendor[15] = 1;
        assert_eq!(cdb_len(&vendor), 16);
    }

    proptest! {
        #[test]
        fn no_command_is_longer_than_its_cdb(cdb in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(cdb_len(&cdb) <= cdb.len());
        }
    }
}
