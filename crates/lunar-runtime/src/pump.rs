//! The send pump of a connection. It flushes the send queue and continues when the socket is writable again.

use crate::race::yield_now;
use event_listener::Event;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::rc::Rc;

/// The sending side of a connection, as its [`SendPump`] drives it.
pub trait SendSide: 'static {
    /// The pump of this connection.
    fn pump(&self) -> &SendPump;

    /// Sends from the queue. False: the rest waits until the connection is [`writable`](SendSide::writable).
    fn try_flush(&self) -> io::Result<bool>;

    /// Waits until the connection takes more.
    fn writable(&self) -> impl Future<Output = io::Result<()>>;

    /// Handles a failed send: drops the queue or ends the connection. The pump does not try again.
    fn lost(&self, why: io::Error);

    /// Called when blocked data was sent, or nothing is blocked any more.
    fn progressed(&self) {}

    /// Whether a flush also does work that does not depend on the send queue, such as RDMA Reads.
    fn flushes_while_blocked(&self) -> bool {
        false
    }
}

/// The state of the send pump of one connection, on the connection's core.
#[derive(Default)]
pub struct SendPump {
    /// A task waits until the connection is writable.
    blocked: Cell<bool>,
    /// A task is about to flush.
    scheduled: Cell<bool>,
    /// The owner flushes when other tasks have run.
    gathering: Cell<bool>,
    /// Nothing is blocked any more.
    drained: Event,
}

impl SendPump {
    /// Sends from the queue now; the rest follows when the connection is writable.
    #[inline]
    pub fn flush<C: SendSide>(conn: &Rc<C>) {
        let pump = conn.pump();
        if pump.blocked.get() && !conn.flushes_while_blocked() {
            return;
        }
        match conn.try_flush() {
            Ok(true) => {}
            Ok(false) if pump.blocked.replace(true) => {}
            Ok(false) => crate::spawn(unblock(conn.clone())),
            Err(e) => conn.lost(e),
        }
    }

    /// Flushes after the tasks that are ready now, so that their messages are sent together.
    #[inline]
    pub fn flush_soon<C: SendSide>(conn: &Rc<C>) {
        let pump = conn.pump();
        if pump.gathering.get() || pump.scheduled.replace(true) {
            return;
        }
        let conn = conn.clone();
        crate::spawn(async move {
            conn.pump().scheduled.set(false);
            SendPump::flush(&conn);
        });
    }

    /// Flushes, and waits until the queue is empty or the connection is lost.
    pub async fn flushed<C: SendSide>(conn: &Rc<C>) {
        SendPump::flush(conn);
        let pump = conn.pump();
        while pump.is_blocked() {
            let drained = pump.drained.listen();
            if pump.is_blocked() {
                drained.await;
            }
        }
    }

    /// Yields to the tasks that are ready. Their messages are sent with the caller's next flush.
    pub async fn gather(&self) {
        self.gathering.set(true);
        let _reset = GatherGuard(&self.gathering);
        yield_now().await;
    }

    /// Whether a part of the queue waits until the connection is writable.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.blocked.get()
    }

    /// Notified when nothing is blocked any more, and by [`SendPump::wake`].
    pub fn drained(&self) -> &Event {
        &self.drained
    }

    /// Notifies [`drained`](SendPump::drained): its listeners check their condition again.
    pub fn wake(&self) {
        self.drained.notify(usize::MAX);
    }
}

struct GatherGuard<'a>(&'a Cell<bool>);

impl Drop for GatherGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

async fn unblock<C: SendSide>(conn: Rc<C>) {
    loop {
        match conn.writable().await.and_then(|()| conn.try_flush()) {
            Ok(false) => conn.progressed(),
            Ok(true) => break,
            Err(e) => {
                conn.lost(e);
                break;
            }
        }
    }
    conn.pump().blocked.set(false);
    conn.pump().wake();
    conn.progressed();
}

#[cfg(test)]
mod tests;
