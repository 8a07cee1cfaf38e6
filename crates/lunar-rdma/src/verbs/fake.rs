//! A fake device: both libraries without hardware. It records calls, and tests determine the completions.
#![allow(unsafe_code)]

mod manager;

pub use manager::FakeId;

use super::cm::CmId;
use super::ffi::*;
use super::library::Library;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{addr_of_mut, null, null_mut};
use std::sync::{Mutex, MutexGuard};

/// The maximum inline length in bytes.
pub const INLINE: u32 = 80;

/// A fake device. The context is its first field, so that a context pointer identifies the device.
#[repr(C)]
pub struct FakeDevice {
    context: ibv_context,
    device: ibv_device,
    library: Library,
    state: Mutex<FakeState>,
}

/// The recorded calls, and the results of later ones.
#[derive(Default)]
pub struct FakeState {
    /// Calls of `post_send`, each with its chain.
    pub posts: Vec<Vec<PostedWork>>,
    /// Calls of `post_recv` and of `post_srq_recv`, each with the numbers of its chain.
    pub receives: Vec<Vec<u64>>,
    pub shared_receives: Vec<Vec<u64>>,
    /// The posted receives: their ids and memory.
    places: Vec<(u64, ibv_sge)>,
    pub polls: usize,
    pub arms: usize,
    pub disconnects: usize,
    pub pairs_gone: usize,
    /// The completions, and those that arrive during arming.
    completions: VecDeque<ibv_wc>,
    pub when_armed: VecDeque<ibv_wc>,
    /// The maximum inline length in bytes. A queue pair that requests more is not created.
    pub max_inline: u32,
    pub least_inline: u32,
    /// The current number of regions, the total, and the maximum.
    pub regions: usize,
    pub registered: usize,
    pub max_regions: usize,
    pub attr: ibv_device_attr,
    /// The descriptor of completion events.
    completed_fd: c_int,
    /// Queue pairs, completion queues and shared receive queues, in order of creation.
    pub pairs: Vec<usize>,
    pub queues: Vec<usize>,
    pub shared: Vec<usize>,
    /// Asynchronous events: the queue, and the type.
    async_events: VecDeque<(usize, c_int)>,
    /// The sizes of the completion queues.
    pub rooms: Vec<c_int>,
    /// The number of pairs with a shared receive queue.
    pub shares: usize,
    pub manager: manager::ManagerState,
}

/// A posted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedWork {
    pub id: u64,
    pub opcode: c_int,
    pub flags: u32,
    pub len: u32,
    pub addr: u64,
    pub lkey: u32,
}

// SAFETY: its pointers point to itself, and its state is locked.
unsafe impl Sync for FakeDevice {}

