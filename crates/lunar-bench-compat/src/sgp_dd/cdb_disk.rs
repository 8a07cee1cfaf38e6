//! A logical unit accessed with CDBs of one size.

use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_initiator::{Completion, Direction, Lun};
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb::read_write::{DPO, FUA};
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::op;
use std::io;
use std::sync::Arc;

/// A CDB size: bytes, the operation codes of READ and WRITE, the last LBA, and the maximum transfer length
/// (SBC-4).
struct CdbFormat {
    bytes: u8,
    read: u8,
    write: u8,
    last: u64,
    blocks: u64,
}

const CDB_FORMATS: [CdbFormat; 4] = [
    CdbFormat { bytes: 6, read: op::READ_6, write: op::WRITE_6, last: (1 << 21) - 1, blocks: 256 },
    CdbFormat {
        bytes: 10,
        read: op::READ_10,
        write: op::WRITE_10,
        last: u32::MAX as u64,
        blocks: u16::MAX as u64,
    },
    CdbFormat {
        bytes: 12,
        read: op::READ_12,
        write: op::WRITE_12,
        last: u32::MAX as u64,
        blocks: u32::MAX as u64,
    },
    CdbFormat { bytes: 16, read: op::READ_16, write: op::WRITE_16, last: u64::MAX, blocks: u32::MAX as u64 },
];

/// The size and flags of CDBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CdbOptions {
    /// 6, 10, 12 or 16 bytes.
    pub size: u8,
    /// Force unit access.
    pub fua: bool,
    /// Disable page out.
    pub dpo: bool,
}

impl CdbOptions {
    fn row(self) -> &'static CdbFormat {
        CDB_FORMATS.iter().find(|size| size.bytes == self.size).unwrap_or(&CDB_FORMATS[1])
    }

    /// Checks that a range of blocks, in commands of this many blocks, can be expressed in this size.
    pub fn check(self, end: u64, blocks: u64) -> Result<(), String> {
        let size = self.row();
        if self.size == 6 && (self.fua || self.dpo) {
            return Err("a 6-byte CDB has neither FUA nor DPO".into());
        }
        if blocks > size.blocks {
            return Err(format!("a command of {} blocks does not fit into a {}-byte CDB", blocks, self.size));
        }
        if end > 0 && end - 1 > size.last {
            return Err(format!("block address {} does not fit into a {}-byte CDB", end - 1, self.size));
        }
        Ok(())
    }

    /// A READ or WRITE of blocks that fit.
    fn cdb(self, write: bool, lba: u64, blocks: u32) -> Cdb {
        let size = self.row();
        // A 6-byte CDB expresses 256 blocks as 0, which is the low byte of 256 (SBC-4).
        let mut cdb = cdb::of_blocks(if write { size.write } else { size.read }, lba, blocks);
        if self.fua {
            FUA.fill(&mut cdb);
        }
        if self.dpo {
            DPO.fill(&mut cdb);
        }
        cdb
    }
}

/// A logical unit whose READs and WRITEs use given CDBs.
pub struct CdbDisk {
    lun: Arc<Lun>,
    shape: CdbOptions,
}

impl CdbDisk {
    /// Wraps a logical unit.
    pub fn new(lun: Arc<Lun>, shape: CdbOptions) -> CdbDisk {
        CdbDisk { lun, shape }
    }

    fn cdb(&self, write: bool, offset: u64, len: usize) -> io::Result<Cdb> {
        let size = u64::from(self.lun.block_size());
        let (lba, blocks) = (offset / size, len as u64 / size);
        if !offset.is_multiple_of(size) || !(len as u64).is_multiple_of(size) {
            let what = format!("{len} bytes at offset {offset} are not whole blocks of {size} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let fits = self.shape.check(lba + blocks, blocks);
        fits.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        Ok(self.shape.cdb(write, lba, blocks as u32))
    }
}

fn whole(completion: &Completion, len: usize) -> io::Result<()> {
    if completion.transferred == len {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the logical unit transferred only {} of {len} bytes",
        completion.transferred
    )))
}

impl Backend for CdbDisk {
    fn info(&self) -> BackendInfo {
        self.lun.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let len = buf.len();
            let cdb = match self.cdb(false, offset, len) {
                Ok(cdb) => cdb,
                Err(e) => return (Err(e), buf),
            };
            let (result, buf) = self.lun.perform(cdb, Direction::In(buf)).await;
            let result = result.map_err(io::Error::from).and_then(|c| whole(&c, len));
            (result, buf.unwrap_or_else(|| Buf::zeroed(len)))
        })
    }

    fn write(&self, offset: u64, buf: Buf, _stable: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let len = buf.len();
            let cdb = match self.cdb(true, offset, len) {
                Ok(cdb) => cdb,
                Err(e) => return (Err(e), buf),
            };
            let (result, buf) = self.lun.perform(cdb, Direction::Out(buf)).await;
            let result = result.map_err(io::Error::from).and_then(|c| whole(&c, len));
            (result, buf.unwrap_or_else(|| Buf::zeroed(len)))
        })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.lun.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.lun.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.lun.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.lun.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdb_fields_of_each_size_are_in_place() {
        let shape = |size| CdbOptions { size, fua: size != 6, dpo: false };
        let cdb = |size, write| shape(size).cdb(write, 0x0012_3456, 0x80)[..16].to_vec();
        assert_eq!(cdb(6, false)[..6], [0x08, 0x12, 0x34, 0x56, 0x80, 0]);
        assert_eq!(cdb(10, true)[..10], [0x2a, 8, 0, 0x12, 0x34, 0x56, 0, 0, 0x80, 0]);
        assert_eq!(cdb(12, false)[..12], [0xa8, 8, 0, 0x12, 0x34, 0x56, 0, 0, 0, 0x80, 0, 0]);
        assert_eq!(cdb(16, true), [0x8a, 8, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0, 0, 0x80, 0, 0]);
        assert_eq!(CdbOptions { size: 6, fua: false, dpo: false }.cdb(true, 0, 256)[..5], [0x0a, 0, 0, 0, 0]);
        assert_eq!(CdbOptions { size: 10, fua: false, dpo: true }.cdb(false, 0, 1)[1], 0x10);
    }

    #[test]
    fn range_that_does_not_fit_is_rejected() {
        let shape = |size| CdbOptions { size, fua: false, dpo: false };
        assert_eq!(shape(6).check(1 << 21, 256), Ok(()));
        assert!(shape(6).check((1 << 21) + 1, 1).unwrap_err().contains("block address 2097152"));
        assert!(shape(6).check(1, 257).is_err());
        assert!(shape(10).check(1 << 32, 65536).is_err());
        assert!(shape(12).check((1 << 32) + 1, 1).is_err());
        assert_eq!(shape(16).check(1 << 40, 1 << 20), Ok(()));
        assert!(CdbOptions { fua: true, ..shape(6) }.check(1, 1).unwrap_err().contains("FUA"));
    }
}
