//! A connection on its core. Tasks of that core submit commands directly, tasks of other cores send messages.

use super::machine::{ClientMachine, CommandRequest, NbdCommandResult, ReplyWaiter};
use super::receive::{ReplyReceiver, ReplyStreamError};
use event_listener::Event;
use lunar_runtime::{CoreHandle, Registration, SendPump, SendSide, Stream, either};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long the server may take to close after a disconnect.
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection in the transmission phase.
pub struct ClientConnection {
    machine: RefCell<ClientMachine>,
    stream: Stream,
    /// The name of the server, for messages.
    name: String,
    /// Sends the queued commands.
    pump: SendPump,
    /// The reason why this side ended the connection, if it did.
    broken: RefCell<Option<ReplyStreamError>>,
    /// Whether the connection has ended.
    over: Cell<bool>,
    ended: Event,
}

/// A message to a connection from another core.
pub enum ConnectionMessage {
    Command(CommandRequest, flume::Sender<NbdCommandResult>),
    Close(flume::Sender<()>),
}

/// A handle of a connection, usable on every core.
pub type ConnectionHandle = CoreHandle<ClientConnection, ConnectionMessage>;

/// Starts the tasks of a connection on this core.
pub fn settle(
    machine: ClientMachine,
    stream: Stream,
    receiver: ReplyReceiver,
    name: String,
) -> ConnectionHandle {
    let home = Rc::new(ClientConnection {
        machine: RefCell::new(machine),
        stream,
        name,
        pump: SendPump::default(),
        broken: RefCell::default(),
        over: Cell::new(false),
        ended: Event::new(),
    });
    let (handle, registration, inbox) = ConnectionHandle::new(home.clone());
    lunar_runtime::spawn(live(home.clone(), receiver, registration));
    lunar_runtime::spawn(take_mail(home, inbox));
    handle
}

/// Receives messages from other cores. The connection ends when all handles are gone.
async fn take_mail(home: Rc<ClientConnection>, inbox: flume::Receiver<ConnectionMessage>) {
    while let Ok(mail) = inbox.recv_async().await {
        match mail {
            ConnectionMessage::Command(ask, reply) => {
                if let Err(ended) = home.accept(ask, ReplyWaiter::There(reply.clone())) {
                    // The waiter may no longer exist.
                    let _ = reply.send(*ended);
                }
            }
            ConnectionMessage::Close(reply) => {
                home.leave().await;
                let _ = reply.send(());
            }
        }
    }
    home.leave().await;
}

/// Receives until the connection ends.
async fn live(
    home: Rc<ClientConnection>,
    mut receiver: ReplyReceiver,
    registration: Registration<ClientConnection>,
) {
    let broken = loop {
        if let Err(e) = home.stream.readable().await {
            break e.into();
        }
        let received = receiver.receive(&home.stream, &mut home.machine.borrow_mut());
        if let Err(broken) = received {
            break broken;
        }
        // Let the tasks of completed commands run first, so that their next commands share one send.
        home.pump.gather().await;
        SendPump::flush(&home);
    };
    let broken = home.broken.take().unwrap_or(broken);
    home.over.set(true);
    home.stream.shutdown(Shutdown::Both);
    home.machine.borrow_mut().lost(&format!("the connection to {} is lost: {broken}", home.name));
    home.ended.notify(usize::MAX);
    drop(registration);
}

impl ClientConnection {
    fn accept(
        self: &Rc<Self>,
        ask: CommandRequest,
        waiter: ReplyWaiter,
    ) -> Result<u64, Box<NbdCommandResult>> {
        let cookie = self.machine.borrow_mut().submit(ask, waiter)?;
        SendPump::flush_soon(self);
        Ok(cookie)
    }

    /// Disconnects, and waits a bounded time for the server to close.
    async fn leave(self: &Rc<Self>) {
        let ended = self.ended.listen();
        if self.over.get() {
            return;
        }
        self.machine.borrow_mut().leave();
        SendPump::flush(self);
        either(ended, compio::time::sleep(FAREWELL)).await;
        self.stream.shutdown(Shutdown::Both);
    }
}

impl SendSide for ClientConnection {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    fn try_flush(&self) -> io::Result<bool> {
        let mut machine = self.machine.borrow_mut();
        let sent = machine.out.flush(&self.stream);
        machine.settle();
        sent
    }

    async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Ends the connection because of a local error. The receive loop then finds it closed.
    fn lost(&self, why: io::Error) {
        self.broken.borrow_mut().get_or_insert(why.into());
        self.stream.shutdown(Shutdown::Both);
    }
}

/// A command in flight. Dropping it discards the result, but does not cancel the command.
pub struct PendingReply(ReplyPath);

enum ReplyPath {
    Here(Rc<ClientConnection>, u64),
    There(flume::r#async::RecvFut<'static, NbdCommandResult>),
    Refused(Box<NbdCommandResult>),
    Over,
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the NBD disk is closed: the event loop of its connection has ended",
    )
}

/// Submits a command to its connection.
pub fn submit(handle: &ConnectionHandle, ask: CommandRequest) -> PendingReply {
    if let Some(home) = handle.local() {
        return PendingReply(match home.accept(ask, ReplyWaiter::Unknown) {
            Ok(cookie) => ReplyPath::Here(home, cookie),
            Err(ended) => ReplyPath::Refused(ended),
        });
    }
    let (reply, answer) = flume::bounded(1);
    match handle.send(ConnectionMessage::Command(ask, reply)) {
        Ok(()) => PendingReply(ReplyPath::There(answer.into_recv_async())),
        Err(ConnectionMessage::Command(ask, _)) => {
            PendingReply(ReplyPath::Refused(Box::new((Err(gone()), ask.buf))))
        }
        Err(_) => PendingReply(ReplyPath::Over),
    }
}

impl Future for PendingReply {
    type Output = NbdCommandResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NbdCommandResult> {
        let path = &mut self.get_mut().0;
        let ended = match path {
            ReplyPath::Here(home, cookie) => match home.machine.borrow_mut().poll(*cookie, cx) {
                Poll::Ready(ended) => ended,
                Poll::Pending => return Poll::Pending,
            },
            ReplyPath::There(answer) => match Pin::new(answer).poll(cx) {
                Poll::Ready(ended) => ended.unwrap_or_else(|_| (Err(gone()), None)),
                Poll::Pending => return Poll::Pending,
            },
            ReplyPath::Refused(_) | ReplyPath::Over => match std::mem::replace(path, ReplyPath::Over) {
                ReplyPath::Refused(ended) => *ended,
                _ => (Err(gone()), None),
            },
        };
        *path = ReplyPath::Over;
        Poll::Ready(ended)
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let ReplyPath::Here(home, cookie) = &self.0 {
            home.machine.borrow_mut().abandon(*cookie);
        }
    }
}
