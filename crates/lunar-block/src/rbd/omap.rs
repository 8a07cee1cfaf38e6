//! Keys and values of an object: atomic reads and conditional changes.

use super::client::{Pool, text};
use super::library::{Library, rados_omap_iter_t, rados_write_op_t};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::ptr::null_mut;

/// The most keys of an object. Ceph returns as many in one operation, so that a read is atomic.
const MAX_KEYS: u64 = 1024;
/// Creates the object if it is missing (`LIBRADOS_CREATE_IDEMPOTENT`).
const CREATE_MISSING: c_int = 0;
/// Compares for equality (`LIBRADOS_CMPXATTR_OP_EQ`).
const EQUAL: u8 = 1;

/// Changes of an object that happen together. librados copies keys and values.
pub struct WriteOperation {
    library: &'static Library,
    handle: rados_write_op_t,
}

impl Drop for WriteOperation {
    fn drop(&mut self) {
        // SAFETY: the operation was created, and nothing uses it any more.
        unsafe { (self.library.rados_release_write_op)(self.handle) }
    }
}

impl WriteOperation {
    /// Creates the object if it is missing.
    pub fn new(library: &'static Library) -> WriteOperation {
        // SAFETY: it has no preconditions.
        let operation = WriteOperation { library, handle: unsafe { (library.rados_create_write_op)() } };
        // SAFETY: the operation was created. Null stands for no category.
        unsafe { (library.rados_write_op_create)(operation.handle, CREATE_MISSING, std::ptr::null()) };
        operation
    }

    /// Fails the operation unless the key has this value. An absent key has an empty value.
    pub fn compare(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let (key, start, len) = (text(key)?, value.as_ptr().cast(), value.len());
        // SAFETY: the operation was created, the key is null-terminated, and the value has this length.
        unsafe {
            (self.library.rados_write_op_omap_cmp)(self.handle, key.as_ptr(), EQUAL, start, len, null_mut());
        }
        Ok(())
    }

    pub fn set(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let (key, start, len) = (text(key)?, value.as_ptr().cast(), value.len());
        // SAFETY: as in `compare`; the arrays have one element.
        unsafe { (self.library.rados_write_op_omap_set)(self.handle, &key.as_ptr(), &start, &len, 1) }
        Ok(())
    }

    pub fn remove(&self, key: &str) -> io::Result<()> {
        let key = text(key)?;
        // SAFETY: as in `compare`; the array has one element.
        unsafe { (self.library.rados_write_op_omap_rm_keys)(self.handle, &key.as_ptr(), 1) }
        Ok(())
    }

    /// Makes the changes. False if a comparison has failed.
    pub fn run(self, pool: &Pool, name: &CStr) -> io::Result<bool> {
        pool.client.admit()?;
        // SAFETY: pool and operation exist, and the name is null-terminated. Null stands for the current time.
        let result = unsafe {
            (self.library.rados_write_op_operate2)(self.handle, pool.handle, name.as_ptr(), null_mut(), 0)
        };
        match pool.client.checked(result) {
            Err(e) if e.raw_os_error() == Some(libc::ECANCELED) => Ok(false),
            other => other.map(|_| true),
        }
    }
}

/// A list of pairs that librados owns.
struct PairList<'a> {
    pool: &'a Pool,
    position: rados_omap_iter_t,
}

impl Drop for PairList<'_> {
    fn drop(&mut self) {
        // SAFETY: the list was created, and nothing uses it any more.
        unsafe { (self.pool.client.library.rados_omap_get_end)(self.position) }
    }
}

impl PairList<'_> {
    /// The next pair.
    fn next(&mut self) -> io::Result<Option<(String, Vec<u8>)>> {
        let (mut key, mut value, mut len) = (null_mut::<c_char>(), null_mut::<c_char>(), 0);
        // SAFETY: the list exists, and the places for results have these types.
        let result = unsafe {
            (self.pool.client.library.rados_omap_get_next)(self.position, &mut key, &mut value, &mut len)
        };
        self.pool.client.checked(result)?;
        if key.is_null() {
            return Ok(None);
        }
        // SAFETY: the key is null-terminated, the value has this length, and both stay until the end of the list.
        let (key, value) = unsafe { (CStr::from_ptr(key), bytes(value, len)) };
        let key = key.to_str().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(Some((key.to_owned(), value.to_vec())))
    }
}

/// Bytes that librados owns; an empty value has no address.
///
/// # Safety
/// The address is null, or that of this many bytes, which stay as long as the result.
// SAFETY: the contract is above.
pub unsafe fn bytes<'a>(start: *const c_char, len: usize) -> &'a [u8] {
    // SAFETY: by the contract.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start.cast(), len) } }
}

/// All pairs of an object that exists.
pub fn read(pool: &Pool, name: &CStr) -> io::Result<BTreeMap<String, Vec<u8>>> {
    pool.client.admit()?;
    let (library, mut position, mut more, mut status) = (pool.client.library, null_mut(), 0, 0);
    // SAFETY: the pool is open, the texts are null-terminated, and the places for results outlive the operation.
    let result = unsafe {
        let (operation, any) = ((library.rados_create_read_op)(), c"".as_ptr());
        (library.rados_read_op_omap_get_vals2)(
            operation,
            any,
            any,
            MAX_KEYS,
            &mut position,
            &mut more,
            &mut status,
        );
        let result = (library.rados_read_op_operate)(operation, pool.handle, name.as_ptr(), 0);
        (library.rados_release_read_op)(operation);
        result
    };
    // A failed operation has made a list, too.
    let mut list = PairList { pool, position };
    pool.client.checked(result)?;
    if more != 0 {
        let what = format!("the object has more than {MAX_KEYS} keys");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    std::iter::from_fn(|| list.next().transpose()).collect()
}
