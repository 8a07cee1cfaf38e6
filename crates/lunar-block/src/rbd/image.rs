//! A connection to a cluster, and an open image.
//!
//! Each image has a client of its own, because Ceph fences clients and not images. The calls here block until the
//! cluster answers.

use super::exit::Closing;
use super::library::{Library, library, rados_ioctx_t, rados_t, rbd_image_info_t, rbd_image_t};
use super::location::RbdLocation;
use crate::OpenError;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Options of each client. Without a cache of librbd, a write is on stable storage when it ends, and other clients read
/// it. The monitors answer within the time-out, or the open fails.
const OPTIONS: [(&CStr, &CStr); 3] =
    [(c"rbd_cache", c"false"), (c"client_mount_timeout", c"10"), (c"rados_mon_op_timeout", c"10")];
/// Features of created images: those that `rbd create` gives.
const FEATURES: u64 = LAYERING | EXCLUSIVE_LOCK | OBJECT_MAP | FAST_DIFF | DEEP_FLATTEN;
const LAYERING: u64 = 1;
const EXCLUSIVE_LOCK: u64 = 1 << 2;
const OBJECT_MAP: u64 = 1 << 3;
const FAST_DIFF: u64 = 1 << 4;
const DEEP_FLATTEN: u64 = 1 << 5;
/// Bytes of an image identifier with its end.
const ID_BYTES: usize = 128;
/// Bytes of a cluster identifier with its end.
const FSID_BYTES: usize = 37;

/// A client of a cluster, connected.
struct Cluster {
    library: &'static Library,
    handle: rados_t,
}

// SAFETY: librados allows calls on a handle from all threads.
unsafe impl Send for Cluster {}
// SAFETY: as for `Send`.
unsafe impl Sync for Cluster {}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: the handle was created, and nothing uses it any more.
        unsafe { (self.library.rados_shutdown)(self.handle) }
    }
}

/// A pool of a cluster, with the namespace.
struct Pool {
    handle: rados_ioctx_t,
    cluster: Cluster,
}

// SAFETY: librados allows calls on a handle from all threads.
unsafe impl Send for Pool {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the handle was created, and nothing uses it any more.
        unsafe { (self.cluster.library.rados_ioctx_destroy)(self.handle) }
    }
}

/// An open image. Operations hold it, so that it is open until the last of them has ended.
pub struct Image {
    open: Option<OpenImage>,
    /// The current size in bytes.
    size: AtomicU64,
    changes: Arc<HeaderChanges>,
    /// The changes that [`Image::take_change`] has reported.
    taken_changes: AtomicU64,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Cluster and identifier of the image.
    pub identity: String,
    pub read_only: bool,
}

struct OpenImage {
    handle: rbd_image_t,
    watch_handle: u64,
    /// The callback of librbd uses it.
    _changes: Arc<HeaderChanges>,
    pool: Pool,
}

// SAFETY: librbd allows calls on an image from all threads.
unsafe impl Send for OpenImage {}
// SAFETY: as for `Send`.
unsafe impl Sync for OpenImage {}

/// The number of changes of the header of the image: of its size, of its snapshots.
type HeaderChanges = AtomicU64;

/// A result of librados or librbd.
pub fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

fn text(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

fn path_text(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(null(), |text| text.as_ptr())
}

/// A step of opening, for the message of its failure.
struct Fault<'a> {
    location: &'a RbdLocation,
}

impl Fault<'_> {
    fn of(&self, step: &str, hint: &str) -> impl Fn(io::Error) -> OpenError + use<> {
        let (subject, step, hint) = (self.location.to_string(), step.to_owned(), hint.to_owned());
        move |e| {
            let os = e.raw_os_error().map(|code| rustix::io::Errno::from_raw_os_error(code).to_string());
            let why = os.unwrap_or_else(|| e.to_string()).to_lowercase();
            OpenError::new(subject.clone(), format!("{step}: {why}"), hint.clone()).of(e.kind())
        }
    }
}

