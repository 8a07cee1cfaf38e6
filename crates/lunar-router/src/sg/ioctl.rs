//! The kernel's sg driver, version 3 of its interface (`scsi/sg.h`). The only module with `unsafe`.
#![allow(unsafe_code)]

use super::driver::{SgCompletion, SgDriver, SgIo, SgOutcome};
use lunar_target::PassthroughData;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const SG_GET_VERSION_NUM: Opcode = 0x2282;
const SG_GET_SCSI_ID: Opcode = 0x2276;
const SG_SET_RESERVED_SIZE: Opcode = 0x2275;
const SG_SET_COMMAND_Q: Opcode = 0x2271;
const SG_SCSI_RESET: Opcode = 0x2284;
const BLKSECTGET: Opcode = 0x1267;

/// SG_SCSI_RESET_DEVICE with SG_SCSI_RESET_NO_ESCALATE: other logical units of the target are not reset.
const RESET_DEVICE_ONLY: i32 = 0x101;
const DXFER_NONE: i32 = -1;
const DXFER_TO_DEV: i32 = -2;
const DXFER_FROM_DEV: i32 = -3;
/// Without this flag, the driver puts each command before the queued ones, which reverses their order.
const FLAG_Q_AT_TAIL: u32 = 0x10;
const FLAG_Q_AT_HEAD: u32 = 0x20;
/// SCSI_SENSE_BUFFERSIZE: the maximum that the kernel keeps.
const SENSE_LEN: usize = 96;
/// The interval at which a removed device is polled for its remaining completions.
const GONE_STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// `struct sg_io_hdr`, with addresses as numbers.
#[derive(Clone, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SgIoHdr {
    interface_id: i32,
    dxfer_direction: i32,
    cmd_len: u8,
    mx_sb_len: u8,
    iovec_count: u16,
    dxfer_len: u32,
    dxferp: usize,
    cmdp: usize,
    sbp: usize,
    timeout: u32,
    flags: u32,
    pack_id: i32,
    padding: [u8; PADDING],
    usr_ptr: usize,
    status: u8,
    masked_status: u8,
    msg_status: u8,
    sb_len_wr: u8,
    host_status: u16,
    driver_status: u16,
    resid: i32,
    duration: u32,
    info: u32,
    tail: [u8; PADDING],
}

/// The padding of a 64-bit ABI before an address, and at the end.
const PADDING: usize = size_of::<usize>() - 4;
const _: () = assert!(size_of::<SgIoHdr>() == if PADDING == 4 { 88 } else { 64 });

/// `struct sg_scsi_id`: the address and the type of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct ScsiId {
    /// Number of the host adapter.
    pub host: i32,
    /// The channel.
    pub channel: i32,
    /// The target id.
    pub target: i32,
    /// Logical unit.
    pub lun: i32,
    /// Peripheral device type (SPC-5 section 6.6.2).
    pub device_type: i32,
    /// The host adapter's preferred number of commands for each logical unit.
    pub commands_per_lun: i16,
    /// The queue depth of the device.
    pub queue_depth: i16,
    /// Zeros.
    pub unused: [i32; 2],
}
const _: () = assert!(size_of::<ScsiId>() == 32);

/// A command in flight, whose addresses the kernel has.
struct InFlightSgIo {
    sg_io: SgIo,
    sense: Box<[u8; SENSE_LEN]>,
}

/// An open `/dev/sgN`.
pub(super) struct SgNode {
    // Dropped first: after the close, the device writes to no memory of this process.
    device: File,
    woken: OwnedFd,
    flights: Mutex<HashMap<u32, InFlightSgIo>>,
}

impl SgNode {
    /// Wraps an open file. The caller must first check that it is an sg device.
    pub fn new(device: File) -> io::Result<SgNode> {
        let woken = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(SgNode { device, woken, flights: Mutex::default() })
    }

    /// The version of the driver: 30000 for 3.0.00.
    pub fn version(&self) -> io::Result<i32> {
        // SAFETY: the opcode writes an int.
        Ok(unsafe { ioctl(&self.device, Getter::<SG_GET_VERSION_NUM, i32>::new()) }?)
    }

    /// The address and the type of the device.
    pub fn scsi_id(&self) -> io::Result<ScsiId> {
        let mut id = ScsiId::default();
        // SAFETY: the opcode writes a struct `sg_scsi_id`, whose layout `id` has.
        unsafe { ioctl(&self.device, Updater::<SG_GET_SCSI_ID, ScsiId>::new(&mut id)) }?;
        Ok(id)
    }

    /// The kernel's maximum transfer length for one command in bytes.
    pub fn max_transfer(&self) -> io::Result<usize> {
        // SAFETY: on an sg device the opcode writes an int.
        let bytes = unsafe { ioctl(&self.device, Getter::<BLKSECTGET, i32>::new()) }?;
        usize::try_from(bytes).map_err(io::Error::other)
    }

