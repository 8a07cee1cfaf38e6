//! An open image.
//!
//! Each image has a client of its own, because Ceph fences clients and not images. The calls here block until the
//! cluster answers.

use super::client::{Fault, Pool, RadosClient, checked, pointer, text, until_zero};
use super::exit::on_closing_thread;
use super::library::{Library, rbd_image_info_t, rbd_image_t};
use super::location::RbdLocation;
use super::size::ImageSize;
use crate::OpenError;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

/// Features of created images: those that `rbd create` gives.
pub const USUAL_FEATURES: u64 = LAYERING | EXCLUSIVE_LOCK | OBJECT_MAP | FAST_DIFF | DEEP_FLATTEN;
const LAYERING: u64 = 1;
/// Features of an image that several clients write at a time.
pub const SHARED_FEATURES: u64 = LAYERING | DEEP_FLATTEN;
/// The feature of an image that only one client writes at a time.
pub const EXCLUSIVE_LOCK: u64 = 1 << 2;
const OBJECT_MAP: u64 = 1 << 3;
const FAST_DIFF: u64 = 1 << 4;
const DEEP_FLATTEN: u64 = 1 << 5;
/// Bytes of an image identifier with its end.
const ID_BYTES: usize = 128;

/// An open image. Operations hold it, so that it is open until the last of them has ended.
pub struct Image {
    open: Option<OpenImage>,
    pub size: Arc<ImageSize>,
    pub layout: Layout,
    /// The features at the time at which it was opened.
    pub features: u64,
    /// Cluster and identifier of the image.
    pub identity: String,
    pub read_only: bool,
}

/// How the bytes of an image are distributed over objects.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Bytes of an object, a power of two.
    pub object_bytes: u64,
    /// Bytes of the image that are adjacent in an object: all of it, or a power of two that divides it.
    pub stripe_unit_bytes: u64,
}

/// The properties of an image at the time at which it is opened.
struct ImageProperties {
    layout: Layout,
    features: u64,
    identity: String,
}

struct OpenImage {
    handle: rbd_image_t,
    watch_handle: u64,
    /// The callback of librbd uses it.
    _size: Arc<ImageSize>,
    pool: Pool,
}

// SAFETY: librbd allows calls on an image from all threads.
unsafe impl Send for OpenImage {}
// SAFETY: as for `Send`.
unsafe impl Sync for OpenImage {}

impl Pool {
    /// Creates an image of `size` bytes. One that exists is left alone.
    fn create(&self, location: &RbdLocation, size: u64, features: u64) -> Result<(), OpenError> {
        let fault = Fault { location }.of("cannot create the image", "check the permissions of the user");
        let name = text(&location.image).map_err(&fault)?;
        let mut order: c_int = 0;
        // SAFETY: the pool is open, and the name is null-terminated. Zeros stand for the usual values.
        let created = unsafe {
            (self.client.library.rbd_create3)(self.handle, name.as_ptr(), size, features, &mut order, 0, 0)
        };
        match checked(created) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop).map_err(fault),
        }
    }

    fn open_image(&self, location: &RbdLocation, read_only: bool) -> io::Result<rbd_image_t> {
        let (name, library) = (text(&location.image)?, self.client.library);
        let snapshot = location.snapshot.as_deref().map(text).transpose()?;
        let mut image = null_mut();
        let open = if read_only { library.rbd_open_read_only } else { library.rbd_open };
        // SAFETY: the pool is open, and the texts are null-terminated; null stands for the image itself.
        checked(unsafe { open(self.handle, name.as_ptr(), &mut image, pointer(&snapshot)) })?;
        Ok(image)
    }
}

/// Called by librbd when the header has changed.
///
/// # Safety
/// The argument is the size of the image, which outlives the callbacks.
// SAFETY: the contract is above.
unsafe extern "C" fn header_changed(size: *mut c_void) {
    // SAFETY: the image holds it until it is closed.
    let size = unsafe { &*size.cast::<ImageSize>() };
    size.has_changed();
}

