//! The command table: one row per operation code and service action. Each module defines its rows.

use crate::{Lu, LuSettings, NexusId, NexusPorts, PeripheralDeviceType, PlanResult, State};
use lunar_wire::scsi::cdb::{self, SERVICE_ACTION};
use lunar_wire::scsi::{Sense, op};
use std::sync::LazyLock;

/// Whether a command is allowed despite a persistent reservation of another nexus (SPC-5 table 66, SBC-4 table 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservationClass {
    /// Always.
    Always,
    /// Under write exclusive, but not under exclusive access: commands that read.
    Reading,
    /// Not for an unregistered nexus: commands that write or change something.
    Never,
}

/// The state that a command may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeScope {
    /// Nothing, or only the state of its own nexus.
    Nothing,
    /// The medium, or state that nexuses share. Rejected if the access list allows only reads.
    Shared,
}

/// Whether a command may run concurrently with others of its logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// It runs beside others.
    Shared,
    /// It runs alone: others wait for it, and it waits for others (COMPARE AND WRITE, ORWRITE, WRITE ATOMIC, MODE
    /// SELECT, SANITIZE).
    Exclusive,
}

/// The device types that support a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceTypes {
    /// Disks and CD-ROMs.
    All,
    /// One device type.
    Only(PeripheralDeviceType),
}

