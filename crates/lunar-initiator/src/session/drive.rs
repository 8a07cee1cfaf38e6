//! The loop of a session: receive all that is there, let those go on whose commands have ended, send all that
//! they want to send, at once.

use super::carrier::Incoming;
use super::home::{self, Home, Mail};
use super::patience::Patience;
use super::task::{State, Task, Waiter};
use super::{checks, demand, escalate, leave, recover};
use crate::connect::Connected;
use crate::{Error, Kind};
use lunar_runtime::iscsi::receive::Received;
use lunar_runtime::{SendPump, SendSide};
use std::fmt::Display;
use std::io;
use std::rc::Rc;
use std::time::Instant;

/// Starts the tasks of a session.
pub fn start(home: Rc<Home>, connected: Connected, inbox: flume::Receiver<Mail>) {
    lunar_runtime::spawn(mail(home.clone(), inbox));
    lunar_runtime::spawn(escalate::watch(home.clone()));
    lunar_runtime::spawn(recover::live(home, connected));
}

/// Takes what comes from other cores. When all handles are gone, the session ends.
async fn mail(home: Rc<Home>, inbox: flume::Receiver<Mail>) {
    while let Ok(mail) = inbox.recv_async().await {
        match mail {
            // Its owner has gone before it came.
            Mail::Command(_, reply, _) if reply.is_disconnected() => {}
            Mail::Command(command, reply, number) => {
                if let Err(finished) = home.accept(command, Waiter::There(reply.clone(), number)) {
                    // Who has stopped to wait does not want it.
                    let _ = reply.send(*finished);
                }
            }
            Mail::Manage(function, lun, reply) => {
                lunar_runtime::spawn(escalate::manage(home.clone(), function, lun, reply));
            }
            Mail::Abort(command, reply) => {
                lunar_runtime::spawn(demand::abort(home.clone(), command, reply));
            }
            Mail::Text(question, reply) => {
                lunar_runtime::spawn(demand::text(home.clone(), question, reply));
            }
            Mail::GiveUpStrays(reply) => {
                home.give_up_strays();
                // Who has stopped to wait does not want it.
                let _ = reply.send(());
            }
            Mail::GiveUp => {
                home.gives_up.set(true);
                home.bell.notify(usize::MAX);
            }
            Mail::Changed(lun, now) => home.mark(lun, checks::Seen::Changed(now)),
            Mail::LookAgain(lun, reply) => {
                lunar_runtime::spawn(checks::look_again(home.clone(), lun, reply));
            }
            Mail::Orphans(lun, reply) => {
                let orphans = home.machine.borrow_mut().orphans(lun);
                // Who has stopped to wait does not want it.
                let _ = reply.send(orphans.map(|(_, since)| since.elapsed()));
            }
            Mail::Prove(proof, reply) => {
                home.prove(proof);
                // Who has stopped to wait does not want it.
                let _ = reply.send(());
            }
            Mail::Pin(lun, identity) => home.pin(lun, identity),
            Mail::Hold(held, identity, reply) => {
                // Who has stopped to wait drops it with the answer.
                let _ = reply.send(home.hold(held, identity));
            }
            Mail::LetGo(lun) => home.let_go(lun),
            Mail::Close(reply) => {
                let home = home.clone();
                // Who has stopped to wait does not want it.
                let close = async move { drop(reply.send(leave::close(&home).await)) };
                // What comes meanwhile is to hear at once that it is too late.
                lunar_runtime::spawn(close);
            }
        }
    }
    // Nobody waits for this one.
    let _ = leave::close(&home).await;
}

/// Runs one connection to its end, and says why it ended.
pub async fn connection(home: &Rc<Home>, mut receiver: Incoming) -> Error {
    let mut started = receiver.has_begun();
    let mut patience = Patience::default();
    loop {
        let Some(stream) = home.stream.borrow().clone() else {
            return Error::new(Kind::Lost, "the connection was given up");
        };
        // What more has come ends more commands, whose owners send others: they leave together.
        let goes_on = stream.is_readable() && home.machine.borrow().keeps_target_busy();
        if !goes_on {
            home.flush();
        }
        let received = if std::mem::take(&mut started) {
            receiver.resume(&mut home.machine.borrow_mut())
        } else {
            let ready = if goes_on { Ok(()) } else { stream.readable().await };
            match ready {
                Ok(()) => {
                    let mut machine = home.machine.borrow_mut();
                    patience.exercise(machine.under_way());
                    machine.now = Instant::now();
                    machine.heard = machine.now;
                    let before = machine.numbers.exp_stat_sn;
                    let received = receiver.receive(&stream, &mut machine);
                    patience.learn(machine.numbers.exp_stat_sn.wrapping_sub(before));
                    received
                }
                Err(e) => Err(e.into()),
            }
        };
        home.tell();
        match received {
            Ok(Received::More | Received::Full) => {}
            Ok(Received::End) => return home.why_it_ended(),
            Err(e) => return home.why_it_ended_by(&e),
        }
        home.pump.gather().await;
    }
}

