//! Commands to `/dev/ublk-control`, one at a time. They use a separate io_uring, because they need entries of 128
//! bytes, and some of them block.
#![allow(unsafe_code)]

use super::abi::{ControlCommand, DeviceInfo, NO_QUEUE, Params, UblkCommand};
use crate::Error;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

const PATH: &str = "/dev/ublk-control";
/// The time limit of a command. The kernel reads the partition table when a device starts, and waits for requests in
/// flight when it stops. So this is longer than the time limits of network backends.
const LIMIT: Duration = Duration::from_secs(180);
/// The interval at which a waiting command checks whether to give up.
const STEP: Timespec = Timespec::new().nsec(50_000_000);

type Ring = IoUring<squeue::Entry128>;

/// The driver's control device.
pub(super) struct ControlDevice {
    ring: Ring,
    file: File,
    /// Whether commands use ioctl-encoded numbers.
    as_ioctl: bool,
    features: Option<u64>,
    /// The number of the last command, which distinguishes its result from that of an abandoned command.
    last: u64,
}

impl ControlDevice {
    /// Opens the control device, and queries the features of the driver.
    ///
    /// # Errors
    /// No driver, no privileges, or no permission to use io_uring.
    pub fn open() -> Result<ControlDevice, Error> {
        let file = File::options().read(true).write(true).open(PATH).map_err(no_driver)?;
        let ring = ring().map_err(|e| {
            let hint = "allow io_uring, which ublk needs (sysctl kernel.io_uring_disabled=0, and the container's \
                seccomp profile), or export with NBD or FUSE";
            Error::refused(PATH, "set up an io_uring", e, hint)
        })?;
        let mut control = ControlDevice { ring, file, as_ioctl: true, features: None, last: 0 };
        match control.call(UblkCommand::GET_FEATURES, 0, 0, 0u64) {
            Ok(features) => control.features = Some(features),
            // Linux before 6.5 has no such query, and accepts plain numbers.
            Err(_) => control.as_ioctl = false,
        }
        tracing::debug!(features = control.features, "ublk driver");
        Ok(control)
    }

    /// Whether commands use ioctl-encoded numbers.
    pub fn as_ioctl(&self) -> bool {
        self.as_ioctl
    }

    /// The features of the driver; None before Linux 6.5.
    pub fn features(&self) -> Option<u64> {
        self.features
    }

    /// Adds a device. Returns its properties as the driver set them.
    pub fn add(&mut self, info: DeviceInfo) -> io::Result<DeviceInfo> {
        self.call(UblkCommand::ADD_DEV, info.id, 0, info)
    }

    /// The properties of a device.
    pub fn info(&mut self, id: u32) -> io::Result<DeviceInfo> {
        self.call(UblkCommand::GET_DEV_INFO, id, 0, DeviceInfo::default())
    }

    /// Sets the parameters of a device.
    pub fn set_params(&mut self, id: u32, params: Params) -> io::Result<()> {
        self.call(UblkCommand::SET_PARAMS, id, 0, params).map(drop)
    }

    /// The parameters of a device.
    pub fn params(&mut self, id: u32) -> io::Result<Params> {
        let empty = Params { len: size_of::<Params>() as u32, ..Params::default() };
        self.call(UblkCommand::GET_PARAMS, id, 0, empty)
    }

    /// Executes a command without a structure.
    pub fn plain(&mut self, command: UblkCommand, id: u32, data: u64) -> io::Result<()> {
        self.exchange(command, id, data, None, &|| None)
    }

    /// The same, but the command is abandoned as soon as `give_up` returns a reason.
    pub fn plain_unless(
        &mut self,
        command: UblkCommand,
        id: u32,
        data: u64,
        give_up: &dyn Fn() -> Option<io::Error>,
    ) -> io::Result<()> {
        self.exchange(command, id, data, None, give_up)
    }

