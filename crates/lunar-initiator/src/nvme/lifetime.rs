//! The lifetime of a controller: its associations, Keep Alive, events, recovery, and the end.
//!
//! # Lost connections
//!
//! When one connection of a controller is lost, or a command has no answer in time, all connections are reset and the host
//! connects anew. The target then ends the old controller. Each queue sends unanswered commands again in their order, before
//! newer ones, as Linux does. This is no proof: a target that is stuck may still execute a write of the old controller after its
//! repetition. Until a write has ended, its range lock excludes newer writes of the same blocks whose owner did not wait for
//! it. Commands that must not run twice, such as a fused pair, fail instead, and so does a command that was sent six times.
//!
//! After the controller-loss time-out, commands fail until the controller is back. One of several paths has no such time: its
//! commands move to another path at once.

use super::association::{Association, call};
use super::command::NvmeCommand;
use super::local_controller::{LocalController, lock};
use super::missing_queues;
use super::status::closed;
use crate::{Direction, Error, ErrorCode, Event, hints, time_limit};
use lunar_runtime::{Buf, Registration, either};
use lunar_wire::nvme::{Sqe, admin_opcode};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The first pause between attempts to connect. It doubles each time, up to the limit in the options.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A connection that ends within this time is followed by a pause.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// CTRATT bit 6: any command counts as Keep Alive (TBKAS).
const KEEP_ALIVE_BY_TRAFFIC: u32 = 1 << 6;
/// Feature: configuration of asynchronous events.
const EVENT_CONFIGURATION: u32 = 0x0b;
/// OAES bit 8: changes of namespaces.
const NAMESPACE_CHANGES: u32 = 1 << 8;
/// The same, and bit 11: changes of access states. The host turns on no other event.
const NAMESPACE_EVENTS: u32 = NAMESPACE_CHANGES | 1 << 11;
/// Asynchronous event type: notice.
const NOTICE: u64 = 2;
/// Bytes of a log page that is read to clear its event.
const LOG_LEN: u32 = 4096;
/// All namespaces.
const ALL: u32 = u32::MAX;

/// Runs a controller from its first association to its end.
pub async fn live(registration: Registration<LocalController>, first: Association) {
    let local = registration.value().clone();
    let mut association = Some(first);
    while let Some(current) = association {
        let started_at = Instant::now();
        let why = run(&local, &current).await;
        if local.closing.get() {
            part(&local, &current).await;
            break;
        }
        local.lose(&why);
        drop(current);
        let pause = if started_at.elapsed() < SHORT_LIFE { FIRST_PAUSE } else { Duration::ZERO };
        association = recover(&local, &why, pause).await;
    }
    local.io.reset(&closed());
    local.io.refuse(&closed());
    local.over.set(true);
    local.bell.notify(usize::MAX);
}

/// Waits until a connection ends, or the controller must end. Returns the reason.
async fn run(local: &Rc<LocalController>, association: &Association) -> Error {
    let io_ended = async { association.io_ended.1.recv_async().await.unwrap_or_else(|_| closed()) };
    let lost = either(association.admin.disconnected(), io_ended);
    let watch = association.admin.watch(local.options.timeouts.command);
    let missing = missing_queues::connect(local, association);
    let duties = either(keep_alive(local, association), either(heed_events(local, association), watch));
    let duties = either(duties, missing);
    either(local.must_close(), either(lost, duties)).await
}

/// Sends Keep Alive, unless other commands show that the host lives. Returns an error when it fails.
async fn keep_alive(local: &LocalController, association: &Association) -> Error {
    let time = local.options.keep_alive;
    if time.is_zero() {
        return std::future::pending().await;
    }
    let by_traffic = association.identify.attributes & KEEP_ALIVE_BY_TRAFFIC != 0;
    let pause = if by_traffic { time / 4 } else { time / 2 };
    let of_admin = association.admin.state.borrow().answered.clone();
    let answered = || of_admin.load(Ordering::Relaxed).wrapping_add(local.io.answered());
    let mut seen = answered();
    loop {
        time_limit::sleep(pause).await;
        let before = std::mem::replace(&mut seen, answered());
        if by_traffic && before != seen {
            continue;
        }
        let sqe = Sqe::new(admin_opcode::KEEP_ALIVE, 0, 0);
        // The controller has as long as it gives the host.
        match time_limit::within(time, call(&association.admin, sqe, Direction::None)).await {
            Some(Ok(_)) => {}
            Some(Err(e)) => return e.during("Keep Alive"),
            None => return silent(time),
        }
        seen = answered();
    }
}

fn silent(time: Duration) -> Error {
    Error::new(ErrorCode::TimedOut, format!("Keep Alive had no answer for {} s", time.as_secs_f32()))
        .with_hint("check the network, or add a longer keep_alive=TIME to the URL")
}

