//! A member joins its group, and leaves it.

use super::announce::Alive;
use super::{Lost, Member, Phase, json};
use crate::object::{MemberId, MemberRecord, SharedChange, SharedView};
use crate::store::{Store, Swap, Unit};
use std::io;
use std::sync::atomic::Ordering::SeqCst;

impl<S: Store, U: Unit> Member<S, U> {
    /// Joins the group: fences the members that do not answer, an earlier start of this member among them, and
    /// installs the state. If no other member is alive, all ends that does not persist through power loss. Commands are
    /// served from now on.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn join(&self) -> Result<(), Lost> {
        let (version, began_ms) = loop {
            let began_ms = self.ticked_ms.load(SeqCst);
            let asked = self.view().await?.members;
            let alive = self.ask(0).await?;
            let view = self.view().await?;
            self.checked(self.admit(&view, &alive))?;
            let silent = self.silent(&view, &alive, 0);
            // A member that joins at the same time was not asked.
            if silent.iter().any(|(id, record)| asked.get(id) != Some(record)) {
                continue;
            }
            if !silent.is_empty() {
                self.fence(&silent).await?;
            }
            let is_first = silent.len() == view.members.len() && !self.continues;
            let mut installed = self.installed.lock().await;
            let fenced: Vec<MemberId> = silent.keys().copied().collect();
            let state = self.joined_state(&view, &fenced, is_first)?;
            let change = SharedChange { fenced, ..SharedChange::new(self.id, &[]) };
            let mut swap = Swap::after(view.version, &state, self.checked(json(&change))?);
            let mut next = view.clone();
            next.members.retain(|id, _| !silent.contains_key(id));
            next.members.insert(self.id, self.record.clone());
            next.ports.insert(self.id, self.ports());
            self.checked(swap.change_group(&view, &next))?;
            if self.checked(self.store.swap(swap).await)? {
                // Others may have fenced members a moment ago, whose late operations must not meet those of this one.
                self.checked(self.store.wait_for_latest_map().await)?;
                self.set_installed(&mut installed, view.version + 1);
                self.follow_group(&next);
                self.set_phase(Phase::Serving);
                break (*installed, began_ms);
            }
        };
        self.finish_effects().await?;
        // The others learn of this member, and must be behind the fence too. Before that, their rounds do not ask this member,
        // so that it must not use the medium.
        self.announce(version).await?;
        self.complete_round(began_ms);
        self.is_known.store(true, SeqCst);
        Ok(())
    }

    /// Refuses to join where a living member has the same number, or belongs to another group: each would fence the other.
    fn admit(&self, view: &SharedView, alive: &Alive) -> io::Result<()> {
        let is_alive = |id: MemberId, record: &MemberRecord| alive.contains_key(&(id, record.incarnation));
        for (id, record) in view.members.iter().filter(|(id, record)| is_alive(**id, record)) {
            if record.protocol != self.record.protocol {
                let (theirs, own) = (record.protocol, self.record.protocol);
                let what = format!(
                    "gateways with version {theirs} of the protocol serve it, this one has {own}: stop them first"
                );
                return Err(io::Error::other(what));
            }
            if record.passive != self.record.passive {
                let what = "the image has lost or gained the feature exclusive-lock: restart all gateways";
                return Err(io::Error::other(what));
            }
            if record.group != self.record.group {
                return Err(io::Error::other(format!("the group {} serves the image", record.group)));
            }
            if let Some((key, theirs)) =
                record.unit.iter().find(|(key, one)| self.record.unit.get(*key) != Some(*one))
            {
                let own = self.record.unit.get(key).map_or("", String::as_str);
                let what = format!("gateway {id} serves it with {key} {theirs:?}, this one has {own:?}");
                return Err(io::Error::other(what));
            }
            if *id == self.id && record.incarnation != self.record.incarnation {
                return Err(io::Error::other(format!("another gateway has the id {id}")));
            }
        }
        Ok(())
    }

    /// The state with which this member begins. The unit is held, and has no sessions.
    fn joined_state(&self, view: &SharedView, fenced: &[MemberId], is_first: bool) -> Result<Vec<u8>, Lost> {
        let lu = self.unit.lu();
        if view.version > 0 {
            let installed = lu.install_shared(&view.state, &[], true);
            self.checked(installed.map_err(std::io::Error::other))?;
        }
        // Sessions of an earlier start are gone, as are those of fenced members.
        lu.release_ports(&view.relative_ports(&[fenced, &[self.id]].concat()));
        if is_first {
            lu.power_on_shared();
        }
        Ok(lu.shared_state())
    }

    /// Leaves the group. The caller has ended all sessions of the logical unit.
    ///
    /// # Errors
    /// The member was lost. The others fence it.
    pub async fn leave(&self) -> Result<(), Lost> {
        self.set_phase(Phase::Joining);
        let leave = |view: &mut SharedView| {
            view.members.remove(&self.id);
            if view.access.active == Some(self.id) {
                view.access.set(None);
            }
        };
        let version = self.change_group(leave).await?;
        // The others learn of it. Without this, they learn by their next change.
        _ = self.ask(version).await;
        self.lose("it has left");
        Ok(())
    }
}
