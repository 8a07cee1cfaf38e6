//! What an I_T nexus does with messages from other cores.

use super::front_end::FrontEnd;
use super::nexus::{ItNexus, Life};
use crate::access::{LunMap, Visible};
use crate::registry::{Done, Letter};
use lunar_wire::iscsi::lun;
use lunar_wire::scsi::Sense;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Seconds that an initiator has to log out when the target stops.
const TIME_TO_LOG_OUT_S: u16 = 3;

/// Takes messages until the nexus is gone.
pub async fn serve<F: FrontEnd>(nexus: Weak<ItNexus<F>>, letters: flume::Receiver<Letter>) {
    while let Ok(letter) = letters.recv_async().await {
        let Some(nexus) = nexus.upgrade() else { return };
        match letter {
            Letter::End { why, done } => nexus.end_for(why, done),
            Letter::Abort { which, from, indeterminate, done } => {
                // Beside the next letters: a task may take its time to end.
                lunar_runtime::spawn(async move {
                    nexus.abort_for_others(&which, &from, &indeterminate).await;
                    drop(done);
                });
            }
            Letter::Stop { done } => lunar_runtime::spawn(async move { nexus.stop(done).await }),
            Letter::Luns(Some(map)) => nexus.replace_luns(map),
            Letter::Luns(None) => {
                nexus.state().front.report_gone();
                F::flush(&nexus);
                nexus.end_for("its target, or its access to it, is gone", flume::bounded(0).0);
            }
            Letter::Attention(unit) => nexus.report(Sense::CAPACITY_CHANGED, |v| Arc::ptr_eq(&v.unit, &unit)),
        }
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// Ends the session; `done` goes once all is over.
    fn end_for(&self, why: &'static str, done: Done) {
        self.state().waiting_for_end.push(done);
        self.end(why);
    }

    /// No new commands; those in flight finish; the initiator is asked to log out, and has some seconds for
    /// it.
    async fn stop(self: Rc<Self>, done: Done) {
        self.state().leave();
        self.wait_until(|s| s.tasks.is_empty() || s.life() == Life::Over).await;
        let asks = {
            let mut state = self.state();
            state.waiting_for_end.push(done);
            let asks = state.life() == Life::Leaving && !state.info.discovery;
            asks && state.front.request_logout(TIME_TO_LOG_OUT_S)
        };
        F::flush(&self);
        if asks {
            let left = self.wait_until(|s| s.life() == Life::Over);
            let _ = compio::time::timeout(Duration::from_secs(TIME_TO_LOG_OUT_S as u64), left).await;
        }
        self.end("the server stops");
    }

    /// The initiator sees other LUNs now, and hears of it.
    fn replace_luns(self: &Rc<Self>, map: Arc<LunMap>) {
        let changed = self.state().luns.replace(map);
        if changed {
            self.report(Sense::LUNS_CHANGED, |_| true);
        }
    }

    /// An asynchronous SCSI event about the first LUN that it concerns and for which it was asked for.
    fn report(self: &Rc<Self>, event: Sense, concerns: impl Fn(&Visible) -> bool) {
        let mut state = self.state();
        let number = state.luns.map().iter().find(|(_, v)| v.aen && concerns(v)).map(|(n, _)| *n);
        if number.is_some_and(|number| state.front.report_event(lun::encode(number), event)) {
            drop(state);
            F::flush(self);
        }
    }
}
