//! Images of Ceph RBD. librados and librbd are loaded when the first image is opened; a host without them runs all
//! other backends.
//!
//! librbd has no cache here, so that a completed write is on stable storage, and other clients of the image read it.
#![allow(unsafe_code)]

#[cfg(test)]
mod abi_tests;
mod cache;
mod client;
mod compare;
mod exit;
mod extents;
mod image;
mod image_lock;
mod late;
mod library;
mod location;
mod notify_replies;
mod omap;
mod opening;
mod operation;
mod presence;
mod reopen;
mod shared_object;
mod size;
mod watch;

use crate::{
    Backend, BackendInfo, BackendSpec, BufResult, ExamineReport, Extent, LocalBoxFuture, OpenError,
    describe_row, within,
};
use image::Image;
use late::{LateOperations, timed_out};
pub use location::{RBD_PREFIX, RbdLocation};
use lunar_runtime::{Buf, either};
pub use notify_replies::NotifyReplies;
use operation::{Operation, done, whole};
use presence::Presence;
pub use shared_object::SharedObject;
use size::KnownSize;
use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
pub use watch::{Notification, Watch, WatchEvent};

/// An operation that the cluster does not end within this time ends as `TimedOut`, which hosts see as BUSY. Linux gives
/// up a command after 30 s.
const BUSY_AFTER: Duration = Duration::from_secs(20);
/// A change of an image under a lease cannot end as BUSY: its host might repeat it through another client. It waits for the
/// cluster, longer than the cluster takes to notice a dead OSD. Linux aborts it after 30 s, and leaves the path 20 s later.
const LATE_AFTER: Duration = Duration::from_secs(40);
/// The bytes of one request to free or clear. librbd begins one operation for each object of a request.
const CLEAR_BYTES: u64 = 256 << 20;
/// `rbd_aio_write_zeroes` allocates the space.
const THICK: c_int = 1;

/// The right of a client to use an image that other clients use, too.
pub trait ImageLease: Send + Sync {
    /// Checks that an operation may begin.
    ///
    /// # Errors
    /// The error of the operation; `ESHUTDOWN` for a fenced client.
    fn may_begin(&self) -> io::Result<()>;
    /// A change has not ended in time, and may take effect later. The client must be fenced before another one may
    /// rely on its end.
    fn has_late_operation(&self);
}

/// An image of RBD as a backend.
pub struct RbdBackend {
    location: RbdLocation,
    /// Replaced when the cluster has fenced its client.
    image: Arc<RwLock<Arc<Image>>>,
    late: LateOperations,
    reopening: Arc<Mutex<bool>>,
    /// Whether objects share the client of the image. Then only the user of the objects replaces a fenced client: it
    /// must read the objects before I/O goes on.
    is_shared: AtomicBool,
    in_flight: AtomicUsize,
    /// Whether operations may begin ([`RbdBackend::serve_under`]).
    lease: OnceLock<Box<dyn ImageLease>>,
    presence: Arc<Presence>,
    /// See [`BUSY_AFTER`].
    patience: Duration,
    /// The size that the last refresh saw.
    reported: AtomicU64,
}

/// The effect of an operation on the medium.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IoEffect {
    None,
    Change,
}

/// Counts an operation in flight, until dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Counted<'a> {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right to run one operation, until dropped.
struct Admitted<'a> {
    image: Arc<Image>,
    /// The size for which its range was checked.
    size: KnownSize,
    _counted: Counted<'a>,
}

/// Opens the image read-only and reports its size.
pub(crate) fn examine(spec: &BackendSpec) -> Result<ExamineReport, OpenError> {
    let location = location_of(spec)?;
    let size = match Image::open_in_time(&location, true, None) {
        Ok(image) => Some(image.size.known().bytes),
        Err(e) if e.kind == io::ErrorKind::NotFound && spec.create && spec.size.is_some() => None,
        Err(e) => return Err(e),
    };
    Ok(ExamineReport { size, in_use: None, block_size: None })
}

fn location_of(spec: &BackendSpec) -> Result<RbdLocation, OpenError> {
    spec.rbd.clone().ok_or_else(|| OpenError::new("rbd", "the image is missing", "name pool and image"))
}

impl RbdBackend {
    /// Opens the image of a specification.
    ///
    /// # Errors
    /// As [`crate::open`].
    pub fn open(spec: &BackendSpec) -> Result<RbdBackend, OpenError> {
        RbdBackend::open_with(spec, image::USUAL_FEATURES)
    }

    /// As [`RbdBackend::open`], but a created image can be written by several clients at a time.
    ///
    /// # Errors
    /// As [`crate::open`].
    pub fn open_shared(spec: &BackendSpec) -> Result<RbdBackend, OpenError> {
        RbdBackend::open_with(spec, image::SHARED_FEATURES)
    }

