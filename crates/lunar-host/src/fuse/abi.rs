//! The interface of `/dev/fuse`: the structures and numbers of `linux/fuse.h`, protocol 7.31, in native byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 31;
/// The oldest supported minor version (Linux 4.5).
pub(super) const MINOR_LEAST: u32 = 24;
/// The length in bytes of everything before a WRITE's data.
pub(super) const HEAD: usize = size_of::<InHeader>() + size_of::<TransferIn>();

/// Request opcodes.
pub(super) mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const SYMLINK: u32 = 6;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const CREATE: u32 = 35;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
}

/// Flags of INIT.
pub(super) mod flag {
    pub const ASYNC_READ: u32 = 1;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const ASYNC_DIO: u32 = 1 << 15;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    pub const MAX_PAGES: u32 = 1 << 22;
}

/// `open_flags` of [`OpenOut`]: direct writes may run in parallel.
pub(super) const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// Bits of [`SetattrIn::valid`].
pub(super) mod attr {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
}

/// `fuse_in_header`: the header of a request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InHeader {
    /// The length of the whole request in bytes.
    pub len: u32,
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub padding: u32,
}

/// `fuse_out_header`: the header of a reply.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OutHeader {
    /// The length of the whole reply in bytes.
    pub len: u32,
    /// 0 or a negative errno.
    pub error: i32,
    pub unique: u64,
}

/// The start of `fuse_init_in`, which all versions have.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
}

/// `fuse_init_out`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    /// The granularity of timestamps in nanoseconds.
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub unused: [u32; 8],
}

/// `fuse_attr`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Attr {
    pub node: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub nanoseconds: [u32; 3],
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
    pub block_size: u32,
    pub flags: u32,
}

/// `fuse_entry_out`: the result of LOOKUP, and its validity in seconds.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct EntryOut {
    pub node: u64,
    pub generation: u64,
    pub entry_valid: u64,
    pub attr_valid: u64,
    pub nanoseconds: [u32; 2],
    pub attr: Attr,
}

/// `fuse_attr_out`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct AttrOut {
    pub attr_valid: u64,
    pub nanoseconds: u32,
    pub padding: u32,
    pub attr: Attr,
}

/// The used part of `fuse_setattr_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SetattrIn {
    pub valid: u32,
    pub padding: u32,
    pub handle: u64,
    pub size: u64,
}

/// `fuse_open_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OpenIn {
    pub flags: u32,
    pub open_flags: u32,
}

/// `fuse_open_out`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OpenOut {
    pub handle: u64,
    pub open_flags: u32,
    pub padding: u32,
}

/// `fuse_read_in` and `fuse_write_in`, which differ only in the name of one field.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct TransferIn {
    pub handle: u64,
    pub offset: u64,
    pub size: u32,
    pub transfer_flags: u32,
    pub lock_owner: u64,
    /// The flags of the open file.
    pub flags: u32,
    pub padding: u32,
}

/// `fuse_write_out`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct WriteOut {
    pub size: u32,
    pub padding: u32,
}

/// `fuse_fallocate_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct FallocateIn {
    pub handle: u64,
    pub offset: u64,
    pub len: u64,
    pub mode: u32,
    pub padding: u32,
}

/// `fuse_kstatfs`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct StatfsOut {
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_size: u32,
    pub name_len: u32,
    pub fragment_size: u32,
    pub unused: [u32; 7],
}

/// The fixed part of `fuse_dirent`. The name follows, padded to a multiple of 8 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Dirent {
    pub node: u64,
    /// The offset of the next entry.
    pub next: u64,
    pub name_len: u32,
    pub kind: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_the_kernels() {
        let headers =
            [size_of::<InHeader>(), size_of::<OutHeader>(), size_of::<InitIn>(), size_of::<InitOut>()];
        assert_eq!(headers, [40, 16, 16, 64]);
        assert_eq!([size_of::<Attr>(), size_of::<EntryOut>(), size_of::<AttrOut>()], [88, 128, 104]);
        assert_eq!([size_of::<TransferIn>(), size_of::<FallocateIn>(), size_of::<StatfsOut>()], [40, 32, 80]);
        assert_eq!([size_of::<SetattrIn>(), size_of::<OpenOut>(), size_of::<Dirent>()], [24, 16, 24]);
        assert_eq!([offset_of!(InHeader, unique), offset_of!(InHeader, node)], [8, 16]);
        assert_eq!([offset_of!(InitOut, max_write), offset_of!(InitOut, max_pages)], [20, 28]);
        assert_eq!([offset_of!(Attr, mode), offset_of!(Attr, block_size)], [60, 80]);
        assert_eq!([offset_of!(EntryOut, attr), offset_of!(AttrOut, attr)], [40, 16]);
        assert_eq!([offset_of!(TransferIn, size), offset_of!(TransferIn, flags)], [16, 32]);
        assert_eq!([offset_of!(StatfsOut, block_size), offset_of!(FallocateIn, mode)], [40, 24]);
        assert_eq!(HEAD, 80);
    }
}
