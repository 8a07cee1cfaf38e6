//! The reservation of one NVMe namespace: how it is taken, kept and released.
//!
//! A registrant is a host with its identifier (HOSTID), and NVMe/TCP has no proof that a lost controller has ended its
//! commands. So each *term* of the active role has identifiers and keys of its own. A takeover ends all registrations
//! of earlier terms, for good: late writes of an old term come from hosts that are never registered again. They end
//! with Reservation Conflict, however late they arrive.
//!
//! This holds while there is a reservation. A handover leaves none: a write that arrives before the next takeover is executed,
//! as one that was late within the former term. A free namespace counts as proven, because the handover has ended all commands
//! that the storage had accepted. A write that arrives in this gap and still runs after the takeover is not excluded. To keep
//! the reservation would exclude it, but the namespace would then be useless without the pair.
//!
//! Commands that have passed the check of the reservation are aborted by Preempt and Abort, whose completion is the
//! proof that they have ended. No other command of NVMe has this effect. So the key of the holder shows whether its
//! takeover has had this completion, and whether a handover has begun. Without proof, the next takeover waits for
//! [`UNPROVEN`].

use super::fence::soon;
use super::gate::IoGate;
use super::machine::Holder;
use super::storage_fence::ObservedReservation;
use super::term::{Term, prefix_of};
use crate::namespaces::{self, probe::unit};
use crate::upstream::{LuContext, UpstreamLu};
use lunar_block::Backend;
use lunar_initiator::nvme::{
    self, NvmeNamespace, NvmeOptions, NvmeRegistrant, NvmeReservations, NvmeUrl, ReservationChange,
    ReservationKind,
};
use lunar_initiator::{Error, ErrorCode};
use lunar_wire::nvme::NvmeStatus;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exclusive Access - Registrants Only, as for SCSI storage.
const KIND: ReservationKind = ReservationKind::ExclusiveAccessRegistrants;
/// RESCAP: reservations can persist through a loss of power (PTPL).
const PERSISTENCE: u8 = 1;
/// RESCAP: the type is supported.
const KIND_SUPPORTED: u8 = 1 << 4;
/// ONCS bit 5: reservations.
const RESERVATIONS: u16 = 1 << 5;
/// The maximum number of attempts to take a reservation while others keep taking it.
const TRIES: usize = 4;
/// The time limit of a handover, and the interval of logs while a takeover waits for the end of commands of others. A
/// takeover has no limit: the next attempt could not wait for them.
const ABORT_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 4 } else { 60 });
/// Keep Alive ends silent controllers, so commands need no time limit.
const UNLIMITED: Duration = Duration::from_secs(86_400);
/// The time for which a takeover waits if there is no proof that the commands of former hosts have ended.
const UNPROVEN: Duration = Duration::from_secs(if cfg!(test) { 8 } else { 60 });
/// The interval of heartbeats during this time.
const BEAT: Duration = Duration::from_secs(1);
/// The time limit of a connection attempt.
const LOGIN: Duration = Duration::from_secs(2);
/// The entries of its only I/O queue.
const QUEUE_LEN: u32 = 16;

/// The holder of a reservation of the type of the pair.
fn holder(state: &NvmeReservations) -> Option<NvmeRegistrant> {
    state.registrants.iter().find(|one| one.is_holder).cloned()
}

/// Whether this key holds the reservation of the pair.
fn is_held_by(state: &NvmeReservations, key: u64) -> bool {
    state.kind == Some(KIND) && holder(state).is_some_and(|one| one.key == key)
}

fn conflict(what: &str) -> Error {
    Error::new(ErrorCode::ReservationConflict, what)
}

/// Registers a host that has not been registered. If the namespace supports it, registrations persist through a power
/// loss (PTPL).
async fn register(namespace: &NvmeNamespace, key: u64) -> Result<(), Error> {
    let persists = (namespace.properties().identify.reservations & PERSISTENCE != 0).then_some(true);
    let with = |persists| namespace.change_reservation(ReservationChange::Register { key, persists });
    match with(persists).await {
        // The target cannot save the state, although it can in principle.
        Err(e) if persists.is_some() && e.code == ErrorCode::ScsiError && e.status.is_some() => {
            with(None).await
        }
        other => other,
    }
}

