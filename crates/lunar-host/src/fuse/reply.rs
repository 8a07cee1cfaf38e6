//! Executes the kernel's requests on a backend, and encodes the replies.

use super::abi::{self, *};
use crate::error::errno;
use lunar_block::{Backend, TryIo};
use lunar_runtime::Buf;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The maximum length of a WRITE's data in bytes.
pub(super) const MAX_WRITE: usize = 1 << 20;
/// The maximum number of requests in flight.
pub(super) const IN_FLIGHT: u16 = 32;
/// The inode number of the directory.
const ROOT: u64 = 1;
/// The inode number of the file.
const FILE: u64 = 2;
/// The block size of the file in bytes.
const BLOCK: u64 = 4096;
/// The time for which the kernel may cache the size, in seconds.
const SIZE_VALID_S: u64 = 1;
/// The time for which the kernel may cache the name, in seconds. The name never changes.
const NAME_VALID_S: u64 = 3600;
const KIND_FILE: u32 = 0o100_000;
const KIND_FOLDER: u32 = 0o040_000;

/// A received request: its header, its arguments, and the bytes after them, which are the data of a WRITE.
pub(super) struct FuseRequest {
    pub head: [u8; HEAD],
    pub rest: Buf,
    /// The received length in bytes.
    pub len: usize,
}

/// The body of a reply, without the header.
pub(super) enum FuseReply {
    /// No reply, because the kernel expects none.
    Silence,
    /// A few bytes.
    Bytes(Vec<u8>),
    /// This many bytes of the request's buffer.
    Data(usize),
}

impl FuseReply {
    fn of(value: &(impl IntoBytes + zerocopy::Immutable)) -> FuseReply {
        FuseReply::Bytes(value.as_bytes().to_vec())
    }

    fn empty() -> FuseReply {
        FuseReply::Bytes(Vec::new())
    }
}

impl FuseRequest {
    pub fn new() -> FuseRequest {
        FuseRequest { head: [0; HEAD], rest: Buf::zeroed(MAX_WRITE), len: 0 }
    }

    /// The header, if it is complete and its length is correct.
    pub fn header(&self) -> Option<InHeader> {
        let (header, _) = InHeader::read_from_prefix(&self.head).ok()?;
        (header.len as usize == self.len && self.len >= size_of::<InHeader>()).then_some(header)
    }

    /// The arguments after the header, or EINVAL if they are too short.
    fn arguments<T: FromBytes>(&self) -> io::Result<T> {
        let all = self.after_header(size_of::<T>());
        T::read_from_bytes(&all).map_err(|_| Errno::INVAL.into())
    }

    /// Up to `limit` bytes after the header.
    fn after_header(&self, limit: usize) -> Vec<u8> {
        let came = self.len.min(HEAD + self.rest.capacity());
        let first = &self.head[size_of::<InHeader>()..HEAD.min(came)];
        let more = &self.rest[..came.saturating_sub(HEAD).min(self.rest.len())];
        first.iter().chain(more).take(limit).copied().collect()
    }
}

/// The exported file and its directory.
pub(super) struct ExportedFile {
    pub backend: Arc<dyn Backend>,
    pub name: Vec<u8>,
    pub read_only: bool,
    /// The time of the mount in seconds since 1970. All file times have this value.
    pub since: u64,
}

