//! Ids and events of the RDMA connection manager (librdmacm).
#![allow(unsafe_code)]

use super::ffi::*;
use super::library::{Library, cannot, last_error, library};
use compio::runtime::fd::PollFd;
use lunar_runtime::error::with_hint;
use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

/// A duplicate of a library's file descriptor, to wait for readiness. It may outlive the original.
pub type FdWatch = PollFd<OwnedFd>;

/// Creates a watch of a library's descriptor, and makes the descriptor non-blocking.
///
/// # Errors
/// When there are too many descriptors.
pub fn watch(fd: c_int) -> io::Result<FdWatch> {
    // SAFETY: the caller owns the object of this descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
    rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? | rustix::fs::OFlags::NONBLOCK)?;
    PollFd::new(fd)
}

/// An event, copied and acknowledged.
#[derive(Debug)]
pub struct CmEvent {
    /// The id of the event. Valid only for [`CONNECT_REQUEST`]: there it is new, and the caller owns it.
    pub id: *mut rdma_cm_id,
    pub kind: c_int,
    pub status: c_int,
    pub private: Vec<u8>,
    /// The maximum number of outstanding RDMA Reads of the peer.
    pub responder_resources: u8,
    /// The maximum number of outstanding RDMA Reads of this end.
    pub initiator_depth: u8,
}

impl CmEvent {
    fn copy(event: &rdma_cm_event) -> CmEvent {
        // In other events the union has other members.
        let has_param = matches!(event.event, CONNECT_REQUEST | REJECTED | ESTABLISHED);
        let param = &event.param;
        let len = usize::from(param.private_data_len);
        let private = match has_param && len > 0 && !param.private_data.is_null() {
            // SAFETY: the library keeps that many bytes until the event is acknowledged.
            true => unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), len) }.to_vec(),
            false => Vec::new(),
        };
        let [responder_resources, initiator_depth] =
            [param.responder_resources, param.initiator_depth].map(|n| if has_param { n } else { 0 });
        CmEvent {
            id: event.id,
            kind: event.event,
            status: event.status,
            private,
            responder_resources,
            initiator_depth,
        }
    }

    /// Whether a listener rejected the connection, as opposed to a host without a listener. On InfiniBand a listener
    /// uses reason code 28. iWARP has only a flag, which drivers report as a refused or reset connection. A real
    /// reset has no private data.
    pub fn is_by_user(&self) -> bool {
        self.status == 28
            || self.status == -libc::ECONNREFUSED
            || (self.status < 0 && !self.private.is_empty())
    }

    /// The error for a caller that expected another event.
    pub fn error(&self, library: &Library) -> io::Error {
        let text = library.event_text(self.kind);
        match self.status {
            0 => io::Error::other(text),
            // InfiniBand: invalid service ID.
            8 => io::Error::new(
                io::ErrorKind::ConnectionRefused,
                format!("{text}: no RDMA listener at the port of the peer"),
            ),
            // A negative status is an errno, a positive one a reason code of the protocol.
            n if n < 0 => cannot(&format!("connect ({text})"), io::Error::from_raw_os_error(-n)),
            n => io::Error::other(format!("{text}, reason code {n}")),
        }
    }
}

/// An event channel.
pub struct CmChannel {
    library: &'static Library,
    channel: NonNull<rdma_event_channel>,
}

impl CmChannel {
    fn new() -> io::Result<CmChannel> {
        let library = library()?;
        // SAFETY: the function has no preconditions.
        let channel = NonNull::new(unsafe { (library.rdma_create_event_channel)() }).ok_or_else(|| {
            let e = last_error("open the RDMA connection manager");
            let hint =
                "load the kernel modules rdma_ucm and ib_uverbs, and check the permissions of /dev/infiniband";
            with_hint(e, hint)
        })?;
        Ok(CmChannel { library, channel })
    }

    fn fd(&self) -> c_int {
        // SAFETY: the channel is valid as long as this.
        unsafe { self.channel.as_ref().fd }
    }

    /// The next event, if available. A watch must exist, which makes the descriptor non-blocking.
    fn next(&self) -> io::Result<Option<CmEvent>> {
        let mut event = null_mut();
        // SAFETY: the channel is valid, and the result has room.
        let status = unsafe { (self.library.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut event) };
        if status != 0 {
            let e = io::Error::last_os_error();
            return match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(cannot("take an event of the RDMA connection manager", e)),
            };
        }
        // SAFETY: an event of the library that is not acknowledged yet.
        let copy = CmEvent::copy(unsafe { &*event });
        // SAFETY: the same event, acknowledged once.
        unsafe { (self.library.rdma_ack_cm_event)(event) };
        Ok(Some(copy))
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: owned, and no id uses it.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel.as_ptr()) }
    }
}

/// A connection or a listener of the connection manager, with its own event channel.
pub struct CmId {
    /// The library it belongs to.
    pub library: &'static Library,
    id: NonNull<rdma_cm_id>,
    channel: CmChannel,
}

// SAFETY: the library accepts calls for an id from any thread, one at a time, and this is not shared.
unsafe impl Send for CmId {}

