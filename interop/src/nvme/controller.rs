//! A host and its controller: the admin queue, and what connects I/O queues to it.

use super::{NvmeEntry, NvmeReply, NvmeWire};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// CC: enabled, entries of 64 and 16 bytes.
const ENABLED: u32 = 0x46_0001;
const CSTS: u32 = 0x1c;
/// The log page of access states.
const ACCESS: u8 = 0x0c;

/// The names of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeHostName {
    pub nqn: String,
    pub id: [u8; 16],
}

impl NvmeHostName {
    /// A host with a name and an identifier made of this word.
    pub fn new(word: &str) -> NvmeHostName {
        let mut id = [0x5a; 16];
        id.iter_mut().zip(word.bytes()).for_each(|(to, from)| *to = from);
        NvmeHostName { nqn: format!("nqn.2026-11.org.example:{word}"), id }
    }
}

/// The data of Connect.
pub fn connect_data(host: &NvmeHostName, controller: u16, subsystem: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[..16].copy_from_slice(&host.id);
    data[16..18].copy_from_slice(&controller.to_le_bytes());
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data[512..512 + host.nqn.len()].copy_from_slice(host.nqn.as_bytes());
    data
}

/// A controller by its admin queue.
pub struct RawController {
    pub admin: NvmeWire,
    /// CNTLID.
    pub id: u16,
    pub host: NvmeHostName,
    pub subsystem: String,
    address: SocketAddr,
    digests: u8,
}

impl RawController {
    /// Tries one Connect of an admin queue.
    pub fn try_connect(address: SocketAddr, host: &NvmeHostName, subsystem: &str) -> NvmeReply {
        let connect = NvmeEntry::connect(0, 31, 0);
        NvmeWire::begin(address, 0).execute(&connect, &connect_data(host, 0xffff, subsystem))
    }

    /// Connects an admin queue, with this time-out of Keep Alive. The controller is not enabled.
    pub fn connect(
        address: SocketAddr,
        host: &NvmeHostName,
        subsystem: &str,
        keep_alive_ms: u32,
    ) -> RawController {
        RawController::with_digests(address, host, subsystem, keep_alive_ms, 0)
    }

    fn with_digests(
        address: SocketAddr,
        host: &NvmeHostName,
        subsystem: &str,
        keep_alive_ms: u32,
        digests: u8,
    ) -> RawController {
        let mut admin = NvmeWire::begin(address, digests);
        let connect = NvmeEntry::connect(0, 31, keep_alive_ms);
        let reply = admin.execute(&connect, &connect_data(host, 0xffff, subsystem));
        assert_eq!(reply.status, 0, "Connect: {reply:x?}");
        let id = reply.result as u16;
        RawController { admin, id, host: host.clone(), subsystem: subsystem.into(), address, digests }
    }

    /// Connects and enables a controller whose connections have these digests.
    pub fn enabled(address: SocketAddr, host: &NvmeHostName, subsystem: &str, digests: u8) -> RawController {
        let mut controller = RawController::with_digests(address, host, subsystem, 0, digests);
        controller.enable();
        controller
    }

    /// Enables it, and waits until it is ready.
    pub fn enable(&mut self) {
        self.admin.execute(&NvmeEntry::configure(ENABLED), &[]).good();
        let end = Instant::now() + crate::raw::patience();
        while self.admin.execute(&NvmeEntry::property(CSTS, false), &[]).result & 1 == 0 {
            assert!(Instant::now() < end, "the controller is not ready");
        }
    }

    /// The access state of the only namespace (ANA). None: there is no namespace.
    pub fn access_state(&mut self) -> Option<u8> {
        let page = self.admin.execute(&NvmeEntry::log(ACCESS, 64), &[]).good();
        (page[8] == 1).then(|| page[32] & 15)
    }

    /// Tries to connect an I/O queue with this number of entries, 0-based.
    pub fn try_queue(&self, queue: u16, size: u16) -> (NvmeWire, NvmeReply) {
        let mut wire = NvmeWire::begin(self.address, self.digests);
        let data = connect_data(&self.host, self.id, &self.subsystem);
        let reply = wire.execute(&NvmeEntry::connect(queue, size, 0), &data);
        (wire, reply)
    }

    /// Connects an I/O queue of 128 entries.
    pub fn queue(&self, queue: u16) -> NvmeWire {
        let (wire, reply) = self.try_queue(queue, 127);
        assert_eq!((reply.status, reply.result as u16), (0, self.id), "Connect: {reply:x?}");
        wire
    }

    /// The same, when the place may still belong to a connection that has just ended.
    pub fn queue_again(&self, queue: u16) -> NvmeWire {
        let end = Instant::now() + crate::raw::patience();
        loop {
            match self.try_queue(queue, 127) {
                (wire, NvmeReply { status: 0, .. }) => return wire,
                (_, reply) => assert!(Instant::now() < end, "Connect: {reply:x?}"),
            }
            sleep(Duration::from_millis(10));
        }
    }
}
