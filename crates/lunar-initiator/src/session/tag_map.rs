//! A map from Initiator Task Tags to values, without hashing. Values of commands are indexed by the slot in the tag.
//! Those of the few other requests are in a list.

use super::task;

/// Values by tag.
pub struct TagMap<T> {
    commands: Vec<Option<(u32, T)>>,
    others: Vec<(u32, T)>,
    count: usize,
}

impl<T> Default for TagMap<T> {
    fn default() -> Self {
        TagMap { commands: Vec::new(), others: Vec::new(), count: 0 }
    }
}

impl<T> TagMap<T> {
    /// The number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Inserts a value. Replaces an earlier value of the same slot.
    pub fn insert(&mut self, tag: u32, value: T) {
        self.count += 1;
        let Some(at) = task::slot(tag) else { return self.others.push((tag, value)) };
        if at >= self.commands.len() {
            self.commands.resize_with(at + 1, || None);
        }
        self.count -= usize::from(self.commands[at].replace((tag, value)).is_some());
    }

    /// The value of a tag.
    pub fn get(&self, tag: u32) -> Option<&T> {
        let there = match task::slot(tag) {
            Some(at) => self.commands.get(at)?.as_ref().filter(|(of, _)| *of == tag),
            None => self.others.iter().find(|(of, _)| *of == tag),
        };
        there.map(|(_, value)| value)
    }

    /// The value of a tag, mutable.
    pub fn get_mut(&mut self, tag: u32) -> Option<&mut T> {
        let there = match task::slot(tag) {
            Some(at) => self.commands.get_mut(at)?.as_mut().filter(|(of, _)| *of == tag),
            None => self.others.iter_mut().find(|(of, _)| *of == tag),
        };
        there.map(|(_, value)| value)
    }

    /// Removes the value of a tag.
    pub fn remove(&mut self, tag: u32) -> Option<T> {
        let (_, value) = match task::slot(tag) {
            Some(at) => self.commands.get_mut(at)?.take_if(|(of, _)| *of == tag)?,
            None => {
                let at = self.others.iter().position(|(of, _)| *of == tag)?;
                self.others.swap_remove(at)
            }
        };
        self.count -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::task::CONTROL;
    use super::*;

    #[test]
    fn each_tag_has_its_own_value_once() {
        let mut all = TagMap::default();
        let tags = [3, 0, CONTROL | 3, 7 << 16 | 9, CONTROL];
        for (value, tag) in tags.into_iter().enumerate() {
            assert!(all.get(tag).is_none() && all.get_mut(tag).is_none() && all.remove(tag).is_none());
            all.insert(tag, value);
        }
        assert_eq!((all.len(), all.get(9)), (5, None));
        assert_eq!(all.remove(1 << 16 | 3), None, "the tag of another command in the same slot");
        for (value, tag) in tags.into_iter().enumerate() {
            assert_eq!(all.get(tag), Some(&value));
            assert_eq!(all.get_mut(tag).copied(), Some(value));
            assert_eq!((all.remove(tag), all.remove(tag)), (Some(value), None));
        }
        assert!(all.is_empty());
    }

    #[test]
    fn later_command_takes_the_place_of_the_one_before() {
        let mut all = TagMap::default();
        all.insert(1 << 16 | 4, 'a');
        all.insert(2 << 16 | 4, 'b');
        assert_eq!((all.len(), all.get(1 << 16 | 4), all.get(2 << 16 | 4)), (1, None, Some(&'b')));
    }
}
