//! librados and librbd, loaded at first use.
#![allow(non_camel_case_types)]

use super::exit;
use crate::OpenError;
use libc::{time_t, timespec};
use lunar_runtime::library_functions;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::OnceLock;

/// A connection to a cluster.
pub type rados_t = *mut c_void;
/// A pool of a cluster.
pub type rados_ioctx_t = *mut c_void;
/// An open image.
pub type rbd_image_t = *mut c_void;
/// A running operation.
pub type rbd_completion_t = *mut c_void;
/// The mode of a lock: 0 stands for exclusive.
pub type rbd_lock_mode_t = c_int;
/// Changes of an object that are made together.
pub type rados_write_op_t = *mut c_void;
/// Reads of an object that are made together.
pub type rados_read_op_t = *mut c_void;
/// A position in a list of keys and values.
pub type rados_omap_iter_t = *mut c_void;
/// The properties of an image. The prefix and the parent are deprecated fields of fixed size.
#[repr(C)]
pub struct rbd_image_info_t {
    pub size: u64,
    pub obj_size: u64,
    pub num_objs: u64,
    pub order: c_int,
    pub block_name_prefix: [c_char; 24],
    pub parent_pool: i64,
    pub parent_name: [c_char; 96],
}

/// Defines the types of functions that the libraries call.
macro_rules! callbacks {
    ($($(#[$doc:meta])* $name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            $(#[$doc])*
            // SAFETY: a type.
            pub type $name = unsafe extern "C" fn($($arg),*) $(-> $ret)?;
        )*

        /// The name, the arguments and the result of each callback.
        #[cfg(test)]
        pub const CALLBACKS: &[(&str, &[&str], &str)] =
            &[$((stringify!($name), &[$(stringify!($arg)),*], concat!($(stringify!($ret))?)),)*];
    };
}

callbacks! {
    /// Called on a thread of librados for a notification: the argument, notification, watch, sender, payload, its length.
    rados_watchcb2_t(*mut c_void, u64, u64, u64, *mut c_void, usize);
    /// Called on a thread of librados when a watch has failed: the argument, the watch, and the error.
    rados_watcherrcb_t(*mut c_void, u64, c_int);
    /// Called on a thread of librbd when an operation has ended.
    rbd_callback_t(rbd_completion_t, *mut c_void);
    /// Called on a thread of librbd when the image was changed.
    rbd_update_callback_t(*mut c_void);
    /// Called for each range: offset, length, whether it exists, and the argument.
    rbd_diff_callback_t(u64, usize, c_int, *mut c_void) -> c_int;
}

library_functions! {
    "librados.so.2" {
        rados_create2(*mut rados_t, *const c_char, *const c_char, u64) -> c_int;
        rados_conf_read_file(rados_t, *const c_char) -> c_int;
        rados_conf_get(rados_t, *const c_char, *mut c_char, usize) -> c_int;
        rados_conf_set(rados_t, *const c_char, *const c_char) -> c_int;
        rados_connect(rados_t) -> c_int;
        rados_shutdown(rados_t);
        rados_cluster_fsid(rados_t, *mut c_char, usize) -> c_int;
        rados_ioctx_create(rados_t, *const c_char, *mut rados_ioctx_t) -> c_int;
        rados_ioctx_destroy(rados_ioctx_t);
        rados_ioctx_set_namespace(rados_ioctx_t, *const c_char);
        rados_stat(rados_ioctx_t, *const c_char, *mut u64, *mut time_t) -> c_int;
        rados_set_pool_full_try(rados_ioctx_t);
        rados_create_write_op() -> rados_write_op_t;
        rados_release_write_op(rados_write_op_t);
        rados_write_op_create(rados_write_op_t, c_int, *const c_char);
        rados_write_op_omap_cmp(rados_write_op_t, *const c_char, u8, *const c_char, usize, *mut c_int);
        rados_write_op_omap_set(rados_write_op_t, *const *const c_char, *const *const c_char, *const usize, usize);
        rados_write_op_omap_rm_keys(rados_write_op_t, *const *const c_char, usize);
        rados_write_op_operate2(rados_write_op_t, rados_ioctx_t, *const c_char, *mut timespec, c_int) -> c_int;
        rados_create_read_op() -> rados_read_op_t;
        rados_release_read_op(rados_read_op_t);
        rados_read_op_omap_get_vals2(rados_read_op_t, *const c_char, *const c_char, u64, *mut rados_omap_iter_t, *mut u8, *mut c_int);
        rados_read_op_operate(rados_read_op_t, rados_ioctx_t, *const c_char, c_int) -> c_int;
        rados_omap_get_next(rados_omap_iter_t, *mut *mut c_char, *mut *mut c_char, *mut usize) -> c_int;
        rados_omap_get_end(rados_omap_iter_t);
        rados_watch3(rados_ioctx_t, *const c_char, *mut u64, rados_watchcb2_t, rados_watcherrcb_t, u32, *mut c_void) -> c_int;
        rados_unwatch2(rados_ioctx_t, u64) -> c_int;
        rados_watch_check(rados_ioctx_t, u64) -> c_int;
        rados_watch_flush(rados_t) -> c_int;
        rados_notify2(rados_ioctx_t, *const c_char, *const c_char, c_int, u64, *mut *mut c_char, *mut usize) -> c_int;
        rados_notify_ack(rados_ioctx_t, *const c_char, u64, u64, *const c_char, c_int) -> c_int;
        rados_buffer_free(*mut c_char);
        rados_getaddrs(rados_t, *mut *mut c_char) -> c_int;
        rados_blocklist_add(rados_t, *mut c_char, u32) -> c_int;
        rados_wait_for_latest_osdmap(rados_t) -> c_int;
    }
    "librbd.so.1" {
        rbd_version(*mut c_int, *mut c_int, *mut c_int);
        rbd_create3(rados_ioctx_t, *const c_char, u64, u64, *mut c_int, u64, u64) -> c_int;
        rbd_open(rados_ioctx_t, *const c_char, *mut rbd_image_t, *const c_char) -> c_int;
        rbd_open_read_only(rados_ioctx_t, *const c_char, *mut rbd_image_t, *const c_char) -> c_int;
        rbd_close(rbd_image_t) -> c_int;
        rbd_stat(rbd_image_t, *mut rbd_image_info_t, usize) -> c_int;
        rbd_get_size(rbd_image_t, *mut u64) -> c_int;
        rbd_get_features(rbd_image_t, *mut u64) -> c_int;
        rbd_get_stripe_unit(rbd_image_t, *mut u64) -> c_int;
        rbd_get_id(rbd_image_t, *mut c_char, usize) -> c_int;
        rbd_lock_acquire(rbd_image_t, rbd_lock_mode_t) -> c_int;
        rbd_lock_release(rbd_image_t) -> c_int;
        rbd_lock_get_owners(rbd_image_t, *mut rbd_lock_mode_t, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
        rbd_lock_break(rbd_image_t, rbd_lock_mode_t, *const c_char) -> c_int;
        rbd_is_exclusive_lock_owner(rbd_image_t, *mut c_int) -> c_int;
        rbd_metadata_list(rbd_image_t, *const c_char, u64, *mut c_char, *mut usize, *mut c_char, *mut usize) -> c_int;
        rbd_pool_metadata_list(rados_ioctx_t, *const c_char, u64, *mut c_char, *mut usize, *mut c_char, *mut usize) -> c_int;
        rbd_update_watch(rbd_image_t, *mut u64, rbd_update_callback_t, *mut c_void) -> c_int;
        rbd_update_unwatch(rbd_image_t, u64) -> c_int;
        rbd_diff_iterate2(rbd_image_t, *const c_char, u64, u64, u8, u8, rbd_diff_callback_t, *mut c_void) -> c_int;
        rbd_aio_create_completion(*mut c_void, rbd_callback_t, *mut rbd_completion_t) -> c_int;
        rbd_aio_get_return_value(rbd_completion_t) -> isize;
        rbd_aio_release(rbd_completion_t);
        rbd_aio_read(rbd_image_t, u64, usize, *mut c_char, rbd_completion_t) -> c_int;
        rbd_aio_write(rbd_image_t, u64, usize, *const c_char, rbd_completion_t) -> c_int;
        rbd_aio_compare_and_write(rbd_image_t, u64, usize, *const c_char, *const c_char, rbd_completion_t, *mut u64, c_int) -> isize;
        rbd_aio_flush(rbd_image_t, rbd_completion_t) -> c_int;
        rbd_aio_write_zeroes(rbd_image_t, u64, usize, rbd_completion_t, c_int, c_int) -> c_int;
    }
}

/// The libraries of this host.
///
/// # Errors
/// When they are missing or too old. The result is cached.
pub fn library() -> Result<&'static Library, OpenError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    // SAFETY: the initializers of these libraries have no preconditions. According to their headers, functions with
    // these names have these signatures; a test compiles the table against the headers.
    let loaded = LIBRARY.get_or_init(|| unsafe { Library::load(FILES) }.inspect(|_| exit::register()));
    loaded.as_ref().map_err(|what| {
        let hint = "install librbd (Debian, Ubuntu, Fedora, RHEL: librbd1 and librados2)";
        OpenError::new("rbd", format!("Ceph cannot be used: {what}"), hint).of(io::ErrorKind::Unsupported)
    })
}
