//! The reservation of one logical unit: how it is taken, kept and released, over a nexus without data.
//!
//! Its type is Exclusive Access - Registrants Only (SPC-5 section 5.13.6): only registered nexuses may read and
//! write. A takeover removes all registrations of the other router and aborts its commands. It is complete when the
//! storage has reported the end of these commands: a running command could overwrite later writes.

use super::gate::IoGate;
use crate::upstream::UpstreamLu;
use lunar_initiator::{Direction, Error, ErrorCode, IDENTITY_LEN, LateWrites, Session, Url};
use lunar_runtime::Buf;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::lun::encode;
use lunar_wire::scsi::pr::{self, ReservationDescriptor, ReserveOutParameters};
use std::time::Duration;

/// Exclusive Access - Registrants Only.
pub const KIND: u8 = 6;

/// Service actions of PERSISTENT RESERVE OUT.
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER: u8 = 0;
const REGISTER_AND_IGNORE: u8 = 6;
/// Service actions of PERSISTENT RESERVE IN.
const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;

/// The allocation length of commands.
const ANSWER: u16 = 4096;
/// The maximum number of attempts to take a reservation while others keep taking it.
const TRIES: usize = 4;
/// The time limit of each step, except for the wait for commands of others: the controller waits for each step.
const WAIT: Duration = Duration::from_secs(2);
/// Function complete.
const COMPLETE: u8 = 0;

/// The state of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationState {
    /// PRGENERATION.
    pub generation: u32,
    /// The reservation, if any.
    pub held: Option<ReservationDescriptor>,
}

/// Reads the designators of the logical unit (VPD page 83h).
async fn identity(session: &Session, lun: u64) -> Result<Vec<u8>, Error> {
    let page = read(session, lun, cdb::inquiry(Some(0x83), IDENTITY_LEN)).await?;
    Ok(lunar_initiator::identity(&page))
}

/// Runs a step with a time limit.
///
/// # Errors
/// [`ErrorCode::TimedOut`] after `WAIT`; the errors of the step.
pub async fn soon<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| {
        Err(Error::new(
            ErrorCode::TimedOut,
            format!("the storage did not answer within {} s", WAIT.as_secs()),
        ))
    };
    compio::time::timeout(WAIT, work).await.unwrap_or_else(late)
}

async fn read(session: &Session, lun: u64, cdb: Cdb) -> Result<Vec<u8>, Error> {
    let data = Direction::In(Buf::zeroed(ANSWER.into()));
    let (result, buf) = session.perform(lun, cdb, data).await;
    let got = result?.transferred;
    Ok(buf.map(|b| b[..got.min(b.len())].to_vec()).unwrap_or_default())
}

async fn out(session: &Session, lun: u64, action: u8, parameters: ReserveOutParameters) -> Result<(), Error> {
    let data = Buf::copy_of(&parameters.encode());
    let kind = if matches!(action, RESERVE | PREEMPT | PREEMPT_AND_ABORT) { KIND } else { 0 };
    let cdb = cdb::persistent_reserve_out(action, kind, pr::PARAMETERS_LEN as u32);
    session.perform(lun, cdb, Direction::Out(data)).await.0.map(drop)
}

/// Whether the target does not support the command or its parameters (ILLEGAL REQUEST).
fn is_unknown(e: &Error) -> bool {
    e.sense.is_some_and(|sense| sense.key == 5)
}

/// Reads the holder of the reservation.
///
/// # Errors
/// Those of the command.
pub async fn reservation(session: &Session, lun: u64) -> Result<ReservationState, Error> {
    let answer = read(session, lun, cdb::persistent_reserve_in(READ_RESERVATION, ANSWER)).await?;
    Ok(ReservationState { generation: pr::generation(&answer), held: pr::reservation(&answer) })
}

/// Registers a nexus, whether or not it was registered before. If the target supports it, registrations persist
/// through a power loss (APTPL). Otherwise a suspended router would find the logical unit unreserved afterwards.
///
/// # Errors
/// Those of the command.
pub async fn register(session: &Session, lun: u64, key: u64) -> Result<(), Error> {
    let parameters = ReserveOutParameters { action_key: key, aptpl: true, ..ReserveOutParameters::default() };
    match out(session, lun, REGISTER_AND_IGNORE, parameters).await {
        // LIO returns a communication failure if it cannot write its APTPL file.
        Err(e) if e.sense.is_some() => {
            out(session, lun, REGISTER_AND_IGNORE, ReserveOutParameters { aptpl: false, ..parameters }).await
        }
        other => other,
    }
}

