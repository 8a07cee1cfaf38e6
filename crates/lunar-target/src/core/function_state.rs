//! The task management functions that an I_T nexus remembers.

use std::collections::VecDeque;

/// Task management functions without a response that a session may have.
const MAX_FUNCTIONS: usize = 16;
/// Maximum number of remembered tasks that a remote target may still execute. A function looks for its tasks as soon
/// as they have ended.
const MAX_INDETERMINATE: usize = 4096;

/// Number of functions that have not ended.
#[derive(Default)]
pub struct FunctionCount(usize);

impl FunctionCount {
    /// Whether there are as many functions as there may be.
    pub fn is_full(&self) -> bool {
        self.0 >= MAX_FUNCTIONS
    }

    /// Counts a function that begins.
    pub fn begin(&mut self) {
        self.0 += 1;
    }

    /// A function has ended.
    pub fn end(&mut self) {
        self.0 -= 1;
    }
}

/// Serials of tasks that have ended here, but that a remote logical unit may still execute. The oldest ones are
/// dropped.
#[derive(Default)]
pub struct IndeterminateTasks(VecDeque<u64>);

impl IndeterminateTasks {
    /// Adds a task.
    pub fn add(&mut self, serial: u64) {
        if self.0.len() >= MAX_INDETERMINATE {
            self.0.pop_front();
        }
        self.0.push_back(serial);
    }

    /// Whether it contains one of these tasks.
    pub fn has_any_of(&self, serials: &[u64]) -> bool {
        self.0.iter().any(|serial| serials.contains(serial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_indeterminate_task_is_dropped_at_limit() {
        let mut tasks = IndeterminateTasks::default();
        (0..MAX_INDETERMINATE as u64).for_each(|serial| tasks.add(serial));
        assert!(tasks.has_any_of(&[0]));
        tasks.add(u64::MAX);
        assert_eq!([0, 1, u64::MAX].map(|serial| tasks.has_any_of(&[serial])), [false, true, true]);
    }
}
