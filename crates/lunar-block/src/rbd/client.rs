//! A client of a Ceph cluster, and the pools that it has open. The calls here block until the cluster answers.

use super::exit::on_closing_thread;
use super::library::{Library, library, rados_ioctx_t, rados_t};
use super::location::RbdLocation;
use crate::OpenError;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Options of each client. Without a cache of librbd, a write is on stable storage when it ends, and other clients read
/// it. The monitors answer within the time-out, or the open fails.
const OPTIONS: [(&CStr, &CStr); 3] =
    [(c"rbd_cache", c"false"), (c"client_mount_timeout", c"10"), (c"rados_mon_op_timeout", c"10")];
/// As [`OPTIONS`], but Ceph before 16 does not know them: the persistent cache, which is a plugin.
const PLUGIN_OPTIONS: [(&CStr, &CStr); 2] =
    [(c"rbd_plugins", c""), (c"rbd_persistent_cache_mode", c"disabled")];
/// The option with the number of threads that begin and end operations.
const THREADS: &CStr = c"librados_thread_count";
/// Its default, and its value here. The callbacks are short: two threads wake each other more than they share the work.
const DEFAULT_THREADS: &str = "2";
const OUR_THREADS: &CStr = c"1";
/// Bytes of the value of an option with its end.
const OPTION_BYTES: usize = 64;
/// Bytes of a cluster identifier with its end.
const FSID_BYTES: usize = 37;
/// The bits of a mode that let other users access a file.
const OTHERS: u32 = 0o007;
/// The error of a client that the cluster has fenced.
const FENCED: isize = -(rustix::io::Errno::SHUTDOWN.raw_os_error() as isize);

/// A client of a cluster, connected. Ceph fences clients, not images and objects.
pub struct RadosClient {
    pub library: &'static Library,
    pub handle: rados_t,
    fenced: AtomicBool,
}

// SAFETY: librados allows calls on a handle from all threads.
unsafe impl Send for RadosClient {}
// SAFETY: as for `Send`.
unsafe impl Sync for RadosClient {}

/// A handle on its way to the thread that shuts it down.
struct LastHandle(rados_t);

// SAFETY: librados allows calls on a handle from all threads.
unsafe impl Send for LastHandle {}

impl Drop for RadosClient {
    /// A shut-down waits for the threads of librados, one of which may drop the last reference.
    fn drop(&mut self) {
        let (library, last) = (self.library, LastHandle(self.handle));
        on_closing_thread("rados-shutdown", move || {
            let LastHandle(handle) = { last };
            // SAFETY: the handle was created, and nothing uses it any more.
            unsafe { (library.rados_shutdown)(handle) }
        });
    }
}

/// A pool of a cluster, with the namespace.
pub struct Pool {
    pub handle: rados_ioctx_t,
    pub client: Arc<RadosClient>,
}

// SAFETY: librados allows calls on a handle from all threads.
unsafe impl Send for Pool {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the handle was created, and nothing uses it any more.
        unsafe { (self.client.library.rados_ioctx_destroy)(self.handle) }
    }
}

/// A result of librados or librbd.
pub fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

pub fn text(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

fn path_text(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

/// Checks the file of a configured keyring. librados would report a missing one as a refused key.
fn check_keyring(location: &RbdLocation, keyring: &Path) -> Result<(), OpenError> {
    use std::os::unix::fs::MetadataExt;
    let (fault, shown) = (Fault { location }, keyring.display());
    let metadata = File::open(keyring).and_then(|file| file.metadata()).map_err(fault.of(
        &format!("cannot read the keyring {shown}"),
        "check `keyring`, and that the user of the server may read the file",
    ))?;
    if metadata.mode() & OTHERS == 0 {
        return Ok(());
    }
    let mode = metadata.mode() & 0o7777;
    let what = format!("the keyring {shown} has mode {mode:04o}: all users can access it");
    Err(OpenError::new(location.to_string(), what, format!("run: chmod 0640 {shown}"))
        .of(io::ErrorKind::InvalidInput))
}

pub fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(null(), |text| text.as_ptr())
}

pub fn until_zero(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().into_owned()
}

/// A step of opening, for the message of its failure. Its kind is never `NotFound`, which stands for a missing image: not
/// for a file of the configuration or a pool.
pub struct Fault<'a> {
    pub location: &'a RbdLocation,
}

impl Fault<'_> {
    pub fn of(&self, step: &str, hint: &str) -> impl Fn(io::Error) -> OpenError + use<> {
        let (subject, step, hint) = (self.location.to_string(), step.to_owned(), hint.to_owned());
        move |e| {
            let os = e.raw_os_error().map(|code| rustix::io::Errno::from_raw_os_error(code).to_string());
            let why = os.unwrap_or_else(|| e.to_string()).to_lowercase();
            let kind = Some(e.kind()).filter(|kind| *kind != io::ErrorKind::NotFound);
            let error = OpenError::new(subject.clone(), format!("{step}: {why}"), hint.clone());
            error.of(kind.unwrap_or(io::ErrorKind::Other))
        }
    }
}

