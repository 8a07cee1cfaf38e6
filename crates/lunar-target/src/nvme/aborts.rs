//! Abort: the admin queue asks an I/O queue, which may run on another core, to abort a command. The completion of an aborted
//! command comes before that of the Abort (NVM Express Base 1.4 section 5.1).

use super::abort_request::{AbortRequest, AbortSender};
use super::queue::NvmeQueue;
use crate::core::{ItNexus, SessionPhase};
use std::rc::Weak;

/// Aborts a command, and waits until it is over. False: the queue has no such command, or it is one that cannot be aborted.
pub async fn abort(queue: Option<AbortSender>, id: u16) -> bool {
    let (reply, over) = flume::bounded(1);
    let is_sent = queue.is_some_and(|queue| queue.send(AbortRequest { id, reply }).is_ok());
    is_sent && over.recv_async().await.unwrap_or(false)
}

/// Serves the requests to an I/O queue until it is over.
pub async fn serve(nexus: Weak<ItNexus<NvmeQueue>>, requests: flume::Receiver<AbortRequest>) {
    while let Ok(AbortRequest { id, reply }) = requests.recv_async().await {
        let Some(nexus) = nexus.upgrade() else { return };
        // Run concurrently with the next requests, because a command may take long to end.
        lunar_runtime::spawn(async move {
            let is_aborted = nexus.abort_one(id.into()).await;
            until_data_arrive(&nexus, id).await;
            // The admin queue may have ended.
            let _ = reply.send(is_aborted);
        });
    }
}

/// Waits for the requested data of a command that has ended: its completion follows them.
async fn until_data_arrive(nexus: &ItNexus<NvmeQueue>, id: u16) {
    let Some(awaited) = nexus.state().front().transfers.abandoned(id) else { return };
    let is_over = |queue: &NvmeQueue| queue.transfers.abandoned(id) != Some(awaited);
    nexus.wait_until(|state| is_over(state.front()) || state.phase() == SessionPhase::Ended).await;
}
