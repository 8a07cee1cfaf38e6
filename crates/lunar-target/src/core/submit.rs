//! Submission of SCSI commands: some complete at once, the others become tasks.

use super::chunked_write;
use super::command::{ScsiCommand, TaskAttribute};
use super::complete::{CommandResult, Completion};
use super::data_in::DataIn;
use super::front_end::FrontEnd;
use super::lun_handle::{MIN_PAGES_LEN, ReadAttempt};
use super::lun_map::LunLookup;
use super::nexus::{NexusState, Route};
use super::task::{Task, TaskLu};
use crate::exec::{ExecutionOutput, ExecutionResult};
use crate::registry::AbortScope;
use lunar_block::TryIo;
use lunar_runtime::ReceivedData;
use lunar_scsi::{LogCounter, Plan, PlanResult};
use lunar_wire::scsi::Status;

impl<F: FrontEnd> NexusState<F> {
    /// Submits a command. Most commands complete here; the others become tasks.
    #[inline]
    pub fn command(&mut self, c: &ScsiCommand, data: ReceivedData<'_>) {
        let Route { lun, busy_scope, .. } = self.route(c.lun);
        let handle = match lun {
            LunLookup::LogicalUnit(handle) => handle,
            LunLookup::WellKnown => return self.command_without_lu(c, lunar_scsi::well_known_lu, data),
            LunLookup::Absent => return self.command_without_lu(c, lunar_scsi::absent_lun, data),
        };
        if c.attribute != TaskAttribute::Simple
            || handle.has_ordered()
            || busy_scope.is_some()
            || !handle.unit().task_set.try_lock_shared(handle.nexus().per_core())
        {
            let is_recalled =
                |scope: &AbortScope| scope.covers(handle.unit(), handle.nexus().id()).then_some(Status::Busy);
            let busy_scope = busy_scope.and_then(is_recalled);
            // Report BUSY at once: the wait for the lock could be long.
            if let Some(status) = busy_scope.or_else(|| handle.unit().lu.busy_status()) {
                return self.start_task(c, None, Some(Err(status.into())), data);
            }
            let lu = TaskLu::new(handle.unit().clone(), handle.nexus().id(), handle.unit().lu.epoch());
            return self.start_task(c, Some(lu), None, data);
        }
        match handle.begin_transfer(c.cdb()) {
            Some(plan) => self.transfer(c, plan, data),
            None => self.begin(c, data),
        }
    }

    /// Executes a READ or WRITE, at once if possible.
    #[inline(always)]
    fn transfer(&mut self, c: &ScsiCommand, plan: Plan, data: ReceivedData<'_>) {
        let has_all_data = self.has_all_data(c, &data);
        let takes_pages = c.data_in_len() >= MIN_PAGES_LEN && self.front().takes_pages(c.connection);
        let Route { lun: LunLookup::LogicalUnit(handle), pool, .. } = self.route(c.lun) else {
            return self.begin(c, data);
        };
        match plan {
            Plan::Read { offset, len } => {
                match handle.try_read(pool, offset, len, c.data_in_len(), takes_pages) {
                    ReadAttempt::NotNow => self.wait_for_medium(c, Plan::Read { offset, len }, data),
                    ReadAttempt::Zeros => self.read_done(c, DataIn::Zeros, len),
                    ReadAttempt::Done(buf) => self.read_done(c, |send| DataIn::Buf(buf, send), len),
                    ReadAttempt::Pages(pages) => self.read_done(c, |_| DataIn::Pages(pages), len),
                }
            }
            Plan::Write { offset, len, stable } if has_all_data && len == c.data_out_len() => {
                let now = if stable { TryIo::WouldWait } else { handle.try_write(offset, data.bytes()) };
                match now {
                    TryIo::Done(Ok(())) => self.write_done(c, len),
                    _ => self.wait_for_medium(c, Plan::Write { offset, len, stable }, data),
                }
            }
            plan => self.defer(c, Ok(plan), data),
        }
    }

    /// Begins a command that holds the lock and that the snapshot of its nexus cannot plan.
    #[inline(never)]
    fn begin(&mut self, c: &ScsiCommand, data: ReceivedData<'_>) {
        let LunLookup::LogicalUnit(handle) = self.luns_mut().find(c.lun) else {
            return self.command_without_lu(c, lunar_scsi::absent_lun, data);
        };
        match handle.begin(c.cdb()) {
            Ok(plan @ (Plan::Read { .. } | Plan::Write { .. })) => self.transfer(c, plan, data),
            Ok(Plan::Passthrough) if self.has_all_data(c, &data) && self.try_pass(c, &data) => {}
            plan => self.defer(c, plan, data),
        }
    }