/// A row of the command table.
pub(crate) struct Row {
    /// Operation code.
    pub opcode: u8,
    /// Service action (byte 1, bits 4 to 0), for operation codes that have them.
    pub service_action: Option<u16>,
    /// Plans or executes the command.
    pub handler: fn(&mut CommandContext<'_>) -> PlanResult,
    /// Whether it is allowed under another nexus's reservation.
    pub allowed: ReservationClass,
    /// The state that it may change.
    pub changes: ChangeScope,
    /// Whether it runs beside other commands.
    pub concurrency: Concurrency,
    /// CDB usage data (SPC-5 section 6.29): a bit that is clear here is reserved in the CDB. It has the length of the
    /// CDB. Byte 0 is the operation code, and the service action is in its place.
    pub usage: &'static [u8],
    /// Device types that support it.
    pub types: DeviceTypes,
    /// It needs a medium that is loaded and started.
    pub medium: bool,
    /// It changes the medium: rejected if write protected.
    pub writes: bool,
    /// It does not report unit attentions (INQUIRY, REPORT LUNS, REQUEST SENSE).
    pub despite_attention: bool,
    /// RESERVE of another nexus permits it (SPC-2 table 10, SBC-2 table 9, and similar later commands). RELEASE then
    /// has no effect.
    pub despite_reserve: bool,
    /// The write cache is flushed before the command takes effect, because the command may disable it.
    pub flushes_first: bool,
    /// It works in the ALUA states standby and unavailable (SPC-5 section 5.18.2.4).
    pub in_standby: bool,
    /// It works during a sanitize operation (SBC-4 section 4.11.2).
    pub while_sanitizing: bool,
    /// Only a thin provisioned logical unit supports it.
    pub thin: bool,
    /// Only a medium with atomic writes supports it.
    pub atomic: bool,
    /// It requires exactly the Data-Out of its CDB: more is rejected. Less is rejected for every command.
    pub exact: bool,
    /// It may change the saved state. The new state is stored before the command takes effect.
    pub persists: bool,
}

impl Row {
    /// A row without exceptions: for all device types, without a medium, beside other commands.
    pub const fn new(
        opcode: u8,
        handler: fn(&mut CommandContext<'_>) -> PlanResult,
        allowed: ReservationClass,
        changes: ChangeScope,
        usage: &'static [u8],
    ) -> Row {
        Row {
            opcode,
            service_action: None,
            handler,
            allowed,
            changes,
            concurrency: Concurrency::Shared,
            usage,
            types: DeviceTypes::All,
            medium: false,
            writes: false,
            despite_attention: false,
            despite_reserve: false,
            flushes_first: false,
            in_standby: false,
            while_sanitizing: false,
            thin: false,
            atomic: false,
            exact: false,
            persists: false,
        }
    }

    /// Restricts the row to a service action.
    pub const fn action(self, service_action: u16) -> Row {
        Row { service_action: Some(service_action), ..self }
    }

    /// Restricts the row to a device type.
    pub const fn only(self, device_type: PeripheralDeviceType) -> Row {
        Row { types: DeviceTypes::Only(device_type), ..self }
    }

    /// The command needs a medium.
    pub const fn medium(self) -> Row {
        Row { medium: true, ..self }
    }

    /// The command needs a medium, and changes it.
    pub const fn writes(self) -> Row {
        Row { medium: true, writes: true, ..self }
    }

    /// The command runs alone.
    pub const fn exclusive(self) -> Row {
        Row { concurrency: Concurrency::Exclusive, ..self }
    }

    /// The command does not report unit attentions.
    pub const fn despite_attention(self) -> Row {
        Row { despite_attention: true, ..self }
    }

    /// RESERVE of another nexus permits the command.
    pub const fn despite_reserve(self) -> Row {
        Row { despite_reserve: true, ..self }
    }

    /// The write cache is flushed before the command takes effect.
    pub const fn flushes_first(self) -> Row {
        Row { flushes_first: true, ..self }
    }

    /// The command works in the states standby and unavailable.
    pub const fn in_standby(self) -> Row {
        Row { in_standby: true, ..self }
    }

    /// The command works during a sanitize operation.
    pub const fn while_sanitizing(self) -> Row {
        Row { while_sanitizing: true, ..self }
    }

    /// Restricts the row to thin provisioned logical units.
    pub const fn thin(self) -> Row {
        Row { thin: true, ..self }
    }

    /// Restricts the row to media with atomic writes.
    pub const fn atomic(self) -> Row {
        Row { atomic: true, ..self }
    }

    /// The command requires exactly the Data-Out of its CDB.
    pub const fn exact(self) -> Row {
        Row { exact: true, ..self }
    }

    /// The command may change the saved state.
    pub const fn persists(self) -> Row {
        Row { persists: true, ..self }
    }

    fn is_of_type(&self, device_type: PeripheralDeviceType) -> bool {
        self.types == DeviceTypes::All || self.types == DeviceTypes::Only(device_type)
    }

    fn is_for(&self, settings: &LuSettings) -> bool {
        (settings.reservable || !crate::reservation::OPCODES.contains(&self.opcode))
            && self.is_of_type(settings.device_type)
            && (settings.thin || !self.thin)
            && (settings.max_atomic >= settings.block_size || !self.atomic)
            && self.can_share(settings)
    }

    /// Whether the command keeps its meaning while other servers serve the medium, if they do.
    fn can_share(&self, settings: &LuSettings) -> bool {
        match self.opcode {
            op::SANITIZE => !settings.shared,
            op::COMPARE_AND_WRITE => settings.max_compare_and_write() > 0,
            op::ORWRITE_16 => !settings.shared && !settings.medium_compares,
            _ => true,
        }
    }

    /// Rejects a CDB with a reserved bit set, NACA included.
    pub(crate) fn check(&self, cdb: &[u8]) -> Result<(), Sense> {
        for (i, (&byte, &usage)) in cdb.iter().zip(self.usage).enumerate().skip(1) {
            let action = if i == 1 && self.service_action.is_some() { 0x1f } else { 0 };
            let wrong = byte & !(usage | action);
            if wrong != 0 {
                return Err(Sense::cdb_field(i as u16, 7 - wrong.leading_zeros() as u8));
            }
        }
        Ok(())
    }
}

/// The arguments of a handler. The logical unit is locked: a handler must not call [`Lu::change`], nor anything that
/// calls it. [`Lu::settings`] is allowed.
pub(crate) struct CommandContext<'a> {
    /// The CDB, at least 16 bytes.
    pub cdb: &'a [u8],
    /// Parameter data; `None` until they are received.
    pub parameters: Option<&'a [u8]>,
    /// The logical unit.
    pub lu: &'a Lu,
    /// The locked state of the logical unit.
    pub state: &'a mut State,
    /// The requesting nexus.
    pub nexus: NexusId,
    /// The ports of the requesting nexus.
    pub port: &'a NexusPorts,
    /// The access list allows this nexus only reads.
    pub read_only: bool,
}

/// The rows of all modules.
const MODULES: &[&[Row]] = &[
    crate::ready::ROWS,
    crate::supported::ROWS,
    crate::modes::ROWS,
    crate::medium::ROWS,
    crate::defects::ROWS,
    crate::verify::ROWS,
    crate::provisioning::ROWS,
    crate::cache::ROWS,
    crate::inquiry::ROWS,
    crate::luns::ROWS,
    crate::capacity::ROWS,
    crate::read_write::ROWS,
    crate::reservation::ROWS,
    crate::alua::ROWS,
    crate::buffer::ROWS,
    crate::cdrom::ROWS,
    crate::copy::ROWS,
    crate::diagnostic::ROWS,
    crate::log::ROWS,
    crate::sanitize::ROWS,
];

/// Rows, indexed by operation code.
static INDEX: LazyLock<Vec<Vec<&'static Row>>> = LazyLock::new(|| {
    let mut index = vec![Vec::new(); 256];
    for row in MODULES.iter().copied().flatten() {
        index[row.opcode as usize].push(row);
    }
    index
});

