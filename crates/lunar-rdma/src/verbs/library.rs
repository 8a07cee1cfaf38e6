//! libibverbs and librdmacm, loaded at first use.
#![allow(unsafe_code)]

use super::ffi::*;
use lunar_runtime::error::{Hint, with_context, with_hint};
use lunar_runtime::library_functions;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::sync::OnceLock;

/// The libraries are missing or unsuitable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingLibrary {
    /// The error of the dynamic loader.
    pub what: String,
}

impl MissingLibrary {
    /// The fix.
    pub const HINT: Hint = Hint::new(
        "install the libraries of rdma-core (Debian, Ubuntu: libibverbs1 librdmacm1 ibverbs-providers; Fedora, RHEL: \
         libibverbs librdmacm; SUSE: libibverbs1 librdmacm1)",
    );
}

impl fmt::Display for MissingLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RDMA devices cannot be used: {}", self.what)
    }
}

impl std::error::Error for MissingLibrary {}

impl From<MissingLibrary> for io::Error {
    fn from(missing: MissingLibrary) -> io::Error {
        with_hint(io::Error::new(io::ErrorKind::Unsupported, missing), MissingLibrary::HINT)
    }
}

library_functions! {
    "libibverbs.so.1" {
        ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list(*mut *mut ibv_device);
        ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr(*mut ibv_mr) -> c_int;
        ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_destroy_srq(*mut ibv_srq) -> c_int;
        ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq(*mut ibv_cq) -> c_int;
        ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut ibv_cq, u32);
        ibv_wc_status_str(c_int) -> *const c_char;
        ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event(*mut ibv_async_event);
        ibv_event_type_str(c_int) -> *const c_char;
    }
    "librdmacm.so.1" {
        rdma_create_event_channel() -> *mut rdma_event_channel;
        rdma_destroy_event_channel(*mut rdma_event_channel);
        rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
        rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_bind_addr(*mut rdma_cm_id, *mut c_void) -> c_int;
        rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        rdma_resolve_addr(*mut rdma_cm_id, *mut c_void, *mut c_void, c_int) -> c_int;
        rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp(*mut rdma_cm_id);
        rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut rdma_cm_id) -> c_int;
        rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        rdma_event_str(c_int) -> *const c_char;
    }
}

#[cfg(test)]
thread_local! {
    /// A library that replaces the real one for this thread.
    pub static INSTEAD: std::cell::Cell<Option<&'static Library>> = const { std::cell::Cell::new(None) };
}

/// The libraries of this host.
///
/// # Errors
/// When they are missing. The result is cached.
pub fn library() -> Result<&'static Library, MissingLibrary> {
    #[cfg(test)]
    if let Some(instead) = INSTEAD.get() {
        return Ok(instead);
    }
    static LIBRARY: OnceLock<Result<Library, MissingLibrary>> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::open(FILES)).as_ref().map_err(MissingLibrary::clone)
}

impl Library {
    /// Opens the libraries under these names.
    fn open(files: &[&'static str]) -> Result<Library, MissingLibrary> {
        // SAFETY: the initializers of these libraries have no preconditions. According to their headers, functions with
        // these names have these signatures.
        unsafe { Library::load(files) }.map_err(|what| MissingLibrary { what })
    }

    /// The library's text for the status of a completion.
    pub fn status_text(&self, status: c_int) -> String {
        // SAFETY: the function accepts every number, and the text is constant.
        text(unsafe { (self.ibv_wc_status_str)(status) })
    }

    /// The library's text for an event of a device.
    pub fn device_text(&self, event: c_int) -> String {
        // SAFETY: the function accepts every number, and the text is constant.
        text(unsafe { (self.ibv_event_type_str)(event) })
    }

    /// The library's text for an event of the connection manager.
    pub fn event_text(&self, event: c_int) -> String {
        // SAFETY: the function accepts every number, and the text is constant.
        text(unsafe { (self.rdma_event_str)(event) })
    }
}

fn text(constant: *const c_char) -> String {
    if constant.is_null() {
        return "unknown".into();
    }
    // SAFETY: constant text of a library that is never unloaded.
    unsafe { CStr::from_ptr(constant) }.to_string_lossy().into_owned()
}

/// The error of the last system call, with the attempted action.
pub fn last_error(tried: &str) -> io::Error {
    cannot(tried, io::Error::last_os_error())
}

/// An error with the attempted action: "cannot ...".
pub fn cannot(tried: &str, e: io::Error) -> io::Error {
    with_context(e, format!("cannot {tried}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_error_names_it_and_the_fix() {
        let missing = Library::open(&["libnot-here.so.1"]).map(|_| ()).unwrap_err();
        let e = io::Error::from(missing.clone());
        let text = format!("{e}; {}", lunar_runtime::error::hint(&e).expect("a hint"));
        for part in ["libnot-here.so.1", "libibverbs1", "librdmacm1", "ibverbs-providers"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(io::Error::from(missing).kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn library_without_the_symbols_is_reported_missing() {
        let missing = Library::open(&["libc.so.6"]).map(|_| ()).unwrap_err();
        assert_eq!(missing.what, "the library libc.so.6 has no function ibv_get_device_list");
    }
}