impl Cluster {
    fn connect(location: &RbdLocation) -> Result<Cluster, OpenError> {
        let (library, fault) = (library()?, Fault { location });
        let user = format!("client.{}", location.user.as_deref().unwrap_or("admin"));
        let name = location.cluster.as_deref().unwrap_or("ceph");
        let create = || -> io::Result<Cluster> {
            let (name, user, mut handle) = (text(name)?, text(&user)?, null_mut());
            // SAFETY: the texts are null-terminated, and the handle is a place for the result.
            checked(unsafe { (library.rados_create2)(&mut handle, name.as_ptr(), user.as_ptr(), 0) })?;
            Ok(Cluster { library, handle })
        };
        let cluster = create().map_err(fault.of("cannot make a client", "check user and cluster"))?;
        cluster
            .configure(location)
            .map_err(fault.of("cannot read the configuration of Ceph", "check `conf` and its permissions"))?;
        // SAFETY: the handle was created.
        checked(unsafe { (library.rados_connect)(cluster.handle) }).map_err(|e| {
            let hint = match e.kind() {
                io::ErrorKind::TimedOut => "check that the monitors run and can be reached",
                io::ErrorKind::PermissionDenied => "check that the keyring has the key of this user",
                _ => "check user, keyring and the configuration of Ceph: ceph -n client.USER -s",
            };
            fault.of(&format!("cannot connect to the cluster as {user}"), hint)(e)
        })?;
        Ok(cluster)
    }

    fn configure(&self, location: &RbdLocation) -> io::Result<()> {
        let conf = location.conf.as_deref().map(path_text).transpose()?;
        // SAFETY: the handle was created, and the text is null-terminated or null for the usual files.
        let read = unsafe { (self.library.rados_conf_read_file)(self.handle, pointer(&conf)) };
        match checked(read) {
            // A cluster can be configured by the environment alone.
            Err(e) if conf.is_none() && e.kind() == io::ErrorKind::NotFound => {}
            other => drop(other?),
        }
        if let Some(keyring) = &location.keyring {
            // librados would report a missing file as a refused key.
            std::fs::File::open(keyring)?;
            self.set(c"keyring", &path_text(keyring)?)?;
        }
        OPTIONS.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    fn set(&self, key: &CStr, value: &CStr) -> io::Result<()> {
        // SAFETY: the handle was created, and the texts are null-terminated.
        checked(unsafe { (self.library.rados_conf_set)(self.handle, key.as_ptr(), value.as_ptr()) }).map(drop)
    }

    fn id(&self) -> io::Result<String> {
        let mut id = [0u8; FSID_BYTES];
        // SAFETY: the buffer has this length.
        let got = unsafe { (self.library.rados_cluster_fsid)(self.handle, id.as_mut_ptr().cast(), id.len()) };
        checked(got)?;
        Ok(until_zero(&id))
    }
}

fn until_zero(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().into_owned()
}

impl Pool {
    fn open(cluster: Cluster, location: &RbdLocation) -> Result<Pool, OpenError> {
        let fault = Fault { location }.of("cannot open the pool", "check the pool: ceph osd pool ls");
        let (name, namespace) =
            text(&location.pool).and_then(|name| Ok((name, text(&location.namespace)?))).map_err(&fault)?;
        let mut handle = null_mut();
        // SAFETY: the cluster is connected, and the name is null-terminated.
        let got = unsafe { (cluster.library.rados_ioctx_create)(cluster.handle, name.as_ptr(), &mut handle) };
        checked(got).map_err(fault)?;
        let pool = Pool { handle, cluster };
        // SAFETY: the pool is open, and the namespace is null-terminated. Writes to a full pool fail instead of waiting:
        // this must be set before the image is opened.
        unsafe {
            (pool.cluster.library.rados_ioctx_set_namespace)(pool.handle, namespace.as_ptr());
            (pool.cluster.library.rados_set_pool_full_try)(pool.handle);
        }
        Ok(pool)
    }

