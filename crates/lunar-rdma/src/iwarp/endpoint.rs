//! The engine of a connection with its socket.

use super::engine::Engine;
use super::handshake;
use crate::{
    Endpoint, EndpointEvents, EndpointInfo, LocalBoxFuture, MemoryRegion, RemoteAddress, RemoteRange,
};
use event_listener::Event;
use lunar_runtime::send_queue::Payload;
use lunar_runtime::{Buf, PeerState, Stream, with_scratch};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

/// The number of bytes after which a receive loop yields to other connections.
const TURN: usize = 1 << 20;
/// The time limit for sending a Terminate.
const TERMINATE_TIME: Duration = Duration::from_secs(5);
/// The maximum number of a core's connections that are sending a Terminate. No other limit counts them. Further
/// connections end without one.
const MAX_TERMINATING: usize = 32;

thread_local! {
    static TERMINATING: Cell<usize> = const { Cell::new(0) };
}

/// An endpoint over TCP.
pub(super) struct IwarpEndpoint {
    stream: Rc<Stream>,
    info: EndpointInfo,
    engine: RefCell<Engine>,
    /// Notified of the peer's first FPDU and of the end of the connection.
    spoken: Event,
    is_shut: Cell<bool>,
    /// Whether the socket is full. The send is retried when it is writable.
    is_stuck: Cell<bool>,
    is_reset_on_close: Cell<bool>,
}

impl IwarpEndpoint {
    pub(super) fn new(stream: Stream, info: EndpointInfo, engine: Engine) -> IwarpEndpoint {
        IwarpEndpoint {
            stream: Rc::new(stream),
            info,
            engine: RefCell::new(engine),
            spoken: Event::new(),
            is_shut: Cell::new(false),
            is_stuck: Cell::new(false),
            is_reset_on_close: Cell::new(false),
        }
    }

    /// Receives from the socket, up to a limit.
    fn receive(&self, engine: &mut Engine, into: &mut EndpointEvents) {
        let mut left = TURN;
        with_scratch(|buffer| {
            while left > 0 && !engine.is_over() {
                match self.stream.receive(buffer) {
                    Ok(None) => return,
                    Ok(Some(0)) => return engine.hang_up(None),
                    Err(e) => return engine.hang_up(Some(e)),
                    Ok(Some(got)) => {
                        engine.feed(&buffer[..got], into);
                        left = if got < buffer.len() { 0 } else { left.saturating_sub(got) };
                    }
                }
            }
        });
    }

    /// Sends queued bytes. After a failure, received bytes are still processed.
    fn send(&self, engine: &mut Engine) -> io::Result<bool> {
        let flushed = engine.flush(&self.stream);
        self.is_stuck.set(matches!(flushed, Ok(false)) && engine.may_send());
        if let Err(e) = &flushed {
            engine.lose(io::Error::new(e.kind(), e.to_string()));
            self.stream.shutdown(Shutdown::Both);
        }
        flushed
    }

    /// Ends the connection: sends the Terminate, if there is one, and wakes waiters.
    fn shut(&self, engine: &mut Engine) {
        if !self.is_shut.replace(true) {
            match (engine.flush(&self.stream), engine.take_terminate()) {
                (Ok(_), Some(word)) if TERMINATING.get() < MAX_TERMINATING => {
                    lunar_runtime::spawn(send_terminate(self.stream.clone(), word));
                }
                // The peer may have closed already.
                _ => self.stream.shutdown(Shutdown::Both),
            }
            self.spoken.notify(usize::MAX);
        }
    }
}

/// Sends the rest of the Terminate and ends the connection.
async fn send_terminate(stream: Rc<Stream>, word: Vec<u8>) {
    TERMINATING.set(TERMINATING.get() + 1);
    // A peer that does not read in time misses it.
    _ = compio::time::timeout(TERMINATE_TIME, send_and_drain(&stream, &word)).await;
    TERMINATING.set(TERMINATING.get() - 1);
    stream.shutdown(Shutdown::Both);
}

/// Reads to the end of the stream: closing a socket with unread data discards unsent data.
async fn send_and_drain(stream: &Stream, word: &[u8]) -> io::Result<()> {
    handshake::write(stream, word, TERMINATE_TIME).await?;
    stream.shutdown(Shutdown::Write);
    loop {
        match with_scratch(|buffer| stream.receive(buffer))? {
            Some(0) => return Ok(()),
            Some(_) => lunar_runtime::yield_now().await,
            None => stream.readable().await?,
        }
    }
}

