//! The end of a connection or a session in good order: by a logout, after what is under way has ended.

use super::carrier::Line;
use super::errors::closed;
use super::home::Home;
use super::machine::Machine;
use super::task::State;
use crate::{Error, Kind};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// Of a Logout Response: the connection or session was closed (RFC 7143 section 11.15.1).
const CLOSED: u8 = 0;

/// The target wants us to log out of this connection: commands in flight end, new ones wait for the next. Where the
/// target ends it by itself meanwhile, the next one is not meant.
pub async fn take_leave(home: Rc<Home>, line: Weak<Line>) {
    let last = Instant::now() + home.options.timeouts.logout;
    let is_over =
        |m: &mut Machine| m.is_idle() || m.connection.logout_by().is_some_and(|by| Instant::now() >= by);
    quiet(&home, last, || home.is_on(&line), is_over).await;
    if !home.is_on(&line) || home.machine.borrow().connection.is_logging_out() {
        return;
    }
    let heard = home.answer(home.options.timeouts.logout, Machine::log_out).await;
    let why = Error::new(Kind::Lost, "the target asked for a logout");
    if !home.is_on(&line) {
        return;
    }
    if let Ok(code) = heard {
        // The end was in good order: there is nothing to wait for (section 11.15.3).
        home.machine.borrow_mut().connection.set_time2wait_s(0);
        home.part_in_order(code == CLOSED, why);
    } else {
        home.give_up_connection(why);
    }
}

/// Waits until what is under way is over, at most until then, and while the connection is there. What is still under way
/// then is ended by the logout.
async fn quiet(
    home: &Home,
    last: Instant,
    is_there: impl Fn() -> bool,
    is_over: impl Fn(&mut Machine) -> bool,
) {
    while is_there() && Instant::now() < last && !is_over(&mut home.machine.borrow_mut()) {
        compio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Ends a session in good order. Nothing new is taken in from now on; what was taken in before ends first, as far as the
/// time for a logout allows.
pub async fn close(home: &Rc<Home>) -> Result<(), Error> {
    if !home.closing.replace(true) {
        home.bell.notify(usize::MAX);
        end(home).await;
    }
    while !home.over.get() {
        let rung = home.bell.listen();
        if !home.over.get() {
            rung.await;
        }
    }
    if let Some(error) = home.left_behind() {
        return Err(error);
    }
    if home.machine.borrow().connection.is_logging_out() && !home.parted.get() {
        return Err(Error::new(Kind::TimedOut, "the target did not answer the logout"));
    }
    Ok(())
}

/// Ends what is under way, and then the connection.
async fn end(home: &Rc<Home>) {
    let limit = home.options.timeouts.logout;
    let is_there = || home.stream.borrow().is_some();
    let lives = || is_there() || home.has_orphans();
    quiet(home, Instant::now() + limit, lives, Machine::has_nothing_to_do).await;
    home.leaves_now.set(true);
    home.bell.notify(usize::MAX);
    home.machine.borrow_mut().fail_queued(&closed(), |_| true);
    if home.machine.borrow().connection.is_logging_out() && is_there() {
        // The logout that the target asked for is the end of the session, too.
        return;
    }
    let heard = if is_there() { home.answer(limit, Machine::log_out).await.ok() } else { None };
    match heard {
        Some(code) => home.part_in_order(code == CLOSED, closed()),
        None => home.give_up_connection(closed()),
    }
}

impl Machine {
    /// The target asks for a logout within so many seconds: the latest of such messages counts no more than an earlier one
    /// that leaves less time.
    pub(super) fn asked_to_leave(&mut self, within_s: u16) {
        self.connection.ask_logout_within(Duration::from_secs(within_s.into()), self.now);
    }

    /// Nothing is in flight, and nothing that was taken in can still be sent.
    fn has_nothing_to_do(&mut self) -> bool {
        let is_idle = self.is_idle() && self.orphans(None).is_none();
        is_idle
            && (self.connection.is_logout_asked()
                || !self.tasks.iter().any(|t| t.state == State::Queued && !t.urgent))
    }
}