impl FakeDevice {
    /// Creates a device. It is leaked.
    pub fn new() -> &'static FakeDevice {
        FakeDevice::of_kind(0)
    }

    /// Creates an iWARP device. It is leaked.
    pub fn iwarp() -> &'static FakeDevice {
        FakeDevice::of_kind(TRANSPORT_IWARP)
    }

    fn of_kind(transport_type: c_int) -> &'static FakeDevice {
        let mut find = |_: &'static str, name: &str| Ok(function(name));
        // SAFETY: the functions below have the signatures of their names. The others are not called.
        let library = unsafe { Library::with(&mut find) }.unwrap();
        let mut name = [0; 64];
        name[0] = b'f' as c_char;
        let device = ibv_device { ops: [null_mut(); 2], node_type: 0, transport_type, name };
        let attr = ibv_device_attr {
            max_qp_wr: 4096,
            max_cqe: 8192,
            max_srq: 1,
            max_srq_wr: 1000,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            device_cap_flags: DEVICE_MEM_MGT_EXTENSIONS,
            ..ibv_device_attr::default()
        };
        let state = FakeState {
            max_inline: INLINE,
            max_regions: 1000,
            attr,
            completed_fd: -1,
            ..FakeState::default()
        };
        let fake =
            Box::leak(Box::new(FakeDevice { context: context(), device, library, state: Mutex::new(state) }));
        fake.context.device = &raw mut fake.device;
        fake.context.async_fd = event_fd();
        fake
    }

    pub fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap()
    }

    /// The numbers of polls for completions, and of requests for events.
    pub fn looks(&self) -> (usize, usize) {
        let state = self.state();
        (state.polls, state.arms)
    }

    /// The numbers of calls that posted receives: of queue pairs, and of the shared queue.
    pub fn receives(&self) -> (usize, usize) {
        let state = self.state();
        (state.receives.len(), state.shared_receives.len())
    }

    /// The number of posted receives.
    pub fn free(&self) -> usize {
        self.state().places.len()
    }

    /// Creates an id of this device.
    pub fn id(&'static self) -> CmId {
        let (id, channel) = self.made();
        // SAFETY: both were just created for it.
        unsafe { CmId::with(&self.library, id, channel) }
    }

    /// Takes the posted operations of each call.
    pub fn take_posts(&self) -> Vec<Vec<PostedWork>> {
        std::mem::take(&mut self.state().posts)
    }

    /// Completes these sends, writes or reads successfully.
    pub fn complete(&self, ids: &[u64]) {
        let done = ids.iter().map(|id| ibv_wc { wr_id: *id, ..ibv_wc::default() });
        self.state().completions.extend(done);
    }

    /// Flushes these operations, as the end of a connection does.
    pub fn flush(&self, ids: &[u64]) {
        let flushed = |id: &u64| ibv_wc { wr_id: *id, status: WC_FLUSH_ERR, ..ibv_wc::default() };
        self.state().completions.extend(ids.iter().map(flushed));
    }

    /// Writes a message into the first posted receive, and returns its completion.
    pub fn message(&self, text: &[u8]) -> ibv_wc {
        let (wr_id, place) = self.state().places.remove(0);
        assert!(text.len() <= place.length as usize);
        // SAFETY: the memory of a posted receive, which its owner does not access before the completion.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), place.addr as *mut u8, text.len()) };
        ibv_wc { wr_id, byte_len: text.len() as u32, ..ibv_wc::default() }
    }

    /// Adds a message without an event.
    pub fn say(&self, text: &[u8]) {
        let wc = self.message(text);
        self.state().completions.push_back(wc);
    }

    /// Adds an asynchronous event of a queue, or of the device.
    pub fn raise_async_event(&self, queue: usize, event: c_int) {
        self.state().async_events.push_back((queue, event));
        ring(self.context.async_fd);
    }

    /// The first queue pair, the first completion queue, and an unknown queue.
    pub fn first_queues(&self) -> [usize; 3] {
        let state = self.state();
        [state.pairs[0], state.queues[0], 1]
    }

    /// Whether asynchronous events were not taken yet.
    pub fn has_async_events(&self) -> bool {
        !self.state().async_events.is_empty()
    }

    /// Raises a completion event.
    pub fn ring(&self) {
        ring(self.state().completed_fd);
    }
}

fn event_fd() -> c_int {
    // SAFETY: the function has no preconditions.
    unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) }
}

fn ring(fd: c_int) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight bytes, as an eventfd requires.
    let written = unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
    assert_eq!(written, 8);
}

fn context() -> ibv_context {
    let mut context = MaybeUninit::<ibv_context>::zeroed();
    let at = context.as_mut_ptr();
    // SAFETY: zeros are valid for all fields except the functions, which are set.
    unsafe {
        addr_of_mut!((*at).ops.poll_cq).write(poll_cq);
        addr_of_mut!((*at).ops.req_notify_cq).write(req_notify_cq);
        addr_of_mut!((*at).ops.post_send).write(post_send);
        addr_of_mut!((*at).ops.post_recv).write(post_recv);
        addr_of_mut!((*at).ops.post_srq_recv).write(post_srq_recv);
        context.assume_init()
    }
}

/// The device of a context or a protection domain.
fn fake<T>(context: *mut T) -> &'static FakeDevice {
    // SAFETY: contexts are the first fields of leaked devices here, and domains are contexts.
    unsafe { &*context.cast_const().cast::<FakeDevice>() }
}

fn errno(number: c_int) {
    // SAFETY: the errno of this thread.
    unsafe { *libc::__errno_location() = number }
}

