//! Notifications: each member acknowledges a change, or is fenced.

use super::{Lost, Member, Phase, json};
use crate::object::{MemberId, MemberRecord, SharedView, member_key};
use crate::store::{Store, Swap, Unit};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;

/// The payload of a notification, and that of its acknowledgement.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    member: MemberId,
    incarnation: u64,
    /// The announced version, or the installed one. 0 in a notification only asks which members are alive.
    version: u64,
}

/// Number of times that members are asked again that answer with an older version.
const PATIENCE: usize = 8;

/// The incarnations that have acknowledged, with their installed versions.
pub(super) type Alive = BTreeMap<(MemberId, u64), u64>;

impl<S: Store, U: Unit> Member<S, U> {
    /// Handles a notification, and returns the payload of the acknowledgement. `None`: the member is lost and does not
    /// acknowledge.
    pub async fn notified(&self, payload: &[u8]) -> Option<Vec<u8>> {
        // A payload of a later version of the protocol announces a change too.
        let message: Option<Message> = serde_json::from_slice(payload).ok();
        let is_own = message.as_ref().is_some_and(|message| message.incarnation == self.record.incarnation);
        if !is_own {
            let version = message.map_or(u64::MAX, |message| message.version);
            self.follow(version).await.ok()?;
        }
        let (member, incarnation) = (self.id, self.record.incarnation);
        json(&Message { member, incarnation, version: self.version() }).ok()
    }

    /// Installs a version, and finishes its effects.
    async fn follow(&self, version: u64) -> Result<(), Lost> {
        {
            let mut installed = self.installed.lock().await;
            match self.phase() {
                // The version 0 of its acknowledgement does not count.
                Phase::Joining => return Ok(()),
                Phase::Lost => return Err(self.lost()),
                Phase::Serving | Phase::Stale if *installed < version => {
                    self.install_newer(&mut installed).await?
                }
                Phase::Serving | Phase::Stale => {}
            }
        }
        self.finish_effects().await
    }

    /// Notifies all members of a version. Returns when each has installed it, or is fenced.
    pub(super) async fn announce(&self, mut version: u64) -> Result<(), Lost> {
        let mut patience = PATIENCE;
        loop {
            let alive = self.ask(version).await?;
            let view = self.view().await?;
            let silent = self.silent(&view, &alive, version);
            if silent.is_empty() {
                self.announced.fetch_max(version, SeqCst);
                return Ok(());
            }
            // A member that joins may answer before it has installed a state.
            let answers =
                |(id, record): (&MemberId, &MemberRecord)| alive.contains_key(&(*id, record.incarnation));
            if patience > 0 && silent.iter().all(answers) {
                patience -= 1;
                continue;
            }
            self.fence(&silent).await?;
            version = self.remove(&silent).await?;
        }
    }

    /// Notifies all members of a version, and returns the acknowledgements.
    pub(super) async fn ask(&self, version: u64) -> Result<Alive, Lost> {
        let (member, incarnation) = (self.id, self.record.incarnation);
        let payload = self.checked(json(&Message { member, incarnation, version }))?;
        let replies = self.checked(self.store.notify(payload).await)?;
        let replies = replies.iter().filter_map(|bytes| serde_json::from_slice::<Message>(bytes).ok());
        Ok(replies.map(|reply| ((reply.member, reply.incarnation), reply.version)).collect())
    }

    /// The other members of the object that have not installed a version.
    pub(super) fn silent(
        &self,
        view: &SharedView,
        alive: &Alive,
        version: u64,
    ) -> BTreeMap<MemberId, MemberRecord> {
        let is_silent = |id: &MemberId, record: &MemberRecord| {
            *record != self.record && alive.get(&(*id, record.incarnation)).is_none_or(|has| *has < version)
        };
        view.members.clone().into_iter().filter(|(id, record)| is_silent(id, record)).collect()
    }

    /// Fences members, and waits until later operations of this client are behind the fence.
    pub(super) async fn fence(&self, members: &BTreeMap<MemberId, MemberRecord>) -> Result<(), Lost> {
        for record in members.values() {
            self.checked(self.store.blocklist(&record.addresses).await)?;
        }
        self.checked(self.store.wait_for_latest_map().await)
    }

    /// Removes fenced members from the object. The other members wait for the map of the cluster when they install
    /// this change. Returns its version.
    async fn remove(&self, members: &BTreeMap<MemberId, MemberRecord>) -> Result<u64, Lost> {
        let fenced = members.keys().copied().collect();
        self.swap_members(fenced, |swap, view| swap.remove_members(members, view)).await
    }
}

impl Swap {
    /// Removes members, unless they have joined again meanwhile.
    pub(super) fn remove_members(&mut self, members: &BTreeMap<MemberId, MemberRecord>, view: &SharedView) {
        let same: BTreeSet<_> = members
            .iter()
            .filter(|(id, record)| view.members.get(id) == Some(record))
            .map(|(id, _)| *id)
            .collect();
        self.remove.extend(same.into_iter().map(member_key));
    }
}