/// Registers the host of a controller that will carry data, and then reads the reservation, so that a takeover either
/// removes this registration or is seen here. The host must be new: a write of an earlier term cannot come from it.
///
/// # Errors
/// [`ErrorCode::ReservationConflict`] when the reservation is not that of the current term. The host is then not
/// registered, or a registrant that sends no data.
pub async fn admit(gate: &IoGate, namespace: &NvmeNamespace) -> Result<(), Error> {
    let not_ours = || conflict("this router is not the active router of its failover pair");
    let term = gate.term().ok_or_else(not_ours)?;
    let is_ours = |state: &NvmeReservations| is_held_by(state, term.holder_key());
    // A change of the generation would look like a heartbeat of the peer.
    if !is_ours(&soon(namespace.reservations()).await?) {
        return Err(not_ours());
    }
    register(namespace, term.data_key()).await?;
    let seen = namespace.reservations().await;
    if seen.as_ref().is_ok_and(is_ours) && gate.term() == Some(term) {
        return Ok(());
    }
    namespace.change_reservation(ReservationChange::Unregister { key: Some(term.data_key()) }).await?;
    Err(seen.err().unwrap_or_else(not_ours))
}

/// The access to the reservation of one namespace.
pub struct NamespaceFence {
    urls: Vec<NvmeUrl>,
    /// The expected identity on each path.
    context: Arc<LuContext>,
    /// The part of the keys of this router that all its terms share.
    prefix: u32,
    /// The current or next term.
    term: Term,
    /// Whether this term has held the reservation.
    has_held: bool,
    namespace: Option<Arc<NvmeNamespace>>,
}

impl NamespaceFence {
    /// Creates the fence of a router with this key, without a connection.
    pub fn new(remote: &UpstreamLu, key: u64) -> NamespaceFence {
        let prefix = prefix_of(key);
        let (urls, context) = (remote.namespace_urls(), remote.context().clone());
        NamespaceFence { urls, context, prefix, term: Term::new(prefix), has_held: false, namespace: None }
    }

    /// Whether the current term has held the reservation, even if its takeover failed.
    pub fn has_held(&self) -> bool {
        self.has_held
    }