impl RadosClient {
    pub fn connect(location: &RbdLocation) -> Result<RadosClient, OpenError> {
        let (library, fault) = (library()?, Fault { location });
        let user = format!("client.{}", location.user.as_deref().unwrap_or("admin"));
        let name = location.cluster.as_deref().unwrap_or("ceph");
        let create = || -> io::Result<RadosClient> {
            let (name, user, mut handle) = (text(name)?, text(&user)?, null_mut());
            // SAFETY: the texts are null-terminated, and the handle is a place for the result.
            checked(unsafe { (library.rados_create2)(&mut handle, name.as_ptr(), user.as_ptr(), 0) })?;
            Ok(RadosClient { library, handle, fenced: AtomicBool::new(false) })
        };
        let client = create().map_err(fault.of("cannot make a client", "check user and cluster"))?;
        location.keyring.as_deref().map_or(Ok(()), |keyring| check_keyring(location, keyring))?;
        client
            .configure(location)
            .map_err(fault.of("cannot read the configuration of Ceph", "check `conf` and its permissions"))?;
        // SAFETY: the handle was created.
        checked(unsafe { (library.rados_connect)(client.handle) }).map_err(|e| {
            let hint = match e.kind() {
                io::ErrorKind::TimedOut => "check that the monitors run and can be reached",
                io::ErrorKind::PermissionDenied => "check that the keyring has the key of this user",
                _ => "check user, keyring and the configuration of Ceph: ceph -n client.USER -s",
            };
            fault.of(&format!("cannot connect to the cluster as {user}"), hint)(e)
        })?;
        Ok(client)
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
            self.set(c"keyring", &path_text(keyring)?)?;
        }
        // Another value is the choice of the administrator. Ceph before 16 does not know the option.
        if self.get(THREADS).is_ok_and(|threads| threads == DEFAULT_THREADS) {
            self.set(THREADS, OUR_THREADS)?;
        }
        PLUGIN_OPTIONS.iter().try_for_each(|(key, value)| match self.set(key, value) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        })?;
        OPTIONS.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    fn get(&self, key: &CStr) -> io::Result<String> {
        let mut value = [0u8; OPTION_BYTES];
        // SAFETY: the handle was created, the text is null-terminated, and the buffer has this length.
        let got = unsafe {
            (self.library.rados_conf_get)(self.handle, key.as_ptr(), value.as_mut_ptr().cast(), value.len())
        };
        checked(got)?;
        Ok(until_zero(&value))
    }

    /// Sets an option of Ceph.
    pub fn set(&self, key: &CStr, value: &CStr) -> io::Result<()> {
        // SAFETY: the handle was created, and the texts are null-terminated.
        checked(unsafe { (self.library.rados_conf_set)(self.handle, key.as_ptr(), value.as_ptr()) }).map(drop)
    }

    /// The identifier of the cluster.
    pub fn cluster_id(&self) -> io::Result<String> {
        let mut id = [0u8; FSID_BYTES];
        // SAFETY: the buffer has this length.
        let got = unsafe { (self.library.rados_cluster_fsid)(self.handle, id.as_mut_ptr().cast(), id.len()) };
        checked(got)?;
        Ok(until_zero(&id))
    }

    /// A result of an operation of this client: the error of a fenced client is remembered.
    pub fn checked(&self, result: c_int) -> io::Result<c_int> {
        self.remembers_fence(result as isize);
        checked(result)
    }

    /// Whether this result is the error of a fenced client, which is remembered.
    pub fn remembers_fence(&self, result: isize) -> bool {
        if result == FENCED {
            self.fenced.store(true, Ordering::SeqCst);
        }
        result == FENCED
    }

    /// Admits an operation. A fenced client stays fenced when its entry in the blocklist has expired: its state is old.
    pub fn admit(&self) -> io::Result<()> {
        if self.is_fenced() { Err(rustix::io::Errno::SHUTDOWN.into()) } else { Ok(()) }
    }

    /// Whether the cluster has refused an operation because it has fenced this client.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }
}

impl Pool {
    pub fn open(client: Arc<RadosClient>, name: &str, namespace: &str) -> io::Result<Pool> {
        let (name, namespace, mut handle) = (text(name)?, text(namespace)?, null_mut());
        // SAFETY: the client is connected, and the name is null-terminated.
        let got = unsafe { (client.library.rados_ioctx_create)(client.handle, name.as_ptr(), &mut handle) };
        client.checked(got)?;
        let pool = Pool { handle, client };
        // SAFETY: the pool is open, and the namespace is null-terminated. Writes to a full pool fail instead of waiting:
        // this must be set before the image is opened.
        unsafe {
            (pool.client.library.rados_ioctx_set_namespace)(pool.handle, namespace.as_ptr());
            (pool.client.library.rados_set_pool_full_try)(pool.handle);
        }
        Ok(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keyring_that_all_users_can_access_is_refused() {
        let file = std::env::temp_dir().join(format!("lunar-keyring-{}", std::process::id()));
        write(&file, "").expect("a file");
        let location = RbdLocation::parse("rbd:p/i").expect("an image");
        let check = |mode| {
            set_permissions(&file, Permissions::from_mode(mode)).expect("a mode");
            check_keyring(&location, &file)
        };
        for mode in [0o600, 0o640] {
            assert_eq!(check(mode), Ok(()), "{mode:o}");
        }
        for mode in [0o644, 0o602] {
            let e = check(mode).expect_err("it is open to others");
            assert!(e.what.contains(&format!("has mode 0{mode:o}: all users can access it")), "{e}");
            assert_eq!(e.hint, format!("run: chmod 0640 {}", file.display()));
        }
        std::fs::remove_file(&file).expect("a file");
        let e = check_keyring(&location, &file).expect_err("it is missing");
        assert!(
            e.what.contains("no such file") && e.kind != io::ErrorKind::NotFound,
            "the image may exist: {e}"
        );
    }
}