impl Home {
    /// See [`SendPump::flush`].
    pub fn flush(self: &Rc<Self>) {
        SendPump::flush(self);
    }

    /// See [`SendPump::flush_soon`].
    #[inline]
    pub fn flush_soon(self: &Rc<Self>) {
        SendPump::flush_soon(self);
    }

    /// Ends the connection from our side: the receiving loop finds it closed. What the kernel has not delivered
    /// yet never is: it would come behind what is written later on another connection.
    pub fn give_up_connection(&self, why: Error) {
        self.machine.borrow_mut().broken.get_or_insert(why);
        if let Some(stream) = &*self.stream.borrow() {
            stream.reset();
        }
    }

    /// Ends a connection on which the logout was answered: nothing is left to be thrown away. `in_order`: the target has
    /// ended all tasks.
    pub fn part_in_order(&self, in_order: bool, why: Error) {
        self.machine.borrow_mut().broken.get_or_insert(why);
        if let Some(stream) = &*self.stream.borrow() {
            // Should it fail, the target sees a reset after its answer.
            _ = stream.reset_on_close(false);
            self.parted.set(true);
            self.machine.borrow_mut().parted = in_order;
            stream.close();
        }
    }

    /// Gives the connection up if the target has commands whose owners wait no longer: it must not carry them
    /// out after what their owners do next.
    pub fn give_up_strays(&self) {
        let stray = |t: &mut Task| t.state == State::Sent && t.is_abandoned();
        let are_there = self.machine.borrow_mut().tasks.iter().any(stray);
        if are_there {
            self.give_up_connection(Error::new(Kind::Lost, "a command did not end in time"));
        }
    }

    /// The reason for which we gave up, or else what the kernel says.
    fn why_it_ended_by(&self, e: &impl Display) -> Error {
        let broken = self.machine.borrow_mut().broken.take();
        broken.unwrap_or_else(|| Error::new(Kind::Lost, e.to_string()))
    }

    fn why_it_ended(&self) -> Error {
        let broken = self.machine.borrow_mut().broken.take();
        broken.unwrap_or_else(|| Error::new(Kind::Lost, "the target closed the connection"))
    }

    /// Tells listeners what the machine has heard.
    pub fn tell(self: &Rc<Self>) {
        let mut machine = self.machine.borrow_mut();
        if machine.leave
            && let Some(line) = self.line()
            && !self.leaving.replace(true)
        {
            lunar_runtime::spawn(leave::take_leave(self.clone(), line));
        }
        let to_check = std::mem::take(&mut machine.to_check);
        let events = std::mem::take(&mut machine.events);
        drop(machine);
        if to_check {
            checks::admit(self);
        }
        events.iter().for_each(|event| self.listeners.tell(event));
    }
}

impl SendSide for Home {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    fn try_flush(&self) -> io::Result<bool> {
        let Some(stream) = self.stream.borrow().clone() else { return Ok(true) };
        let mut machine = self.machine.borrow_mut();
        let sent = machine.out.flush(&stream);
        machine.settle();
        sent
    }

    async fn writable(&self) -> io::Result<()> {
        let Some(stream) = self.stream.borrow().clone() else { return Ok(()) };
        let ready = stream.writable().await;
        let is_current = self.stream.borrow().as_ref().is_some_and(|s| Rc::ptr_eq(s, &stream));
        // The end of an earlier connection is not that of the current one.
        if is_current { ready } else { Ok(()) }
    }

    fn lost(&self, why: io::Error) {
        self.give_up_connection(Error::new(Kind::Lost, why.to_string()));
    }
}

/// Forgets a session that is over.
pub fn end(home: &Rc<Home>) {
    *home.stream.borrow_mut() = None;
    home::leave(home);
}
