//! Notifications: each member acknowledges a change, or is fenced.

use super::supervise::ROUND_VALID;
use super::{Lost, Member, Phase, json};
use crate::object::{MemberId, MemberRecord, SharedView};
use crate::store::{Store, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// The payload of a notification, and that of its acknowledgement.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    member: MemberId,
    incarnation: u64,
    /// The announced version, or the one that has taken effect. 0 in a notification only asks which members are alive.
    version: u64,
}

/// Number of times that members are asked again that answer with an older version. Each waits for
/// [`ACKNOWLEDGE_WITHIN`](crate::ACKNOWLEDGE_WITHIN), so that the end of tasks has more time than an operation of the
/// medium, after whose time-out that member ends.
const PATIENCE: usize = 20;

/// Notifications without an own acknowledgement after which a member is lost.
const ATTEMPTS: usize = 4;

/// The incarnations that have acknowledged, with the versions that have taken effect there.
pub(super) type Alive = BTreeMap<(MemberId, u64), u64>;

impl<S: Store, U: Unit> Member<S, U> {
    /// Installs the change of a notification. [`Member::finish`] lets it take effect.
    pub async fn notified(&self, payload: &[u8]) {
        // A payload of a later version of the protocol announces a change too.
        let message: Option<Message> = serde_json::from_slice(payload).ok();
        let is_own = message.as_ref().is_some_and(|message| message.incarnation == self.record.incarnation);
        if !is_own {
            let version = message.map_or(u64::MAX, |message| message.version);
            // A lost member does not acknowledge.
            _ = self.follow(version).await;
        }
    }

    /// Returns when the installed changes have taken effect here, which includes the end of tasks that they abort. These
    /// may take longer than [`NOTIFY_TIMEOUT`](crate::NOTIFY_TIMEOUT): acknowledge ([`Member::acknowledgement`]) earlier
    /// than that, so that the other member asks again.
    pub async fn finish(&self) {
        _ = self.finish_effects().await;
    }

    /// The payload of an acknowledgement: the changes that have taken effect here. `None`: the member is lost.
    pub fn acknowledgement(&self, now: Duration) -> Option<Vec<u8>> {
        self.acknowledged_ms.store(now.as_millis() as u64, SeqCst);
        // In this order: a member that was lost meanwhile has noted the time.
        if self.phase() == Phase::Lost {
            return None;
        }
        let (member, incarnation) = (self.id, self.record.incarnation);
        json(&Message { member, incarnation, version: self.finished.load(SeqCst) }).ok()
    }

    /// Whether the others have fenced a lost member: each serves the medium only after a round without its sign of life.
    pub fn is_fenced(&self, now: Duration) -> bool {
        let acknowledged = Duration::from_millis(self.acknowledged_ms.load(SeqCst));
        acknowledged.is_zero() || now.saturating_sub(acknowledged) > ROUND_VALID
    }

    /// Installs a version.
    async fn follow(&self, version: u64) -> Result<(), Lost> {
        let mut installed = self.installed.lock().await;
        match self.phase() {
            Phase::Lost => Err(self.lost()),
            Phase::Serving | Phase::Stale if *installed < version => self.install_newer(&mut installed).await,
            // The version 0 of the acknowledgement of a member that joins does not count.
            Phase::Joining | Phase::Serving | Phase::Stale => Ok(()),
        }
    }

    /// Notifies all members of a version. Returns when it has taken effect on each that is not fenced.
    pub(super) async fn announce(&self, version: u64) -> Result<(), Lost> {
        self.announce_with(version, PATIENCE).await
    }

    /// As [`Member::announce`]. Members that answer with an older version are asked again as many times as `patience` says.
    pub(super) async fn announce_with(&self, mut version: u64, mut patience: usize) -> Result<(), Lost> {
        loop {
            let members = self.group();
            let alive = self.ask(version).await?;
            let view = self.view().await?;
            let mut silent = self.silent(&view, &alive, version);
            // A member that has joined meanwhile has begun with a later state.
            silent.retain(|id, record| members.has(*id, record));
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
            version = self.fence_and_remove(silent).await?.unwrap_or(version);
        }
    }

