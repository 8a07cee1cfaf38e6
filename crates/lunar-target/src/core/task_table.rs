//! The tasks of an I_T nexus, and their serials.

use super::task::Task;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The tasks of an I_T nexus, by tag.
#[derive(Default)]
pub struct TaskTable {
    tasks: HashMap<u32, Task, TagHashing>,
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

    /// Removes the task with this tag and serial.
    pub fn take(&mut self, tag: u32, serial: u64) -> Option<Task> {
        match self.tasks.entry(tag) {
            Entry::Occupied(task) if task.get().serial() == serial => Some(task.remove()),
            Entry::Occupied(_) | Entry::Vacant(_) => None,
        }
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

/// The hash of tags: one multiplication, whose random factors keep an initiator from choosing tags that collide.
struct TagHashing {
    key: u64,
    factor: u64,
}

impl Default for TagHashing {
    fn default() -> TagHashing {
        let random = RandomState::new();
        TagHashing { key: random.hash_one(0), factor: random.hash_one(1) | 1 }
    }
}

impl BuildHasher for TagHashing {
    type Hasher = TagHasher;

    #[inline]
    fn build_hasher(&self) -> TagHasher {
        TagHasher { hash: self.key, factor: self.factor }
    }
}

/// The hash of one tag.
struct TagHasher {
    hash: u64,
    factor: u64,
}

impl Hasher for TagHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, tag: u32) {
        let product = u128::from(self.hash ^ u64::from(tag)) * u128::from(self.factor);
        self.hash = (product >> 64) as u64 ^ product as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ScsiCommand;
    use std::collections::HashSet;

    fn task(tag: u32, serial: u64) -> Task {
        Task::executing(serial, ScsiCommand::to_refuse(tag, 1), None, std::time::Instant::now())
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
        assert!(tasks.take(7, first).is_none() && tasks.take(8, second).is_none());
        assert_eq!(tasks.take(7, second).map(|task| task.serial()), Some(second));
        assert!(tasks.is_empty());
    }

    /// Tags that differ in few bits fill the buckets of a small table, which the low bits of the hash select.
    #[test]
    fn regular_tags_spread_over_the_buckets() {
        let hashing = TagHashing { key: 0x243f_6a88_85a3_08d3, factor: 0x9e37_79b9_7f4a_7c15 };
        for step in [0, 8, 16, 22] {
            let buckets: HashSet<u64> = (0..512u32).map(|n| hashing.hash_one(n << step) & 1023).collect();
            assert!(buckets.len() > 256, "{} buckets at a distance of 2^{step}", buckets.len());
        }
    }

    #[test]
    fn each_table_hashes_with_random_factors() {
        let [first, second] = [(); 2].map(|()| TagHashing::default().hash_one(7u32));
        assert_ne!(first, second);
    }
}
