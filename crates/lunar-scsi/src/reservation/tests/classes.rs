//! The class of each command in the command table (SPC-5 table 66, SBC-4 table 13, ALLOW COMMANDS 011b).

use crate::table::{ReservationClass, rows};
use crate::testing::{cdrom, disk};
use lunar_wire::scsi::op;

/// Commands that write exclusive allows, but exclusive access does not.
const READING: &[u8] = &[
    op::READ_6,
    op::READ_10,
    op::READ_12,
    op::READ_16,
    op::VERIFY_10,
    op::VERIFY_12,
    op::VERIFY_16,
    op::PRE_FETCH_10,
    op::PRE_FETCH_16,
    op::MODE_SENSE_6,
    op::MODE_SENSE_10,
    op::READ_BUFFER_10,
    op::RECEIVE_DIAGNOSTIC,
    op::READ_DEFECT_DATA_10,
    op::READ_DEFECT_DATA_12,
];

/// Commands that every persistent reservation blocks.
const NEVER: &[u8] = &[
    op::WRITE_6,
    op::WRITE_10,
    op::WRITE_12,
    op::WRITE_16,
    op::WRITE_VERIFY_10,
    op::WRITE_VERIFY_12,
    op::WRITE_VERIFY_16,
    op::WRITE_SAME_10,
    op::WRITE_SAME_16,
    op::WRITE_ATOMIC_16,
    op::COMPARE_AND_WRITE,
    op::ORWRITE_16,
    op::UNMAP,
    op::SANITIZE,
    op::SYNCHRONIZE_CACHE_10,
    op::SYNCHRONIZE_CACHE_16,
    op::MODE_SELECT_6,
    op::MODE_SELECT_10,
    op::LOG_SELECT,
    op::SEND_DIAGNOSTIC,
    op::WRITE_BUFFER,
    op::EXTENDED_COPY,
    op::MAINTENANCE_OUT,
];

/// Commands that no persistent reservation blocks.
const ALWAYS: &[u8] = &[
    op::TEST_UNIT_READY,
    op::REQUEST_SENSE,
    op::INQUIRY,
    op::REPORT_LUNS,
    op::LOG_SENSE,
    op::READ_CAPACITY_10,
    op::PERSISTENT_RESERVE_IN,
    op::PERSISTENT_RESERVE_OUT,
    op::RESERVE_6,
    op::RESERVE_10,
    op::RELEASE_6,
    op::RELEASE_10,
];

#[test]
fn persistent_reservations_can_be_handled_in_standby() {
    let persistent = [op::PERSISTENT_RESERVE_IN, op::PERSISTENT_RESERVE_OUT];
    let rows: Vec<_> = rows(&disk()).filter(|r| persistent.contains(&r.opcode)).collect();
    assert_eq!(rows.len(), 12);
    assert!(rows.iter().all(|r| r.in_standby));
}

#[test]
fn commands_have_the_class_of_the_standard() {
    let lists = [
        (READING, ReservationClass::Reading),
        (NEVER, ReservationClass::Never),
        (ALWAYS, ReservationClass::Always),
    ];
    for row in rows(&disk()).chain(rows(&cdrom())) {
        let wanted = lists.iter().find(|(list, _)| list.contains(&row.opcode));
        let held = wanted.is_none_or(|(_, class)| *class == row.allowed);
        assert!(held, "{:02x} is {:?}", row.opcode, row.allowed);
    }
}
