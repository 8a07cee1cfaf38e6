//! The fake connection manager: it records listeners and connections, and tests queue its events.

use super::{FakeDevice, errno, event_fd, fake, ring};
use crate::verbs::cm::socket_addr;
use crate::verbs::ffi::*;
use crate::verbs::library::INSTEAD;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::{NonNull, null, null_mut};

thread_local! {
    /// The device for ids that this thread creates.
    static HERE: Cell<Option<&'static FakeDevice>> = const { Cell::new(None) };
}

/// An event channel, its device, and its index there.
#[repr(C)]
struct FakeChannel {
    channel: rdma_event_channel,
    fake: &'static FakeDevice,
    number: usize,
}

/// An event of an id.
#[derive(Clone, Copy, Debug, Default)]
pub struct FakeId {
    pub kind: c_int,
    pub status: c_int,
    pub private: &'static [u8],
    /// The maximum numbers of outstanding RDMA Reads: of the peer, and of this end.
    pub depths: (u8, u8),
}

/// The recorded calls, and the queued events.
#[derive(Default)]
pub struct ManagerState {
    /// The event channels by number: the id, and the queued events.
    channels: Vec<(usize, VecDeque<FakeId>)>,
    /// The listeners: the address, and the options that were set before.
    pub listens: Vec<(SocketAddr, Vec<c_int>)>,
    options: Vec<c_int>,
    /// Whether listening fails.
    pub is_gone: bool,
    /// The parameters and the private data of started and accepted connections.
    pub params: Vec<(rdma_conn_param, Vec<u8>)>,
    pub rejects: Vec<Vec<u8>>,
    ids: usize,
    open: usize,
}

impl ManagerState {
    /// The number of event channels created so far.
    pub fn queues(&self) -> usize {
        self.channels.len()
    }
}

// SAFETY: the pointers belong to the callers, which use them on the right thread.
unsafe impl Send for ManagerState {}

impl FakeDevice {
    /// Makes this the device of the host, for this thread.
    pub fn install(&'static self) {
        HERE.set(Some(self));
        INSTEAD.set(Some(&self.library));
    }

    /// Creates an id with its own event channel.
    pub(super) fn made(&'static self) -> (NonNull<rdma_cm_id>, NonNull<rdma_event_channel>) {
        HERE.set(Some(self));
        let channel = create_event_channel();
        let id = self.new_id(channel);
        of_channel(id, channel);
        (NonNull::new(id).unwrap(), NonNull::new(channel).unwrap())
    }

    fn new_id(&self, channel: *mut rdma_event_channel) -> *mut rdma_cm_id {
        let id = Box::into_raw(Box::new(rdma_cm_id {
            verbs: (&raw const self.context).cast_mut(),
            channel,
            context: null_mut(),
            qp: null_mut(),
            src_addr: sockaddr_any([0; 128]),
            dst_addr: sockaddr_any([0; 128]),
        }));
        self.state().manager.ids += 1;
        id
    }

    /// The current numbers of ids and event channels.
    pub fn held(&self) -> (usize, usize) {
        let state = self.state();
        (state.manager.ids, state.manager.open)
    }

    /// Queues an event on the event channel of this number, in order of creation.
    pub fn queue_event(&self, number: usize, said: FakeId) {
        let mut state = self.state();
        let (id, events) = &mut state.manager.channels[number];
        events.push_back(said);
        // SAFETY: the id of that channel, which exists.
        ring(unsafe { (*(*(*id as *mut rdma_cm_id)).channel).fd });
    }
}

extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    let fake = HERE.get().expect("a device of this thread");
    let mut state = fake.state();
    let (number, channel) = (state.manager.channels.len(), rdma_event_channel { fd: event_fd() });
    state.manager.channels.push((0, VecDeque::new()));
    state.manager.open += 1;
    Box::into_raw(Box::new(FakeChannel { channel, fake, number })).cast()
}

extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: created above, and not used after this.
    let channel = unsafe { Box::from_raw(channel.cast::<FakeChannel>()) };
    channel.fake.state().manager.open -= 1;
    // SAFETY: the descriptor of this channel.
    unsafe { libc::close(channel.channel.fd) };
}

extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    into: *mut *mut rdma_cm_id,
    _: *mut c_void,
    _: c_int,
) -> c_int {
    // SAFETY: a channel of this module.
    let id = unsafe { (*channel.cast::<FakeChannel>()).fake }.new_id(channel);
    of_channel(id, channel);
    // SAFETY: the result has room.
    unsafe { into.write(id) };
    0
}

extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: created above, and not used after this.
    let id = unsafe { Box::from_raw(id) };
    fake(id.verbs).state().manager.ids -= 1;
    0
}

extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: an id of this module.
    unsafe { (*id).channel = channel };
    of_channel(id, channel);
    0
}

/// Makes this id the one of the channel's events.
fn of_channel(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) {
    // SAFETY: a channel of this module.
    let FakeChannel { fake, number, .. } = unsafe { &*channel.cast::<FakeChannel>() };
    fake.state().manager.channels[*number].0 = id as usize;
}