    /// Executes a command with a structure that the driver reads, writes, or both.
    fn call<T: IntoBytes + FromBytes>(
        &mut self,
        command: UblkCommand,
        id: u32,
        data: u64,
        payload: T,
    ) -> io::Result<T> {
        let mut payload = Box::new(payload);
        let bytes = payload.as_mut_bytes();
        let place = (bytes.as_mut_ptr() as u64, bytes.len() as u16);
        match self.exchange(command, id, data, Some(place), &|| None) {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                // The kernel may still write to it.
                Box::leak(payload);
                Err(e)
            }
            done => done.map(|()| *payload),
        }
    }

    /// Executes one command. After `TimedOut` the command may still run, so its memory must stay valid.
    fn exchange(
        &mut self,
        command: UblkCommand,
        id: u32,
        data: u64,
        place: Option<(u64, u16)>,
        give_up: &dyn Fn() -> Option<io::Error>,
    ) -> io::Result<()> {
        let (addr, len) = place.unwrap_or_default();
        let inner = ControlCommand { dev_id: id, queue_id: NO_QUEUE, len, addr, data, reserved: 0 };
        let mut bytes = [0; 80];
        bytes[..size_of::<ControlCommand>()].copy_from_slice(inner.as_bytes());
        self.last += 1;
        let fd = Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command.code(self.as_ioctl)).cmd(bytes).build();
        // SAFETY: the file lives as long as the ring. The memory at `addr` outlives the command: `call` frees
        // it only when the command has ended.
        unsafe { self.ring.submission().push(&entry.user_data(self.last)) }.map_err(io::Error::other)?;
        let ended = self.wait(give_up);
        if ended.is_err() {
            // Closing the ring interrupts the command.
            renew(&mut self.ring, ring())?;
        }
        match ended? {
            result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            _ => Ok(()),
        }
    }

    /// Waits for the result of the last command.
    fn wait(&mut self, give_up: &dyn Fn() -> Option<io::Error>) -> io::Result<i32> {
        let end = Instant::now() + LIMIT;
        loop {
            let last = self.last;
            if let Some(answer) = self.ring.completion().find(|answer| answer.user_data() == last) {
                return Ok(answer.result());
            }
            if let Some(why) = give_up() {
                tracing::debug!(%why, "command to the ublk driver abandoned");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            if Instant::now() > end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&STEP)) {
                Err(e) if !is_early(&e) => return Err(io::Error::new(io::ErrorKind::TimedOut, e)),
                _ => {}
            }
        }
    }
}

fn ring() -> io::Result<Ring> {
    Ring::builder().dontfork().build(4)
}

/// Replaces a ring whose command has not ended. If no new ring can be created, the command may still run, so this
/// also returns `TimedOut`.
fn renew<R>(place: &mut R, made: io::Result<R>) -> io::Result<()> {
    *place = made.map_err(|e| io::Error::new(io::ErrorKind::TimedOut, e))?;
    Ok(())
}

/// Whether a wait was interrupted before there was a result.
fn is_early(e: &io::Error) -> bool {
    let early = [rustix::io::Errno::TIME, rustix::io::Errno::INTR, rustix::io::Errno::AGAIN];
    early.iter().any(|errno| e.raw_os_error() == Some(errno.raw_os_error()))
}

fn no_driver(e: io::Error) -> Error {
    let hint = match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "load the driver with `modprobe ublk_drv`. Linux has ublk_drv since 6.0 (CONFIG_BLK_DEV_UBLK=m), Debian \
                since its kernel 6.12, Ubuntu in linux-modules-extra-$(uname -r). Without ublk, export with NBD or FUSE"
        }
        io::ErrorKind::PermissionDenied => "run this program as root, or export with NBD or FUSE",
        _ => {
            "see dmesg; a container needs access to /dev/ublk-control, and to the new /dev/ublkc* and /dev/ublkb*"
        }
    };
    Error::refused(PATH, "open", e, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With any other kind of error, `call` would free memory that the kernel may still write.
    #[test]
    fn failed_ring_replacement_is_a_timeout() {
        let mut ring = 1;
        let failed = renew(&mut ring, Err(rustix::io::Errno::NOMEM.into()));
        assert_eq!((failed.map_err(|e| e.kind()), ring), (Err(io::ErrorKind::TimedOut), 1));
        assert!(renew(&mut ring, Ok(2)).is_ok());
        assert_eq!(ring, 2);
    }
}