/// Unregisters a nexus. It is not an error if the nexus is not registered.
///
/// # Errors
/// Those of the command.
pub async fn unregister(session: &Session, lun: u64, key: u64) -> Result<(), Error> {
    match out(session, lun, REGISTER, ReserveOutParameters { key, ..ReserveOutParameters::default() }).await {
        Err(e) if e.code == ErrorCode::ReservationConflict => Ok(()),
        other => other,
    }
}

/// Ends all commands of all initiators.
async fn end_all(session: &Session, lun: u64) -> Result<(), Error> {
    match session.manage(TaskManagementFunction::LunReset, lun).await? {
        COMPLETE => Ok(()),
        code => Err(Error::new(
            ErrorCode::Refused,
            format!("the storage rejected LOGICAL UNIT RESET: response {code}"),
        )),
    }
}

/// The initiator port that holds the reservations. Its nexus must be the same after a restart.
pub struct FencePort {
    /// The initiator name. None means the name of the upstream's sessions.
    pub initiator: Option<String>,
    /// The ISID, different from those of the upstream's sessions.
    pub isid: [u8; 6],
}

/// The access to the reservation of one logical unit.
pub struct Fence {
    /// The paths to the logical unit, with its LUN on each.
    paths: Vec<(Url, String, u16)>,
    /// The expected identity on each path: another initiator name may see another logical unit.
    identity: Vec<u8>,
    port: FencePort,
    key: u64,
    /// The time limit for the end of commands of others.
    path_loss_timeout: Duration,
    session: Option<(Session, u64)>,
}

impl Fence {
    /// Creates the fence without a connection.
    pub fn new(remote: &UpstreamLu, port: FencePort, key: u64, path_loss_timeout: Duration) -> Fence {
        let (paths, identity) = (remote.path_addresses(), remote.identity().to_vec());
        Fence { paths, identity, port, key, path_loss_timeout: path_loss_timeout.max(WAIT), session: None }
    }

