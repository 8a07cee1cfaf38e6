//! A member of a group, for one logical unit and one client of the cluster.

mod aborts;
mod access;
mod announce;
mod install;
mod join;
mod supervise;

use crate::object::{
    ACCESS, LOG_LEN, MemberId, MemberPort, MemberRecord, STATE, SharedChange, SharedView, VERSION, log_key,
    member_key, ports_key, version_value,
};
use crate::store::{Store, Swap, Unit};
use aborts::RecentAborts;
use async_lock::Mutex;
use lunar_scsi::{CommitOutcome, InstalledEffects, Op, PendingCommit, Plan, PlanResult};
use lunar_wire::scsi::Status;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

/// The part of its life in which a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// It has not joined the group yet.
    Joining,
    /// It serves commands.
    Serving,
    /// The cluster has not confirmed its watch for a while: commands end with BUSY.
    Stale,
    /// The cluster or another member has fenced it, or an operation failed. It ends without an answer to its commands,
    /// and a new member with a new client takes its place.
    Lost,
}

const PHASES: [Phase; 4] = [Phase::Joining, Phase::Serving, Phase::Stale, Phase::Lost];

/// The member is [`Phase::Lost`]. Whether the last change took place is unknown.
#[derive(Debug)]
pub struct Lost(pub String);

/// A member.
pub struct Member<S, U> {
    id: MemberId,
    record: MemberRecord,
    ports: std::sync::Mutex<Vec<MemberPort>>,
    store: S,
    unit: U,
    phase: AtomicU8,
    /// The version of the installed state. Locked while it changes.
    installed: Mutex<u64>,
    /// The same, for readers without the lock.
    version: AtomicU64,
    /// Members, ports and access as of that version. A member that has joined later has begun with a later state.
    group: std::sync::Mutex<Arc<SharedView>>,
    access: access::ActiveRole,
    /// The last version whose effects on this member are complete: the tasks that it aborts have ended.
    finished: AtomicU64,
    /// The last version that this member has announced.
    announced: AtomicU64,
    /// The reason of a loss.
    reason: OnceLock<String>,
    /// This process has held the state before: it has not lost its power since.
    continues: bool,
    /// Locked while installed effects take place.
    finishing: Mutex<()>,
    effects: std::sync::Mutex<Vec<InstalledEffects>>,
    aborts: std::sync::Mutex<RecentAborts>,
    /// A member was fenced: wait for the map of the cluster before the next acknowledgement.
    needs_map: AtomicBool,
    /// Whether the last tick has found the watch confirmed.
    is_confirmed: AtomicBool,
    /// The time of the last tick.
    ticked_ms: AtomicU64,
    /// The time for which the installed state is known to be the latest one: that of a confirmation of the watch, or of
    /// an access to the object.
    confirmed_ms: AtomicU64,
    /// Whether it reads the object because the cluster has not confirmed the watch lately.
    is_refreshing: AtomicBool,
    /// Locked while this client waits for the map of the cluster.
    waiting_for_map: Mutex<()>,
    /// The time of the last acknowledgement.
    acknowledged_ms: AtomicU64,
    /// The time of the last answer of the monitors to [`Member::probe`], and whether it waits for one.
    heard_ms: AtomicU64,
    is_probing: AtomicBool,
    /// All members know that this one has joined.
    is_known: AtomicBool,
    /// The time at which the last complete round began, and the number of calls of [`Member::supervise`].
    round_ms: AtomicU64,
    supervisions: AtomicU64,
}

