//! Commands that change state on stable storage. The new state is stored first, and the command takes effect after
//! that. If it cannot be stored, the command changes nothing.
//!
//! If the state changes in another way between the pending commit and [`Lu::commit`], the command is planned again.

use crate::dispatch::{self, Requester};
use crate::shared::{Effects, InstalledEffects};
use crate::table::CommandContext;
use crate::unit_attention::UnitAttentions;
use crate::{Lu, NexusId, NexusPorts, Op, Plan, PlanResult, State, modes, reservation, sanitize};
use lunar_wire::scsi::Sense;
use std::sync::Arc;

/// A command whose new state must be on stable storage before [`Lu::commit`] executes it.
#[derive(Debug, PartialEq)]
pub struct PendingCommit {
    change: PendingChange,
    bytes: Vec<u8>,
    effects: Effects,
    /// The result of the change.
    answer: PlanResult,
}

/// A change of the state that is saved or shared.
#[derive(Debug, PartialEq)]
enum PendingChange {
    Command {
        cdb: Vec<u8>,
        parameters: Option<Vec<u8>>,
        id: NexusId,
        port: Arc<NexusPorts>,
        read_only: bool,
    },
    /// A reset of a shared logical unit.
    Reset,
    /// A nexus cleared the task set of a shared logical unit.
    Clear {
        by: Option<NexusId>,
    },
    /// The consequences of nexuses that came or went, for a shared logical unit.
    FollowNexuses,
}

/// The result of [`Lu::commit`].
#[derive(Debug, PartialEq)]
pub enum CommitOutcome {
    /// The command was executed, or failed meanwhile. Its plan is never [`Op::Persist`].
    Done(PlanResult),
    /// Another change happened meanwhile: other bytes must be stored first.
    Again(PendingCommit),
}

impl PendingCommit {
    /// The bytes to store first, instead of those that [`Lu::saved_state`] returns now. For a shared logical unit,
    /// they replace [`Lu::shared_state`].
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The effects on nexuses of other servers, for [`Lu::install_shared`].
    pub fn effects(&self) -> Vec<u8> {
        self.effects.encode()
    }

    /// The nexus of the command. None: no command of a task makes the change.
    pub fn nexus(&self) -> Option<NexusId> {
        match &self.change {
            PendingChange::Command { id, .. } => Some(*id),
            PendingChange::Reset | PendingChange::Clear { .. } | PendingChange::FollowNexuses => None,
        }
    }

    pub(crate) fn reset(lu: &Lu) -> Option<PendingCommit> {
        lu.draft(PendingChange::Reset).ok()
    }

    pub(crate) fn clear(lu: &Lu, by: Option<NexusId>) -> Option<PendingCommit> {
        lu.draft(PendingChange::Clear { by }).ok()
    }

    pub(crate) fn follow_nexuses(lu: &Lu) -> Option<PendingCommit> {
        lu.draft(PendingChange::FollowNexuses).ok()
    }
}

impl Lu {
    /// Executes the pending command. Its bytes are on stable storage.
    pub fn commit(&self, pending: PendingCommit) -> CommitOutcome {
        let mut state = self.change();
        let before = Rollback::of(&state);
        let answer = pending.change.perform(self, &mut state);
        if before.is_saved_as(&state) || state.to_store() == pending.bytes {
            return CommitOutcome::Done(answer);
        }
        CommitOutcome::Again(before.draft(&mut state, pending.change, answer))
    }

    /// Lets a change of a shared logical unit take effect that was published. The installed state is still the one from
    /// which the change was planned. Returns the result of the command.
    ///
    /// # Errors
    /// The result of the command, as [`Lu::commit`] returns it.
    pub fn commit_shared(&self, pending: PendingCommit) -> PlanResult {
        let mut state = self.change();
        // These bytes are the server's own, so they are valid.
        _ = state.install_shared(&pending.bytes);
        let mut installed = InstalledEffects::default();
        pending.effects.apply(&mut state, &mut installed);
        state.mark_changed();
        // Nexuses may have come since the plan.
        match pending.answer {
            Ok(_) if !installed.victims.is_empty() => {
                Ok(Plan::op(Op::Preempt { victims: installed.victims }))
            }
            answer => answer,
        }
    }