    /// Creates an image of `size` bytes. One that exists is left alone.
    fn create(&self, location: &RbdLocation, size: u64) -> Result<(), OpenError> {
        let fault = Fault { location }.of("cannot create the image", "check the permissions of the user");
        let name = text(&location.image).map_err(&fault)?;
        let mut order: c_int = 0;
        // SAFETY: the pool is open, and the name is null-terminated. Zeros stand for the usual values.
        let created = unsafe {
            (self.cluster.library.rbd_create3)(self.handle, name.as_ptr(), size, FEATURES, &mut order, 0, 0)
        };
        match checked(created) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop).map_err(fault),
        }
    }

    fn open_image(&self, location: &RbdLocation, read_only: bool) -> io::Result<rbd_image_t> {
        let (name, library) = (text(&location.image)?, self.cluster.library);
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
/// The argument is the counter of the image, which outlives the callbacks.
// SAFETY: the contract is above.
unsafe extern "C" fn header_changed(changes: *mut c_void) {
    // SAFETY: the image holds the counter until it is closed.
    let changes = unsafe { &*changes.cast::<HeaderChanges>() };
    changes.fetch_add(1, Ordering::SeqCst);
}

impl Image {
    /// Opens an image; a snapshot is read-only. With `create`, an image that does not exist is created with this size.
    ///
    /// # Errors
    /// When a library is missing, the cluster does not answer within 10 s or refuses the user, or the image is missing.
    pub fn open(location: &RbdLocation, read_only: bool, create: Option<u64>) -> Result<Image, OpenError> {
        let read_only = read_only || location.snapshot.is_some();
        let pool = Pool::open(Cluster::connect(location)?, location)?;
        let mut opened = pool.open_image(location, read_only);
        if let (Err(e), Some(size)) = (&opened, create)
            && e.kind() == io::ErrorKind::NotFound
        {
            pool.create(location, size)?;
            opened = pool.open_image(location, read_only);
        }
        let fault = Fault { location };
        let hint = "check the image: rbd ls POOL; or add a size to create it";
        let handle = opened.map_err(fault.of("cannot open the image", hint))?;
        let changes = Arc::<HeaderChanges>::default();
        let mut open = OpenImage { handle, watch_handle: 0, _changes: changes.clone(), pool };
        match open.examine(&changes) {
            Ok((size, object_bytes, identity)) => {
                let size = AtomicU64::new(size);
                let taken_changes = AtomicU64::new(0);
                Ok(Image {
                    open: Some(open),
                    size,
                    changes,
                    taken_changes,
                    object_bytes,
                    identity,
                    read_only,
                })
            }
            Err(e) => {
                open.close();
                Err(fault.of("cannot read the image", "check the cluster: ceph -s")(e))
            }
        }
    }

    /// The functions, and the handle of the image.
    pub fn parts(&self) -> (&'static Library, rbd_image_t) {
        let open = self.open.as_ref().expect("an image is open until dropped");
        (open.pool.cluster.library, open.handle)
    }

    /// The last known size in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    /// The number of changes of the header so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Whether the header has changed since the last call.
    pub fn take_change(&self) -> bool {
        let now = self.changes();
        self.taken_changes.swap(now, Ordering::SeqCst) != now
    }

    /// Reads the size. It may wait for the cluster.
    pub fn read_size(&self) -> io::Result<u64> {
        let ((library, handle), mut size) = (self.parts(), 0);
        // SAFETY: the image is open, and `size` is a place for the result.
        checked(unsafe { (library.rbd_get_size)(handle, &mut size) })?;
        self.size.store(size, Ordering::SeqCst);
        Ok(size)
    }
}

impl Drop for Image {
    /// Closing waits for the cluster, and must not happen on a thread of librbd, which may drop the last operation.
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let (thread, closing) = (std::thread::Builder::new().name("rbd-close".into()), Closing::begin());
            let close = move || {
                open.close();
                drop(closing);
            };
            // Without a thread, the image stays open until the process ends.
            drop(thread.spawn(close));
        }
    }
}

impl OpenImage {
    /// Begins to watch the header, and reads the size, the bytes of an object, and the identity.
    fn examine(&mut self, changes: &Arc<HeaderChanges>) -> io::Result<(u64, u64, String)> {
        let library = self.pool.cluster.library;
        let argument = Arc::as_ptr(changes).cast_mut().cast();
        // SAFETY: the image is open. It holds the watch until it is closed.
        let watched = unsafe {
            (library.rbd_update_watch)(self.handle, &mut self.watch_handle, header_changed, argument)
        };
        checked(watched)?;
        let mut info = std::mem::MaybeUninit::<rbd_image_info_t>::zeroed();
        let mut id = [0u8; ID_BYTES];
        // SAFETY: the image is open, and both buffers have these lengths. All-zero bytes are a valid structure.
        let info = unsafe {
            checked((library.rbd_stat)(self.handle, info.as_mut_ptr(), size_of::<rbd_image_info_t>()))?;
            checked((library.rbd_get_id)(self.handle, id.as_mut_ptr().cast(), id.len()))?;
            info.assume_init()
        };
        Ok((info.size, info.obj_size, format!("{} {}", self.pool.cluster.id()?, until_zero(&id))))
    }

    fn close(self) {
        let library = self.pool.cluster.library;
        // SAFETY: the image is open, and its operations have ended. After it, no callback uses the watch.
        unsafe {
            (library.rbd_update_unwatch)(self.handle, self.watch_handle);
            (library.rbd_close)(self.handle);
        }
        // The pool and the client go with it.
        drop(self);
    }
}
