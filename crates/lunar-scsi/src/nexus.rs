//! The I_T_L nexus: one initiator port, one target port, one logical unit.

use crate::nexus_snapshot::NexusSnapshot;
use crate::per_core::{CoreIndex, PerCore, PerCoreSlots};
use crate::table::{self, Row};
use crate::{Concurrency, Lu, NexusPorts, PassthroughMode, Plan, PlanResult};
use lunar_wire::scsi::Sense;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a nexus within the process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusId(pub u64);

impl NexusId {
    fn next() -> NexusId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        NexusId(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// An I_T_L nexus, owned by the core of its connection. Dropping it detaches it from the logical unit.
pub struct Nexus {
    pub(crate) lu: Arc<Lu>,
    pub(crate) id: NexusId,
    pub(crate) port: Arc<NexusPorts>,
    pub(crate) read_only: bool,
    slots: PerCoreSlots,
    core: CoreIndex,
    pub(crate) snapshot: NexusSnapshot,
}

impl Lu {
    /// Creates a nexus, with the unit attention POWER ON pending. `read_only`: the access list allows only reads.
    pub fn attach(self: &Arc<Lu>, port: Arc<NexusPorts>, read_only: bool) -> Nexus {
        let id = NexusId::next();
        self.change().attach(id, &port);
        let (slots, core) = (self.per_core_slots().clone(), CoreIndex::current());
        Nexus { lu: self.clone(), id, port, read_only, slots, core, snapshot: NexusSnapshot::default() }
    }

    /// I_T nexus loss (SAM-5 section 6.3.4) if the core of the nexus does not respond: drops the state of the nexus.
    /// The nexus must not begin another command.
    pub fn nexus_lost(&self, nexus: NexusId) {
        self.change().detach(nexus);
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        self.lu.change().detach(self.id);
    }
}

impl Nexus {
    /// The identifier of the nexus.
    pub fn id(&self) -> NexusId {
        self.id
    }

    /// The logical unit of the nexus.
    pub fn lu(&self) -> &Arc<Lu> {
        &self.lu
    }

    /// The part of the logical unit that belongs to the nexus's core.
    #[inline]
    pub fn per_core(&self) -> &PerCore {
        self.slots.at(self.core)
    }

    /// The index of the nexus's core.
    pub fn core_index(&self) -> CoreIndex {
        self.core
    }

    /// The ports of the nexus.
    pub fn port(&self) -> &Arc<NexusPorts> {
        &self.port
    }

    /// Whether the access list allows this initiator only reads.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The plan of a READ or WRITE that needs no more checks than the snapshot has; `None` if [`Nexus::begin`] must plan
    /// the command. That function returns every plan in memory, this one in registers.
    #[inline]
    pub fn begin_transfer(&mut self, cdb: &[u8]) -> Option<Plan> {
        if self.snapshot.epoch != self.per_core().epoch() {
            self.refresh();
        }
        self.snapshot.plan(cdb)
    }

    /// Plans a command. `cdb` has 16 to 260 bytes; unused bytes are zero.
    #[inline]
    pub fn begin(&mut self, cdb: &[u8]) -> PlanResult {
        match self.begin_transfer(cdb) {
            Some(plan) => Ok(plan),
            None if self.snapshot.forwards(cdb) => Ok(Plan::Passthrough),
            None => self.dispatch(cdb, None),
        }
    }

    /// Continues a command whose plan was [`Plan::Parameters`](crate::Plan::Parameters). `data` is shorter than
    /// planned if the initiator sent less.
    pub fn parameters(&mut self, cdb: &[u8], data: &[u8]) -> PlanResult {
        self.dispatch(cdb, Some(data))
    }

    /// Plans a command again that resumes after part of its data. BUSY and unit attentions do not apply, because they
    /// are for commands that begin (SAM-5 section 5.14).
    pub fn resume(&mut self, cdb: &[u8]) -> PlanResult {
        self.dispatch(cdb, Some(&[]))
    }

    /// The epoch of the snapshot; it changes when [`Nexus::begin`] takes a new snapshot.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.snapshot.epoch
    }

    /// Whether the command may run concurrently with others of its logical unit.
    pub fn concurrency(&self, cdb: &[u8]) -> Concurrency {
        self.row(cdb).map_or(Concurrency::Shared, |row| row.concurrency)
    }

    /// Whether the command requires exactly the Data-Out of its plan, so that any other length must be rejected.
    pub fn requires_exact_data_out(&self, cdb: &[u8]) -> bool {
        self.row(cdb).is_some_and(|row| row.exact)
    }

    /// Whether the write cache must be flushed before the command takes effect.
    pub fn flushes_first(&self, cdb: &[u8]) -> bool {
        self.row(cdb).is_some_and(|row| row.flushes_first)
    }

    /// The table row of a command that this device server executes.
    fn row(&self, cdb: &[u8]) -> Option<&'static Row> {
        let settings = self.lu.settings();
        table::find(&settings, cdb).ok().filter(|_| settings.passthrough == PassthroughMode::None)
    }