impl Endpoint for IwarpEndpoint {
    fn info(&self) -> &EndpointInfo {
        &self.info
    }

    fn receives(&self, count: usize, len: usize) {
        self.engine.borrow_mut().receives(count, len);
    }

    fn send(&self, head: &[u8], payload: Payload, invalidate: Option<u32>) {
        self.engine.borrow_mut().send(head, payload, invalidate);
    }

    fn write(&self, to: RemoteAddress, payload: Payload) {
        self.engine.borrow_mut().write(to, payload);
    }

    fn gather(&self, id: u64, from: &[RemoteRange], buf: Buf, at: usize) {
        self.engine.borrow_mut().gather(id, from, buf, at);
    }

    fn expose(&self, memory: MemoryRegion) -> io::Result<RemoteAddress> {
        self.engine.borrow_mut().expose(memory)
    }

    fn revoke(&self, stag: u32) -> Option<MemoryRegion> {
        self.engine.borrow_mut().revoke(stag)
    }

    fn flush(&self) -> io::Result<bool> {
        let engine = &mut *self.engine.borrow_mut();
        match engine.is_over() {
            true => Err(io::Error::new(io::ErrorKind::NotConnected, "the RDMA connection has ended")),
            false => IwarpEndpoint::send(self, engine),
        }
    }

    fn waiting(&self) -> usize {
        self.engine.borrow().waiting()
    }

    fn take_moved(&self) -> bool {
        self.engine.borrow_mut().take_moved()
    }

    fn fence(&self) -> u64 {
        self.engine.borrow().transmit_end()
    }

    fn fence_done(&self, mark: u64) -> bool {
        self.engine.borrow().has_left(mark, self.stream.unacknowledged())
    }

    fn poll(&self, into: &mut EndpointEvents) {
        let engine = &mut *self.engine.borrow_mut();
        let might_send = engine.may_send();
        engine.take_begun(into);
        self.receive(engine, into);
        if engine.is_over() {
            self.shut(engine);
        } else if engine.may_send() && engine.waiting() > 0 && !self.is_stuck.get() {
            // Sends Read Responses, and data that waited for the first FPDU. The next receive reports a failure.
            _ = IwarpEndpoint::send(self, engine);
        }
        if !might_send && engine.may_send() {
            self.spoken.notify(usize::MAX);
        }
        engine.take_news(into);
    }

    fn has_ended(&self) -> bool {
        self.is_shut.get() || self.stream.peer_state() != PeerState::Open
    }

    fn recheck_peer(&self) {
        self.stream.recheck_peer();
    }

    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async {
            let (has_news, is_over) = {
                let engine = self.engine.borrow();
                (engine.has_news(), engine.is_over())
            };
            match (has_news, is_over) {
                (true, _) => Ok(()),
                // The socket would stay readable.
                (false, true) => Err(io::ErrorKind::NotConnected.into()),
                (false, false) => self.stream.readable().await,
            }
        })
    }

    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async {
            let spoken = self.spoken.listen();
            let may_send = self.engine.borrow().may_send();
            let over = async {
                spoken.await;
                Ok(())
            };
            match may_send {
                true => lunar_runtime::either(over, self.stream.writable()).await?,
                false => {
                    over.await?;
                    self.stream.writable().await?;
                }
            }
            self.is_stuck.set(false);
            Ok(())
        })
    }

    fn close(&self) {
        let engine = &mut *self.engine.borrow_mut();
        engine.close();
        self.shut(engine);
    }

    fn reset(&self) {
        self.engine.borrow_mut().reset();
        self.is_shut.set(true);
        self.stream.reset();
        self.spoken.notify(usize::MAX);
    }

    fn reset_on_close(&self, reset: bool) -> io::Result<()> {
        self.is_reset_on_close.set(reset);
        self.stream.reset_on_close(reset)
    }
}

impl Drop for IwarpEndpoint {
    fn drop(&mut self) {
        match (self.is_shut.get(), self.is_reset_on_close.get()) {
            // A Terminate may be in flight.
            (true, _) => {}
            (false, true) => self.stream.reset(),
            (false, false) => self.stream.shutdown(Shutdown::Both),
        }
    }
}
