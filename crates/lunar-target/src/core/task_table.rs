//! The tasks of an I_T nexus, and their serials.

use super::task::Task;
use std::collections::HashMap;

/// The tasks of an I_T nexus, by tag.
#[derive(Default)]
pub struct TaskTable {
    tasks: HashMap<u32, Task>,
    /// The serial of the latest task.
    serial: u64,
}

impl TaskTable {
    /// The serial for one more task.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Adds a task. No other task has its tag.
    pub fn insert(&mut self, task: Task) {
        self.tasks.insert(task.command().tag, task);
    }

    /// Removes the task with this tag.
    pub fn remove(&mut self, tag: u32) -> Option<Task> {
        self.tasks.remove(&tag)
    }

    /// The task with this tag.
    pub fn get(&self, tag: u32) -> Option<&Task> {
        self.tasks.get(&tag)
    }

    /// The task with this tag, mutably.
    pub fn get_mut(&mut self, tag: u32) -> Option<&mut Task> {
        self.tasks.get_mut(&tag)
    }

    /// The task with this tag and serial. None: it has ended, even if another task has its tag now.
    pub fn find(&self, tag: u32, serial: u64) -> Option<&Task> {
        self.get(tag).filter(|task| task.serial() == serial)
    }

    /// The same, mutably.
    pub fn find_mut(&mut self, tag: u32, serial: u64) -> Option<&mut Task> {
        self.get_mut(tag).filter(|task| task.serial() == serial)
    }

    /// All tasks.
    pub fn values(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values()
    }

    /// All tasks, mutably.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.tasks.values_mut()
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there is no task.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ScsiCommand;

    fn task(tag: u32, serial: u64) -> Task {
        Task::executing(serial, ScsiCommand::to_refuse(tag, 1), None)
    }

    #[test]
    fn ended_task_is_not_found_after_reuse_of_its_tag() {
        let mut tasks = TaskTable::default();
        let [first, second] = [(); 2].map(|()| {
            let serial = tasks.next_serial();
            tasks.insert(task(7, serial));
            assert!(tasks.find(7, serial).is_some());
            tasks.remove(7);
            serial
        });
        tasks.insert(task(7, second));
        assert!(tasks.find(7, first).is_none() && tasks.find_mut(7, second).is_some());
    }
}