impl<S: Store, U: Unit> Member<S, U> {
    /// A member that has not joined. Its logical unit is shared ([`lunar_scsi::Lu::share`]) and answers BUSY. The
    /// client watches the object already. `incarnation` is a random number. `continues`: this process has held the state before.
    pub fn new(
        group: &str,
        id: MemberId,
        incarnation: u64,
        ports: Vec<MemberPort>,
        continues: bool,
        (store, unit): (S, U),
    ) -> Member<S, U> {
        unit.lu().hold(true);
        unit.lu().set_own_ports(ports.iter().map(|port| port.relative).collect());
        Member {
            id,
            record: MemberRecord {
                incarnation,
                addresses: store.addresses(),
                group: group.into(),
                passive: unit.is_passive(),
                unit: shown(&unit),
                protocol: crate::object::PROTOCOL,
                fenced_by: None,
            },
            ports: ports.into(),
            store,
            unit,
            phase: AtomicU8::new(Phase::Joining as u8),
            installed: Mutex::new(0),
            version: AtomicU64::new(0),
            group: std::sync::Mutex::default(),
            access: access::ActiveRole::default(),
            finished: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            reason: OnceLock::new(),
            continues,
            finishing: Mutex::new(()),
            effects: std::sync::Mutex::default(),
            aborts: std::sync::Mutex::default(),
            needs_map: AtomicBool::new(false),
            waiting_for_map: Mutex::new(()),
            acknowledged_ms: AtomicU64::new(0),
            heard_ms: AtomicU64::new(0),
            is_probing: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
            is_confirmed: AtomicBool::new(true),
            ticked_ms: AtomicU64::new(0),
            confirmed_ms: AtomicU64::new(0),
            is_refreshing: AtomicBool::new(false),
            round_ms: AtomicU64::new(0),
            supervisions: AtomicU64::new(0),
        }
    }

