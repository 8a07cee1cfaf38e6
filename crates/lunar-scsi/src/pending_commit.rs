//! Commands that change state on stable storage. The new state is stored first, and the command takes effect after
//! that. If it cannot be stored, the command changes nothing.
//!
//! If the state changes in another way between the pending commit and [`Lu::commit`], the command is planned again.

use crate::dispatch::{self, Requester};
use crate::table::CommandContext;
use crate::unit_attention::UnitAttentions;
use crate::{Lu, NexusId, NexusPorts, Op, Plan, PlanResult, State, modes, reservation, sanitize};
use std::sync::Arc;

/// A command whose new state must be on stable storage before [`Lu::commit`] executes it.
#[derive(Debug, PartialEq)]
pub struct PendingCommit {
    cdb: Vec<u8>,
    parameters: Option<Vec<u8>>,
    id: NexusId,
    port: Arc<NexusPorts>,
    read_only: bool,
    bytes: Vec<u8>,
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
    /// The bytes to store first, instead of those that [`Lu::saved_state`] returns now.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Lu {
    /// Executes the pending command. Its bytes are on stable storage.
    pub fn commit(&self, pending: PendingCommit) -> CommitOutcome {
        let mut state = self.change();
        let before = Rollback::of(&state);
        let requester = Requester { id: pending.id, port: &pending.port, read_only: pending.read_only };
        let mut cx = CommandContext {
            cdb: &pending.cdb,
            parameters: pending.parameters.as_deref(),
            lu: self,
            state: &mut state,
            nexus: pending.id,
            port: &pending.port,
            read_only: pending.read_only,
        };
        let answer = dispatch::run(&mut cx, requester);
        let bytes = state.save();
        if state.saved_version == before.saved_version || bytes == pending.bytes {
            return CommitOutcome::Done(answer);
        }
        before.put_back(&mut state);
        CommitOutcome::Again(PendingCommit { bytes, ..pending })
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
    let answer = dispatch::run(cx, requester);
    if cx.state.saved_version == before.saved_version {
        return answer;
    }
    let pending = PendingCommit {
        cdb: cx.cdb.to_vec(),
        parameters: cx.parameters.map(<[u8]>::to_vec),
        id: requester.id,
        port: port.clone(),
        read_only: requester.read_only,
        bytes: cx.state.save(),
    };
    before.put_back(cx.state);
    Ok(Plan::op(Op::Persist(pending)))
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
    use super::{CommitOutcome, PendingCommit};
    use crate::testing::{commit, data, disk, fails, lu, nexus, run, run_with};
    use crate::{Op, Plan, PlanResult};
    use lunar_wire::scsi::{Sense, Status, op};

    const TUR: &[u8] = &[op::TEST_UNIT_READY];
    const WRITE_ONE: &[u8] = &[op::WRITE_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const READ_KEYS: &[u8] = &[op::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 1, 0, 0];

    fn reserve_out(action: u8, key: u8, action_key: u8, flags: u8) -> ([u8; 10], [u8; 24]) {
        let mut list = [0; 24];
        (list[7], list[15], list[20]) = (key, action_key, flags);
        ([op::PERSISTENT_RESERVE_OUT, action, 1, 0, 0, 0, 0, 0, 24, 0], list)
    }

    fn pending(answer: PlanResult) -> PendingCommit {
        match answer {
            Ok(Plan::Op(op)) => match *op {
                Op::Persist(pending) => pending,
                op => panic!("{op:?} instead of a pending commit"),
            },
            other => panic!("{other:?} instead of a pending commit"),
        }
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
