//! The way of every command that the snapshot of its nexus cannot decide: checks that all share, then the
//! handler.

use crate::NexusId;
use crate::draft;
use crate::fast::Fast;
use crate::pass;
use crate::table::{self, Changes, Cx, Row};
use crate::{Answer, Failure, Kind, Nexus, Passes, Port, Settings, State};
use lunar_wire::scsi::{Sense, Status};

/// A nexus as the checks see it.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) id: NexusId,
    pub(crate) port: &'a Port,
    pub(crate) read_only: bool,
}

impl Nexus {
    /// The slow way.
    #[cold]
    pub(crate) fn dispatch(&mut self, cdb: &[u8], parameters: Option<&[u8]>) -> Answer {
        if cdb.len() < 16 {
            return Err(Sense::INVALID_OPCODE.into());
        }
        let mut change = self.lu.change();
        let who = Who { id: self.id, port: &self.port, read_only: self.read_only };
        let mut cx = Cx {
            cdb,
            parameters,
            lu: &self.lu,
            state: &mut change,
            nexus: self.id,
            port: &self.port,
            read_only: self.read_only,
        };
        let keeps = table::find(&self.lu.settings(), cdb).is_ok_and(|row| row.keeps);
        let answer = if keeps { draft::run(&mut cx, who, &self.port) } else { run(&mut cx, who) };
        self.fast = Fast::new(&self.lu, &change, who);
        answer
    }

    /// Takes a new snapshot.
    #[cold]
    pub(crate) fn refresh(&mut self) {
        let who = Who { id: self.id, port: &self.port, read_only: self.read_only };
        let state = self.lu.change();
        self.fast = Fast::new(&self.lu, &state, who);
    }
}

/// The checks in the order of SAM-5 and SPC-5: unit attention, reservation, CDB, readiness, write protection.
pub(crate) fn run(cx: &mut Cx<'_>, who: Who<'_>) -> Answer {
    match cx.lu.settings().passes {
        Passes::None => here(cx, who),
        Passes::Shared => pass::shared(cx, who),
        Passes::Own => pass::own(cx, who),
    }
}

/// A command of a logical unit that this device server speaks for.
pub(crate) fn here(cx: &mut Cx<'_>, who: Who<'_>) -> Answer {
    // One that goes on with its parameter data has begun: it is neither busy nor told of attentions once more.
    let begins = cx.parameters.is_none();
    if begins && cx.state.busy {
        return Err(Status::Busy.into());
    }
    let settings = cx.lu.settings();
    let row = table::find(&settings, cx.cdb);
    if begins && !row.as_ref().is_ok_and(|r| r.despite_attention) {
        attention(cx.state, who.id)?;
    }
    let row = row?;
    // A reservation that was made while it waited for its parameter data keeps it out too.
    if cx.state.reservations.conflicts(row, who.id, who.port) {
        return Err(Status::ReservationConflict.into());
    }
    row.check(cx.cdb)?;
    ready(row, cx.state, &settings, who)?;
    (row.handler)(cx)
}

pub(crate) fn attention(state: &mut State, nexus: NexusId) -> Result<(), Failure> {
    match state.peers.get_mut(&nexus).and_then(|p| p.attentions.take()) {
        Some(sense) => Err(sense.into()),
        None => Ok(()),
    }
}

/// What keeps a command from the medium, reservations apart.
fn ready(row: &Row, state: &State, settings: &Settings, who: Who<'_>) -> Result<(), Sense> {
    let sanitizing = state.sanitize.not_ready().filter(|_| !row.while_sanitizing);
    let standby = state.alua.refuses(row, who.port);
    let medium = state.no_medium().filter(|_| row.medium);
    if let Some(sense) = sanitizing.or(standby).or(medium) {
        return Err(sense);
    }
    // Who may only read the medium may not keep others from it either.
    let guest = who.read_only && row.changes == Changes::Shared;
    if guest || row.writes && write_protected(state, settings, who.read_only) {
        return Err(Sense::WRITE_PROTECTED);
    }
    Ok(())
}

/// Writes are refused: by the medium, the access list, or SWP of the control mode page.
pub(crate) fn write_protected(state: &State, settings: &Settings, read_only: bool) -> bool {
    let is_fixed = settings.read_only || read_only || settings.kind == Kind::CdRom;
    is_fixed || state.medium.withholds_writes() || state.modes.software_write_protect()
}

/// A command of this operation code would pass all checks but the one of its CDB.
pub(crate) fn open(opcode: u8, state: &State, settings: &Settings, who: Who<'_>) -> bool {
    state.peers.get(&who.id).is_some_and(|p| p.attentions.is_empty()) && may(opcode, state, settings, who)
}

/// As [`open`], unit attentions apart.
pub(crate) fn may(opcode: u8, state: &State, settings: &Settings, who: Who<'_>) -> bool {
    let row = table::find(settings, &[opcode, 0]);
    !state.busy
        && settings.passes == Passes::None
        && row.is_ok_and(|row| {
            !state.reservations.conflicts(row, who.id, who.port) && ready(row, state, settings, who).is_ok()
        })
}