impl ExportedFile {
    /// Executes a request. The data of a read is left in the request's buffer.
    pub async fn answer(&self, header: &InHeader, request: &mut FuseRequest) -> io::Result<FuseReply> {
        match header.opcode {
            op::INIT => init(&request.arguments()?),
            op::LOOKUP => self.lookup(header.node, request),
            op::GETATTR => self.getattr(header.node),
            op::SETATTR => self.setattr(header.node, &request.arguments()?),
            op::OPEN => self.open(&request.arguments()?),
            op::OPENDIR => Ok(FuseReply::of(&OpenOut::default())),
            op::READDIR => self.readdir(&request.arguments()?),
            op::READ => self.read(&request.arguments()?, &mut request.rest).await,
            op::WRITE => self.write(&request.arguments()?, request).await,
            op::FSYNC => self.backend.flush().await.map(|()| FuseReply::empty()),
            op::FALLOCATE => self.fallocate(&request.arguments()?).await,
            op::STATFS => Ok(self.statfs()),
            op::RELEASE | op::RELEASEDIR | op::DESTROY => Ok(FuseReply::empty()),
            op::FORGET | op::BATCH_FORGET => Ok(FuseReply::Silence),
            // The directory has only this file.
            op::SYMLINK..=op::LINK | op::CREATE | op::RENAME2 => Err(Errno::PERM.into()),
            // The kernel then uses its own implementation, and stops sending this request.
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn capacity(&self) -> u64 {
        self.backend.info().capacity
    }

    fn attr(&self, node: u64) -> io::Result<Attr> {
        let writable = if self.read_only { 0 } else { 0o200 };
        let (mode, size, links) = match node {
            ROOT => (KIND_FOLDER | 0o500, 0, 2),
            FILE => (KIND_FILE | 0o400 | writable, self.capacity(), 1),
            _ => return Err(Errno::NOENT.into()),
        };
        Ok(Attr {
            node,
            size,
            blocks: size.div_ceil(512),
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            mode,
            links,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            block_size: BLOCK as u32,
            ..Attr::default()
        })
    }

    fn lookup(&self, parent: u64, request: &FuseRequest) -> io::Result<FuseReply> {
        let name = request.after_header(self.name.len() + 1);
        if parent != ROOT || name.strip_suffix(&[0]) != Some(&self.name) {
            return Err(Errno::NOENT.into());
        }
        self.backend.refresh();
        Ok(FuseReply::of(&EntryOut {
            node: FILE,
            entry_valid: NAME_VALID_S,
            attr_valid: SIZE_VALID_S,
            attr: self.attr(FILE)?,
            ..EntryOut::default()
        }))
    }

    fn getattr(&self, node: u64) -> io::Result<FuseReply> {
        self.backend.refresh();
        let attr = self.attr(node)?;
        Ok(FuseReply::of(&AttrOut { attr_valid: SIZE_VALID_S, attr, ..AttrOut::default() }))
    }

    /// Accepts new times and ignores them. The size cannot be changed.
    fn setattr(&self, node: u64, arguments: &SetattrIn) -> io::Result<FuseReply> {
        let fixed = arguments.valid & (attr::MODE | attr::UID | attr::GID) != 0;
        let other_size = arguments.valid & attr::SIZE != 0 && arguments.size != self.capacity();
        if fixed || other_size {
            return Err(Errno::PERM.into());
        }
        self.getattr(node)
    }

    fn open(&self, arguments: &OpenIn) -> io::Result<FuseReply> {
        let access = OFlags::from_bits_retain(arguments.flags) & OFlags::RWMODE;
        if self.read_only && access != OFlags::RDONLY {
            return Err(Errno::ROFS.into());
        }
        Ok(FuseReply::of(&OpenOut { open_flags: OPEN_PARALLEL_DIRECT_WRITES, ..OpenOut::default() }))
    }

    fn readdir(&self, arguments: &TransferIn) -> io::Result<FuseReply> {
        let entries =
            [(ROOT, &b"."[..], KIND_FOLDER), (ROOT, b"..", KIND_FOLDER), (FILE, &self.name, KIND_FILE)];
        let mut bytes = Vec::new();
        for (n, (node, name, kind)) in (1..).zip(entries).skip(arguments.offset.min(3) as usize) {
            let entry = Dirent { node, next: n, name_len: name.len() as u32, kind: kind >> 12 };
            let padded = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
            if bytes.len() + padded > arguments.size as usize {
                break;
            }
            let end = bytes.len() + padded;
            bytes.extend_from_slice(entry.as_bytes());
            bytes.extend_from_slice(name);
            bytes.resize(end, 0);
        }
        Ok(FuseReply::Bytes(bytes))
    }

    /// Reads up to the end of the medium.
    async fn read(&self, arguments: &TransferIn, buf: &mut Buf) -> io::Result<FuseReply> {
        let there = self.capacity().saturating_sub(arguments.offset);
        let len = u64::from(arguments.size).min(there).min(buf.capacity() as u64) as usize;
        buf.set_visible(len);
        if len > 0 {
            match self.backend.try_read(arguments.offset, buf) {
                TryIo::Done(result) => result?,
                TryIo::WouldWait => {
                    let (result, back) =
                        self.backend.read(arguments.offset, std::mem::replace(buf, Buf::zeroed(0))).await;
                    *buf = back;
                    result?;
                }
            }
        }
        Ok(FuseReply::Data(len))
    }

    /// Writes all of the data, or reports an error. With O_SYNC or O_DSYNC, the data is stable when the write ends.
    async fn write(&self, arguments: &TransferIn, request: &mut FuseRequest) -> io::Result<FuseReply> {
        let size = arguments.size as usize;
        if self.read_only {
            return Err(Errno::ROFS.into());
        }
        if size != request.len - HEAD {
            return Err(Errno::INVAL.into());
        }
        if !self.holds(arguments.offset, size as u64) {
            return Err(Errno::NOSPC.into());
        }
        let stable = OFlags::from_bits_retain(arguments.flags).contains(OFlags::DSYNC);
        let buf = &mut request.rest;
        buf.set_visible(size);
        let at_once = match stable {
            true => TryIo::WouldWait,
            false => self.backend.try_write(arguments.offset, buf),
        };
        match at_once {
            TryIo::Done(result) => result?,
            TryIo::WouldWait => {
                let data = std::mem::replace(buf, Buf::zeroed(0));
                let (result, back) = self.backend.write(arguments.offset, data, stable).await;
                *buf = back;
                result?;
            }
        }
        Ok(FuseReply::of(&WriteOut { size: arguments.size, padding: 0 }))
    }

    /// Punches holes and zeroes ranges. Space cannot be reserved.
    async fn fallocate(&self, arguments: &FallocateIn) -> io::Result<FuseReply> {
        let mode = FallocateFlags::from_bits_retain(arguments.mode) - FallocateFlags::KEEP_SIZE;
        let punches = match mode {
            FallocateFlags::PUNCH_HOLE => true,
            FallocateFlags::ZERO_RANGE => false,
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        if self.read_only {
            return Err(Errno::ROFS.into());
        }
        // A hole may extend beyond the end of the file, where it has no effect.
        let there = self.capacity().saturating_sub(arguments.offset);
        let len = if punches { arguments.len.min(there) } else { arguments.len };
        if !punches && !self.holds(arguments.offset, len) {
            return Err(Errno::NOSPC.into());
        }
        if len > 0 {
            self.backend.write_zeroes(arguments.offset, len, punches).await?;
        }
        Ok(FuseReply::empty())
    }

    fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.capacity())
    }

    fn statfs(&self) -> FuseReply {
        let blocks = self.capacity() / BLOCK;
        FuseReply::of(&StatfsOut {
            blocks,
            files: 1,
            block_size: BLOCK as u32,
            name_len: 255,
            fragment_size: BLOCK as u32,
            ..StatfsOut::default()
        })
    }
}

fn init(arguments: &InitIn) -> io::Result<FuseReply> {
    if arguments.major != MAJOR || arguments.minor < MINOR_LEAST {
        tracing::error!(
            arguments.major,
            arguments.minor,
            "this kernel's FUSE protocol is not supported: version {MAJOR}.{MINOR_LEAST} or a later {MAJOR}.x is required"
        );
        return Err(Errno::PROTO.into());
    }
    let known =
        flag::ASYNC_READ | flag::BIG_WRITES | flag::ASYNC_DIO | flag::PARALLEL_DIROPS | flag::MAX_PAGES;
    Ok(FuseReply::of(&InitOut {
        major: MAJOR,
        minor: abi::MINOR,
        max_readahead: arguments.max_readahead,
        flags: arguments.flags & known,
        max_background: IN_FLIGHT,
        congestion_threshold: IN_FLIGHT * 3 / 4,
        max_write: MAX_WRITE as u32,
        time_gran: 1,
        max_pages: (MAX_WRITE / lunar_runtime::buf::PAGE) as u16,
        ..InitOut::default()
    }))
}

/// The header of a reply of `len` bytes, or of an error.
pub(super) fn out_header(unique: u64, result: &io::Result<FuseReply>) -> OutHeader {
    let (error, len) = match result {
        Err(e) => (-errno(e), 0),
        Ok(FuseReply::Bytes(bytes)) => (0, bytes.len()),
        Ok(FuseReply::Data(len)) => (0, *len),
        Ok(FuseReply::Silence) => (0, 0),
    };
    OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique }
}
