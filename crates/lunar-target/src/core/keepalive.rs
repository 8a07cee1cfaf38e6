//! The keepalive of a connection: it pings a silent initiator, and closes the connection if the initiator does not
//! answer.

use super::front_end::FrontEnd;
use super::nexus::{ItNexus, NexusState, SessionPhase};
use crate::end_reason::EndReason;
use std::rc::Weak;
use std::time::{Duration, Instant};

/// A connection with a keepalive.
pub trait KeepaliveConnection<F: FrontEnd>: 'static {
    /// Whether something was received, or queued data were sent, since the last call.
    fn take_heard(&self, state: &mut NexusState<F>) -> bool;

    /// Queues a ping, unless the previous one has no answer yet. False: the initiator may not be pinged yet.
    fn ping(&self, state: &mut NexusState<F>) -> bool;

    /// Records that the ping was sent. Sending it does not prove that the peer is alive.
    fn ping_sent(&self);

    /// Forgets the ping, which was answered or no longer matters.
    fn forget_ping(&self);

    /// Ends the connection.
    fn close(&self);
}

/// Pings a silent initiator, and closes the connection if it does not answer. A Discovery session gets no ping: it
/// ends when it is idle.
pub async fn run<F: FrontEnd, C: KeepaliveConnection<F>>(nexus: Weak<ItNexus<F>>, conn: Weak<C>) {
    let Some((idle, ping)) = nexus.upgrade().map(|nexus| schedule(&nexus)) else { return };
    match (idle, ping) {
        (Some(timeout), _) => end_idle(nexus, conn, timeout).await,
        (None, Some((interval, timeout))) => while ping_if_silent(&nexus, &conn, interval, timeout).await {},
        (None, None) => {}
    }
}

/// The idle timeout of a Discovery session, and the interval and timeout of pings, if they are configured.
fn schedule<F: FrontEnd>(nexus: &ItNexus<F>) -> (Option<Duration>, Option<(Duration, Duration)>) {
    let state = nexus.state();
    let config = &state.login_context().config;
    let idle = state.info().is_discovery().then_some(config.limits.discovery_timeout);
    (idle, config.session.nop_interval.map(|interval| (interval, config.session.nop_timeout)))
}

/// Ends an idle Discovery session: an initiator that knows the targets does not need the connection anymore.
async fn end_idle<F: FrontEnd, C: KeepaliveConnection<F>>(
    nexus: Weak<ItNexus<F>>,
    conn: Weak<C>,
    timeout: Duration,
) {
    loop {
        lunar_runtime::sleep_until(Instant::now() + timeout).await;
        let (Some(nexus), Some(conn)) = (nexus.upgrade(), conn.upgrade()) else { return };
        let mut state = nexus.state();
        if state.phase() == SessionPhase::Ended {
            return;
        }
        if !conn.take_heard(&mut state) {
            state.set_end_reason(EndReason::DiscoveryTimeout);
            return conn.close();
        }
    }
}

/// Waits for the interval, pings a silent initiator, and waits for an answer. False: the connection is over.
async fn ping_if_silent<F: FrontEnd, C: KeepaliveConnection<F>>(
    nexus: &Weak<ItNexus<F>>,
    conn: &Weak<C>,
    interval: Duration,
    timeout: Duration,
) -> bool {
    lunar_runtime::sleep_until(Instant::now() + interval).await;
    {
        let (Some(nexus), Some(conn)) = (nexus.upgrade(), conn.upgrade()) else { return false };
        let mut state = nexus.state();
        if state.phase() == SessionPhase::Ended {
            return false;
        }
        if conn.take_heard(&mut state) || !conn.ping(&mut state) {
            return true;
        }
        drop(state);
        F::flush(&nexus);
        conn.ping_sent();
    }
    lunar_runtime::sleep_until(Instant::now() + timeout).await;
    let (Some(nexus), Some(conn)) = (nexus.upgrade(), conn.upgrade()) else { return false };
    let is_alive = conn.take_heard(&mut nexus.state());
    if is_alive {
        conn.forget_ping();
    } else {
        nexus.state().set_end_reason(EndReason::KeepaliveTimeout);
        conn.close();
    }
    is_alive
}
