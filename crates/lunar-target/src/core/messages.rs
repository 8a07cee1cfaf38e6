//! Messages from other cores to an I_T nexus.

use super::front_end::FrontEnd;
use super::nexus::{ItNexus, SessionPhase};
use crate::access::{LunEntry, LunMap};
use crate::end_reason::EndReason;
use crate::registry::{DoneSender, SessionMessage};
use lunar_scsi::TargetPort;
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::lun;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Seconds that an initiator has to log out when the target stops.
const TIME_TO_LOG_OUT_S: u16 = 3;

/// Handles messages until the nexus is dropped.
pub async fn serve<F: FrontEnd>(nexus: Weak<ItNexus<F>>, messages: flume::Receiver<SessionMessage>) {
    while let Ok(message) = messages.recv_async().await {
        let Some(nexus) = nexus.upgrade() else { return };
        match message {
            SessionMessage::End { reason, done } => nexus.end_for(reason, done),
            SessionMessage::Abort { scope, from, indeterminate, done } => {
                // Run concurrently with the next messages, because a task may take long to end.
                lunar_runtime::spawn(async move {
                    nexus.abort_for_others(&scope, from.as_deref(), &indeterminate).await;
                    drop(done);
                });
            }
            SessionMessage::Stop { done } => lunar_runtime::spawn(async move { nexus.stop(done).await }),
            SessionMessage::Luns(Some((map, ports))) => nexus.replace_luns(map, ports),
            SessionMessage::Luns(None) => {
                nexus.state().front_mut().report_gone();
                F::flush(&nexus);
                nexus.end_for(EndReason::AccessRemoved, flume::bounded(0).0);
            }
            SessionMessage::Attention(unit) => {
                nexus.report(Sense::CAPACITY_CHANGED, |v| Arc::ptr_eq(&v.unit, &unit))
            }
        }
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// Ends the session. `done` is dropped when it is over.
    fn end_for(&self, reason: EndReason, done: DoneSender) {
        self.state().notify_end(done);
        self.end(reason);
    }

    /// Stops the session: it accepts no new commands, finishes those in flight, and requests that the initiator log
    /// out.
    async fn stop(self: Rc<Self>, done: DoneSender) {
        self.state().begin_logout();
        self.wait_until(|s| s.tasks().is_empty() || s.phase() == SessionPhase::Ended).await;
        let asks = {
            let mut state = self.state();
            state.notify_end(done);
            let asks = state.phase() == SessionPhase::LoggingOut && !state.info().is_discovery();
            asks && state.front_mut().request_logout(TIME_TO_LOG_OUT_S)
        };
        F::flush(&self);
        if asks {
            let left = self.wait_until(|s| s.phase() == SessionPhase::Ended);
            let _ = compio::time::timeout(Duration::from_secs(TIME_TO_LOG_OUT_S as u64), left).await;
        }
        self.end(EndReason::ServerStop);
    }

    /// Replaces the LUNs that the initiator sees and the ports of the target, and reports the change.
    fn replace_luns(self: &Rc<Self>, map: Arc<LunMap>, ports: Arc<[TargetPort]>) {
        let changed = self.state().luns_mut().replace(map);
        self.state().luns_mut().replace_ports(ports);
        if changed {
            self.report(Sense::LUNS_CHANGED, |_| true);
        }
    }

    /// Sends an asynchronous SCSI event for the first affected LUN whose access rule enables events.
    fn report(self: &Rc<Self>, event: Sense, concerns: impl Fn(&LunEntry) -> bool) {
        let mut state = self.state();
        let number = state.lun_map().iter().find(|(_, v)| v.aen && concerns(v)).map(|(n, _)| *n);
        if number.is_some_and(|number| state.front_mut().report_event(lun::encode(number), event)) {
            drop(state);
            F::flush(self);
        }
    }
}
