//! The exclusive lock of an image: one client at a time writes it.
//!
//! librbd passes the lock on by itself when another client writes. A client that takes it here keeps it.

use super::RbdBackend;
use super::image::{EXCLUSIVE_LOCK, Image};
use super::library::rbd_lock_mode_t;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr::null_mut;

const EXCLUSIVE: rbd_lock_mode_t = 0;
/// Clients that can hold the exclusive lock at a time.
const MAX_OWNERS: usize = 1;

impl RbdBackend {
    /// Whether the image has the feature exclusive-lock: then only one client writes it at a time.
    pub fn has_exclusive_lock(&self) -> bool {
        self.image().features & EXCLUSIVE_LOCK != 0
    }

    /// Takes the exclusive lock, and keeps it. A client that holds it is fenced. Without the feature
    /// exclusive-lock, it does nothing. It waits for the cluster.
    ///
    /// # Errors
    /// Those of the cluster; `EROFS` if another client has taken the lock meanwhile.
    pub fn take_lock(&self) -> io::Result<()> {
        let image = self.image();
        if !self.has_exclusive_lock() || image.owns_lock()? {
            return Ok(());
        }
        // Without this, librbd waits until the watch of a dead owner expires.
        for owner in image.lock_owners()? {
            image.break_lock(&owner)?;
        }
        image.acquire_lock()
    }

    /// Releases the exclusive lock, if this client has it. The caller has ended all writes. It waits for the cluster.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn release_lock(&self) -> io::Result<()> {
        let image = self.image();
        if self.has_exclusive_lock() && image.owns_lock()? { image.release_lock() } else { Ok(()) }
    }
}

impl Image {
    fn owns_lock(&self) -> io::Result<bool> {
        let ((library, handle), mut owns) = (self.parts(), 0);
        // SAFETY: the image is open, and `owns` is a place for the result.
        self.client().checked(unsafe { (library.rbd_is_exclusive_lock_owner)(handle, &mut owns) })?;
        Ok(owns != 0)
    }

    fn acquire_lock(&self) -> io::Result<()> {
        let (library, handle) = self.parts();
        // SAFETY: the image is open.
        self.client().checked(unsafe { (library.rbd_lock_acquire)(handle, EXCLUSIVE) }).map(drop)
    }

    fn release_lock(&self) -> io::Result<()> {
        let (library, handle) = self.parts();
        // SAFETY: the image is open.
        self.client().checked(unsafe { (library.rbd_lock_release)(handle) }).map(drop)
    }

    /// The names of the owners, in the form that [`Image::break_lock`] takes.
    fn lock_owners(&self) -> io::Result<Vec<CString>> {
        let (library, handle) = self.parts();
        let (mut mode, mut owners, mut len) = (EXCLUSIVE, [null_mut::<c_char>(); MAX_OWNERS], MAX_OWNERS);
        // SAFETY: the image is open, there is room for as many owners as `len` says, and the others are places for
        // results.
        let found =
            unsafe { (library.rbd_lock_get_owners)(handle, &mut mode, owners.as_mut_ptr(), &mut len) };
        match self.client().checked(found) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => drop(other?),
        }
        // SAFETY: librbd has set as many null-terminated texts as `len` says.
        let name = |owner: &*mut c_char| unsafe { std::ffi::CStr::from_ptr(*owner) }.to_owned();
        let names = owners[..len].iter().map(name).collect();
        // SAFETY: they are not used after this.
        unsafe { (library.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), len) };
        Ok(names)
    }

    fn break_lock(&self, owner: &CString) -> io::Result<()> {
        let (library, handle) = self.parts();
        // SAFETY: the image is open, and the text is null-terminated.
        let broken: c_int = unsafe { (library.rbd_lock_break)(handle, EXCLUSIVE, owner.as_ptr()) };
        match self.client().checked(broken) {
            // It has released the lock meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }
}
