//! Registered bounce buffers: for messages, and for data in unregistered memory.
//!
//! Chunks of a few sizes are cut from slabs. A slab is registered once and exists as long as its pool. The users of
//! chunks limit the size of the pool: each connection has a limit of bytes in flight.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The chunk sizes in bytes. An iSER login message has 8268 bytes, an SRP message with immediate data 8260.
const CLASSES: [usize; 6] = [512, 4 << 10, 12 << 10, 64 << 10, 256 << 10, LARGEST];
/// The largest chunk in bytes.
pub const LARGEST: usize = 1 << 20;
/// The number of chunks in a slab, unless the slab would be too small or too large.
const CHUNKS: usize = 16;
const SLAB: (usize, usize) = (64 << 10, LARGEST);
const ALIGN: usize = 4096;

/// Registered memory, deregistered on drop.
pub struct RegisteredMemory {
    /// The local key.
    pub lkey: u32,
    /// Deregisters the memory when dropped.
    pub _keep: Box<dyn Any + Send>,
}

/// Registers memory with a device. The arguments are its address and its length in bytes.
pub type RegisterFn = Box<dyn Fn(NonNull<u8>, usize) -> io::Result<RegisteredMemory> + Send + Sync>;

struct Slab {
    at: NonNull<u8>,
    layout: Layout,
    /// None only while dropping.
    known: Option<RegisteredMemory>,
}

// SAFETY: a slab owns its memory.
unsafe impl Send for Slab {}

impl Slab {
    fn new(class: usize, register: &RegisterFn) -> io::Result<Slab> {
        let (least, max) = SLAB;
        let len = (class * CHUNKS).clamp(least, max);
        let layout = Layout::from_size_align(len, ALIGN).map_err(io::Error::other)?;
        // SAFETY: the size of the layout is not zero.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut slab = Slab { at, layout, known: None };
        slab.known = Some(register(at, len)?);
        Ok(slab)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // The memory is deregistered before it is freed.
        self.known = None;
        // SAFETY: allocated with this layout, and no chunk is left: each holds the pool, which holds this slab.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

/// A free chunk: its slab, and its address there.
type ChunkPlace = (usize, usize);

#[derive(Default)]
struct SlabState {
    slabs: Vec<Slab>,
    free: [Vec<ChunkPlace>; CLASSES.len()],
}

/// Slabs of one device with the same access rights.
pub struct BouncePool {
    register: RegisterFn,
    inside: Mutex<SlabState>,
}

impl BouncePool {
    /// Creates an empty pool. `register` registers its slabs.
    pub fn new(register: RegisterFn) -> Arc<BouncePool> {
        Arc::new(BouncePool { register, inside: Mutex::default() })
    }

    fn inside(&self) -> MutexGuard<'_, SlabState> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk of at least `len` bytes of unspecified content.
    ///
    /// # Errors
    /// When it is too long, or the registration fails.
    pub fn chunk(self: &Arc<Self>, len: usize) -> io::Result<BounceBuffer> {
        let too_long = || io::Error::other(format!("RDMA message of {len} bytes: the limit is {LARGEST}"));
        let class = CLASSES.iter().position(|class| *class >= len).ok_or_else(too_long)?;
        let mut inside = self.inside();
        if inside.free[class].is_empty() {
            let slab = Slab::new(CLASSES[class], &self.register)?;
            let (index, count) = (inside.slabs.len(), slab.layout.size() / CLASSES[class]);
            inside.slabs.push(slab);
            inside.free[class].extend((0..count).rev().map(|n| (index, n * CLASSES[class])));
        }
        let place = inside.free[class].pop().ok_or(io::ErrorKind::OutOfMemory)?;
        let slab = &inside.slabs[place.0];
        let lkey = slab.known.as_ref().map_or(0, |known| known.lkey);
        // SAFETY: the offset is within the slab.
        let at = unsafe { slab.at.add(place.1) };
        Ok(BounceBuffer { at, class, lkey, place, pool: self.clone() })
    }

    /// A chunk of at least `len` zeros.
    ///
    /// # Errors
    /// Those of [`BouncePool::chunk`].
    pub fn zeros(self: &Arc<Self>, len: usize) -> io::Result<BounceBuffer> {
        let mut chunk = self.chunk(len)?;
        chunk.bytes_mut().fill(0);
        Ok(chunk)
    }

    /// A chunk that holds a message: its head, then its payload.
    ///
    /// # Errors
    /// Those of [`BouncePool::chunk`].
    pub fn filled(self: &Arc<Self>, head: &[u8], payload: &[u8]) -> io::Result<BounceBuffer> {
        let mut chunk = self.chunk(head.len() + payload.len())?;
        let bytes = chunk.bytes_mut();
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..head.len() + payload.len()].copy_from_slice(payload);
        Ok(chunk)
    }
}

/// A part of a slab. While the device uses it, its owner must neither access nor drop it.
pub struct BounceBuffer {
    at: NonNull<u8>,
    class: usize,
    lkey: u32,
    place: ChunkPlace,
    pool: Arc<BouncePool>,
}

// SAFETY: this part of the slab is owned exclusively.
unsafe impl Send for BounceBuffer {}
// SAFETY: shared references only read it.
unsafe impl Sync for BounceBuffer {}

impl BounceBuffer {
    /// The address and key for the device.
    pub fn place(&self) -> (u64, u32) {
        (self.at.as_ptr() as u64, self.lkey)
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        CLASSES[self.class]
    }

