//! Who is served after whom. What a client has repeated on a new connection must not be undone by what it sent over one
//! before, so a connection begins when of all earlier ones whose client has gone nothing is on its way any more.

use event_listener::Event;
use lunar_runtime::Hangup;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So often one that waits looks whether others have gone; and so long one that has gone, and cannot go on, keeps others
/// waiting.
const LOOK: Duration = Duration::from_secs(1);

/// The connections of an export, in the order in which they came.
#[derive(Default)]
pub(super) struct Turns {
    all: Mutex<Vec<Entry>>,
    /// One has ended.
    ended: Event,
}

struct Entry {
    number: u64,
    line: Hangup,
    /// It is not served yet.
    waits: bool,
}

/// A connection's place. With it goes what kept later ones from their turn.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections whose client is there.
    pub(super) fn clients(&self) -> usize {
        self.lock().iter().filter(|entry| !entry.line.is_hung_up()).count()
    }

    /// The place of a connection that has just come.
    pub(super) fn join(&self, line: Hangup) -> Turn<'_> {
        let mut all = self.lock();
        let number = all.last().map_or(0, |last| last.number + 1);
        all.push(Entry { number, line, waits: true });
        Turn { turns: self, number }
    }
}

impl Turn<'_> {
    /// Waits for it.
    pub(super) async fn comes(&self) {
        loop {
            let ended = self.turns.ended.listen();
            if self.begins() {
                return;
            }
            _ = compio::time::timeout(LOOK, ended).await;
        }
    }

    fn begins(&self) -> bool {
        let mut all = self.turns.lock();
        let begins =
            all.iter().filter(|other| other.number < self.number).all(|other| !other.line.is_hung_up());
        all.iter_mut().filter(|entry| entry.number == self.number).for_each(|me| me.waits = !begins);
        begins
    }

    /// Its client has gone, and another one waits for its end.
    pub(super) fn is_over(&self) -> bool {
        let all = self.turns.lock();
        let has_gone = all.iter().any(|me| me.number == self.number && me.line.is_hung_up());
        has_gone && all.iter().any(|other| other.number > self.number && other.waits)
    }

    /// Ends when it [is over](Turn::is_over), and has been for a while.
    pub(super) async fn ends(&self) {
        let mut was_over = false;
        loop {
            compio::time::sleep(LOOK).await;
            let is_over = self.is_over();
            if was_over && is_over {
                return;
            }
            was_over = is_over;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.lock().retain(|entry| entry.number != self.number);
        self.turns.ended.notify(usize::MAX);
    }
}
