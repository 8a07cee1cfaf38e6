//! The changes of other members.

use super::{Lost, Member, Phase};
use crate::object::SharedView;
use crate::store::{Store, Unit};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

impl<S: Store, U: Unit> Member<S, U> {
    /// Reads the object.
    pub(super) async fn view(&self) -> Result<SharedView, Lost> {
        let omap = self.checked(self.store.read().await)?;
        self.checked(SharedView::decode(&omap))
    }

    /// Installs all changes that were made until now.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn refresh(&self) -> Result<(), Lost> {
        let mut installed = self.installed.lock().await;
        match self.phase() {
            Phase::Serving => self.install_newer(&mut installed).await,
            Phase::Joining | Phase::Stale => Ok(()),
            Phase::Lost => Err(self.lost()),
        }
    }

    /// Installs the changes that the object has and this member has not. Their effects take place in
    /// [`Member::finish_effects`].
    pub(super) async fn install_newer(&self, installed: &mut u64) -> Result<(), Lost> {
        let began_ms = self.ticked_ms.load(SeqCst);
        let view = self.view().await?;
        if view.members.get(&self.id) != Some(&self.record) {
            return self.checked(Err(std::io::Error::other("another member has fenced it")));
        }
        self.install(installed, &view)?;
        self.confirm(began_ms);
        Ok(())
    }

    pub(super) fn install(&self, installed: &mut u64, view: &SharedView) -> Result<(), Lost> {
        if view.version <= *installed {
            return Ok(());
        }
        let (changes, is_complete) = self.checked(view.changes_since(*installed))?;
        let effects = changes.iter().map(|change| change.effects()).collect::<Result<Vec<_>, _>>();
        let effects = self.checked(effects)?;
        let effects: Vec<&[u8]> = effects.iter().map(Vec::as_slice).collect();
        let result = self.unit.lu().install_shared(&view.state, &effects, is_complete);
        let mut result = self.checked(result.map_err(std::io::Error::other))?;
        // A missing change may have aborted tasks of any nexus.
        result.aborts_all |= !is_complete;
        self.aborts.lock().unwrap_or_else(PoisonError::into_inner).add(view.version, &result);
        self.effects.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        if !is_complete || changes.iter().any(|change| !change.fenced.is_empty()) {
            self.needs_map.store(true, SeqCst);
        }
        self.follow_group(view);
        self.set_installed(installed, view.version);
        Ok(())
    }

    /// Lets the effects of installed changes take place: tasks end, and later operations go to servers of the cluster
    /// that know all fences.
    pub(super) async fn finish_effects(&self) -> Result<(), Lost> {
        let _one = self.finishing.lock().await;
        let version = self.version();
        let effects = std::mem::take(&mut *self.effects.lock().unwrap_or_else(PoisonError::into_inner));
        for effects in effects {
            if effects.aborts_all {
                self.unit.abort(None).await;
            } else if !effects.victims.is_empty() {
                self.unit.abort(Some(effects.victims)).await;
            }
        }
        self.follow_map().await?;
        self.follow_access().await?;
        self.finished.store(version, SeqCst);
        Ok(())
    }

    /// Waits for the map of the cluster, if an installed change has fenced a member.
    pub(super) async fn follow_map(&self) -> Result<(), Lost> {
        let _one = self.waiting_for_map.lock().await;
        if self.needs_map.swap(false, SeqCst) {
            self.checked(self.store.wait_for_latest_map().await)?;
        }
        Ok(())
    }
}