    async fn namespace(&mut self) -> Result<Arc<NvmeNamespace>, Error> {
        if let Some(open) = &self.namespace {
            return Ok(open.clone());
        }
        let mut last = Error::new(ErrorCode::InvalidArgument, "the upstream namespace has no path");
        for url in &self.urls {
            match self.open(url).await {
                Ok(namespace) => return Ok(self.namespace.insert(namespace).clone()),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    async fn open(&self, url: &NvmeUrl) -> Result<Arc<NvmeNamespace>, Error> {
        let url = namespaces::url_of(url, self.context.lun);
        let namespace = soon(nvme::open_with(&url, options(&url, &self.term)?)).await?;
        let checked = check(&namespace).and_then(|()| self.context.recognise(&unit(&namespace)));
        match checked {
            Ok(()) => Ok(namespace),
            Err(e) => {
                namespace.controller().close().await;
                Err(e)
            }
        }
    }

    /// Drops the controller after a failure without a completion, so that the next call opens another.
    fn after<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if result.as_ref().is_err_and(|e| e.status.is_none()) {
            self.namespace = None;
        }
        result
    }

    /// Reads the holder of the reservation.
    ///
    /// # Errors
    /// When the namespace is unreachable, or has no reservations.
    pub async fn probe(&mut self) -> Result<ObservedReservation, Error> {
        let namespace = self.namespace().await?;
        let seen = soon(namespace.reservations()).await;
        let seen = self.after(seen)?;
        let holder = match holder(&seen) {
            None => Holder::Nobody,
            Some(one) if seen.kind == Some(KIND) && self.is_ours(one.key) => Holder::Ours,
            Some(_) => Holder::Other,
        };
        Ok(ObservedReservation { generation: seen.generation, holder })
    }

    /// Whether this router holds a reservation with this key. During a term, another term of the same prefix is that of
    /// another process.
    fn is_ours(&self, key: u64) -> bool {
        match self.has_held {
            true => [self.term.taking_key(), self.term.holder_key()].contains(&key),
            false => self.term.is_of_same_router(key),
        }
    }

    /// Increments the generation, which shows the peer that this router is alive.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when this router is no longer registered.
    pub async fn heartbeat(&mut self) -> Result<(), Error> {
        let (namespace, key) = (self.namespace().await?, self.term.holder_key());
        let beat = soon(replace(&namespace, key, key)).await;
        self.after(beat)
    }

    /// Takes the reservation in a new term if it is free or already ours; with `seize`, also from another host.
    /// Afterwards all earlier registrations are removed, and the commands of earlier hosts have ended.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when another host has it; [`ErrorCode::InUse`] when SCSI hosts are registered. Other
    /// errors when the namespace is unreachable, or commands of others do not end.
    pub async fn take(&mut self, seize: bool, gate: &IoGate) -> Result<(), Error> {
        gate.set_term(None);
        self.close().await;
        (self.term, self.has_held) = (Term::new(self.prefix), false);
        let namespace = self.namespace().await?;
        let taken = self.take_over(&namespace, seize).await;
        if let Err(e) = &taken {
            self.withdraw(&namespace, e).await;
        }
        self.after(taken)?;
        gate.set_term(Some(self.term));
        Ok(())
    }

    async fn take_over(&mut self, namespace: &NvmeNamespace, seize: bool) -> Result<(), Error> {
        let key = self.term.taking_key();
        self.join(namespace).await?;
        let mut is_proven = true;
        for _ in 0..TRIES {
            let state = soon(namespace.reservations()).await?;
            let step = match holder(&state) {
                Some(_) if is_held_by(&state, key) => {
                    self.has_held = true;
                    return self.settle(namespace, is_proven).await;
                }
                Some(one) if seize || self.term.is_of_same_router(one.key) => {
                    is_proven &= state.kind == Some(KIND) && Term::is_proven(one.key);
                    self.preempt(namespace, one.key).await
                }
                Some(_) => return Err(conflict("another host holds a reservation on the namespace")),
                None => {
                    let acquire = ReservationChange::Acquire { key, kind: KIND };
                    soon(namespace.change_reservation(acquire)).await.map(|()| true)
                }
            };
            match step {
                Ok(has_aborted) => is_proven &= has_aborted,
                // Another host was faster: read the reservation again.
                Err(e) if e.code == ErrorCode::ReservationConflict => self.join(namespace).await?,
                Err(e) => return Err(e),
            }
        }
        Err(conflict("another host repeatedly reserves the namespace"))
    }

    /// Registers the host of this term, which is new. So a conflict does not mean that another router was faster.
    async fn join(&self, namespace: &NvmeNamespace) -> Result<(), Error> {
        match soon(register(namespace, self.term.taking_key())).await {
            Err(e) if e.code == ErrorCode::ReservationConflict => {
                let what = format!("namespace {} has registrants that are not NVMe hosts", namespace.id());
                Err(Error::new(ErrorCode::InUse, what).with_hint(
                    "end the registrations of SCSI hosts at the storage: a failover pair cannot preempt them",
                ))
            }
            other => other,
        }
    }

    /// Ends the registration of a failed takeover. Each attempt is a new host, and storage has room for few. The
    /// registration stays while the host may hold the reservation, or one of its commands may be running.
    async fn withdraw(&self, namespace: &NvmeNamespace, e: &Error) {
        if e.status.is_none() && e.code != ErrorCode::ReservationConflict {
            return;
        }
        let key = self.term.taking_key();
        let state = soon(namespace.reservations()).await;
        if state.is_ok_and(|state| !is_held_by(&state, key)) {
            // If this fails, the next takeover removes the registration.
            _ = soon(unregister(namespace, key)).await;
        }
    }

    /// Removes the registrations with a key, and ends the commands of their hosts. Returns false if they may be running:
    /// some storage has only a Preempt that aborts nothing.
    async fn preempt(&self, namespace: &NvmeNamespace, other: u64) -> Result<bool, Error> {
        let (key, preempted) = (self.term.taking_key(), other);
        let with = |aborts| ReservationChange::Preempt { key, preempted, kind: KIND, aborts };
        match self.until_end_of(namespace.change_reservation(with(true)), namespace).await {
            Err(e) if is_unsupported(&e) => namespace.change_reservation(with(false)).await.map(|()| false),
            other => other.map(|()| true),
        }
    }

    /// Runs a preemption. It lasts as long as the commands that it aborts. Meanwhile, the peer sees heartbeats.
    async fn until_end_of(
        &self,
        preemption: impl Future<Output = Result<(), Error>>,
        namespace: &NvmeNamespace,
    ) -> Result<(), Error> {
        let (mut preemption, key, upstream) =
            (pin!(preemption), self.term.taking_key(), &self.context.upstream);
        let mut logged_at = Instant::now();
        loop {
            if let Ok(end) = compio::time::timeout(BEAT, preemption.as_mut()).await {
                return end;
            }
            // Without an answer, the preemption shows whether the controller lives.
            match soon(replace(namespace, key, key)).await {
                Err(e) if e.code == ErrorCode::ReservationConflict => return Err(e),
                _ => {}
            }
            if logged_at.elapsed() >= ABORT_LIMIT {
                logged_at = Instant::now();
                let what =
                    "the storage still executes commands of former hosts: this router waits for their end";
                tracing::warn!(name: "pair.error", upstream, "{what}");
            }
        }
    }

    /// Preempts all other registrations, and then marks the reservation: the commands of all earlier hosts have ended.
    async fn settle(&self, namespace: &NvmeNamespace, mut is_proven: bool) -> Result<(), Error> {
        let key = self.term.taking_key();
        let state = soon(namespace.reservations()).await?;
        let mut others: Vec<u64> =
            state.registrants.iter().map(|one| one.key).filter(|other| *other != key).collect();
        others.sort_unstable();
        others.dedup();
        for other in others {
            match self.preempt(namespace, other).await {
                // It has unregistered meanwhile.
                Err(e) if e.code == ErrorCode::ReservationConflict => is_proven = false,
                other => is_proven &= other?,
            }
        }
        if !is_proven {
            self.wait_for_the_unproven(namespace).await?;
        }
        soon(replace(namespace, key, self.term.holder_key())).await
    }

    /// Waits for commands of hosts that are no longer registered, and thus unknown: the completion of the takeover that
    /// removed them was lost, or the storage aborts no commands.
    async fn wait_for_the_unproven(&self, namespace: &NvmeNamespace) -> Result<(), Error> {
        let (upstream, seconds) = (&self.context.upstream, UNPROVEN.as_secs());
        tracing::warn!(
            name: "pair.error",
            upstream,
            "nothing proves that the commands of former hosts have ended (an interrupted takeover, hosts outside of the \
             pair, or storage without Preempt and Abort): this router waits for {seconds} s"
        );
        let key = self.term.taking_key();
        for _ in 0..UNPROVEN.as_secs() / BEAT.as_secs() {
            compio::time::sleep(BEAT).await;
            soon(replace(namespace, key, key)).await?;
        }
        Ok(())
    }

    /// Ends the commands of the own controllers, flushes all writes, and releases the reservation and all
    /// registrations. The term is over. At storage that aborts no commands, the reservation stays, without proof.
    ///
    /// # Errors
    /// When the namespace is unreachable, or the reservation is not ours.
    pub async fn release(&mut self, gate: &IoGate) -> Result<(), Error> {
        gate.set_term(None);
        let namespace = self.namespace().await?;
        self.has_held = false;
        let released = compio::time::timeout(ABORT_LIMIT, self.give_back(&namespace, gate)).await;
        let late =
            |_| Err(Error::new(ErrorCode::TimedOut, "the storage still executes commands of this router"));
        self.after(released.unwrap_or_else(late))
    }

    async fn give_back(&self, namespace: &NvmeNamespace, gate: &IoGate) -> Result<(), Error> {
        let [key, proven] = [self.term.taking_key(), self.term.holder_key()];
        let state = soon(namespace.reservations()).await?;
        let was_interrupted = is_held_by(&state, key);
        if !was_interrupted && !is_held_by(&state, proven) {
            return Err(conflict("this router does not hold the reservation"));
        }
        if !was_interrupted {
            // The proof ends first: if the completion of the preemption is lost, its hosts are unknown.
            soon(replace(namespace, proven, key)).await?;
        }
        let is_proven = match self.preempt(namespace, self.term.data_key()).await {
            // No controller has carried data.
            Err(e) if e.code == ErrorCode::ReservationConflict && !was_interrupted => true,
            other => other?,
        };
        namespace.flush().await.map_err(|e| {
            Error::of(&e).cloned().unwrap_or_else(|| Error::new(ErrorCode::ScsiError, e.to_string()))
        })?;
        gate.settled();
        match is_proven {
            true => namespace.change_reservation(ReservationChange::Clear { key }).await,
            // The next takeover finds the key, and waits. A free namespace would show nothing.
            false => Ok(()),
        }
    }

    /// Ends the controller.
    pub async fn close(&mut self) {
        if let Some(namespace) = self.namespace.take() {
            // The controller ends in either case.
            _ = soon(async {
                namespace.controller().close().await;
                Ok(())
            })
            .await;
        }
    }
}

async fn replace(namespace: &NvmeNamespace, key: u64, new_key: u64) -> Result<(), Error> {
    let change = ReservationChange::Replace { key: Some(key), new_key, persists: None };
    namespace.change_reservation(change).await
}

async fn unregister(namespace: &NvmeNamespace, key: u64) -> Result<(), Error> {
    namespace.change_reservation(ReservationChange::Unregister { key: Some(key) }).await
}

/// Whether the controller does not have the command, or this action of it.
fn is_unsupported(e: &Error) -> bool {
    let is =
        |one: NvmeStatus| e.nvme_status.is_some_and(|seen| (seen.kind, seen.code) == (one.kind, one.code));
    is(NvmeStatus::INVALID_FIELD) || is(NvmeStatus::INVALID_OPCODE)
}

/// Checks that the namespace has reservations of the type of the pair.
fn check(namespace: &NvmeNamespace) -> Result<(), Error> {
    let commands = namespace.controller().info().identify.commands;
    let Some(missing) = missing(commands, namespace.properties().identify.reservations) else {
        return Ok(());
    };
    let what = format!("namespace {} has no {missing}, which a failover pair requires", namespace.id());
    Err(Error::new(ErrorCode::InvalidArgument, what)
        .with_hint("turn on reservations at the storage, or remove [router.NAME.failover]"))
}

/// The missing feature of a namespace with these commands (ONCS) and types of reservations (RESCAP).
fn missing(commands: u16, types: u8) -> Option<&'static str> {
    if commands & RESERVATIONS == 0 {
        return Some("reservations (ONCS bit 5)");
    }
    (types & KIND_SUPPORTED == 0).then_some("Exclusive Access - Registrants Only (RESCAP bit 4)")
}

/// The options of the controller of a fence: one attempt at each step, as the host of its term.
fn options(url: &NvmeUrl, term: &Term) -> Result<NvmeOptions, Error> {
    let mut options = url.options()?;
    let times = &mut options.timeouts;
    (times.login, times.login_tries, times.recovery) = (LOGIN.min(times.login), 1, Duration::ZERO);
    (times.busy, times.transition) = (LOGIN, None);
    let limit = if options.keep_alive.is_zero() { ABORT_LIMIT } else { UNLIMITED };
    (times.command, times.operation) = (limit, limit);
    (options.host_id, options.io_queues, options.queue_len) = (Some(term.host_id()), Some(1), QUEUE_LEN);
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_without_reservations_is_refused() {
        assert_eq!(missing(0x5f, 0xff), Some("reservations (ONCS bit 5)"));
        assert!(missing(0x20, 0xef).is_some_and(|what| what.starts_with("Exclusive Access")));
        assert_eq!(missing(0x20, 0x10), None);
    }

    #[test]
    fn only_the_type_of_the_pair_is_held() {
        let state = |kind| NvmeReservations {
            generation: 1,
            kind: Some(kind),
            persists: true,
            registrants: vec![NvmeRegistrant { host_id: [1; 16], key: 7, controller: None, is_holder: true }],
        };
        assert!(is_held_by(&state(KIND), 7) && !is_held_by(&state(KIND), 6));
        assert!(!is_held_by(&state(ReservationKind::WriteExclusiveRegistrants), 7));
    }
}