extern "C" fn poll_cq(cq: *mut ibv_cq, max: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: a queue of this module.
    let mut state = fake(unsafe { (*cq).context }).state();
    state.polls += 1;
    let n = state.completions.len().min(max as usize);
    for (at, wc) in state.completions.drain(..n).enumerate() {
        // SAFETY: the caller has room for this many.
        unsafe { into.add(at).write(wc) };
    }
    n as c_int
}

extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    // SAFETY: a queue of this module.
    let mut state = fake(unsafe { (*cq).context }).state();
    state.arms += 1;
    let come = std::mem::take(&mut state.when_armed);
    state.completions.extend(come);
    0
}

extern "C" fn post_send(qp: *mut ibv_qp, mut wr: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    let mut chain = Vec::new();
    // SAFETY: a pair of this module, and a null-terminated chain.
    unsafe {
        while let Some(one) = wr.as_ref() {
            let none = ibv_sge { addr: 0, length: 0, lkey: 0 };
            let place = if one.num_sge > 0 { *one.sg_list } else { none };
            let ibv_sge { addr, length: len, lkey } = place;
            let (id, opcode, flags) = (one.wr_id, one.opcode, one.send_flags);
            chain.push(PostedWork { id, opcode, flags, len, addr, lkey });
            wr = one.next;
        }
        fake((*qp).context).state().posts.push(chain);
    }
    0
}

/// The work requests in a chain of receives.
fn chain(mut wr: *mut ibv_recv_wr) -> Vec<(u64, ibv_sge)> {
    let mut chain = Vec::new();
    // SAFETY: a null-terminated chain.
    while let Some(one) = unsafe { wr.as_ref() } {
        // SAFETY: each has one element.
        chain.push((one.wr_id, unsafe { *one.sg_list }));
        wr = one.next;
    }
    chain
}

extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    let chain = chain(wr);
    // SAFETY: a pair of this module.
    let mut state = fake(unsafe { (*qp).context }).state();
    state.receives.push(chain.iter().map(|(id, _)| *id).collect());
    state.places.extend(chain);
    0
}

extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    let chain = chain(wr);
    // SAFETY: a queue of this module.
    let mut state = fake(unsafe { (*srq).context }).state();
    state.shared_receives.push(chain.iter().map(|(id, _)| *id).collect());
    state.places.extend(chain);
    0
}

extern "C" fn query_device(context: *mut ibv_context, into: *mut ibv_device_attr) -> c_int {
    // SAFETY: the result has room.
    unsafe { into.write(fake(context).state().attr) };
    0
}

extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    context.cast()
}

extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, _: c_int) -> *mut ibv_mr {
    let mut state = fake(pd).state();
    if state.regions >= state.max_regions {
        errno(libc::ENOMEM);
        return null_mut();
    }
    state.regions += 1;
    state.registered += 1;
    let key = state.registered as u32;
    Box::leak(Box::new(ibv_mr { context: pd.cast(), pd, addr, length, handle: 0, lkey: key, rkey: key }))
}

extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: created above, and not used after this.
    let mr = unsafe { Box::from_raw(mr) };
    fake(mr.context).state().regions -= 1;
    0
}

extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let fd = event_fd();
    fake(context).state().completed_fd = fd;
    Box::leak(Box::new(ibv_comp_channel { context, fd, refcnt: 0 }))
}

extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: created above, and not used after this.
    unsafe { libc::close(Box::from_raw(channel).fd) }
}

extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    let queue = Box::into_raw(Box::new(ibv_cq { context, channel, cq_context, handle: 0, cqe }));
    let mut state = fake(context).state();
    state.rooms.push(cqe);
    state.queues.push(queue as usize);
    queue
}

extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: created above, and not used after this.
    drop(unsafe { Box::from_raw(cq) });
    0
}

extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    _: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    let mut count = [0u8; 8];
    // SAFETY: room for the eight bytes of an eventfd. Several rings are one event.
    let got = unsafe { libc::read((*channel).fd, count.as_mut_ptr().cast(), count.len()) };
    if got == 8 { 0 } else { -1 }
}

