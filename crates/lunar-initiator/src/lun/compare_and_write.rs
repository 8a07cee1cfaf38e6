//! COMPARE AND WRITE.

use super::Lun;
use super::transferred::with_buffer;
use crate::{Direction, Error, ErrorCode};
use lunar_runtime::Buf;
use lunar_wire::scsi::{Sense, cdb};

impl Lun {
    /// Compares blocks with the first half of `data`. If they are equal, writes the second half in the same atomic
    /// step (COMPARE AND WRITE). Returns false if they differ. The command is never repeated automatically.
    ///
    /// # Errors
    /// The errors of any command; [`ErrorCode::ConnectionLost`] if the target may have executed it.
    pub async fn compare_and_write(&self, offset: u64, data: Buf) -> Result<bool, Error> {
        self.compare_or_return(offset, data).await.0
    }

    /// The same, but also returns the buffer.
    pub(crate) async fn compare_or_return(&self, offset: u64, data: Buf) -> (Result<bool, Error>, Buf) {
        let size = u64::from(self.block_size);
        let blocks = data.len() as u64 / 2 / size;
        let fits = data.len() as u64 == blocks * 2 * size && offset.is_multiple_of(size);
        let blocks = u8::try_from(blocks).ok().filter(|b| fits && *b > 0);
        let Some(blocks) = blocks else {
            let e = Error::new(
                ErrorCode::InvalidArgument,
                format!(
                    "COMPARE AND WRITE at {offset} with {} bytes of data: expected 1 to 255 blocks of {size} bytes",
                    data.len()
                ),
            );
            return (Err(e), data);
        };
        let hold = self.hold(offset, u64::from(blocks) * size).await;
        let (cdb, len) = (cdb::compare_and_write(offset / size, blocks, false), data.len());
        let (result, data) = self.perform_holding(cdb, Direction::Out(data), &hold).await;
        let equal = match result {
            Ok(_) => Ok(true),
            Err(e) if e.sense.is_some_and(|s| s.key == Sense::MISCOMPARE.key) => Ok(false),
            Err(e) => Err(e),
        };
        with_buffer(equal, data, len)
    }
}