/// The device of an id.
fn of(id: *mut rdma_cm_id) -> &'static FakeDevice {
    // SAFETY: an id of this module.
    fake(unsafe { (*id).verbs })
}

extern "C" fn set_option(id: *mut rdma_cm_id, _: c_int, option: c_int, _: *mut c_void, _: usize) -> c_int {
    of(id).state().manager.options.push(option);
    0
}

extern "C" fn bind_addr(id: *mut rdma_cm_id, addr: *mut c_void) -> c_int {
    let mut state = of(id).state();
    if state.manager.is_gone {
        state.manager.options.clear();
        errno(libc::ENODEV);
        return -1;
    }
    // SAFETY: an id of this module, and an address of that size.
    unsafe { (*id).src_addr = addr.cast::<sockaddr_any>().read() };
    0
}

extern "C" fn listen(id: *mut rdma_cm_id, _: c_int) -> c_int {
    let mut state = of(id).state();
    let options = std::mem::take(&mut state.manager.options);
    // SAFETY: an id of this module.
    state.manager.listens.push((socket_addr(unsafe { &(*id).src_addr }), options));
    0
}

/// Completes an operation successfully at once.
fn resolved(id: *mut rdma_cm_id, kind: c_int) -> c_int {
    // SAFETY: an id of this module, with its channel.
    let number = unsafe { (*(*id).channel.cast::<FakeChannel>()).number };
    of(id).queue_event(number, FakeId { kind, ..FakeId::default() });
    0
}

extern "C" fn resolve_addr(id: *mut rdma_cm_id, _: *mut c_void, _: *mut c_void, _: c_int) -> c_int {
    resolved(id, ADDR_RESOLVED)
}

extern "C" fn resolve_route(id: *mut rdma_cm_id, _: c_int) -> c_int {
    resolved(id, ROUTE_RESOLVED)
}

fn bytes(at: *const c_void, len: u8) -> Vec<u8> {
    match len {
        0 => Vec::new(),
        // SAFETY: the caller passes this many bytes.
        len => unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len.into()) }.to_vec(),
    }
}

/// Both `connect` and `accept`.
extern "C" fn begin(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: parameters of the caller.
    let param = unsafe { *param };
    let private = bytes(param.private_data, param.private_data_len);
    of(id).state().manager.params.push((rdma_conn_param { private_data: null(), ..param }, private));
    0
}

extern "C" fn reject(id: *mut rdma_cm_id, private: *const c_void, len: u8) -> c_int {
    of(id).state().manager.rejects.push(bytes(private, len));
    0
}

extern "C" fn get_cm_event(channel: *mut rdma_event_channel, into: *mut *mut rdma_cm_event) -> c_int {
    // SAFETY: a channel of this module.
    let FakeChannel { fake, number, channel: events } = unsafe { &*channel.cast::<FakeChannel>() };
    let mut state = fake.state();
    let Some(said) = state.manager.channels[*number].1.pop_front() else {
        let mut count = [0u8; 8];
        // SAFETY: room for the eight bytes of an eventfd.
        unsafe { libc::read(events.fd, count.as_mut_ptr().cast(), count.len()) };
        errno(libc::EAGAIN);
        return -1;
    };
    let own = state.manager.channels[*number].0 as *mut rdma_cm_id;
    drop(state);
    let (id, listen_id) = match said.kind {
        CONNECT_REQUEST => (fake.new_id(channel), own),
        _ => (own, null_mut()),
    };
    let param = rdma_conn_param {
        private_data: said.private.as_ptr().cast(),
        private_data_len: said.private.len() as u8,
        responder_resources: said.depths.0,
        initiator_depth: said.depths.1,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    };
    let event = rdma_cm_event { id, listen_id, event: said.kind, status: said.status, param };
    // SAFETY: the result has room.
    unsafe { into.write(Box::into_raw(Box::new(event))) };
    0
}

extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: created above, and not used after this.
    drop(unsafe { Box::from_raw(event) });
    0
}

/// The function with this name.
pub(super) fn function(name: &str) -> Option<*mut c_void> {
    Some(match name {
        "rdma_create_event_channel" => create_event_channel as *mut c_void,
        "rdma_destroy_event_channel" => destroy_event_channel as *mut c_void,
        "rdma_create_id" => create_id as *mut c_void,
        "rdma_destroy_id" => destroy_id as *mut c_void,
        "rdma_migrate_id" => migrate_id as *mut c_void,
        "rdma_set_option" => set_option as *mut c_void,
        "rdma_bind_addr" => bind_addr as *mut c_void,
        "rdma_listen" => listen as *mut c_void,
        "rdma_resolve_addr" => resolve_addr as *mut c_void,
        "rdma_resolve_route" => resolve_route as *mut c_void,
        "rdma_connect" | "rdma_accept" => begin as *mut c_void,
        "rdma_reject" => reject as *mut c_void,
        "rdma_get_cm_event" => get_cm_event as *mut c_void,
        "rdma_ack_cm_event" => ack_cm_event as *mut c_void,
        _ => return None,
    })
}