    /// Plans a pending command again, because the state has changed: [`CommitOutcome::Again`] has the bytes to store.
    /// [`CommitOutcome::Done`]: the command needs no storage any more, and was executed.
    pub fn plan_again(&self, pending: PendingCommit) -> CommitOutcome {
        match self.draft(pending.change) {
            Ok(pending) => CommitOutcome::Again(pending),
            Err(answer) => CommitOutcome::Done(answer),
        }
    }

    /// A change as a pending commit, or its answer if nothing is to be stored.
    fn draft(&self, change: PendingChange) -> Result<PendingCommit, PlanResult> {
        let mut state = self.change();
        let before = Rollback::of(&state);
        let answer = change.perform(self, &mut state);
        if before.is_saved_as(&state) {
            return Err(answer);
        }
        Ok(before.draft(&mut state, change, answer))
    }
}

impl PendingChange {
    fn perform(&self, lu: &Lu, state: &mut State) -> PlanResult {
        state.effects = Effects::default();
        match self {
            PendingChange::Command { cdb, parameters, id, port, read_only } => {
                let requester = Requester { id: *id, port, read_only: *read_only };
                let parameters = parameters.as_deref();
                let (nexus, read_only) = (*id, *read_only);
                dispatch::run(
                    &mut CommandContext { cdb, parameters, lu, state, nexus, port, read_only },
                    requester,
                )
            }
            PendingChange::Reset => {
                state.reset_shared();
                state.effects.raise_on_all(Sense::LUN_RESET);
                state.effects.reset();
                state.mark_shared_change();
                Ok(Plan::Done)
            }
            PendingChange::Clear { by } => {
                state.clear_task_set(*by);
                state.effects.abort_all();
                state.mark_shared_change();
                Ok(Plan::Done)
            }
            PendingChange::FollowNexuses => {
                if state.follow_nexuses() {
                    state.mark_shared_change();
                }
                Ok(Plan::Done)
            }
        }
    }
}

/// Runs a command that may change the saved state. If it does, its changes are rolled back, and the plan stores the
/// new state first.
pub(crate) fn run(
    cx: &mut CommandContext<'_>,
    requester: Requester<'_>,
    port: &Arc<NexusPorts>,
) -> PlanResult {
    let before = Rollback::of(cx.state);
    cx.state.effects = Effects::default();
    let answer = dispatch::run(cx, requester);
    if before.is_saved_as(cx.state) {
        return answer;
    }
    let change = PendingChange::Command {
        cdb: cx.cdb.to_vec(),
        parameters: cx.parameters.map(<[u8]>::to_vec),
        id: requester.id,
        port: port.clone(),
        read_only: requester.read_only,
    };
    Ok(Plan::op(Op::Persist(before.draft(cx.state, change, answer))))
}

/// The state that such commands change, before the command.
struct Rollback {
    changed: bool,
    saved_version: u64,
    modes: modes::State,
    reservations: reservation::State,
    sanitize: sanitize::State,
    attentions: Vec<(NexusId, UnitAttentions)>,
}

impl Rollback {
    /// Whether there is nothing to store: the saved state is the one before the command.
    fn is_saved_as(&self, state: &State) -> bool {
        state.saved_version == self.saved_version
    }

    /// Rolls a change back, and returns it as a pending commit.
    fn draft(self, state: &mut State, change: PendingChange, answer: PlanResult) -> PendingCommit {
        let (bytes, effects) = (state.to_store(), std::mem::take(&mut state.effects));
        self.put_back(state);
        PendingCommit { change, bytes, effects, answer }
    }

    fn of(state: &State) -> Rollback {
        Rollback {
            changed: state.changed,
            saved_version: state.saved_version,
            modes: state.modes.clone(),
            reservations: state.reservations.clone(),
            sanitize: state.sanitize,
            attentions: state.nexuses.iter().map(|(id, peer)| (*id, peer.attentions.clone())).collect(),
        }
    }

