//! Abort: the admin queue asks an I/O queue, which may run on another core, to abort a command.

use super::abort_request::{AbortRequest, AbortSender};
use super::queue::NvmeQueue;
use crate::core::ItNexus;
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
            // The admin queue may have ended.
            let _ = reply.send(is_aborted);
        });
    }
}