    async fn session(&mut self) -> Result<(Session, u64), Error> {
        if let Some(open) = &self.session {
            return Ok(open.clone());
        }
        let mut last = Error::new(ErrorCode::InvalidArgument, "the upstream LUN has no path");
        for (url, target, lun) in &self.paths {
            match self.open(url, target, encode(*lun)).await {
                Ok(session) => return Ok(self.session.insert((session, encode(*lun))).clone()),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    async fn open(&self, url: &Url, target: &str, lun: u64) -> Result<Session, Error> {
        let session = open(url, target, &self.port, self.path_loss_timeout).await?;
        if self.identity.is_empty() || soon(identity(&session, lun)).await? == self.identity {
            return Ok(session);
        }
        let what = "the session of `initiator` finds another logical unit at the LUN than the other sessions";
        Err(Error::new(ErrorCode::IdentityMismatch, what))
    }

    /// Drops the session after a failure without a response, so that the next call opens another.
    fn after<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if result.as_ref().is_err_and(|e| e.status.is_none()) {
            self.session = None;
        }
        result
    }

    /// Reads the holder of the reservation.
    ///
    /// # Errors
    /// When the logical unit is unreachable.
    pub async fn probe(&mut self) -> Result<ReservationState, Error> {
        let (session, lun) = self.session().await?;
        let seen = soon(reservation(&session, lun)).await;
        self.after(seen)
    }

    /// Increments PRGENERATION, which shows the peer that this router is alive.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when this router no longer has the reservation.
    pub async fn heartbeat(&mut self, gate: &IoGate) -> Result<(), Error> {
        let (session, lun) = self.session().await?;
        let admitted = soon(gate.admit(&session, lun)).await;
        self.after(admitted)
    }

    /// Takes the reservation if it is free or already ours; with `seize`, also from another initiator. Afterwards all
    /// earlier registrations are removed, including ours, and the commands of others have ended.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when another initiator has it. Other errors when the logical unit is
    /// unreachable, or commands of others do not end.
    pub async fn take(&mut self, seize: bool) -> Result<(), Error> {
        let (session, lun) = self.session().await?;
        let taken = self.take_over(&session, lun, seize).await;
        self.after(taken)
    }

    async fn take_over(&self, session: &Session, lun: u64, seize: bool) -> Result<(), Error> {
        let key = self.key;
        soon(register(session, lun, key)).await?;
        let (mut is_fresh, mut was_ours) = (false, false);
        for _ in 0..TRIES {
            let held = soon(reservation(session, lun)).await?.held;
            was_ours |= !is_fresh && held.is_some_and(|held| held.key == key);
            let step = match held {
                Some(held) if is_fresh && (held.key, held.kind) == (key, KIND) => {
                    return self.put_off_others(session, lun, was_ours).await;
                }
                Some(held) if held.key == key || seize => self.preempt(session, lun, held.key).await,
                Some(_) => {
                    // The registration is then useless. A reservation that may be ours is kept: a router that found
                    // it free would not wait for the commands of others.
                    _ = soon(unregister(session, lun, key)).await;
                    return Err(Error::new(
                        ErrorCode::ReservationConflict,
                        "another initiator holds a reservation on the LUN",
                    ));
                }
                None => {
                    out(
                        session,
                        lun,
                        RESERVE,
                        ReserveOutParameters { key, ..ReserveOutParameters::default() },
                    )
                    .await
                }
            };
            match step {
                Ok(()) => is_fresh = true,
                // Another initiator was faster: read the reservation again.
                Err(e) if e.code == ErrorCode::ReservationConflict => {
                    soon(register(session, lun, key)).await?
                }
                Err(e) => return Err(e),
            }
        }
        Err(Error::new(ErrorCode::ReservationConflict, "another initiator repeatedly reserves the LUN"))
    }

    /// Removes the registrations of a key, and aborts their commands.
    async fn preempt(&self, session: &Session, lun: u64, other: u64) -> Result<(), Error> {
        let parameters =
            ReserveOutParameters { key: self.key, action_key: other, ..ReserveOutParameters::default() };
        match out(session, lun, PREEMPT_AND_ABORT, parameters).await {
            Err(e) if is_unknown(&e) => {
                out(session, lun, PREEMPT, parameters).await?;
                end_all(session, lun).await
            }
            other => other,
        }
    }

    /// Preempts all other registrations, so that no other initiator has running commands. If the reservation
    /// `was_ours`, the response of an earlier takeover may have been lost. The initiators that it preempted are no
    /// longer registered and thus unknown here, so a reset ends their commands.
    async fn put_off_others(&self, session: &Session, lun: u64, was_ours: bool) -> Result<(), Error> {
        let mut is_unsettled = was_ours;
        let answer = read(session, lun, cdb::persistent_reserve_in(READ_KEYS, ANSWER)).await?;
        for other in pr::keys(&answer).filter(|other| *other != self.key) {
            match self.preempt(session, lun, other).await {
                // It has unregistered meanwhile, or an earlier attempt has preempted it.
                Err(e) if e.code == ErrorCode::ReservationConflict => is_unsettled = true,
                other => other?,
            }
        }
        if is_unsettled { end_all(session, lun).await } else { Ok(()) }
    }

    /// Flushes all writes, and releases the reservation and all registrations.
    ///
    /// # Errors
    /// When the logical unit is unreachable, or the reservation is not ours.
    pub async fn release(&mut self, gate: &IoGate) -> Result<(), Error> {
        let (session, lun) = self.session().await?;
        let released = self.give_back(&session, lun, gate).await;
        self.after(released)
    }

    async fn give_back(&self, session: &Session, lun: u64, gate: &IoGate) -> Result<(), Error> {
        gate.admit(session, lun).await?;
        match session.perform(lun, cdb::synchronize_cache(), Direction::None).await.0 {
            Err(e) if is_unknown(&e) => {}
            other => drop(other?),
        }
        gate.settled();
        out(session, lun, CLEAR, ReserveOutParameters { key: self.key, ..ReserveOutParameters::default() })
            .await
    }

    /// Logs out.
    pub async fn close(&mut self) {
        if let Some((session, _)) = self.session.take() {
            // The session ends in either case.
            _ = session.close().await;
        }
    }
}

async fn open(
    url: &Url,
    target: &str,
    port: &FencePort,
    path_loss_timeout: Duration,
) -> Result<Session, Error> {
    let mut options = url.options()?;
    let timeouts = &mut options.timeouts;
    for limit in [
        &mut timeouts.login,
        &mut timeouts.logout,
        &mut timeouts.abort,
        &mut timeouts.busy,
        &mut timeouts.noop,
    ] {
        *limit = WAIT.min(*limit);
    }
    (timeouts.login_tries, timeouts.recovery) = (1, Duration::ZERO);
    // No other path is used while this one is tried.
    timeouts.transition = None;
    (timeouts.command, timeouts.operation) = (path_loss_timeout, path_loss_timeout);
    options.initiator = port.initiator.clone().unwrap_or(options.initiator);
    // A fence relies on the reservation at the storage, and has its own time limits.
    options.late_writes = LateWrites::Risk;
    (options.isid, options.commands) = (Some(port.isid), 4);
    let portal = url.portal.clone();
    if url.target.is_some() {
        return Session::open(portal, target, options).await;
    }
    let found = lunar_initiator::discover(portal.clone(), &options).await?;
    let here = found.into_iter().find(|found| found.name == target);
    let missing =
        || Error::new(ErrorCode::NotFound, format!("portal {portal} does not report the target {target}"));
    let portals = lunar_initiator::portal_urls(url, here.ok_or_else(missing)?);
    lunar_initiator::log_in(&portals, &options, |e| tracing::warn!("{e}")).await.map(|(_, session)| session)
}
