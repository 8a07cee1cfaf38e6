//! The member that serves the medium, where one at a time does (active/passive), and members that are drained.
//!
//! A change has two steps. First no member is active: the former one ends its operations and gives the medium up, and a
//! member that does not answer is fenced. Then the new one takes the medium.

use super::{Lost, Member, Phase};
use crate::object::{Access, MemberId, SharedView};
use crate::store::{Store, Unit};
use lunar_scsi::{AccessState, Plan, PlanResult};
use lunar_wire::scsi::{Sense, Status};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Time after a change in which SET TARGET PORT GROUPS changes nothing, so that hosts on different paths do not make the
/// members pass the medium to and fro.
const SETTLED_AFTER_MS: u64 = 5_000;
/// Number of times that a member is asked again that has not given the medium up. Its operations are given less time than
/// for other changes: hosts wait.
const PATIENCE: usize = 2;
/// Calls of [`Member::supervise`] between the turns of two members to take the place of a missing one.
const PAUSE: u64 = 2;

#[derive(Default)]
pub(super) struct ActiveRole {
    /// This member has the medium.
    is_active: AtomicBool,
    /// The last change of the active member, and its time.
    epoch: AtomicU64,
    changed_ms: AtomicU64,
    /// The number of the last calls of [`Member::supervise`] that have found no active member.
    idle: AtomicU64,
}

impl<S: Store, U: Unit> Member<S, U> {
    /// Whether operations of the medium may begin here.
    pub fn is_active(&self) -> bool {
        !self.unit.is_passive() || self.access.is_active.load(SeqCst)
    }

    /// Takes the medium or gives it up, as the installed version says.
    pub(super) async fn follow_access(&self) -> Result<(), Lost> {
        let (group, is_active) = (self.group(), self.access.is_active.load(SeqCst));
        let wanted =
            group.access.active == Some(self.id) && group.members.get(&self.id) == Some(&self.record);
        if !self.unit.is_passive() || wanted == is_active {
            return Ok(());
        }
        if wanted {
            self.checked(self.unit.take_medium().await)?;
        }
        self.access.is_active.store(wanted, SeqCst);
        if !wanted {
            self.checked(self.unit.give_medium().await)?;
        }
        self.unit.follow_members(&self.group(), wanted);
        Ok(())
    }

    /// Notes the time of a change of the active member.
    pub(super) fn note_access(&self, view: &SharedView) {
        if self.access.epoch.swap(view.access.epoch, SeqCst) != view.access.epoch {
            view.access.active.iter().for_each(|id| self.unit.activated(*id));
            self.access.changed_ms.store(self.ticked_ms.load(SeqCst), SeqCst);
        }
    }

