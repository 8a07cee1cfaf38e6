//! A device in use: its protection domain and memory, shared by all connections of the process.
#![allow(unsafe_code)]

use super::async_events::{AsyncEvents, EventThread};
use super::bounce::{BounceBuffer, BouncePool, RegisterFn, RegisteredMemory};
use super::ffi::*;
use super::library::{Library, last_error};
use super::outgoing::PIECE;
use super::shared::{SharedReceives, UNSHARED};
use lunar_runtime::Buf;
use lunar_runtime::regions::REGION;
use std::cell::RefCell;
use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// A protection domain.
pub struct Pd {
    pub library: &'static Library,
    pub pd: *mut ibv_pd,
}

// SAFETY: the library accepts calls for a domain from all threads.
unsafe impl Send for Pd {}
// SAFETY: the same.
unsafe impl Sync for Pd {}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: owned, and no longer used: every user holds this.
        let status = unsafe { (self.library.ibv_dealloc_pd)(self.pd) };
        if status != 0 {
            tracing::debug!(status, "protection domain was not released");
        }
    }
}

/// A registered region, deregistered on drop.
pub struct RegisteredRegion {
    pd: Arc<Pd>,
    mr: *mut ibv_mr,
}

// SAFETY: the library accepts calls for a region from any thread.
unsafe impl Send for RegisteredRegion {}

impl RegisteredRegion {
    fn new(pd: &Arc<Pd>, at: NonNull<u8>, len: usize, access: i32) -> io::Result<RegisteredRegion> {
        // SAFETY: the domain is valid. The callers keep the memory for longer than the region.
        let mr = unsafe { (pd.library.ibv_reg_mr)(pd.pd, at.as_ptr().cast(), len, access) };
        if mr.is_null() {
            return Err(memory_error(len));
        }
        Ok(RegisteredRegion { pd: pd.clone(), mr })
    }

    /// The local and the remote key; zeros after deregistration.
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: the region is valid until its deregistration, which sets the pointer to null.
        unsafe { self.mr.as_ref() }.map_or((0, 0), |mr| (mr.lkey, mr.rkey))
    }
}

impl RegisteredRegion {
    /// Deregisters the memory. Returns false on failure. A device that is gone counts as success.
    pub fn deregister(&mut self) -> bool {
        if !self.mr.is_null() {
            // SAFETY: owned, and registered.
            let status = unsafe { (self.pd.library.ibv_dereg_mr)(self.mr) };
            if status != 0 {
                tracing::warn!(status, "the RDMA device failed to deregister memory");
                return false;
            }
            self.mr = std::ptr::null_mut();
        }
        true
    }
}

impl Drop for RegisteredRegion {
    fn drop(&mut self) {
        self.deregister();
    }
}

fn memory_error(len: usize) -> io::Error {
    let e = last_error(&format!("register {len} bytes with the RDMA device"));
    match e.kind() {
        io::ErrorKind::OutOfMemory => {
            lunar_runtime::error::with_hint(e, "raise the limit of locked memory (ulimit -l)")
        }
        _ => e,
    }
}

/// A device in use.
pub struct Domain {
    /// Dropped first, because the thread uses the context.
    _watcher: Option<EventThread>,
    pub async_events: Arc<AsyncEvents>,
    pd: Arc<Pd>,
    /// Bounce buffers of messages and writes; of reads too, except on iWARP.
    pool: Arc<BouncePool>,
    /// Registered zeros of one piece, created at first use. None if there is no memory for them.
    zeros: OnceLock<Option<BounceBuffer>>,
    /// Registered regions of pools by index, registered at first use. None if the registration failed.
    buffers: Mutex<Vec<Option<Option<RegisteredRegion>>>>,
    /// The shared receive queue, while a connection uses it.
    shared: Mutex<Weak<SharedReceives>>,
    /// Counts the connections: each holds one reference, in addition to this one.
    users: Arc<()>,
    /// The name, such as `mlx5_0`.
    pub name: String,
    pub is_iwarp: bool,
    pub attr: ibv_device_attr,
}

/// The devices in use, by the address of their context. A context is valid as long as an id uses it.
static DOMAINS: Mutex<Vec<(usize, Weak<Domain>)>> = Mutex::new(Vec::new());

