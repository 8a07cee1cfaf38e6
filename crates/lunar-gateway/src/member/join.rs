//! A member joins its group, and leaves it.

use super::{Lost, Member, Phase, json};
use crate::object::{SharedChange, SharedView, member_key};
use crate::store::{Store, Swap, Unit};

impl<S: Store, U: Unit> Member<S, U> {
    /// Joins the group: fences the members that do not answer, an earlier start of this member among them, and
    /// installs the state. If no other member is alive, all ends that does not persist through power loss. Commands are
    /// served from now on.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn join(&self) -> Result<(), Lost> {
        let (version, has_fenced) = loop {
            let alive = self.ask(0).await?;
            let view = self.view().await?;
            let silent = self.silent(&view, &alive, 0);
            if !silent.is_empty() {
                self.fence(&silent).await?;
            }
            let is_first = silent.len() == view.members.len();
            let mut installed = self.installed.lock().await;
            let state = self.joined_state(&view, is_first)?;
            let change =
                SharedChange { fenced: silent.keys().copied().collect(), ..SharedChange::new(self.id, &[]) };
            let mut swap = Swap::after(view.version, &state, self.checked(json(&change))?);
            swap.remove_members(&silent, &view);
            // A member that has changed the state since the view was read is alive.
            swap.remove.retain(|key| *key != member_key(self.id));
            swap.set.push((member_key(self.id), self.checked(json(&self.record))?));
            if self.checked(self.store.swap(swap).await)? {
                // Others may have fenced members a moment ago, whose late operations must not meet those of this one.
                self.checked(self.store.wait_for_latest_map().await)?;
                self.set_installed(&mut installed, view.version + 1);
                self.set_phase(Phase::Serving);
                break (*installed, !silent.is_empty());
            }
        };
        // The others must be behind the fence too.
        if has_fenced { self.announce(version).await } else { Ok(()) }
    }

    /// The state with which this member begins. The unit is held, and has no sessions.
    fn joined_state(&self, view: &SharedView, is_first: bool) -> Result<Vec<u8>, Lost> {
        let lu = self.unit.lu();
        if view.version > 0 {
            let installed = lu.install_shared(&view.state, &[], true);
            self.checked(installed.map_err(std::io::Error::other))?;
        }
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
        let mut installed = self.installed.lock().await;
        self.set_phase(Phase::Joining);
        loop {
            let mut swap =
                self.swap_of(*installed, &self.unit.lu().shared_state(), &SharedChange::new(self.id, &[]))?;
            swap.remove.push(member_key(self.id));
            if self.checked(self.store.swap(swap).await)? {
                self.set_phase(Phase::Lost);
                return Ok(());
            }
            self.install_newer(&mut installed).await?;
        }
    }
}