impl Image {
    /// Opens an image; a snapshot is read-only. With `create`, an image that does not exist is created with this size
    /// and these features.
    ///
    /// # Errors
    /// When a library is missing, the cluster does not answer within 10 s or refuses the user, the image is missing, or
    /// librbd would cache it. `NotFound` only if the image is missing.
    pub fn open(
        location: &RbdLocation,
        read_only: bool,
        create: Option<(u64, u64)>,
    ) -> Result<Image, OpenError> {
        let read_only = read_only || location.snapshot.is_some();
        let (client, fault) = (Arc::new(RadosClient::connect(location)?), Fault { location });
        let pool = Pool::open(client, &location.pool, &location.namespace)
            .map_err(fault.of("cannot open the pool", "check the pool: ceph osd pool ls"))?;
        let mut opened = pool.open_image(location, read_only);
        if let (Err(e), Some((size, features))) = (&opened, create)
            && e.kind() == io::ErrorKind::NotFound
        {
            pool.create(location, size, features)?;
            opened = pool.open_image(location, read_only);
        }
        let hint = "check the image: rbd ls POOL; or add a size to create it";
        let failed = fault.of("cannot open the image", hint);
        let handle = opened.map_err(|e| {
            let kind = e.kind();
            failed(e).of(kind)
        })?;
        let size = Arc::new(ImageSize::new());
        let mut open = OpenImage { handle, watch_handle: 0, _size: size.clone(), pool };
        match open.examine(&size) {
            Ok(ImageProperties { layout, features, identity }) => {
                let open = Some(open);
                let image = Image { open, size, layout, features, identity, read_only };
                image.refuse_cache(location)?;
                Ok(image)
            }
            Err(e) => {
                open.close();
                Err(fault.of("cannot read the image", "check the cluster: ceph -s")(e))
            }
        }
    }

    fn open_image(&self) -> &OpenImage {
        self.open.as_ref().expect("an image is open until dropped")
    }

    /// The client. Objects that must be fenced together with the image use it too.
    pub fn client(&self) -> &Arc<RadosClient> {
        &self.open_image().pool.client
    }

    /// The functions, and the handle of the image.
    pub fn parts(&self) -> (&'static Library, rbd_image_t) {
        let open = self.open_image();
        (open.pool.client.library, open.handle)
    }

    /// Whether the image has no header any more. It may wait for the cluster.
    pub fn is_missing(&self) -> bool {
        let (pool, (mut bytes, mut time)) = (&self.open_image().pool, (0, 0));
        let Ok(header) = text(&format!("rbd_header.{}", self.id())) else { return false };
        // SAFETY: the pool is open, the name is null-terminated, and the others are places for the result.
        let found =
            unsafe { (pool.client.library.rados_stat)(pool.handle, header.as_ptr(), &mut bytes, &mut time) };
        pool.client.checked(found).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    }

    /// The identifier of the image in its pool.
    fn id(&self) -> &str {
        self.identity.rsplit(' ').next().unwrap_or_default()
    }

    /// Reads the size. It may wait for the cluster.
    pub fn read_size(&self) -> io::Result<u64> {
        self.size.read(|| {
            let ((library, handle), mut bytes) = (self.parts(), 0);
            // SAFETY: the image is open, and `bytes` is a place for the result.
            self.client().checked(unsafe { (library.rbd_get_size)(handle, &mut bytes) })?;
            Ok(bytes)
        })
    }
}

impl Drop for Image {
    /// Closing waits for the cluster, and must not happen on a thread of librbd, which may drop the last operation.
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            on_closing_thread("rbd-close", move || open.close());
        }
    }
}

impl OpenImage {
    /// Begins to watch the header, and reads the size, the layout, and the identity.
    fn examine(&mut self, size: &Arc<ImageSize>) -> io::Result<ImageProperties> {
        let library = self.pool.client.library;
        let argument = Arc::as_ptr(size).cast_mut().cast();
        // SAFETY: the image is open. It holds the watch until it is closed.
        let watched = unsafe {
            (library.rbd_update_watch)(self.handle, &mut self.watch_handle, header_changed, argument)
        };
        checked(watched)?;
        let mut info = std::mem::MaybeUninit::<rbd_image_info_t>::zeroed();
        let (mut id, mut stripe_unit_bytes, mut features) = ([0u8; ID_BYTES], 0, 0);
        // SAFETY: the image is open, and the buffers have these lengths. All-zero bytes are a valid structure.
        let info = unsafe {
            size.read(|| {
                checked((library.rbd_stat)(self.handle, info.as_mut_ptr(), size_of::<rbd_image_info_t>()))?;
                Ok((*info.as_ptr()).size)
            })?;
            checked((library.rbd_get_id)(self.handle, id.as_mut_ptr().cast(), id.len()))?;
            checked((library.rbd_get_stripe_unit)(self.handle, &mut stripe_unit_bytes))?;
            checked((library.rbd_get_features)(self.handle, &mut features))?;
            info.assume_init()
        };
        let layout = Layout { object_bytes: info.obj_size, stripe_unit_bytes };
        let identity = format!("{} {}", self.pool.client.cluster_id()?, until_zero(&id));
        Ok(ImageProperties { layout, features, identity })
    }

    fn close(self) {
        let library = self.pool.client.library;
        // SAFETY: the image is open, and its operations have ended. After it, no callback uses the watch.
        unsafe {
            (library.rbd_update_unwatch)(self.handle, self.watch_handle);
            (library.rbd_close)(self.handle);
        }
        // The pool and the client go with it.
        drop(self);
    }
}
