//! Descriptions of the current waits of a core's tasks, for timeout messages.

use std::cell::RefCell;

thread_local! {
    static WAITS: RefCell<Waits> = const { RefCell::new(Waits { last: 0, all: Vec::new() }) };
}

struct Waits {
    last: u64,
    /// The numbered descriptions, newest last.
    all: Vec<(u64, String)>,
}

/// A wait, until this guard is dropped.
pub(crate) struct Wait(u64);

/// Starts a wait with this description.
pub(crate) fn on(what: String) -> Wait {
    WAITS.with_borrow_mut(|waits| {
        waits.last += 1;
        waits.all.push((waits.last, what));
        Wait(waits.last)
    })
}

impl Drop for Wait {
    fn drop(&mut self) {
        // The thread-local value may already be destroyed.
        _ = WAITS.try_with(|waits| waits.borrow_mut().all.retain(|(number, _)| *number != self.0));
    }
}

/// The newest wait on this core that has not ended.
pub fn latest() -> Option<String> {
    WAITS.with_borrow(|waits| waits.all.last().map(|(_, what)| what.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_pending_wait_is_returned() {
        assert_eq!(latest(), None);
        let first = on("a".into());
        let second = on("b".into());
        drop(first);
        assert_eq!(latest().as_deref(), Some("b"));
        drop(second);
        assert_eq!(latest(), None);
    }
}