    /// Whether all Data-Out arrived with the command, and was allowed to.
    #[inline]
    fn has_all_data(&self, c: &ScsiCommand, data: &ReceivedData<'_>) -> bool {
        let whole = !c.has_unsolicited && data.bytes().len() == c.data_out_len() as usize;
        whole && c.data_out_len() <= self.front().data_out_rules().max_immediate
    }

    #[inline]
    fn read_done(&mut self, c: &ScsiCommand, data: impl FnOnce(usize) -> DataIn, len: u32) {
        self.unlock_task_set(c, LogCounter::ReadBytes, len);
        self.complete_read(c, data, len);
    }

    #[inline]
    fn write_done(&mut self, c: &ScsiCommand, len: u32) {
        self.unlock_task_set(c, LogCounter::WriteBytes, len);
        self.complete_write(c, len);
    }

    /// Releases the task set lock of a command that completed at once, and updates the log counters.
    #[inline]
    fn unlock_task_set(&mut self, c: &ScsiCommand, count: LogCounter, bytes: u32) {
        if let LunLookup::LogicalUnit(handle) = self.luns_mut().find(c.lun) {
            let part = handle.nexus().per_core();
            handle.unit().task_set.unlock_shared(part);
            part.count(count, bytes as u64);
        }
    }

    /// Continues a command that holds the lock and must wait for its medium.
    fn wait_for_medium(&mut self, c: &ScsiCommand, plan: Plan, data: ReceivedData<'_>) {
        if !self.try_direct_io(c, &plan, &data) {
            self.defer(c, Ok(plan), data);
        }
    }

    /// Makes a task of a command that holds the lock and did not complete at once.
    fn defer(&mut self, c: &ScsiCommand, plan: PlanResult, data: ReceivedData<'_>) {
        let LunLookup::LogicalUnit(handle) = self.luns_mut().find(c.lun) else { return };
        // The task takes the lock again when it executes: a command that waits for data must not block others.
        handle.unit().task_set.unlock_shared(handle.nexus().per_core());
        let lu = TaskLu::new(handle.unit().clone(), handle.nexus().id(), handle.nexus().epoch());
        let needs_no_more = !c.has_unsolicited && data.bytes().is_empty();
        match plan {
            Ok(Plan::Done) if needs_no_more => self.finish_now(c, Ok(ExecutionOutput::Good), false),
            Ok(Plan::Data(d)) if needs_no_more && !handle.unit().reports_shared(c.cdb()) => {
                self.finish_now(c, Ok(ExecutionOutput::Data(d)), false)
            }
            Err(f) if needs_no_more && c.data_out_len() == 0 => {
                let descriptor = handle.nexus_mut().uses_descriptor_sense();
                self.finish_now(c, Err(f), descriptor);
            }
            plan => self.start_task(c, Some(lu), Some(plan), data),
        }
    }

    fn finish_now(&mut self, c: &ScsiCommand, ended: ExecutionResult, descriptor: bool) {
        self.complete(c, Completion::Responded(CommandResult { descriptor, ..CommandResult::of(ended) }));
    }

    /// Handles a command without a logical unit.
    fn command_without_lu(
        &mut self,
        c: &ScsiCommand,
        decide: fn(&[u8]) -> PlanResult,
        data: ReceivedData<'_>,
    ) {
        let plan = decide(c.cdb());
        self.start_task(c, None, Some(plan), data);
    }

    /// Makes a task of a command. It executes when its data have arrived. `lu` has the epoch of `plan`.
    fn start_task(
        &mut self,
        c: &ScsiCommand,
        lu: Option<TaskLu>,
        plan: Option<PlanResult>,
        data: ReceivedData<'_>,
    ) {
        let mut plan = plan;
        let is_chunked = chunked_write::is_chunked(c, lu.as_ref().map(|lu| &**lu.unit()), plan.as_ref());
        let receiving = self.begin_data_out(c, &mut plan, data, is_chunked);
        let tag = c.tag;
        let serial = self.tasks_mut().next_serial();
        self.count_ordered(c, lu.as_ref(), 1);
        let task = Task::receiving(serial, c.clone(), lu, receiving, plan, self.received_at());
        self.insert_task(task);
        self.progress(tag);
    }
}