    /// Notifies all members of a version, and returns the acknowledgements. If its own one is missing, the storage server is
    /// too slow for all, which says nothing about the others.
    pub(super) async fn ask(&self, version: u64) -> Result<Alive, Lost> {
        let (member, incarnation) = (self.id, self.record.incarnation);
        for _ in 0..ATTEMPTS {
            // A lost member does not acknowledge its own notifications either.
            if self.phase() == Phase::Lost {
                return Err(self.lost());
            }
            let payload = self.checked(json(&Message { member, incarnation, version }))?;
            let replies = self.checked(self.store.notify(payload).await)?;
            let replies = replies.iter().filter_map(|bytes| serde_json::from_slice::<Message>(bytes).ok());
            let alive: Alive =
                replies.map(|reply| ((reply.member, reply.incarnation), reply.version)).collect();
            if alive.contains_key(&(member, incarnation)) {
                return Ok(alive);
            }
        }
        self.checked(Err(io::Error::other("its notifications do not arrive")))
    }

    /// The other members of the object on which a version has not taken effect.
    pub(super) fn silent(
        &self,
        view: &SharedView,
        alive: &Alive,
        version: u64,
    ) -> BTreeMap<MemberId, MemberRecord> {
        let is_silent = |id: &MemberId, record: &MemberRecord| {
            !record.is_same(&self.record)
                && alive.get(&(*id, record.incarnation)).is_none_or(|has| *has < version)
        };
        view.members.clone().into_iter().filter(|(id, record)| is_silent(id, record)).collect()
    }

    /// Fences members, and removes them from the object. Returns the version of that change. `None`: another member was faster,
    /// or they have joined again.
    pub(super) async fn fence_and_remove(
        &self,
        mut silent: BTreeMap<MemberId, MemberRecord>,
    ) -> Result<Option<u64>, Lost> {
        // A claim changes the record of a member, which ends its own changes. So of two members that do not hear each
        // other, only one fences the other.
        self.swap_group(|view| claim(view, &silent, self.id)).await?;
        let view = self.view().await?;
        silent.retain(|id, record| view.has(*id, record));
        self.fence(&silent).await?;
        let remove = |view: &mut SharedView| {
            let before = view.members.len();
            view.members.retain(|id, record| !silent.get(id).is_some_and(|one| one.is_same(record)));
            view.members.len() < before
        };
        // The other members wait for the map of the cluster when they install this change.
        self.change_group_if(remove).await
    }

    /// Fences members, and waits until later operations of this client are behind the fence. It tries on while the monitors
    /// do not answer.
    pub(super) async fn fence(&self, members: &BTreeMap<MemberId, MemberRecord>) -> Result<(), Lost> {
        for record in members.values() {
            loop {
                match self.store.blocklist(&record.addresses).await {
                    Err(e) if e.kind() == io::ErrorKind::TimedOut && self.phase() != Phase::Lost => {}
                    other => break self.checked(other)?,
                }
            }
        }
        let others: Vec<MemberId> = members.keys().copied().filter(|id| *id != self.id).collect();
        if !others.is_empty() {
            self.unit.fenced(&others);
        }
        self.checked(self.store.wait_for_latest_map().await)
    }
}

/// Marks the members that are still there. False: others have done so.
fn claim(view: &mut SharedView, silent: &BTreeMap<MemberId, MemberRecord>, by: MemberId) -> bool {
    let is_free = |(id, record): &(&MemberId, &mut MemberRecord)| {
        record.fenced_by.is_none() && silent.get(*id).is_some_and(|one| one.is_same(record))
    };
    let claimed = view.members.iter_mut().filter(is_free).map(|(_, record)| record.fenced_by = Some(by));
    claimed.count() > 0
}