    fn open_with(spec: &BackendSpec, features: u64) -> Result<RbdBackend, OpenError> {
        let location = location_of(spec)?;
        let create = spec.size.filter(|_| spec.create && !spec.read_only);
        let create = create.map(|size| (size, features));
        let image = Image::open_in_time(&location, spec.read_only, create)?;
        Ok(RbdBackend {
            reported: AtomicU64::new(image.size.known().bytes),
            location,
            image: Arc::new(RwLock::new(Arc::new(image))),
            late: LateOperations::default(),
            reopening: Arc::default(),
            presence: Arc::default(),
            is_shared: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            lease: OnceLock::new(),
            patience: BUSY_AFTER,
        })
    }

    /// Operations wait this long for the cluster, instead of 20 s.
    pub fn with_patience(self, patience: Duration) -> RbdBackend {
        RbdBackend { patience, ..self }
    }

    /// Operations that wait for the cluster end as `TimedOut` within a second, and later ones at once.
    pub fn give_up(&self) {
        self.late.give_up();
    }

    /// Bytes of an object of the image.
    pub fn object_bytes(&self) -> u64 {
        self.image().layout.object_bytes
    }

    /// An object that is fenced together with the image, because it uses its client. Without `pool`, it is in the pool
    /// and the namespace of the image. It waits for the cluster.
    ///
    /// From now on, a fenced image is not opened again by itself: its operations fail with `ESHUTDOWN` until
    /// [`RbdBackend::reopen`].
    ///
    /// # Errors
    /// Those of the cluster; `NotFound` if the pool does not exist.
    pub fn shared_object(&self, pool: Option<&str>, name: &str) -> io::Result<SharedObject> {
        self.is_shared.store(true, Ordering::SeqCst);
        let namespace = if pool.is_none() { self.location.namespace.as_str() } else { "" };
        SharedObject::open(self.image().client(), pool.unwrap_or(&self.location.pool), namespace, name)
    }

    /// From now on, operations fail unless the lease admits them, and changes with `ESHUTDOWN` when they do not end in time. Call it
    /// once, for an image with [shared objects](RbdBackend::shared_object).
    pub fn serve_under(&self, lease: impl ImageLease + 'static) {
        self.is_shared.store(true, Ordering::SeqCst);
        _ = self.lease.set(Box::new(lease));
    }

    /// The name of the image.
    pub fn location(&self) -> &RbdLocation {
        &self.location
    }

    /// Cluster and identifier of the image, which no other image has.
    pub fn identity(&self) -> String {
        self.image().identity.clone()
    }

    fn image(&self) -> Arc<Image> {
        self.image.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Admits an operation within `range`.
    async fn admit(&self, range: &Range<u64>, deadline: Instant) -> io::Result<Admitted<'_>> {
        if self.presence.is_gone() {
            return Err(presence::deleted());
        }
        self.late.wait(deadline).await?;
        let image = self.image();
        if image.client().is_fenced() {
            return Err(self.fenced());
        }
        // Counted before the lease is asked, so that an idle image stays so when the lease admits nothing any more.
        let _counted = Counted::new(&self.in_flight);
        self.lease.get().map_or(Ok(()), |lease| lease.may_begin())?;
        let size = image.size.known();
        within(size.bytes, range.start, range.end - range.start)?;
        Ok(Admitted { image, size, _counted })
    }

    /// The error of an operation that has not ended in time; `lease`: of a change under a lease.
    fn expired(&self, lease: Option<&dyn ImageLease>) -> io::Error {
        let Some(lease) = lease else { return timed_out() };
        lease.has_late_operation();
        self.fenced()
    }

    /// Runs one operation within `range`. The result is that of librbd, or the reason why there is none.
    async fn run(
        &self,
        effect: IoEffect,
        range: Range<u64>,
        buf: Option<Buf>,
        begin: impl FnOnce(&Arc<Image>, Option<Buf>) -> Operation,
    ) -> (io::Result<isize>, Option<Buf>) {
        let began = Instant::now();
        let Admitted { image, size, _counted } = match self.admit(&range, began + self.patience).await {
            Ok(admitted) => admitted,
            Err(e) => return (Err(e), buf),
        };
        let len = buf.as_ref().map(|buf| buf.len());
        let mut operation = begin(&image, buf);
        let lease = self.lease.get().filter(|_| effect == IoEffect::Change).map(Box::as_ref);
        let deadline = began + lease.map_or(self.patience, |_| LATE_AFTER);
        let late = async {
            self.late.expired(deadline).await;
            None
        };
        let ended = either(async { Some((&mut operation).await) }, late).await;
        let Some((result, buf)) = ended else {
            if lease.is_none() {
                self.late.push(operation);
            }
            return (Err(self.expired(lease)), len.map(Buf::zeroed));
        };
        if image.client().remembers_fence(result) {
            return (Err(self.fenced()), buf);
        }
        // librbd cuts a write at the end of an image that has shrunk, and reports success. The size may have been read
        // before the last change.
        if !image.size.is_current(size) {
            let read = self.late.call(deadline, move || image.read_size()).await;
            let checked = read.and_then(|size| within(size, range.start, range.end - range.start));
            if let Err(e) = checked {
                let is_late = e.kind() == io::ErrorKind::TimedOut;
                return (Err(if is_late { self.expired(lease) } else { e }), buf);
            }
        }
        (Ok(result), buf)
    }