    /// The content. The device must have finished with it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the slab, initialized, and owned exclusively.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len()) }
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        self.pool.inside().free[self.class].push(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// A pool that counts its registrations.
    pub fn counted() -> (Arc<BouncePool>, Arc<AtomicUsize>) {
        struct Forget(Arc<AtomicUsize>);
        impl Drop for Forget {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        let register = move |_, _| {
            let lkey = counter.fetch_add(1, SeqCst) as u32;
            Ok(RegisteredMemory { lkey, _keep: Box::new(Forget(counter.clone())) })
        };
        (BouncePool::new(Box::new(register)), count)
    }

    #[test]
    fn chunks_do_not_overlap_and_are_used_again() {
        let (pool, count) = counted();
        for class in CLASSES {
            let chunks: Vec<_> = (0..40).map(|_| pool.chunk(class).unwrap()).collect();
            let mut places: Vec<_> = chunks.iter().map(|c| c.place().0).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|two| two[0] + class as u64 <= two[1]), "{class}");
            let slabs = count.load(SeqCst);
            drop(chunks);
            let again: Vec<_> = (0..40).map(|_| pool.chunk(class).unwrap()).collect();
            assert_eq!((again.len(), count.load(SeqCst)), (40, slabs), "no further slab is allocated");
        }
    }

    #[test]
    fn message_is_its_head_and_its_payload() {
        let (pool, _) = counted();
        let chunk = pool.filled(b"head", b"payload").unwrap();
        assert_eq!((&chunk.bytes()[..11], chunk.len()), (&b"headpayload"[..], 512));
        let exact = pool.filled(&[1; 12], &[2; 500]).unwrap();
        assert_eq!((exact.bytes()[11], exact.bytes()[511]), (1, 2));
    }

    #[test]
    fn failed_registration_takes_no_memory() {
        let (pool, count) = counted();
        assert!(pool.chunk(LARGEST + 1).is_err());
        assert_eq!(count.load(SeqCst), 0);
        let refusing = BouncePool::new(Box::new(|_, _| Err(io::ErrorKind::OutOfMemory.into())));
        assert_eq!(refusing.chunk(1).map(|_| ()).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        assert!(refusing.inside().slabs.is_empty());
    }

    #[test]
    fn device_forgets_the_memory_when_the_last_chunk_is_gone() {
        let (pool, count) = counted();
        let chunk = pool.chunk(1).unwrap();
        drop(pool);
        assert_eq!(count.load(SeqCst), 1);
        drop(chunk);
        assert_eq!(count.load(SeqCst), 0);
    }
}