    /// Whether sense data have descriptor format (D_SENSE of the control mode page).
    pub fn uses_descriptor_sense(&mut self) -> bool {
        self.current().descriptor_sense
    }

    /// Whether tasks that another nexus aborts end with TASK ABORTED (TAS of the control mode page).
    pub fn task_aborted_status(&mut self) -> bool {
        self.current().task_aborted_status
    }

    /// The LUNs that this initiator may see have changed: this nexus gets REPORTED LUNS DATA HAS CHANGED.
    pub fn luns_changed(&mut self) {
        let id = self.id;
        self.lu.change().raise(Sense::LUNS_CHANGED, |other, _| other == id);
    }

    /// The ports of the target have changed: this nexus gets INQUIRY DATA HAS CHANGED.
    pub fn ports_changed(&mut self) {
        let id = self.id;
        self.lu.change().raise(Sense::INQUIRY_CHANGED, |other, _| other == id);
    }

    /// Queues a unit attention again whose command could not report it; the next command reports it.
    pub fn requeue_attention(&mut self, attention: Sense) {
        if let Some(peer) = self.lu.change().nexuses.get_mut(&self.id) {
            peer.attentions.put_back(attention);
        }
        self.refresh();
    }

    /// The initiator port received the LUNs of the target through another logical unit: clears REPORTED LUNS DATA HAS
    /// CHANGED here (SPC-5 section 6.33).
    pub fn luns_reported(&mut self) {
        if let Some(peer) = self.lu.change().nexuses.get_mut(&self.id) {
            peer.attentions.forget(Sense::LUNS_CHANGED);
        }
        self.refresh();
    }

    fn current(&mut self) -> &NexusSnapshot {
        if self.snapshot.epoch != self.per_core().epoch() {
            self.refresh();
        }
        &self.snapshot
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;
    use crate::{CommandError, Op, Plan};
    use lunar_wire::scsi::{Sense, op};

    const TUR: &[u8] = &[op::TEST_UNIT_READY];
    const READ_ONE: &[u8] = &[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const WRITE_ONE: &[u8] = &[op::WRITE_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const REPORT_LUNS: &[u8] = &[op::REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

    #[test]
    fn power_on_is_reported_once() {
        let lu = lu(disk());
        let mut n = lu.attach(port("a"), false);
        assert!(run(&mut n, REPORT_LUNS).is_ok());
        assert_eq!(data(&mut n, &[op::INQUIRY, 0, 0, 0, 36, 0]).len(), 36);
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::POWER_ON));
        assert_eq!(run(&mut n, READ_ONE), Ok(Plan::Read { offset: 512, len: 512 }));
    }

    #[test]
    fn requeued_attention_is_reported_by_a_read() {
        let lu = lu(disk());
        let mut n = lu.attach(port("a"), false);
        assert_eq!(run(&mut n, WRITE_ONE), fails(Sense::POWER_ON));
        n.requeue_attention(Sense::POWER_ON);
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::POWER_ON));
        assert!(run(&mut n, READ_ONE).is_ok());
    }

    #[test]
    fn request_sense_takes_the_attention_with_good_status() {
        let lu = lu(disk());
        let mut n = lu.attach(port("a"), false);
        assert_eq!(data(&mut n, &[op::REQUEST_SENSE, 0, 0, 0, 252, 0]), Sense::POWER_ON.encode(false));
        assert_eq!(data(&mut n, &[op::REQUEST_SENSE, 1, 0, 0, 252, 0]), Sense::NO_SENSE.encode(true));
        assert_eq!(data(&mut n, &[op::REQUEST_SENSE, 0, 0, 0, 3, 0]).len(), 3);
    }