/// Keeps one Asynchronous Event Request at the controller. Without the event, namespaces are checked periodically.
async fn heed_events(local: &LocalController, association: &Association) -> Error {
    let admin = &association.admin;
    let events = association.identify.events & NAMESPACE_EVENTS;
    let sqe =
        Sqe::new(admin_opcode::SET_FEATURES, 0, 0).with_dword(10, EVENT_CONFIGURATION).with_dword(11, events);
    if let Err(e) = call(admin, sqe, Direction::None).await {
        tracing::debug!("the controller has no asynchronous events: {e}");
        return std::future::pending().await;
    }
    lock(&local.info).reports_changes = events & NAMESPACE_CHANGES != 0;
    loop {
        let sqe = Sqe::new(admin_opcode::ASYNC_EVENT_REQUEST, 0, 0);
        let request = NvmeCommand { is_open_ended: true, ..NvmeCommand::new(sqe, Direction::None).once() };
        let event = match admin.call(request).await.0 {
            Ok(cqe) if cqe.status.is_success() => cqe.result,
            Ok(cqe) => {
                tracing::debug!("the controller refuses Asynchronous Event Request: {}", cqe.status);
                lock(&local.info).reports_changes = false;
                return std::future::pending().await;
            }
            Err(e) => return e,
        };
        // Reading the log page clears the event. Its content is not needed: all namespaces in use are examined.
        let page = (event >> 16) as u32 & 0xff;
        let sqe = log_entry(page, ALL, 0, LOG_LEN);
        if let Err(e) = call(admin, sqe, Direction::In(Buf::zeroed(LOG_LEN as usize))).await {
            tracing::debug!("cannot read log page {page:02x}h after an event: {e}");
        }
        if event & 7 == NOTICE {
            local.listeners.notify(&Event::NamespacesChanged);
        }
    }
}

/// The entry of Get Log Page: `len` bytes, a multiple of 4, from `offset` on.
pub fn log_entry(page: u32, namespace: u32, offset: u64, len: u32) -> Sqe {
    let dwords = len / 4 - 1;
    Sqe::new(admin_opcode::GET_LOG_PAGE, 0, namespace)
        .with_dword(10, page | dwords << 16)
        .with_dword(11, dwords >> 16)
        .with_dword(12, offset as u32)
        .with_dword(13, (offset >> 32) as u32)
}

/// Shuts the controller down: I/O first, as Linux does.
async fn part(local: &LocalController, association: &Association) {
    // An error means that commands are in flight after the logout timeout.
    _ = time_limit::within(local.options.timeouts.logout, local.io.drained()).await;
    local.io.reset(&closed());
    let limit = local.options.timeouts.logout;
    match time_limit::within(limit, association.shut_down(limit)).await {
        Some(Ok(())) => {}
        Some(Err(e)) => tracing::debug!("the controller was not shut down: {e}"),
        None => tracing::debug!("the controller was not shut down in time"),
    }
}

impl LocalController {
    /// Resets all connections.
    fn lose(&self, why: &Error) {
        self.io.reset(why);
        *self.admin.borrow_mut() = None;
        self.lost_at.set(self.lost_at.get().or(Some(Instant::now())));
        let mut info = lock(&self.info);
        (info.connected, info.io_queues, info.lost_by) = (false, 0, Some(why.to_string()));
        drop(info);
        self.listeners.notify(&Event::Lost(why.to_string()));
        tracing::warn!(name: "path.lost", subsystem = %self.address.subsystem, "the controller was lost: {why}");
    }
}

/// Connects again, however long it takes. None: the controller must end.
async fn recover(local: &Rc<LocalController>, why: &Error, pause: Duration) -> Option<Association> {
    let attempts = async {
        time_limit::sleep(pause).await;
        Some(connect_again(local).await)
    };
    let give_up = async {
        let left = local.lost_at.get().map_or(Duration::ZERO, |at| at.elapsed());
        time_limit::sleep(local.options.timeouts.recovery.saturating_sub(left)).await;
        let last = lock(&local.info).lost_by.clone().unwrap_or_else(|| why.to_string());
        let error = Error::new(ErrorCode::ConnectionLost, format!("the controller is lost: {last}"));
        // Without this time, another path takes over.
        if !local.options.timeouts.recovery.is_zero() {
            tracing::error!(subsystem = %local.address.subsystem, "commands fail until the controller is back: {last}");
        }
        local.io.refuse(&error.with_hint(hints::RECOVERY_TIMEOUT));
        std::future::pending().await
    };
    let close = async {
        local.must_close().await;
        None
    };
    either(close, either(attempts, give_up)).await
}

async fn connect_again(local: &Rc<LocalController>) -> Association {
    let mut pause = FIRST_PAUSE;
    loop {
        match local.establish().await {
            Ok(association) => {
                tracing::info!(name: "path.reconnected", subsystem = %local.address.subsystem, "the controller is back");
                return association;
            }
            Err(e) => {
                tracing::debug!(subsystem = %local.address.subsystem, "cannot reconnect yet: {e}");
                let replaced = e.code == ErrorCode::IdentityMismatch;
                let mut info = lock(&local.info);
                let is_news = info.replaced != replaced;
                (info.lost_by, info.replaced) = (Some(e.to_string()), replaced);
                drop(info);
                if is_news {
                    local.listeners.notify(&Event::Lost(e.to_string()));
                }
            }
        }
        time_limit::sleep(pause).await;
        pause = (pause * 2).min(local.options.timeouts.pause);
    }
}