    /// Its phase.
    pub fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(SeqCst))]
    }

    /// The version of the installed state.
    pub fn version(&self) -> u64 {
        self.version.load(SeqCst)
    }

    /// The last version that this member has announced: it has taken effect on all members.
    pub fn announced_version(&self) -> u64 {
        self.announced.load(SeqCst)
    }

    /// The client of the cluster.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The logical unit.
    pub fn unit(&self) -> &U {
        &self.unit
    }

    /// Publishes a change, lets it take effect on all members, and returns the answer of its command. Changes are
    /// planned again when another member was faster.
    ///
    /// # Errors
    /// The member is lost: the command gets no answer.
    pub async fn publish(&self, mut pending: PendingCommit) -> Result<PlanResult, Lost> {
        let (lu, began) = (self.unit.lu(), self.version());
        let (answer, version) = {
            let mut installed = self.installed.lock().await;
            loop {
                match self.phase() {
                    Phase::Serving => {}
                    Phase::Joining | Phase::Stale => return Ok(Err(Status::Busy.into())),
                    Phase::Lost => return Err(self.lost()),
                }
                if self.is_aborted(&pending, began) {
                    drop(installed);
                    // The task learns that it is aborted before it ends.
                    return self.finish_effects().await.map(|()| Err(Status::TaskAborted.into()));
                }
                pending = match lu.plan_again(pending) {
                    CommitOutcome::Done(answer) => {
                        drop(installed);
                        return self.announced().await.map(|()| answer);
                    }
                    CommitOutcome::Again(pending) => pending,
                };
                let change = SharedChange::new(self.id, &pending.effects());
                let swap = self.swap_of(*installed, pending.bytes(), &change)?;
                let began_ms = self.ticked_ms.load(SeqCst);
                if self.checked(self.store.swap(swap).await)? {
                    let answer = lu.commit_shared(pending);
                    self.confirm(began_ms);
                    let version = *installed + 1;
                    self.add_victims(version, &answer);
                    self.set_installed(&mut installed, version);
                    self.unit.published();
                    break (answer, version);
                }
                self.install_newer(&mut installed).await?;
            }
        };
        self.finish_effects().await?;
        self.announce(version).await?;
        Ok(answer)
    }

    /// Later changes, too, wait for the tasks that a command aborts on this member: its host may have given it up. Their own
    /// changes that wait for their turn are not made.
    fn add_victims(&self, version: u64, answer: &PlanResult) {
        if let Ok(Plan::Op(op)) = answer
            && let Op::Preempt { victims } = &**op
        {
            let effects = InstalledEffects { victims: victims.clone(), aborts_all: false };
            self.aborts.lock().unwrap_or_else(PoisonError::into_inner).add(version, &effects);
            self.effects.lock().unwrap_or_else(PoisonError::into_inner).push(effects);
        }
    }

    /// Whether a change after `began` has aborted the command.
    fn is_aborted(&self, pending: &PendingCommit, began: u64) -> bool {
        let aborts = self.aborts.lock().unwrap_or_else(PoisonError::into_inner);
        pending.nexus().is_some_and(|nexus| aborts.include(nexus, began))
    }

    /// Returns when the other members have installed what this one has. The member that made the last change may be slow
    /// with its announcement, or may have ended before it. A command that finds that change must not be faster.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn announced(&self) -> Result<(), Lost> {
        let version = self.version();
        if self.announced.load(SeqCst) < version { self.announce(version).await } else { Ok(()) }
    }

    /// Publishes other target ports of this member.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn set_ports(&self, ports: Vec<MemberPort>) -> Result<(), Lost> {
        self.unit.lu().set_own_ports(ports.iter().map(|port| port.relative).collect());
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = ports.clone();
        let set = |view: &mut SharedView| drop(view.ports.insert(self.id, ports.clone()));
        let version = self.change_group(set).await?;
        self.announce(version).await
    }

    /// The published target ports.
    pub fn ports(&self) -> Vec<MemberPort> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Members, ports and access as of the installed version.
    pub fn group(&self) -> Arc<SharedView> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Swaps a change of members, own ports or access. The state stays, but for the RESERVE of members that it removes. Returns
    /// the version of the change.
    async fn change_group(&self, edit: impl Fn(&mut SharedView)) -> Result<u64, Lost> {
        let edit = |view: &mut SharedView| {
            edit(view);
            true
        };
        Ok(self.change_group_if(edit).await?.unwrap_or(0))
    }

    /// As [`Member::change_group`], unless `edit` returns false. Then it returns `None`.
    async fn change_group_if(&self, edit: impl Fn(&mut SharedView) -> bool) -> Result<Option<u64>, Lost> {
        let version = self.swap_group(edit).await?;
        if version.is_some() {
            self.finish_effects().await?;
        }
        Ok(version)
    }

    /// As [`Member::change_group_if`], without waiting for the effects of changes that it has installed.
    async fn swap_group(&self, edit: impl Fn(&mut SharedView) -> bool) -> Result<Option<u64>, Lost> {
        let mut installed = self.installed.lock().await;
        loop {
            let view = self.view().await?;
            let mut next = view.clone();
            if !edit(&mut next) {
                return Ok(None);
            }
            let is_removed = |id: &MemberId| *id != self.id && !next.members.contains_key(id);
            let fenced: Vec<MemberId> = view.members.keys().copied().filter(is_removed).collect();
            self.unit.lu().release_ports(&view.relative_ports(&fenced));
            let is_claimed = |(_, record): &(&MemberId, &MemberRecord)| record.fenced_by == Some(self.id);
            let claimed = next.members.iter().filter(is_claimed).map(|(id, _)| *id).collect();
            let change = SharedChange { fenced, claimed, ..SharedChange::new(self.id, &[]) };
            let mut swap = self.swap_of(*installed, &self.unit.lu().shared_state(), &change)?;
            self.checked(swap.change_group(&view, &next))?;
            let began_ms = self.ticked_ms.load(SeqCst);
            if self.checked(self.store.swap(swap).await)? {
                let version = *installed + 1;
                self.confirm(began_ms);
                self.follow_group(&next);
                self.set_installed(&mut installed, version);
                return Ok(Some(version));
            }
            self.install_newer(&mut installed).await?;
        }
    }

    /// Follows members, ports and access of a version that is about to be installed.
    fn follow_group(&self, view: &SharedView) {
        self.note_access(view);
        let group = SharedView { state: Vec::new(), log: BTreeMap::new(), ..view.clone() };
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(group);
        self.unit.follow_members(view, self.is_active());
    }

    /// Call this each second, for the first time before [`Member::join`], with a monotonic time. It ends the service when the watch is
    /// old. A pause of the process ends the member: it cannot know whether it was fenced, because fences end.
    ///
    /// # Errors
    /// The member is lost.
    pub fn tick(&self, now: Duration) -> Result<(), Lost> {
        if self.phase() == Phase::Lost {
            return Err(self.lost());
        }
        let ticked = self.ticked_ms.load(SeqCst);
        if ticked != 0 && !self.is_current(now) {
            return self.checked(Err(io::Error::other("the process was paused")));
        }
        let age = self.checked(self.store.watch_age())?;
        self.ticked_ms.store(now.as_millis() as u64, SeqCst);
        self.confirmed_ms.fetch_max(now.saturating_sub(age).as_millis() as u64, SeqCst);
        if age > crate::LOST_AFTER && !self.waits_for_storage(now, age) {
            return self.checked(Err(io::Error::other("the cluster does not confirm the watch")));
        }
        self.is_confirmed.store(age <= crate::STALE_AFTER, SeqCst);
        if self.phase() == Phase::Serving && self.state_age(now) > crate::STALE_AFTER {
            self.set_phase(Phase::Stale);
        }
        Ok(())
    }

    /// The installed state was the latest one at that time, as an access to the object has shown. The other members ask this
    /// one about later changes, as long as it has a watch: it is lost long before the cluster drops an old one. If they
    /// wait for the storage together, the cluster may have dropped it.
    fn confirm(&self, began_ms: u64) {
        if self.is_confirmed.load(SeqCst) {
            self.confirmed_ms.fetch_max(began_ms, SeqCst);
        }
    }

    /// The time since when the installed state may be old.
    fn state_age(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_millis(self.confirmed_ms.load(SeqCst)))
    }

    /// Whether the monitors of the cluster answer, and only the server of the object does not: no member can serve then, so
    /// that the sessions stay.
    fn waits_for_storage(&self, now: Duration, age: Duration) -> bool {
        let heard = Duration::from_millis(self.heard_ms.load(SeqCst));
        age <= crate::STORAGE_DOWN_FOR && now.saturating_sub(heard) <= crate::LOST_AFTER - crate::STALE_AFTER
    }

    /// Call this after a tick. While the cluster does not confirm the watch, it asks whether the monitors answer.
    pub async fn probe(&self) {
        if self.is_confirmed.load(SeqCst) || self.is_probing.swap(true, SeqCst) {
            return;
        }
        let began_ms = self.ticked_ms.load(SeqCst);
        if self.store.wait_for_latest_map().await.is_ok() {
            self.heard_ms.store(began_ms, SeqCst);
        }
        self.is_probing.store(false, SeqCst);
    }

    /// Call this after a tick. It reads the object while the cluster does not confirm the watch: a notification that waits
    /// for a dead member delays that. It begins the service again when the state is known to be the latest one. It waits
    /// for the cluster, while ticks go on.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn recover(&self) -> Result<(), Lost> {
        let is_old = || self.state_age(self.ticked()) > crate::REFRESH_AFTER;
        let may_read =
            matches!(self.phase(), Phase::Serving | Phase::Stale) && self.is_confirmed.load(SeqCst);
        if !may_read || !(is_old() || self.phase() == Phase::Stale) {
            return Ok(());
        }
        if self.is_refreshing.swap(true, SeqCst) {
            return Ok(());
        }
        let result = self.refresh_old().await;
        self.is_refreshing.store(false, SeqCst);
        result
    }

    async fn refresh_old(&self) -> Result<(), Lost> {
        self.install_newer(&mut *self.installed.lock().await).await?;
        if self.phase() == Phase::Stale {
            self.finish_effects().await?;
            if self.state_age(self.ticked()) <= crate::STALE_AFTER {
                self.set_phase(Phase::Serving);
            }
        }
        Ok(())
    }

    /// The time of the last tick.
    fn ticked(&self) -> Duration {
        Duration::from_millis(self.ticked_ms.load(SeqCst))
    }

    /// Whether an operation of the medium may begin: the last tick was not long ago. A process that was paused must not
    /// begin operations, before it knows that it is fenced.
    pub fn is_current(&self, now: Duration) -> bool {
        now.saturating_sub(self.ticked()) <= crate::CURRENT_FOR && self.phase() != Phase::Lost
    }

    /// Whether commands may be decided with the installed state: the cluster has confirmed the watch so lately that no
    /// other member can have answered a change that is missing here.
    pub fn may_decide(&self, now: Duration) -> bool {
        self.state_age(now) < crate::CURRENT_FOR && self.phase() == Phase::Serving
    }

    /// Whether it serves commands, or answers them with BUSY for a while.
    pub fn serves(&self) -> bool {
        self.is_known.load(SeqCst) && matches!(self.phase(), Phase::Serving | Phase::Stale)
    }

    /// Ends the service because something outside has shown that the client is fenced, or was paused for too long.
    pub fn lose(&self, reason: &str) {
        _ = self.reason.set(reason.to_owned());
        self.set_phase(Phase::Lost);
    }

    fn lost(&self) -> Lost {
        Lost(self.reason.get().cloned().unwrap_or_default())
    }

    /// A lost member stays lost.
    fn set_phase(&self, to: Phase) {
        let set =
            self.phase.fetch_update(SeqCst, SeqCst, |now| (now != Phase::Lost as u8).then_some(to as u8));
        if set.is_ok() {
            self.unit.lu().hold(to != Phase::Serving);
        }
    }

    /// The result of an operation of the cluster. After a failure it is unknown what has happened. A member that was lost
    /// meanwhile makes no use of the result: the logical unit may have another member now.
    fn checked<T>(&self, result: io::Result<T>) -> Result<T, Lost> {
        if let Err(error) = &result {
            self.lose(&error.to_string());
        }
        match result {
            Ok(value) if self.phase() != Phase::Lost => Ok(value),
            _ => Err(self.lost()),
        }
    }

    fn set_installed(&self, installed: &mut u64, version: u64) {
        *installed = version;
        self.version.store(version, SeqCst);
    }

    /// The swap of a change after `version`.
    fn swap_of(&self, version: u64, state: &[u8], change: &SharedChange) -> Result<Swap, Lost> {
        let own = (member_key(self.id), self.checked(json(&self.record))?);
        let mut swap = Swap::after(version, state, self.checked(json(change))?);
        swap.expected.push(own);
        Ok(swap)
    }
}