    /// Whether no operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }

    /// Clears a range, in requests of a bounded number of objects.
    async fn clear(&self, offset: u64, len: u64, flags: c_int) -> io::Result<()> {
        let mut at = offset;
        while at < offset + len {
            let piece = CLEAR_BYTES.min(offset + len - at);
            let begin = |image: &Arc<Image>, buf| {
                Operation::begin(image, buf, |library, handle, _, completion| {
                    // SAFETY: the image is open, and the completion belongs to this operation.
                    unsafe {
                        (library.rbd_aio_write_zeroes)(handle, at, piece as usize, completion, flags, 0)
                    }
                })
            };
            done(self.run(IoEffect::Change, at..at + piece, None, begin).await.0?)?;
            at += piece;
        }
        Ok(())
    }
}

/// The result and the buffer of an operation that had one.
fn with_buf((result, buf): (io::Result<()>, Option<Buf>)) -> BufResult {
    (result, buf.unwrap_or_else(|| Buf::zeroed(0)))
}

fn end_of(offset: u64, len: usize) -> Range<u64> {
    offset..offset.saturating_add(len as u64)
}

impl Backend for RbdBackend {
    fn info(&self) -> BackendInfo {
        let image = self.image();
        BackendInfo {
            capacity: image.size.known().bytes,
            read_only: image.read_only,
            unmap: !image.read_only,
            null: false,
            remote: true,
            write_through: true,
        }
    }

    /// The next call reports a new size.
    fn refresh(&self) -> bool {
        let image = self.image();
        let known = image.size.known().bytes;
        self.look(image);
        self.reported.swap(known, Ordering::SeqCst) != known
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let len = buf.len();
            let begin = |image: &Arc<Image>, buf| {
                Operation::begin(image, buf, |library, handle, memory, completion| {
                    // SAFETY: the image is open, the memory has `len` bytes and stays until the operation has ended.
                    unsafe { (library.rbd_aio_read)(handle, offset, len, memory.cast(), completion) }
                })
            };
            let (result, buf) = self.run(IoEffect::None, end_of(offset, len), Some(buf), begin).await;
            with_buf((result.and_then(|result| whole(result, len)), buf))
        })
    }

    fn write(&self, offset: u64, buf: Buf, _fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let len = buf.len();
            let begin = |image: &Arc<Image>, buf| {
                Operation::begin(image, buf, |library, handle, memory, completion| {
                    // SAFETY: the image is open, the memory has `len` bytes and stays until the operation has ended.
                    unsafe { (library.rbd_aio_write)(handle, offset, len, memory.cast(), completion) }
                })
            };
            let (result, buf) = self.run(IoEffect::Change, end_of(offset, len), Some(buf), begin).await;
            with_buf((result.and_then(done), buf))
        })
    }

    fn max_compare_and_swap(&self) -> u32 {
        self.compare_limit()
    }

    fn compare_and_swap(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, io::Result<Option<usize>>> {
        Box::pin(self.compare(offset, buf))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let begin = |image: &Arc<Image>, buf| {
                Operation::begin(image, buf, |library, handle, _, completion| {
                    // SAFETY: the image is open, and the completion belongs to this operation.
                    unsafe { (library.rbd_aio_flush)(handle, completion) }
                })
            };
            done(self.run(IoEffect::None, 0..0, None, begin).await.0?)
        })
    }

    /// Not a discard, which leaves ranges below its granularity as they are.
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.clear(offset, len, 0))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.clear(offset, len, if unmap { 0 } else { THICK }))
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            let found = self.extents(offset, len, 1).await?;
            found.into_iter().next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
        })
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            let (range, deadline) = (offset..offset.saturating_add(len), Instant::now() + self.patience);
            let Admitted { image, _counted, .. } = self.admit(&range, deadline).await?;
            if range.is_empty() {
                return Ok(Vec::new());
            }
            let of_call = image.clone();
            let found = self.late.call(deadline, move || extents::extents(&of_call, range, max)).await;
            if image.client().is_fenced() { Err(self.fenced()) } else { found }
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let image = self.image();
        vec![
            describe_row("backend", "rbd"),
            describe_row("image", &self.location),
            describe_row("identity", &image.identity),
            describe_row("capacity", image.size.known().bytes),
            describe_row("object_bytes", image.layout.object_bytes),
        ]
    }
}