    #[test]
    fn changes_renew_the_snapshot() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        assert!(run(&mut n, READ_ONE).is_ok());
        lu.resized(512);
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::CAPACITY_CHANGED));
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::LBA_OUT_OF_RANGE.at(1)));
        lu.resized(512);
        assert_eq!(run(&mut n, TUR), Ok(Plan::Done), "the same size is no change");
    }

    #[test]
    fn changed_luns_are_reported_once() {
        let lu = lu(disk());
        let (mut a, mut b, mut c) = (nexus(&lu, "a"), nexus(&lu, "b"), nexus(&lu, "c"));
        lu.luns_changed();
        lu.luns_changed();
        assert_eq!(run(&mut a, READ_ONE), fails(Sense::LUNS_CHANGED));
        assert!(run(&mut a, READ_ONE).is_ok());
        let op = Op::ReportLuns { select: 0, allocation_len: 256 };
        assert_eq!(run(&mut b, REPORT_LUNS), Ok(Plan::Op(Box::new(op))));
        assert!(run(&mut b, READ_ONE).is_ok());
        c.luns_reported();
        assert!(run(&mut c, READ_ONE).is_ok());
        c.luns_changed();
        assert!(run(&mut b, READ_ONE).is_ok());
        assert_eq!(run(&mut c, READ_ONE), fails(Sense::LUNS_CHANGED));
    }

    #[test]
    fn reset_and_cleared_tasks_are_reported() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        lu.task_set_cleared(Some(a.id()));
        assert_eq!(run(&mut a, TUR), Ok(Plan::Done));
        assert_eq!(run(&mut b, TUR), fails(Sense::COMMANDS_CLEARED));
        lu.reset();
        assert_eq!(run(&mut a, READ_ONE), fails(Sense::LUN_RESET));
        assert_eq!(run(&mut b, READ_ONE), fails(Sense::LUN_RESET));
    }

    #[test]
    fn device_reset_is_reported_and_keeps_reservations() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        assert_eq!(run(&mut a, &[op::RESERVE_6, 0, 0, 0, 0, 0]), Ok(Plan::Done));
        lu.backing_device_reset();
        for n in [&mut a, &mut b] {
            assert_eq!(run(n, TUR), fails(Sense::POWER_ON));
        }
        assert!(run(&mut a, READ_ONE).is_ok());
        assert_eq!(run(&mut b, READ_ONE), Err(lunar_wire::scsi::Status::ReservationConflict.into()));
    }

    #[test]
    fn read_only_access_list_protects_from_writes() {
        let lu = lu(disk());
        let mut n = lu.attach(port("a"), true);
        assert_eq!(run(&mut n, TUR), fails(Sense::POWER_ON));
        assert!(run(&mut n, READ_ONE).is_ok());
        assert_eq!(run(&mut n, WRITE_ONE), fails(Sense::WRITE_PROTECTED));
    }

    #[test]
    fn dropped_nexus_leaves_no_state() {
        let lu = lu(disk());
        drop(nexus(&lu, "a"));
        assert!(lu.change().nexuses.is_empty());
    }

    #[test]
    fn lost_nexus_holds_nothing() {
        const PREVENT: &[u8] = &[op::PREVENT_ALLOW, 0, 0, 0, 1, 0];
        const EJECT: &[u8] = &[op::START_STOP_UNIT, 0, 0, 0, 2, 0];
        let lu = lu(crate::LuSettings { removable: true, ..disk() });
        let (mut lost, mut other) = (nexus(&lu, "a"), nexus(&lu, "b"));
        assert!(run(&mut lost, PREVENT).is_ok());
        assert!(run(&mut other, EJECT).is_err());
        assert!(run(&mut lost, &[op::RESERVE_6, 0, 0, 0, 0, 0]).is_ok());
        assert_eq!(run(&mut other, READ_ONE), Err(lunar_wire::scsi::Status::ReservationConflict.into()));
        lu.nexus_lost(lost.id());
        assert!(run(&mut other, READ_ONE).is_ok());
        assert!(run(&mut other, &[op::RESERVE_6, 0, 0, 0, 0, 0]).is_ok());
        drop(lost);
        assert!(run(&mut other, EJECT).is_ok());
        let mut third = nexus(&lu, "c");
        assert_eq!(run(&mut third, WRITE_ONE), Err(lunar_wire::scsi::Status::ReservationConflict.into()));
    }

    #[test]
    fn short_cdb_is_no_command() {
        let mut n = nexus(&lu(disk()), "a");
        let refused: CommandError = Sense::INVALID_OPCODE.into();
        assert_eq!(n.begin(&[]), Err(refused));
    }
}