    /// Enables command queuing, and reserves memory for transfers of this length.
    pub fn prepare(&self, reserved: i32) -> io::Result<()> {
        // SAFETY: the opcode reads an int.
        unsafe { ioctl(&self.device, Setter::<SG_SET_COMMAND_Q, i32>::new(1)) }?;
        // SAFETY: the opcode reads an int.
        unsafe { ioctl(&self.device, Setter::<SG_SET_RESERVED_SIZE, i32>::new(reserved)) }?;
        Ok(())
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<u32, InFlightSgIo>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightSgIo {
    fn new(sg_io: SgIo) -> InFlightSgIo {
        InFlightSgIo { sg_io, sense: Box::new([0; SENSE_LEN]) }
    }

    /// The header for the kernel. None if the CDB is too long for it.
    fn header(&mut self, id: u32) -> Option<SgIoHdr> {
        let (direction, at, len) = match &mut self.sg_io.data {
            PassthroughData::In(buf) if !buf.is_empty() => {
                (DXFER_FROM_DEV, address(buf.as_mut_ptr()), buf.len())
            }
            PassthroughData::Out(buf) if !buf.is_empty() => (DXFER_TO_DEV, address(buf.as_ptr()), buf.len()),
            _ => (DXFER_NONE, 0, 0),
        };
        Some(SgIoHdr {
            interface_id: i32::from(b'S'),
            dxfer_direction: direction,
            cmd_len: u8::try_from(self.sg_io.cdb.len()).ok()?,
            mx_sb_len: SENSE_LEN as u8,
            dxfer_len: u32::try_from(len).ok()?,
            dxferp: at,
            cmdp: address(self.sg_io.cdb.as_ptr()),
            sbp: address(self.sense.as_mut_ptr()),
            timeout: self.sg_io.timeout_ms,
            flags: if self.sg_io.first { FLAG_Q_AT_HEAD } else { FLAG_Q_AT_TAIL },
            pack_id: id as i32,
            ..SgIoHdr::default()
        })
    }

    fn end(self, header: &SgIoHdr) -> SgCompletion {
        let sense = &self.sense[..SENSE_LEN.min(header.sb_len_wr.into())];
        let outcome = SgOutcome {
            status: header.status,
            host: header.host_status,
            driver: header.driver_status,
            sense: sense.to_vec(),
            residual: header.resid,
        };
        SgCompletion { id: header.pack_id as u32, sg_io: self.sg_io, outcome }
    }
}

/// The address of data that the kernel will access.
fn address<T>(at: *const T) -> usize {
    at.expose_provenance()
}

impl SgDriver for SgNode {
    // The addresses in the header are used until the read that returns the completion, or until the device is closed.
    // Until then their memory stays in `flights`, whose boxes and buffers do not move.
    fn send(&self, id: u32, sg_io: SgIo) -> Result<(), (io::Error, SgIo)> {
        let mut flights = self.flights();
        let mut flight = InFlightSgIo::new(sg_io);
        let Some(header) = flight.header(id) else {
            return Err((Errno::MSGSIZE.into(), flight.sg_io));
        };
        match rustix::io::write(&self.device, header.as_bytes()) {
            Ok(_) => {
                flights.insert(id, flight);
                Ok(())
            }
            Err(e) => Err((e.into(), flight.sg_io)),
        }
    }

    fn receive(&self) -> io::Result<Option<SgCompletion>> {
        let mut header = SgIoHdr { interface_id: i32::from(b'S'), ..SgIoHdr::default() };
        let mut flights = self.flights();
        match rustix::io::read(&self.device, header.as_mut_bytes()) {
            Ok(_) => {}
            // ENODEV: the device was removed, and its remaining command has not completed yet.
            Err(Errno::AGAIN | Errno::INTR | Errno::NODEV) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let flight = flights.remove(&(header.pack_id as u32));
        let flight = flight.ok_or_else(|| {
            io::Error::other("the sg driver returned a completion whose tag matches no command")
        })?;
        Ok(Some(flight.end(&header)))
    }

    fn wait(&self, in_flight: bool) -> io::Result<()> {
        let mut two = [PollFd::new(&self.woken, PollFlags::IN), PollFd::new(&self.device, PollFlags::IN)];
        let watched = if in_flight { &mut two[..] } else { &mut two[..1] };
        retried(|| poll(watched, None))?;
        let events = two[1].revents();
        if events.contains(PollFlags::HUP) && !events.contains(PollFlags::IN) {
            retried(|| poll(&mut two[..1], Some(&GONE_STEP)))?;
        }
        // The counter is 0 either way.
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
        Ok(())
    }

    fn wake(&self) {
        // Fails only if the counter would exceed 2^64 - 2, and then the thread is awake.
        let _ = rustix::io::write(&self.woken, &1_u64.to_ne_bytes());
    }

    fn reset(&self) -> io::Result<()> {
        // SAFETY: the opcode reads an int.
        Ok(unsafe { ioctl(&self.device, Setter::<SG_SCSI_RESET, i32>::new(RESET_DEVICE_ONLY)) }?)
    }
}

fn retried<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    Ok(rustix::io::retry_on_intr(&mut call)?)
}
