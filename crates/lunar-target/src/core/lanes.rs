//! The commands of a queue, by lane. A lane is a small number that identifies a command until its end.

/// Commands of type `T`. A freed lane is used again first.
pub struct Lanes<T> {
    commands: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Lanes<T> {
    fn default() -> Lanes<T> {
        Lanes { commands: Vec::new(), free: Vec::new() }
    }
}

impl<T> Lanes<T> {
    /// Whether there are no commands.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.commands.len()
    }

    /// The lane of the next command.
    pub fn next(&self) -> usize {
        self.free.last().copied().unwrap_or(self.commands.len())
    }

    /// Adds a command at [`Lanes::next`].
    pub fn add(&mut self, command: T) {
        match self.free.pop() {
            Some(lane) => self.commands[lane] = Some(command),
            None => self.commands.push(Some(command)),
        }
    }

    /// The command of a lane.
    pub fn get(&self, lane: usize) -> Option<&T> {
        self.commands[lane].as_ref()
    }

    /// The same, mutably.
    pub fn get_mut(&mut self, lane: usize) -> Option<&mut T> {
        self.commands[lane].as_mut()
    }

    /// Removes the command of a lane, which is free then.
    pub fn take(&mut self, lane: usize) -> Option<T> {
        let command = self.commands[lane].take()?;
        self.free.push(lane);
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_lane_is_used_again_first() {
        let mut lanes = Lanes::default();
        assert!(lanes.is_empty() && lanes.next() == 0);
        ["a", "b", "c"].into_iter().for_each(|command| lanes.add(command));
        assert_eq!((lanes.take(1), lanes.take(1), lanes.get(1)), (Some("b"), None, None));
        assert_eq!(lanes.next(), 1);
        lanes.add("d");
        assert_eq!(lanes.get_mut(2).copied(), Some("c"));
        assert_eq!((lanes.get(1), lanes.next()), (Some(&"d"), 3));
        assert!([0, 1, 2].map(|lane| lanes.take(lane).is_some()) == [true; 3] && lanes.is_empty());
    }
}
