//! A connection on its core, and how commands get there: at once from tasks of that core, by mail from others.

use super::machine::{Ask, Ended, Machine, Waiter};
use super::receive::{Broken, Receiver};
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

/// How long a server may take to close after it was told to.
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection in the transmission phase.
pub struct Home {
    machine: RefCell<Machine>,
    stream: Stream,
    /// For messages.
    name: String,
    /// Sends what waits.
    pump: SendPump,
    /// Why the connection ends, if it is our doing.
    broken: RefCell<Option<Broken>>,
    /// The connection is gone.
    over: Cell<bool>,
    ended: Event,
}

/// What is sent to a connection from outside.
pub enum Mail {
    Command(Ask, flume::Sender<Ended>),
    Close(flume::Sender<()>),
}

/// Where a connection is.
pub type Handle = CoreHandle<Home, Mail>;

/// Starts the tasks of a connection on this core.
pub fn settle(machine: Machine, stream: Stream, receiver: Receiver, name: String) -> Handle {
    let home = Rc::new(Home {
        machine: RefCell::new(machine),
        stream,
        name,
        pump: SendPump::default(),
        broken: RefCell::default(),
        over: Cell::new(false),
        ended: Event::new(),
    });
    let (handle, registration, inbox) = Handle::new(home.clone());
    lunar_runtime::spawn(live(home.clone(), receiver, registration));
    lunar_runtime::spawn(take_mail(home, inbox));
    handle
}

/// Takes what comes from elsewhere. When all handles are gone, the connection ends.
async fn take_mail(home: Rc<Home>, inbox: flume::Receiver<Mail>) {
    while let Ok(mail) = inbox.recv_async().await {
        match mail {
            Mail::Command(ask, reply) => {
                if let Err(ended) = home.accept(ask, Waiter::There(reply.clone())) {
                    // Who has stopped to wait does not want it.
                    let _ = reply.send(*ended);
                }
            }
            Mail::Close(reply) => {
                home.leave().await;
                let _ = reply.send(());
            }
        }
    }
    home.leave().await;
}

/// Receives until the connection ends.
async fn live(home: Rc<Home>, mut receiver: Receiver, registration: Registration<Home>) {
    let broken = loop {
        if let Err(e) = home.stream.readable().await {
            break e.into();
        }
        let received = receiver.receive(&home.stream, &mut home.machine.borrow_mut());
        if let Err(broken) = received {
            break broken;
        }
        // Those whose commands have ended go on first: what they ask for leaves together.
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

impl Home {
    fn accept(self: &Rc<Self>, ask: Ask, waiter: Waiter) -> Result<u64, Box<Ended>> {
        let cookie = self.machine.borrow_mut().submit(ask, waiter)?;
        SendPump::flush_soon(self);
        Ok(cookie)
    }

    /// Tells the server that nothing more will come, and waits for a while until it closes.
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

impl SendSide for Home {
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

    /// Ends the connection from our side: the receiving loop finds it closed.
    fn lost(&self, why: io::Error) {
        self.broken.borrow_mut().get_or_insert(why.into());
        self.stream.shutdown(Shutdown::Both);
    }
}

/// A command on its way. Dropping it gives the answer up, not the command.
pub struct Pending(Way);

enum Way {
    Here(Rc<Home>, u64),
    There(flume::r#async::RecvFut<'static, Ended>),
    Refused(Box<Ended>),
    Over,
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the event loop of the connection has ended")
}

/// Hands a command to its connection.
pub fn submit(handle: &Handle, ask: Ask) -> Pending {
    if let Some(home) = handle.local() {
        return Pending(match home.accept(ask, Waiter::Unknown) {
            Ok(cookie) => Way::Here(home, cookie),
            Err(ended) => Way::Refused(ended),
        });
    }
    let (reply, answer) = flume::bounded(1);
    match handle.send(Mail::Command(ask, reply)) {
        Ok(()) => Pending(Way::There(answer.into_recv_async())),
        Err(Mail::Command(ask, _)) => Pending(Way::Refused(Box::new((Err(gone()), ask.buf)))),
        Err(_) => Pending(Way::Over),
    }
}

impl Future for Pending {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let way = &mut self.get_mut().0;
        let ended = match way {
            Way::Here(home, cookie) => match home.machine.borrow_mut().poll(*cookie, cx) {
                Poll::Ready(ended) => ended,
                Poll::Pending => return Poll::Pending,
            },
            Way::There(answer) => match Pin::new(answer).poll(cx) {
                Poll::Ready(ended) => ended.unwrap_or_else(|_| (Err(gone()), None)),
                Poll::Pending => return Poll::Pending,
            },
            Way::Refused(_) | Way::Over => match std::mem::replace(way, Way::Over) {
                Way::Refused(ended) => *ended,
                _ => (Err(gone()), None),
            },
        };
        *way = Way::Over;
        Poll::Ready(ended)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Way::Here(home, cookie) = &self.0 {
            home.machine.borrow_mut().abandon(*cookie);
        }
    }
}