extern "C" fn ack_cq_events(_: *mut ibv_cq, _: u32) {}

extern "C" fn create_srq(pd: *mut ibv_pd, _: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    let queue = Box::into_raw(Box::new(ibv_srq { context: pd.cast() }));
    fake(pd).state().shared.push(queue as usize);
    queue
}

extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: created above, and not used after this.
    drop(unsafe { Box::from_raw(srq) });
    0
}

extern "C" fn create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int {
    // SAFETY: an id of this module, and attributes of the caller.
    unsafe {
        let context = (*id).verbs;
        let mut state = fake(context).state();
        if (*attr).cap.max_inline_data > state.max_inline {
            errno(libc::EINVAL);
            return -1;
        }
        (*attr).cap.max_inline_data = (*attr).cap.max_inline_data.max(state.least_inline);
        state.shares += usize::from(!(*attr).srq.is_null());
        let (send_cq, recv_cq, srq) = ((*attr).send_cq, (*attr).recv_cq, (*attr).srq.cast());
        let qp = ibv_qp { context, qp_context: null_mut(), pd, send_cq, recv_cq, srq, handle: 0, qp_num: 1 };
        (*id).qp = Box::into_raw(Box::new(qp));
        state.pairs.push((*id).qp as usize);
    }
    0
}

extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: an id of this module, whose pair was created above and is not used after this.
    let qp = unsafe { Box::from_raw((*id).qp) };
    let mut state = fake(qp.context).state();
    state.pairs_gone += 1;
    // Drivers discard the completions of a destroyed pair.
    state.completions.clear();
    // SAFETY: the same.
    unsafe { (*id).qp = null_mut() };
}

extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: an id of this module.
    fake(unsafe { (*id).verbs }).state().disconnects += 1;
    0
}

extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

extern "C" fn get_async_event(context: *mut ibv_context, into: *mut ibv_async_event) -> c_int {
    let fake = fake(context);
    let mut count = [0u8; 8];
    // SAFETY: room for the eight bytes of an eventfd.
    unsafe { libc::read(fake.context.async_fd, count.as_mut_ptr().cast(), count.len()) };
    let Some((queue, event_type)) = fake.state().async_events.pop_front() else {
        errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: the result has room.
    unsafe { into.write(ibv_async_event { element: queue as u64, event_type }) };
    0
}

extern "C" fn ack_async_event(_: *mut ibv_async_event) {}

extern "C" fn no_text(_: c_int) -> *const c_char {
    null()
}

extern "C" fn not_here() {
    std::process::abort();
}

/// The function with this name.
fn function(name: &str) -> *mut c_void {
    match name {
        "ibv_query_device" => query_device as *mut c_void,
        "ibv_alloc_pd" => alloc_pd as *mut c_void,
        "ibv_dealloc_pd" => dealloc_pd as *mut c_void,
        "ibv_reg_mr" => reg_mr as *mut c_void,
        "ibv_dereg_mr" => dereg_mr as *mut c_void,
        "ibv_create_comp_channel" => create_comp_channel as *mut c_void,
        "ibv_destroy_comp_channel" => destroy_comp_channel as *mut c_void,
        "ibv_create_cq" => create_cq as *mut c_void,
        "ibv_destroy_cq" => destroy_cq as *mut c_void,
        "ibv_get_cq_event" => get_cq_event as *mut c_void,
        "ibv_ack_cq_events" => ack_cq_events as *mut c_void,
        "ibv_create_srq" => create_srq as *mut c_void,
        "ibv_destroy_srq" => destroy_srq as *mut c_void,
        "ibv_get_async_event" => get_async_event as *mut c_void,
        "ibv_ack_async_event" => ack_async_event as *mut c_void,
        "ibv_wc_status_str" | "ibv_event_type_str" | "rdma_event_str" => no_text as *mut c_void,
        "rdma_create_qp" => create_qp as *mut c_void,
        "rdma_destroy_qp" => destroy_qp as *mut c_void,
        "rdma_disconnect" => disconnect as *mut c_void,
        name => manager::function(name).unwrap_or(not_here as *mut c_void),
    }
}
