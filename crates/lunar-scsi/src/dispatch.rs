//! The slow path of a command, which the snapshot of its nexus cannot plan: the common checks, then the handler.

use crate::NexusId;
use crate::nexus_snapshot::NexusSnapshot;
use crate::passthrough;
use crate::pending_commit;
use crate::table::{self, ChangeScope, CommandContext, Row};
use crate::{
    CommandError, LuSettings, Nexus, NexusPorts, PassthroughMode, PeripheralDeviceType, PlanResult, State,
};
use lunar_wire::scsi::{Sense, Status};

/// The nexus of a command, as far as the checks need it.
#[derive(Clone, Copy)]
pub(crate) struct Requester<'a> {
    pub(crate) id: NexusId,
    pub(crate) port: &'a NexusPorts,
    pub(crate) read_only: bool,
}

impl Nexus {
    /// The slow path.
    #[cold]
    pub(crate) fn dispatch(&mut self, cdb: &[u8], parameters: Option<&[u8]>) -> PlanResult {
        if cdb.len() < 16 {
            return Err(Sense::INVALID_OPCODE.into());
        }
        let mut change = self.lu.change();
        let requester = Requester { id: self.id, port: &self.port, read_only: self.read_only };
        let mut cx = CommandContext {
            cdb,
            parameters,
            lu: &self.lu,
            state: &mut change,
            nexus: self.id,
            port: &self.port,
            read_only: self.read_only,
        };
        let persists = table::find(&self.lu.settings(), cdb).is_ok_and(|row| row.persists);
        let answer = if persists {
            pending_commit::run(&mut cx, requester, &self.port)
        } else {
            run(&mut cx, requester)
        };
        self.snapshot = NexusSnapshot::new(&self.lu, &change, requester);
        answer
    }

    /// The error with which a command of this operation code would fail now, whatever its CDB. None: it would begin.
    pub fn refusal(&self, opcode: u8) -> Option<CommandError> {
        let requester = Requester { id: self.id, port: &self.port, read_only: self.read_only };
        checked(opcode, &self.lu.change(), &self.lu.settings(), requester).err()
    }

    /// Takes a new snapshot.
    #[cold]
    pub(crate) fn refresh(&mut self) {
        let requester = Requester { id: self.id, port: &self.port, read_only: self.read_only };
        let state = self.lu.change();
        self.snapshot = NexusSnapshot::new(&self.lu, &state, requester);
    }
}

/// Checks and executes a command in the order of SAM-5 and SPC-5: unit attention, reservation, CDB, readiness, write
/// protection.
pub(crate) fn run(cx: &mut CommandContext<'_>, requester: Requester<'_>) -> PlanResult {
    match cx.lu.settings().passthrough {
        PassthroughMode::None => execute_here(cx, requester),
        PassthroughMode::Shared => passthrough::run_shared_nexus(cx, requester),
        PassthroughMode::PerNexus => passthrough::run_per_nexus(cx, requester),
    }
}

/// Executes a command on this device server.
pub(crate) fn execute_here(cx: &mut CommandContext<'_>, requester: Requester<'_>) -> PlanResult {
    // A command that resumes with its parameter data has begun already, so BUSY and unit attentions do not apply.
    let begins = cx.parameters.is_none();
    if begins && cx.state.is_busy() {
        return Err(Status::Busy.into());
    }
    let settings = cx.lu.settings();
    let row = table::find(&settings, cx.cdb);
    if begins && !row.as_ref().is_ok_and(|r| r.despite_attention) {
        attention(cx.state, requester.id)?;
    }
    let row = row?;
    // A reservation made while the command waited for its parameter data applies too.
    if cx.state.reservations.conflicts(row, requester.id, requester.port) {
        return Err(Status::ReservationConflict.into());
    }
    row.check(cx.cdb)?;
    ready(row, cx.state, &settings, requester)?;
    (row.handler)(cx)
}

pub(crate) fn attention(state: &mut State, nexus: NexusId) -> Result<(), CommandError> {
    match state.nexuses.get_mut(&nexus).and_then(|p| p.attentions.take()) {
        Some(sense) => Err(sense.into()),
        None => Ok(()),
    }
}

/// The conditions other than reservations that block a command: sanitize, access state, medium, write protection.
fn ready(row: &Row, state: &State, settings: &LuSettings, requester: Requester<'_>) -> Result<(), Sense> {
    let sanitizing = state.sanitize.not_ready().filter(|_| !row.while_sanitizing);
    let standby = state.alua.denies(row, requester.port);
    let medium = state.no_medium().filter(|_| row.medium);
    if let Some(sense) = sanitizing.or(standby).or(medium) {
        return Err(sense);
    }
    // A nexus with read-only access must not block other nexuses either.
    let guest = requester.read_only && row.changes == ChangeScope::Shared;
    if guest || row.writes && write_protected(state, settings, requester.read_only) {
        return Err(Sense::WRITE_PROTECTED);
    }
    Ok(())
}

/// Whether writes are rejected: by the medium, the access list, or SWP of the control mode page.
pub(crate) fn write_protected(state: &State, settings: &LuSettings, read_only: bool) -> bool {
    let is_fixed = settings.read_only || read_only || settings.device_type == PeripheralDeviceType::CdRom;
    is_fixed || state.medium.withholds_writes() || state.modes.software_write_protect()
}

/// Whether a command with this operation code would pass all checks except that of its CDB.
pub(crate) fn passes_all_checks(
    opcode: u8,
    state: &State,
    settings: &LuSettings,
    requester: Requester<'_>,
) -> bool {
    state.nexuses.get(&requester.id).is_some_and(|p| p.attentions.is_empty())
        && passes_checks(opcode, state, settings, requester)
}

/// Like [`passes_all_checks`], but without unit attentions.
pub(crate) fn passes_checks(
    opcode: u8,
    state: &State,
    settings: &LuSettings,
    requester: Requester<'_>,
) -> bool {
    checked(opcode, state, settings, requester).is_ok()
}

/// As [`passes_checks`], with the reason of a failure.
fn checked(
    opcode: u8,
    state: &State,
    settings: &LuSettings,
    requester: Requester<'_>,
) -> Result<(), CommandError> {
    if state.is_busy() {
        return Err(Status::Busy.into());
    }
    if settings.passthrough != PassthroughMode::None {
        return Err(Sense::INVALID_OPCODE.into());
    }
    let row = table::find(settings, &[opcode, 0])?;
    if state.reservations.conflicts(row, requester.id, requester.port) {
        return Err(Status::ReservationConflict.into());
    }
    Ok(ready(row, state, settings, requester)?)
}
