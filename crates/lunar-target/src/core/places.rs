//! Where the Data-Out of a command goes: to one buffer for all of it, or piece by piece to a few buffers in turn.

use lunar_runtime::{Buf, Pool};

/// Bytes of a piece. A command of no more than [`BUFFERS`] pieces has one buffer for all of its data.
pub const PIECE: u32 = 1 << 20;
/// Buffers that a command in pieces has: one is filled while the other is written.
pub const BUFFERS: u32 = 2;

/// A buffer, and the bytes of the command's data that it is for.
struct Place {
    start: u32,
    end: u32,
    /// None while a segment is landing in it.
    buf: Option<Buf>,
}

/// The buffers of a command. None: its data are dropped.
#[derive(Default)]
pub struct Places {
    now: Option<Place>,
    next: Option<Place>,
    /// Where the last of them ends.
    end: u32,
    /// Buffers in use, those that are being written among them.
    buffers: u32,
}

impl Places {
    /// One buffer, for the bytes from the first on.
    pub fn first(buf: Option<Buf>) -> Places {
        let mut places = Places::default();
        if let Some(buf) = buf {
            places.buffers = 1;
            places.push(buf.len() as u32, buf);
        }
        places
    }

    fn push(&mut self, end: u32, buf: Buf) {
        let place = Place { start: self.end, end, buf: Some(buf) };
        self.end = end;
        match self.now {
            None => self.now = Some(place),
            Some(_) => self.next = Some(place),
        }
    }

    /// The place of this byte.
    fn of(&mut self, offset: u32) -> Option<&mut Place> {
        let places = [&mut self.now, &mut self.next].into_iter().flatten();
        places.into_iter().find(|place| (place.start..place.end).contains(&offset))
    }

    /// Takes the buffer in which these bytes lie all; and where in it they begin.
    pub fn land(&mut self, offset: u32, len: u32) -> Option<(Buf, usize)> {
        let place = self.of(offset).filter(|place| len <= place.end - offset)?;
        let at = (offset - place.start) as usize;
        place.buf.take().map(|buf| (buf, at))
    }

    /// The buffer comes back in which a segment has landed that begins with this byte.
    pub fn landed(&mut self, offset: u32, buf: Buf) {
        if let Some(place) = self.of(offset) {
            place.buf = Some(buf);
        }
    }

    /// Copies a segment. What lies in no place is dropped.
    pub fn copy(&mut self, offset: u32, data: &[u8]) {
        let Some(place) = self.of(offset) else { return };
        let at = (offset - place.start) as usize;
        let Some(buf) = &mut place.buf else { return };
        let n = data.len().min(buf.len().saturating_sub(at));
        buf[at..at + n].copy_from_slice(&data[..n]);
    }

    /// The first of the data is here: the buffer counts from now on. False: there is no room for it.
    pub fn claim(&mut self) -> bool {
        self.now.as_mut().and_then(|place| place.buf.as_mut()).is_none_or(Buf::claim)
    }

    /// All bytes of the oldest place have arrived: those up to `arrived` have.
    pub fn is_filled(&self, arrived: u32) -> bool {
        self.now.as_ref().is_some_and(|place| place.buf.is_some() && place.end <= arrived)
    }

    /// Takes the buffer of the oldest place.
    pub fn take(&mut self) -> Option<Buf> {
        let place = std::mem::replace(&mut self.now, self.next.take());
        place.and_then(|place| place.buf)
    }

    /// A piece of a command of so many bytes was written: its buffer is for the next one that has none.
    pub fn reuse(&mut self, mut buf: Buf, wanted: u32) {
        let end = wanted.min(self.end.saturating_add(PIECE));
        let len = end.saturating_sub(self.end) as usize;
        if len == 0 {
            self.buffers -= 1;
            return;
        }
        if buf.capacity() < len {
            // A medium may keep the buffer and give back another one.
            buf = Buf::zeroed(len);
        }
        buf.set_visible(len);
        self.push(end, buf);
    }

    /// Takes one more buffer if there is one, and work for it.
    pub fn grow(&mut self, pool: &Pool, wanted: u32) {
        let end = wanted.min(self.end.saturating_add(PIECE));
        if self.buffers == 0 || self.buffers == BUFFERS || end <= self.end {
            return;
        }
        if let Some(buf) = pool.try_get((end - self.end) as usize) {
            self.buffers += 1;
            self.push(end, buf);
        }
    }

    /// Where the last of them ends.
    pub fn end(&self) -> u32 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: u32 = 3 * PIECE + 512;

    /// The lengths of the pieces that a command of [`WANTED`] bytes writes, with so much memory.
    fn lengths(pool: &Pool) -> Vec<usize> {
        let mut places = Places::first(pool.promise(PIECE as usize));
        assert!(places.claim());
        places.grow(pool, WANTED);
        let mut lengths = Vec::new();
        while places.is_filled(places.end()) {
            let buf = places.take().expect("it is filled");
            lengths.push(buf.len());
            places.reuse(buf, WANTED);
            places.grow(pool, WANTED);
            assert!(pool.used() <= (BUFFERS * PIECE) as usize);
        }
        lengths
    }

    #[test]
    fn buffers_go_round_until_the_last_piece() {
        let pool = Pool::new(64 << 20);
        assert_eq!(lengths(&pool.share()), [PIECE as usize, PIECE as usize, PIECE as usize, 512]);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn one_buffer_does_where_there_is_no_second() {
        let pool = Pool::new(0);
        let others: Vec<Buf> = std::iter::from_fn(|| pool.try_get(PIECE as usize)).collect();
        let mut places = Places::first(pool.share().promise(PIECE as usize));
        places.grow(&pool, WANTED);
        assert_eq!((places.buffers, places.end()), (1, PIECE));
        drop(others);
        places.grow(&pool, WANTED);
        assert_eq!((places.buffers, places.end()), (2, 2 * PIECE));
    }

    #[test]
    fn bytes_find_their_piece_and_others_are_dropped() {
        let pool = Pool::new(64 << 20);
        let mut places = Places::first(pool.try_get(PIECE as usize));
        places.grow(&pool, WANTED);
        assert!(places.land(PIECE - 512, 1024).is_none(), "a segment lies in one piece");
        places.copy(2 * PIECE, &[9; 512]);
        let (mut buf, at) = places.land(PIECE + 512, 512).expect("a place");
        assert_eq!(at, 512);
        buf[at..at + 512].fill(7);
        assert!(places.is_filled(PIECE));
        let first = places.take().expect("it is filled");
        assert!(!places.is_filled(2 * PIECE), "a segment is landing there");
        places.landed(PIECE + 512, buf);
        let second = places.take().expect("it is filled");
        assert_eq!((first.len(), second[512]), (PIECE as usize, 7));
    }
}