impl Domain {
    /// The domain of a context. The caller keeps an id with this context for longer than the domain.
    ///
    /// # Errors
    /// When the device does not respond, or has no free protection domain.
    pub fn of(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Arc<Domain>> {
        let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
        domains.retain(|(_, domain)| domain.strong_count() > 0);
        let key = context.as_ptr() as usize;
        if let Some(domain) =
            domains.iter().find(|(at, _)| *at == key).and_then(|(_, domain)| domain.upgrade())
        {
            return Ok(domain);
        }
        let domain = Arc::new(Domain::new(library, context)?);
        domains.push((key, Arc::downgrade(&domain)));
        Ok(domain)
    }

    fn new(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Domain> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is valid, and the result has its full size.
        let status = unsafe { (library.ibv_query_device)(context.as_ptr(), &raw mut attr) };
        if status != 0 {
            return Err(super::library::cannot(
                "query the RDMA device",
                io::Error::from_raw_os_error(status.abs()),
            ));
        }
        // SAFETY: the context is valid, with its device, whose name is null-terminated.
        let (transport, name) = unsafe {
            let device = (*context.as_ptr()).device;
            ((*device).transport_type, CStr::from_ptr((*device).name.as_ptr()).to_string_lossy().into_owned())
        };
        // SAFETY: the context is valid.
        let pd = unsafe { (library.ibv_alloc_pd)(context.as_ptr()) };
        if pd.is_null() {
            return Err(last_error(&format!("create a protection domain of the RDMA device {name}")));
        }
        let pd = Arc::new(Pd { library, pd });
        let pool = BouncePool::new(register(&pd, ACCESS_LOCAL_WRITE));
        // From now on, pools cut buffers from regions, which are registered once.
        lunar_runtime::regions::enable();
        let is_iwarp = transport == TRANSPORT_IWARP;
        let async_events = Arc::<AsyncEvents>::default();
        let watcher = EventThread::new(library, context, &name, async_events.clone());
        Ok(Domain {
            // Without the thread, failures are detected later, by operations of each connection.
            _watcher: watcher
                .inspect_err(|e| tracing::warn!("cannot receive the events of the RDMA device {name}: {e}"))
                .ok(),
            async_events,
            pd,
            pool,
            zeros: OnceLock::new(),
            buffers: Mutex::default(),
            shared: Mutex::default(),
            users: Arc::default(),
            name,
            is_iwarp,
            attr,
        })
    }

    /// The protection domain, for an owner that outlives this.
    pub fn shared_pd(&self) -> Arc<Pd> {
        self.pd.clone()
    }

    /// A reference that counts a connection.
    pub fn user(&self) -> Arc<()> {
        self.users.clone()
    }

    /// The shared receive queue for a new connection. None if it gets its own receives.
    pub fn shared(&self) -> Option<Arc<SharedReceives>> {
        let are_many = Arc::strong_count(&self.users) > UNSHARED;
        if self.is_iwarp || self.attr.max_srq <= 0 || !are_many {
            return None;
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = shared.upgrade().filter(|shared| shared.is_healthy()) {
            return Some(there);
        }
        let made = SharedReceives::new(self).inspect_err(|e| tracing::debug!("{e}")).ok().map(Arc::new)?;
        *shared = Arc::downgrade(&made);
        Some(made)
    }

    /// The protection domain.
    pub fn pd(&self) -> *mut ibv_pd {
        self.pd.pd
    }

    /// Whether messages over it may invalidate steering tags of the peer.
    pub fn sends_invalidate(&self) -> bool {
        self.attr.device_cap_flags & DEVICE_MEM_MGT_EXTENSIONS != 0
    }

    /// Bounce buffers of messages and writes.
    pub fn pool(&self) -> Arc<BouncePool> {
        self.pool.clone()
    }

    /// Bounce buffers of reads. An iWARP Read Request contains the key of its destination, and the peer may write
    /// there (RFC 5040 section 5.2). Each iWARP connection therefore has its own.
    pub fn sinks(&self) -> Arc<BouncePool> {
        match self.is_iwarp {
            true => BouncePool::new(register(&self.pd, ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE)),
            false => self.pool.clone(),
        }
    }

    /// The address and the key of one piece of zeros.
    pub fn zeros(&self) -> Option<(u64, u32)> {
        let zeros = self.zeros.get_or_init(|| {
            // On failure, zeros are copied.
            self.pool.zeros(PIECE).inspect_err(|e| tracing::debug!("{e}")).ok()
        });
        zeros.as_ref().map(BounceBuffer::place)
    }

    /// The local key of a buffer, if its region is or can be registered.
    fn key(&self, buf: &Buf) -> Option<u32> {
        let region = buf.region()?;
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() <= region.index {
            buffers.resize_with(region.index + 1, || None);
        }
        let known = buffers[region.index].get_or_insert_with(|| {
            let known = RegisteredRegion::new(&self.pd, region.at, REGION, ACCESS_LOCAL_WRITE);
            // On failure, data are copied.
            known.inspect_err(|e| tracing::warn!("{e}")).ok()
        });
        known.as_ref().map(|known| known.keys().0)
    }

    /// The same with a cache for one connection, because all cores share the lock. Registrations are permanent, so
    /// the cache stays valid.
    pub fn keys(self: &Arc<Domain>) -> impl Fn(&Buf) -> Option<u32> + 'static {
        let (domain, known) = (self.clone(), RefCell::new(Vec::<Option<u32>>::new()));
        move |buf| {
            let index = buf.region()?.index;
            if let Some(Some(key)) = known.borrow().get(index) {
                return Some(*key);
            }
            let (key, mut known) = (domain.key(buf)?, known.borrow_mut());
            let len = known.len().max(index + 1);
            known.resize(len, None);
            known[index] = Some(key);
            Some(key)
        }
    }

    /// Registers memory for access by the peer. The caller keeps the memory for longer than the region.
    pub fn expose(&self, at: NonNull<u8>, len: usize, access: i32) -> io::Result<RegisteredRegion> {
        RegisteredRegion::new(&self.pd, at, len, access)
    }
}

fn register(pd: &Arc<Pd>, access: i32) -> RegisterFn {
    let pd = pd.clone();
    Box::new(move |at, len| {
        let region = RegisteredRegion::new(&pd, at, len, access)?;
        Ok(RegisteredMemory { lkey: region.keys().0, _keep: Box::new(region) })
    })
}