impl CmId {
    /// Creates an id for reliable connections.
    ///
    /// # Errors
    /// When the library or the kernel's connection manager is missing.
    pub fn new() -> io::Result<CmId> {
        let channel = CmChannel::new()?;
        let (library, mut id) = (channel.library, null_mut());
        // SAFETY: the channel is valid, and the result has room.
        let status =
            unsafe { (library.rdma_create_id)(channel.channel.as_ptr(), &raw mut id, null_mut(), PS_TCP) };
        match NonNull::new(id) {
            Some(id) if status == 0 => Ok(CmId { library, id, channel }),
            _ => Err(last_error("create an RDMA connection identifier")),
        }
    }

    /// The id of a connection request, migrated to its own event channel. On an error the request is rejected.
    ///
    /// # Errors
    /// When there are too many descriptors, or the peer has disconnected.
    pub fn of_request(&self, request: &CmEvent) -> io::Result<CmId> {
        let library = self.library;
        let id = NonNull::new(request.id).ok_or(io::ErrorKind::InvalidData)?;
        let made = CmChannel::new();
        if let Ok(channel) = made {
            let id = CmId { library, id, channel };
            // SAFETY: both are valid, and all events are acknowledged. On failure the id is destroyed with its
            // channel.
            let status = unsafe { (library.rdma_migrate_id)(id.id.as_ptr(), id.channel.channel.as_ptr()) };
            return if status == 0 { Ok(id) } else { Err(last_error("take an RDMA connection request")) };
        }
        // SAFETY: the id is owned, and not used after this.
        unsafe {
            (library.rdma_reject)(id.as_ptr(), null_mut(), 0);
            (library.rdma_destroy_id)(id.as_ptr());
        }
        Err(made.err().unwrap_or_else(|| io::ErrorKind::Other.into()))
    }

    /// An id of a test library.
    ///
    /// # Safety
    /// Both pointers come from that library, and the caller owns them.
    // SAFETY: the contract is above.
    #[cfg(test)]
    pub unsafe fn with(
        library: &'static Library,
        id: NonNull<rdma_cm_id>,
        channel: NonNull<rdma_event_channel>,
    ) -> CmId {
        CmId { library, id, channel: CmChannel { library, channel } }
    }

    /// The id as a pointer of the library.
    pub fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    fn inside(&self) -> &rdma_cm_id {
        // SAFETY: the id is valid as long as this, and the library writes these fields only during calls for this id.
        unsafe { self.id.as_ref() }
    }

    /// The device of the id. An error before the address of the peer is resolved.
    ///
    /// # Errors
    /// When there is none.
    pub fn context(&self) -> io::Result<NonNull<ibv_context>> {
        NonNull::new(self.inside().verbs).ok_or_else(|| io::Error::other("the RDMA connection has no device"))
    }