    fn put_back(self, state: &mut State) {
        state.changed = self.changed;
        state.saved_version = self.saved_version;
        state.modes = self.modes;
        state.reservations = self.reservations;
        state.sanitize = self.sanitize;
        for (id, attentions) in self.attentions {
            if let Some(peer) = state.nexuses.get_mut(&id) {
                peer.attentions = attentions;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CommitOutcome;
    use crate::testing::{commit, data, disk, fails, lu, nexus, pending, run, run_with};
    use crate::{Op, Plan};
    use lunar_wire::scsi::{Sense, Status, op};

    const TUR: &[u8] = &[op::TEST_UNIT_READY];
    const WRITE_ONE: &[u8] = &[op::WRITE_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const READ_KEYS: &[u8] = &[op::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 1, 0, 0];

    fn reserve_out(action: u8, key: u8, action_key: u8, flags: u8) -> ([u8; 10], [u8; 24]) {
        let mut list = [0; 24];
        (list[7], list[15], list[20]) = (key, action_key, flags);
        ([op::PERSISTENT_RESERVE_OUT, action, 1, 0, 0, 0, 0, 0, 24, 0], list)
    }

    #[test]
    fn pending_commit_changes_nothing_until_committed() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        for (nexus, key) in [(&mut a, 1), (&mut b, 2)] {
            let (cdb, list) = reserve_out(0, 0, key, 1);
            commit(&lu, run_with(nexus, &cdb, &list)).unwrap();
        }
        let (cdb, list) = reserve_out(1, 2, 0, 0);
        commit(&lu, run_with(&mut b, &cdb, &list)).unwrap();
        let before = (lu.saved_state(), data(&mut a, READ_KEYS), lu.epoch());
        let (cdb, list) = reserve_out(5, 1, 2, 0);
        let preempts = pending(run_with(&mut a, &cdb, &list));
        assert_eq!((lu.saved_state(), data(&mut a, READ_KEYS), lu.epoch()), before);
        assert!(run(&mut b, WRITE_ONE).is_ok(), "still the holder, and has heard of nothing");
        let bytes = preempts.bytes().to_vec();
        let CommitOutcome::Done(Ok(Plan::Op(op))) = lu.commit(preempts) else { panic!("not done") };
        assert_eq!(*op, Op::Preempt { victims: vec![b.id()] });
        assert_eq!(lu.saved_state().1, bytes);
        assert_eq!(run(&mut b, TUR), fails(Sense::REGISTRATIONS_PREEMPTED));
        assert_eq!(run(&mut b, WRITE_ONE), Err(Status::ReservationConflict.into()));
    }

    #[test]
    fn concurrent_change_is_persisted_too() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        let (cdb, list) = reserve_out(0, 0, 1, 1);
        let one = pending(run_with(&mut a, &cdb, &list));
        commit(&lu, run_with(&mut b, &cdb, &list)).unwrap();
        let (before, first) = (lu.saved_state(), one.bytes().to_vec());
        let CommitOutcome::Again(one) = lu.commit(one) else { panic!("it would be forgotten by a restart") };
        assert_eq!(lu.saved_state(), before);
        assert_ne!(one.bytes(), first);
        let bytes = one.bytes().to_vec();
        assert_eq!(lu.commit(one), CommitOutcome::Done(Ok(Plan::Done)));
        assert_eq!(lu.saved_state().1, bytes);
    }

    #[test]
    fn pending_commit_may_fail_when_committed() {
        let lu = lu(disk());
        let mut a = nexus(&lu, "a");
        let (cdb, list) = reserve_out(0, 0, 1, 1);
        let (one, same) = (pending(run_with(&mut a, &cdb, &list)), pending(run_with(&mut a, &cdb, &list)));
        assert_eq!(lu.commit(one), CommitOutcome::Done(Ok(Plan::Done)));
        assert_eq!(lu.commit(same), CommitOutcome::Done(Err(Status::ReservationConflict.into())));
    }
}