impl Swap {
    /// Adds the changes of members, ports and access.
    fn change_group(&mut self, from: &SharedView, to: &SharedView) -> io::Result<()> {
        let gone = from.members.keys().filter(|id| !to.members.contains_key(id));
        self.remove.extend(gone.map(|id| member_key(*id)));
        for (id, record) in to.members.iter().filter(|(id, record)| from.members.get(id) != Some(record)) {
            self.set.push((member_key(*id), json(record)?));
        }
        for (id, ports) in to.ports.iter().filter(|(id, ports)| from.ports.get(id) != Some(ports)) {
            self.set.push((ports_key(*id), json(ports)?));
        }
        if from.access != to.access {
            self.set.push((ACCESS.into(), json(&to.access)?));
        }
        Ok(())
    }

    /// A change of the state after `version`.
    fn after(version: u64, state: &[u8], change: Vec<u8>) -> Swap {
        let next = version + 1;
        Swap {
            expected: vec![(VERSION.into(), version_value(version).into())],
            set: vec![
                (VERSION.into(), version_value(next).into()),
                (STATE.into(), state.to_vec()),
                (log_key(next), change),
            ],
            remove: next.checked_sub(LOG_LEN).map(log_key).into_iter().collect(),
        }
    }
}

/// Parts of the logical unit that hosts see.
fn shown(unit: &impl Unit) -> BTreeMap<String, String> {
    let settings = unit.lu().settings();
    let naa = settings.identity.naa.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [
        ("serial", settings.identity.serial.clone()),
        ("naa", naa),
        ("block_size", settings.block_size.to_string()),
        ("read_only", settings.read_only.to_string()),
        ("snapshot", unit.snapshot().unwrap_or_default()),
    ];
    parts.map(|(key, value)| (key.to_owned(), value)).into()
}

fn json(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::other)
}
