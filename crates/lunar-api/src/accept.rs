//! Threads and accept loops of the servers of this crate.

use socket2::{SockRef, TcpKeepalive};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};

/// Pause after an error of a listener. A lasting error, such as no free descriptor, must not make its loop spin.
const PAUSE: Duration = Duration::from_millis(10);

/// Time after which a peer that takes no data, or has gone, is disconnected.
const GONE: Duration = Duration::from_secs(30);

/// A thread with an event loop. Dropping it ends the work of the loop, and then the thread.
pub struct ServiceThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The names of a thread and of its helpers, which wait for the main thread, and their number.
pub struct ThreadNames {
    pub thread: &'static str,
    pub helpers: &'static str,
    pub max_helpers: usize,
}

impl ServiceThread {
    /// Starts the thread with the future of `work`.
    ///
    /// # Errors
    /// The system provides no thread or event queue.
    pub fn start<F: Future<Output = ()>>(
        names: &ThreadNames,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<ServiceThread> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(names.max_helpers)
            .thread_name(names.helpers)
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = work() => {}
                    _ = stopped => {}
                }
            });
            // A request that waits for the main thread must not keep the process.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(names.thread.into()).spawn(run)?;
        Ok(ServiceThread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Sends responses at once, and disconnects a peer that takes no data or has gone.
pub fn disconnect_gone_peer(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(GONE))?;
    socket.set_tcp_user_timeout(Some(GONE))
}

/// Accepts connections by `accept`, the `poll_accept` of a listener, and serves each in a task of its own, which holds one
/// of `permits`. Further clients wait.
pub async fn accept_each<S, F>(
    permits: Arc<Semaphore>,
    listener: &'static str,
    mut accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<S>>,
    serve: impl Fn(S) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match poll_fn(&mut accept).await {
            Ok(accepted) => {
                let served = serve(accepted);
                tokio::spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
            Err(e) => {
                tracing::debug!("{listener}: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