    /// Makes a member the active one, on all members. False: it is away, or another change was faster.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn activate(&self, id: MemberId) -> Result<bool, Lost> {
        let epoch = Cell::new(0);
        let give = |view: &mut SharedView| {
            let is_there = view.members.contains_key(&id);
            if is_there {
                view.access.set(None);
                epoch.set(view.access.epoch);
            }
            is_there
        };
        let Some(version) = self.change_group_if(give).await? else { return Ok(false) };
        self.announce_with(version, PATIENCE).await?;
        let take = |view: &mut SharedView| {
            // The change that was announced is the last one.
            let is_next = view.access.epoch == epoch.get();
            if is_next {
                view.access.set(Some(id));
            }
            is_next
        };
        let Some(version) = self.change_group_if(take).await? else { return Ok(false) };
        self.announce(version).await.map(|()| true)
    }

    /// Lets the hosts of a member use other members, or use it again. If it is the active one, another one takes its place.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn drain(&self, id: MemberId, is_drained: bool) -> Result<(), Lost> {
        let edit = |access: &mut Access| match is_drained {
            true => drop(access.drained.insert(id)),
            false => drop(access.drained.remove(&id)),
        };
        let version = self.change_group(|view| edit(&mut view.access)).await?;
        self.announce(version).await?;
        let group = self.group();
        let next = group.candidates(Some(id)).next();
        match next.filter(|_| is_drained && group.access.active == Some(id)) {
            Some(next) => self.activate(next).await.map(drop),
            None => Ok(()),
        }
    }

    /// Carries SET TARGET PORT GROUPS out.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn set_access(&self, groups: &[(u16, AccessState)]) -> Result<PlanResult, Lost> {
        let group = self.group();
        let Some(id) = wanted_member(&group, groups) else { return Ok(Err(Sense::SET_ACCESS_FAILED.into())) };
        if group.access.active == Some(id) {
            return Ok(Ok(Plan::Done));
        }
        let since = self.ticked_ms.load(SeqCst).saturating_sub(self.access.changed_ms.load(SeqCst));
        if self.phase() != Phase::Serving || group.active_member().is_some() && since < SETTLED_AFTER_MS {
            return Ok(Err(Status::Busy.into()));
        }
        Ok(if self.activate(id).await? { Ok(Plan::Done) } else { Err(Status::Busy.into()) })
    }

    /// Takes the place of a missing active member, if it is this one's turn. In between another member may do so.
    pub(super) async fn follow_active(&self) -> Result<(), Lost> {
        let group = self.group();
        if !self.unit.is_passive() || group.active_member().is_some() {
            self.access.idle.store(0, SeqCst);
            return Ok(());
        }
        let idle = self.access.idle.fetch_add(1, SeqCst);
        let rank = group.candidates(None).position(|id| id == self.id);
        match rank.filter(|rank| idle > PAUSE * *rank as u64) {
            Some(_) => self.activate(self.id).await.map(drop),
            None => Ok(()),
        }
    }
}

/// The member that a list of states makes the active one. One at a time can be active, and none is so without being
/// optimized.
fn wanted_member(group: &SharedView, groups: &[(u16, AccessState)]) -> Option<MemberId> {
    let owners = |wanted: AccessState| {
        let found = groups.iter().filter(move |(_, state)| *state == wanted);
        found.map(|(tag, _)| group.owner_of(*tag)).collect::<BTreeSet<_>>()
    };
    if !owners(AccessState::NonOptimized).is_empty() {
        return None;
    }
    let active = owners(AccessState::Optimized);
    if let Some(id) = active.first() {
        return id.filter(|id| active.len() == 1 && group.members.contains_key(id));
    }
    match (*owners(AccessState::Standby).first()?)? {
        id if group.access.active == Some(id) => group.candidates(Some(id)).next(),
        _ => group.access.active,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{MemberPort, MemberRecord};

    #[test]
    fn list_of_states_names_one_active_member() {
        use AccessState::{NonOptimized, Optimized, Standby};
        let port = |tag| MemberPort { tag, relative: tag, srp: false, addresses: Vec::new() };
        let group = SharedView {
            members: [1, 2].map(|id| (id, MemberRecord::default())).into(),
            ports: [1, 2, 3].map(|id| (id, vec![port(u16::from(id))])).into(),
            access: Access { active: Some(1), ..Access::default() },
            ..SharedView::default()
        };
        let wanted = |groups: &[(u16, AccessState)]| wanted_member(&group, groups);
        assert_eq!(wanted(&[(2, Optimized)]), Some(2));
        assert_eq!(wanted(&[(1, Standby), (2, Optimized)]), Some(2));
        assert_eq!(wanted(&[(1, Standby)]), Some(2), "another one");
        assert_eq!(wanted(&[(2, Standby)]), Some(1), "as it is");
        assert_eq!(wanted(&[(1, Optimized), (2, Optimized)]), None, "one at a time");
        assert_eq!(wanted(&[(2, NonOptimized)]), None);
        assert_eq!(wanted(&[(3, Optimized)]), None, "it is away");
        assert_eq!(wanted(&[(4, Optimized)]), None, "there is no such group");
    }
}