/// All rows that a logical unit supports, in ascending order of operation codes.
pub(crate) fn rows(settings: &LuSettings) -> impl Iterator<Item = &'static Row> {
    INDEX.iter().flatten().copied().filter(|r| r.is_for(settings))
}

/// Whether a command does not report unit attentions on devices of this type.
pub(crate) fn is_despite_attention(settings: &LuSettings, opcode: u8) -> bool {
    INDEX[usize::from(opcode)].iter().any(|row| row.despite_attention && row.is_of_type(settings.device_type))
}

/// The row of a command. Fails with INVALID FIELD IN CDB if only the service action is unknown.
pub(crate) fn find(settings: &LuSettings, cdb: &[u8]) -> Result<&'static Row, Sense> {
    let action = SERVICE_ACTION.get_u16(cdb);
    let mut known = INDEX[usize::from(cdb::opcode(cdb))].iter().filter(|r| r.is_for(settings)).peekable();
    if known.peek().is_none() {
        return Err(Sense::INVALID_OPCODE);
    }
    known.find(|r| r.service_action.is_none_or(|a| a == action)).copied().ok_or(Sense::in_cdb(SERVICE_ACTION))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cdrom, disk, fails, lu, nexus, port, run};
    use lunar_wire::scsi::op;
    use std::collections::HashSet;

    #[test]
    fn each_row_is_well_formed_and_alone() {
        for settings in [disk(), cdrom()] {
            let mut seen = HashSet::new();
            for row in rows(&settings) {
                assert_eq!(row.usage[0], row.opcode);
                assert!([6, 10, 12, 16].contains(&row.usage.len()), "{:02x}", row.opcode);
                assert!(seen.insert((row.opcode, row.service_action)), "{:02x} twice", row.opcode);
                if let Some(action) = row.service_action {
                    assert_eq!(row.usage[1] & 0x1f, action as u8, "{:02x}", row.opcode);
                }
            }
        }
    }

    #[test]
    fn reserved_bit_is_pointed_at() {
        let row = find(&disk(), &[0; 16]).unwrap();
        assert_eq!(row.check(&[0, 0, 0x28, 0, 0, 0]), Err(Sense::cdb_field(2, 5)));
        assert_eq!(row.check(&[0, 0, 0, 0, 0, 4]), Err(Sense::cdb_field(5, 2)), "NACA");
        assert_eq!(row.check(&[0; 16]), Ok(()));
    }

    #[test]
    fn exact_data_out_is_required_where_the_cdb_gives_it() {
        let settings = disk();
        let exact = rows(&settings).filter(|row| row.exact).map(|row| row.opcode);
        let named = [op::WRITE_SAME_10, op::COMPARE_AND_WRITE, op::ORWRITE_16, op::WRITE_SAME_16];
        assert_eq!(exact.collect::<Vec<_>>(), named);
        let n = nexus(&lu(disk()), "a");
        assert!(
            n.requires_exact_data_out(&[op::COMPARE_AND_WRITE, 0])
                && !n.requires_exact_data_out(&[op::WRITE_10, 0])
        );
    }

    /// Commands that reservations block, although they change nothing for other nexuses.
    const HARMLESS: [u8; 3] = [op::SEND_DIAGNOSTIC, op::SYNCHRONIZE_CACHE_10, op::SYNCHRONIZE_CACHE_16];

    #[test]
    fn read_only_nexus_is_refused_every_changing_command() {
        for settings in [disk(), cdrom()] {
            for row in rows(&settings) {
                let shared = row.changes == ChangeScope::Shared;
                let never = row.allowed == ReservationClass::Never && !HARMLESS.contains(&row.opcode);
                assert!(shared || !(row.writes || row.persists || never), "{:02x}", row.opcode);
                let mut guest = lu(settings.clone()).attach(port("a"), true);
                let _power_on = run(&mut guest, &[0]);
                let answer = run(&mut guest, &[row.opcode, row.service_action.unwrap_or(0) as u8]);
                let refused = answer == fails(Sense::WRITE_PROTECTED);
                assert_eq!(refused, shared, "{:02x}/{:?}", row.opcode, row.service_action);
            }
        }
    }

    /// Commands that change nothing here, but may change something on another device: a self-test, a reported event, and
    /// operation codes that have another meaning on another device type.
    const READ_HERE: [u8; 5] = [
        op::SEND_DIAGNOSTIC,
        op::GET_EVENT_STATUS,
        op::READ_DISC_INFORMATION,
        op::READ_TRACK_INFORMATION,
        op::MECHANISM_STATUS,
    ];

    #[test]
    fn command_that_changes_nothing_is_marked_as_a_read() {
        for settings in [disk(), cdrom()] {
            for row in rows(&settings) {
                let reads = op::only_reads(&[row.opcode, row.service_action.unwrap_or(0) as u8]);
                let nothing = row.changes == ChangeScope::Nothing && !READ_HERE.contains(&row.opcode);
                assert_eq!(reads, nothing, "{:02x}/{:?}", row.opcode, row.service_action);
            }
        }
    }

    #[test]
    fn read_only_nexus_cannot_lock_out_others() {
        let mut guest = lu(disk()).attach(port("a"), true);
        let _power_on = run(&mut guest, &[0]);
        let sets_target_port_groups = [op::MAINTENANCE_OUT, 0x0a];
        let exits_failure_mode = [op::SANITIZE, 0x1f];
        let opcodes = [
            op::RESERVE_6,
            op::RELEASE_6,
            op::RESERVE_10,
            op::RELEASE_10,
            op::PERSISTENT_RESERVE_OUT,
            op::MODE_SELECT_6,
            op::MODE_SELECT_10,
            op::START_STOP_UNIT,
            op::PREVENT_ALLOW,
            op::LOG_SELECT,
            op::WRITE_BUFFER,
            op::EXTENDED_COPY,
            op::UNMAP,
        ];
        let all = opcodes.map(|opcode| [opcode, 0]).into_iter();
        for cdb in all.chain([sets_target_port_groups, exits_failure_mode]) {
            assert_eq!(run(&mut guest, &cdb), fails(Sense::WRITE_PROTECTED), "{cdb:02x?}");
        }
    }

    #[test]
    fn unknown_commands_and_service_actions_differ() {
        assert_eq!(find(&disk(), &[0xff, 0]).err(), Some(Sense::INVALID_OPCODE));
        assert_eq!(find(&disk(), &[0x9e, 0x1f]).err(), Some(Sense::cdb_field(1, 4)));
    }
}