    /// The local address, and that of the peer.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let inside = self.inside();
        [&inside.src_addr, &inside.dst_addr].map(socket_addr).into()
    }

    /// A watch that becomes readable with an event.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn watch(&self) -> io::Result<FdWatch> {
        watch(self.channel.fd())
    }

    /// The next event, if available. A watch must exist.
    ///
    /// # Errors
    /// When the queue is broken.
    pub fn event(&self) -> io::Result<Option<CmEvent>> {
        self.channel.next()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the queue is broken.
    pub async fn next(&self, watch: &FdWatch) -> io::Result<CmEvent> {
        loop {
            if let Some(event) = self.event()? {
                return Ok(event);
            }
            watch.read_ready().await?;
        }
    }

    /// Turns an option on.
    ///
    /// # Errors
    /// When the kernel does not know the option.
    pub fn set(&self, option: c_int) -> io::Result<()> {
        let mut yes: c_int = 1;
        // SAFETY: the value has the given length.
        let status = unsafe {
            let value = (&raw mut yes).cast();
            (self.library.rdma_set_option)(self.as_ptr(), OPTION_ID, option, value, size_of::<c_int>())
        };
        done(status, "set an option of the RDMA connection")
    }

    /// Binds to an address, without listening.
    ///
    /// # Errors
    /// When the address is in use, or no device has it.
    pub fn bind(&self, at: SocketAddr) -> io::Result<()> {
        let mut bytes = sockaddr(at);
        // SAFETY: an address with its family, in a buffer that is long enough for every family.
        let status = unsafe { (self.library.rdma_bind_addr)(self.as_ptr(), (&raw mut bytes).cast()) };
        done(status, &format!("bind {at} for RDMA"))
    }

    /// Listens at an address.
    ///
    /// # Errors
    /// Those of [`CmId::bind`].
    pub fn listen(&self, at: SocketAddr, backlog: c_int) -> io::Result<()> {
        self.bind(at)?;
        // SAFETY: the id is valid.
        let status = unsafe { (self.library.rdma_listen)(self.as_ptr(), backlog) };
        done(status, &format!("listen at {at} for RDMA"))
    }

    /// Starts to resolve an address to a device.
    ///
    /// # Errors
    /// When the call fails; the result itself is an event.
    pub fn resolve_addr(&self, to: SocketAddr, timeout_ms: c_int) -> io::Result<()> {
        let mut bytes = sockaddr(to);
        // SAFETY: as for `listen`.
        let status = unsafe {
            (self.library.rdma_resolve_addr)(self.as_ptr(), null_mut(), (&raw mut bytes).cast(), timeout_ms)
        };
        done(status, &format!("find an RDMA device that leads to {to}"))
    }

    /// Starts to resolve the route.
    ///
    /// # Errors
    /// When the call fails; the result itself is an event.
    pub fn resolve_route(&self, timeout_ms: c_int) -> io::Result<()> {
        // SAFETY: the id is valid.
        done(
            unsafe { (self.library.rdma_resolve_route)(self.as_ptr(), timeout_ms) },
            "find a route of the RDMA device to the peer",
        )
    }

    /// Starts to connect. With software devices the call may block.
    ///
    /// # Errors
    /// Those of the kernel: the peer is unreachable, or rejects the connection.
    pub fn connect(&self, private: &[u8], depths: ReadDepths) -> io::Result<()> {
        let mut param = depths.param(private)?;
        // SAFETY: the id is valid, and so are the private data until the call returns.
        done(unsafe { (self.library.rdma_connect)(self.as_ptr(), &raw mut param) }, "connect by RDMA")
    }

    /// Accepts a connection request.
    ///
    /// # Errors
    /// When the peer has disconnected, or the device rejects the parameters.
    pub fn accept(&self, private: &[u8], depths: ReadDepths) -> io::Result<()> {
        let mut param = depths.param(private)?;
        // SAFETY: as for `connect`.
        done(
            unsafe { (self.library.rdma_accept)(self.as_ptr(), &raw mut param) },
            "accept an RDMA connection",
        )
    }

    /// Rejects a connection request.
    pub fn reject(&self, private: &[u8]) {
        let len = u8::try_from(private.len()).unwrap_or(u8::MAX);
        // SAFETY: the id is valid, and the private data have at least that length. The call fails harmlessly if the
        // peer has disconnected.
        unsafe { (self.library.rdma_reject)(self.as_ptr(), private.as_ptr().cast(), len) };
    }

    /// Disconnects. The device flushes the operations of the connection.
    pub fn disconnect(&self) {
        // SAFETY: the id is valid. The call fails harmlessly if it is no longer connected.
        unsafe { (self.library.rdma_disconnect)(self.as_ptr()) };
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: owned. Events are acknowledged when they are taken, so the call does not block. The channel is
        // destroyed afterwards.
        unsafe { (self.library.rdma_destroy_id)(self.as_ptr()) };
    }
}

/// The maximum numbers of outstanding RDMA Reads: of the peer (IRD), and of this end (ORD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDepths {
    pub ird: u8,
    pub ord: u8,
}

impl ReadDepths {
    fn param(self, private: &[u8]) -> io::Result<rdma_conn_param> {
        let too_long = |_| {
            let text = format!("private data of {} bytes: the limit is 255", private.len());
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        Ok(rdma_conn_param {
            private_data: private.as_ptr().cast(),
            private_data_len: u8::try_from(private.len()).map_err(too_long)?,
            responder_resources: self.ird,
            initiator_depth: self.ord,
            flow_control: 1,
            // The maximum values. For RNR, 7 means unlimited.
            retry_count: 7,
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        })
    }
}

fn done(status: c_int, tried: &str) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(last_error(tried)) }
}

/// Encodes an address as `struct sockaddr_in` or `sockaddr_in6`.
fn sockaddr(addr: SocketAddr) -> sockaddr_any {
    let mut bytes = [0; 128];
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    sockaddr_any(bytes)
}

/// Decodes an address; zeros for an unknown family.
pub fn socket_addr(addr: &sockaddr_any) -> SocketAddr {
    let bytes = &addr.0;
    let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    if u16::from_ne_bytes([bytes[0], bytes[1]]) != libc::AF_INET6 as u16 {
        return (Ipv4Addr::from(four(4)), port).into();
    }
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[8..24]);
    SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, u32::from_ne_bytes(four(24))).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_survives_encoding_as_sockaddr() {
        let v4 = sockaddr("10.0.2.15:3260".parse().unwrap());
        assert_eq!(v4.0[..8], [2, 0, 0x0c, 0xbc, 10, 0, 2, 15]);
        for text in ["10.0.2.15:3260", "[fd00:1ab::15]:5555", "[fe80::1%3]:1", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(socket_addr(&sockaddr(addr)), addr);
        }
        assert_eq!(socket_addr(&sockaddr_any([0; 128])), "0.0.0.0:0".parse().unwrap());
    }

    #[test]
    fn too_long_private_data_is_rejected() {
        let depths = ReadDepths { ird: 3, ord: 4 };
        let param = depths.param(&[1; 255]).unwrap();
        let what = (param.private_data_len, param.responder_resources, param.initiator_depth);
        assert_eq!(what, (255, 3, 4));
        assert_eq!(depths.param(&[1; 256]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
