//! The table of exposed memory by steering tag, for providers that keep it in software.

use crate::{MemoryRegion, RemoteAddress};
use lunar_runtime::Buf;
use std::fmt;
use std::io;
use std::ops::Range;
use std::rc::Rc;

/// The number of steering tag bits for the slot. The others contain its generation, which invalidates old tags.
const SLOT_BITS: u32 = 16;
const SLOTS: usize = (1 << SLOT_BITS) - 1;
/// The tagged offset of each region. Not zero, so that a peer that ignores the offset fails.
const BASE: u64 = 1 << 32;

/// The reason why an access is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The steering tag is invalid or invalidated.
    Tag,
    /// The memory is for the other direction.
    Direction,
    /// The range is outside the exposed memory.
    Bounds,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessError::Tag => "an invalid steering tag",
            AccessError::Direction => "memory registered for the other direction",
            AccessError::Bounds => "a range outside the registered memory",
        })
    }
}

#[derive(Debug, Default)]
struct TagSlot {
    generation: u16,
    memory: Option<MemoryRegion>,
    /// Whether the peer has invalidated the tag. The memory is kept until its owner revokes it.
    is_ended: bool,
}

/// The steering tags of one connection. Tags of other connections are invalid here.
#[derive(Debug, Default)]
pub struct SteeringTags {
    slots: Vec<TagSlot>,
    free: Vec<usize>,
}

impl SteeringTags {
    /// Assigns a tag to memory.
    ///
    /// # Errors
    /// When there are too many regions.
    pub fn expose(&mut self, memory: MemoryRegion) -> io::Result<RemoteAddress> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS => {
                self.slots.push(TagSlot { generation: 1, ..TagSlot::default() });
                self.slots.len() - 1
            }
            None => {
                return Err(io::Error::other("the RDMA connection has too many registered memory regions"));
            }
        };
        let generation = self.slots[slot].generation;
        self.slots[slot].memory = Some(memory);
        let stag = u32::from(generation) << SLOT_BITS | slot as u32;
        Ok(RemoteAddress { stag, offset: BASE })
    }

    /// Revokes a tag and returns its memory, even if the peer has invalidated it. None if the tag is unknown.
    pub fn revoke(&mut self, stag: u32) -> Option<MemoryRegion> {
        let slot = self.find(stag)?;
        let TagSlot { generation, memory, is_ended } = &mut self.slots[slot];
        let memory = memory.take()?;
        *generation = generation.wrapping_add(1).max(1);
        *is_ended = false;
        self.free.push(slot);
        Some(memory)
    }

    /// Invalidates a tag for the peer. Returns false if it was invalid.
    pub fn end(&mut self, stag: u32) -> bool {
        let usable = self.usable(stag);
        if let Some(slot) = usable {
            self.slots[slot].is_ended = true;
        }
        usable.is_some()
    }

    /// The slot of a valid tag.
    fn usable(&self, stag: u32) -> Option<usize> {
        self.find(stag).filter(|slot| !self.slots[*slot].is_ended)
    }

    fn find(&self, stag: u32) -> Option<usize> {
        let slot = stag as usize & SLOTS;
        let there = self.slots.get(slot)?;
        (u32::from(there.generation) == stag >> SLOT_BITS && there.memory.is_some()).then_some(slot)
    }

    /// The memory that the peer may write.
    ///
    /// # Errors
    /// When it may not.
    pub fn sink(&mut self, to: RemoteAddress, len: usize) -> Result<&mut [u8], AccessError> {
        let slot = self.usable(to.stag).ok_or(AccessError::Tag)?;
        match &mut self.slots[slot].memory {
            Some(MemoryRegion::Sink(buf)) => {
                let range = range(to.offset, len, buf.len())?;
                Ok(&mut buf[range])
            }
            Some(MemoryRegion::Source(_)) => Err(AccessError::Direction),
            None => Err(AccessError::Tag),
        }
    }

    /// The memory that the peer may read: the buffer and the offset in it.
    ///
    /// # Errors
    /// When it may not.
    pub fn source(&self, from: RemoteAddress, len: usize) -> Result<(Rc<Buf>, usize), AccessError> {
        let slot = self.usable(from.stag).ok_or(AccessError::Tag)?;
        match &self.slots[slot].memory {
            Some(MemoryRegion::Source(buf)) => Ok((buf.clone(), range(from.offset, len, buf.len())?.start)),
            Some(MemoryRegion::Sink(_)) => Err(AccessError::Direction),
            None => Err(AccessError::Tag),
        }
    }
}

fn range(offset: u64, len: usize, whole: usize) -> Result<Range<usize>, AccessError> {
    let start =
        offset.checked_sub(BASE).and_then(|start| usize::try_from(start).ok()).ok_or(AccessError::Bounds)?;
    let end = start.checked_add(len).filter(|end| *end <= whole).ok_or(AccessError::Bounds)?;
    Ok(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_tag_stays_invalid_when_its_slot_is_reused() {
        let mut keys = SteeringTags::default();
        let first = keys.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
        assert!(keys.sink(first, 8).is_ok());
        assert!(matches!(keys.revoke(first.stag), Some(MemoryRegion::Sink(buf)) if buf.len() == 8));
        let second = keys.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
        assert_ne!(first.stag, second.stag);
        assert_eq!(keys.sink(first, 1).unwrap_err(), AccessError::Tag);
        assert!(keys.revoke(first.stag).is_none() && keys.sink(second, 1).is_ok());
    }

    #[test]
    fn tag_invalidated_by_the_peer_keeps_its_memory() {
        let mut keys = SteeringTags::default();
        let first = keys.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
        assert_eq!([keys.end(first.stag), keys.end(first.stag), keys.end(7)], [true, false, false]);
        assert_eq!(keys.sink(first, 1).unwrap_err(), AccessError::Tag);
        assert!(keys.revoke(first.stag).is_some() && keys.revoke(first.stag).is_none());
        let second = keys.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
        assert!(keys.sink(second, 8).is_ok() && !keys.end(first.stag));
    }

    #[test]
    fn memory_is_used_within_its_bounds_and_in_its_direction() {
        let mut keys = SteeringTags::default();
        let (sink, source) =
            (MemoryRegion::Sink(Buf::zeroed(8)), MemoryRegion::Source(Rc::new(Buf::zeroed(8))));
        let [sink, source] = [sink, source].map(|memory| keys.expose(memory).unwrap());
        assert_eq!(keys.sink(source, 1).unwrap_err(), AccessError::Direction);
        assert_eq!(keys.source(sink, 1).unwrap_err(), AccessError::Direction);
        assert_eq!(keys.source(source.beyond(3), 5).unwrap().1, 3);
        for (at, len) in [(0, 9), (8, 1), (4, 5), (u64::MAX, 1), (0, usize::MAX)] {
            assert_eq!(keys.sink(sink.beyond(at), len).unwrap_err(), AccessError::Bounds, "{at} {len}");
        }
        assert!(keys.sink(sink.beyond(8), 0).is_ok());
    }
}
