//! Copies by the target itself: EXTENDED COPY (LID1; SPC-4 section 6.4) between two logical units.
//!
//! The command goes to the destination, which is always a disk. After a lost session it is not sent again
//! automatically (see [`is_repeatable`](crate::command::is_repeatable)): the target may have executed it, and a copy
//! may overwrite its own source. Between two logical units this cannot happen: a repeated copy has the same result.
//! Therefore the caller may request the range again (see [`Offload::copy`]).

use crate::designators::copy_name;
use crate::{Direction, Error, ErrorCode, Lun, properties};
use lunar_block::LocalBoxFuture;
use lunar_block::offload::{GRANULE, Offload};
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb;
use lunar_wire::scsi::copy::{
    self, BLOCK_TO_BLOCK, BlockSegment, CSCD_LEN, IDENTIFICATION, OperatingParameters, SEGMENT_LEN,
};
use std::fmt;
use std::io;
use std::sync::Arc;

/// The maximum number of bytes of one command. It is small enough for progress reports and a quick stop.
const PIECE: u64 = 4 << 20;
/// The allocation length of the operating parameters in bytes.
const ANSWER: u16 = 255;

/// Copies from a source to a destination of the same target.
pub struct ExtendedCopy {
    destination: Arc<Lun>,
    cscds: [[u8; CSCD_LEN]; 2],
    /// The block sizes of source and destination in bytes.
    block_sizes: [u64; 2],
    limits: Limits,
    /// The free list identifiers. Their number limits the concurrent copies.
    ids: (flume::Sender<u8>, flume::Receiver<u8>),
}

impl fmt::Debug for ExtendedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedCopy").field("destination", &self.destination).finish_non_exhaustive()
    }
}

impl ExtendedCopy {
    /// Checks whether the target can copy between these logical units, and reads its limits. The session of the
    /// destination must see the source.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] with the reason; the errors of the SCSI commands.
    pub async fn between(source: &Lun, destination: &Arc<Lun>) -> Result<ExtendedCopy, Error> {
        let session = destination.session();
        if source.session().info().target != session.info().target {
            return Err(not("the source and the destination belong to different targets"));
        }
        let cscds = [cscd(source)?, cscd(destination)?];
        if cscds[0] == cscds[1] {
            return Err(not("the source and the destination have the same designator"));
        }
        let block_sizes = [source, destination].map(|lun| u64::from(lun.block_size()));
        let seen = properties(session, source.number()).await?;
        if seen.identity != source.properties().identity {
            return Err(not("the source LUN is not visible in the session of the destination"));
        }
        let data = Direction::In(Buf::zeroed(ANSWER.into()));
        let (result, buf) = destination.perform(cdb::copy_operating_parameters(ANSWER.into()), data).await;
        let (got, buf) = (result?.transferred, buf.unwrap_or_else(|| Buf::zeroed(0)));
        let limits = Limits::read(&buf[..got.min(buf.len())], block_sizes)?;
        let ids = flume::unbounded();
        // The send cannot fail, because `ids` also holds the receiver.
        (0..limits.copies).for_each(|id| _ = ids.0.send(id));
        tracing::debug!(?limits, "the target supports EXTENDED COPY between the LUNs");
        Ok(ExtendedCopy { destination: destination.clone(), cscds, block_sizes, limits, ids })
    }

    async fn copy(&self, offset: u64, len: u64) -> Result<(), Error> {
        if ![offset, len].iter().all(|n| n.is_multiple_of(self.limits.unit)) {
            return Err(not("the range is not aligned to the copy unit"));
        }
        let id = self.ids.1.recv_async().await.map_err(|_| not("no list identifier is available"))?;
        let list = self.list(id, offset, len);
        let data = Buf::copy_of(&list);
        let command = cdb::extended_copy(list.len() as u32);
        // If the caller drops this future, the command continues and its list identifier stays in use.
        let (result, _) = self.destination.perform(command, Direction::Out(data)).await;
        _ = self.ids.0.send(id);
        result.map(drop)
    }

    /// The parameter list. Each segment counts its length in blocks of the source.
    fn list(&self, id: u8, offset: u64, len: u64) -> Vec<u8> {
        let ([from, to], longest) = (self.block_sizes, self.limits.segment);
        let segments = (offset..offset + len).step_by(longest as usize).map(|at| BlockSegment {
            blocks: ((offset + len - at).min(longest) / from) as u16,
            source_lba: at / from,
            destination_lba: at / to,
        });
        copy::list((!self.limits.nameless).then_some(id), &self.cscds, segments)
    }
}

impl Offload for ExtendedCopy {
    fn piece(&self) -> u64 {
        self.limits.piece
    }

    fn copy(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let ended = ExtendedCopy::copy(self, offset, len).await;
            ended.map_err(|e| {
                tracing::info!(offset, len, "EXTENDED COPY of the target failed: {e}");
                e.into()
            })
        })
    }
}

fn not(why: &str) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("EXTENDED COPY between these LUNs is not possible: {why}"))
}

/// The CSCD descriptor of a logical unit.
fn cscd(lun: &Lun) -> Result<[u8; CSCD_LEN], Error> {
    let properties = lun.properties();
    let name = copy_name(&properties.identity)
        .ok_or_else(|| not("a LUN has neither an NAA nor an EUI-64 designator"))?;
    Ok(copy::cscd(properties.device_type, name, properties.block_size))
}

/// The limits of the copy manager that apply to these copies.
#[derive(Debug, PartialEq)]
struct Limits {
    /// Whether copies need no list identifier.
    nameless: bool,
    /// The maximum number of concurrent copies.
    copies: u8,
    /// The maximum number of bytes of a segment, a multiple of [`GRANULE`].
    segment: u64,
    /// The maximum number of bytes of a command, a multiple of [`GRANULE`].
    piece: u64,
    /// Offset and length of each copy must be multiples of this number of bytes.
    unit: u64,
}

impl Limits {
    /// Reads the operating parameters.
    fn read(b: &[u8], block_sizes: [u64; 2]) -> Result<Limits, Error> {
        let Some(all) = OperatingParameters::decode(b) else {
            return Err(not("the target does not report the limits of its copy manager"));
        };
        let granule = 1u64.checked_shl(all.granularity.into()).unwrap_or(0);
        let unit = block_sizes.into_iter().chain([granule]).max().unwrap_or(0);
        let even = |n: &u64| *n > 0 && unit.is_multiple_of(*n) && GRANULE.is_multiple_of(*n);
        if ![BLOCK_TO_BLOCK, IDENTIFICATION].iter().all(|kind| all.types.contains(kind)) {
            return Err(not("the copy manager of the target lacks the required descriptor types (E4h, 02h)"));
        }
        if all.granularity > 16 || all.max_cscds < 2 || !block_sizes.iter().chain([&unit]).all(even) {
            return Err(not("the copy limits of the target do not fit the block sizes of the LUNs"));
        }
        let room = (all.max_list_len as usize).saturating_sub(2 * CSCD_LEN) / SEGMENT_LEN;
        let segments = u64::from(all.max_segments).min(room as u64);
        let longest = match all.max_segment_len {
            0 => u64::MAX,
            n => n.into(),
        };
        // The descriptor has a 16-bit block count.
        let segment = longest.min(block_sizes[0] * u64::from(u16::MAX)).min(PIECE) / GRANULE * GRANULE;
        let piece = PIECE.min(segments * segment);
        if piece == 0 {
            return Err(not("the copy limits of the target are too small"));
        }
        Ok(Limits { nameless: all.needs_no_list_id, copies: copies(&all), segment, piece, unit })
    }
}

/// The maximum number of concurrent copies: the lower of the limits for copies with list identifiers and for all
/// copies.
fn copies(all: &OperatingParameters<'_>) -> u8 {
    let total = match all.total_copies {
        0 => u8::MAX,
        n => n.min(u8::MAX.into()) as u8,
    };
    all.max_copies.clamp(1, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::be;

    /// Builds operating parameters: CSCDs, segments, descriptor bytes, segment bytes, copies, granularity.
    fn parameters(
        cscds: u16,
        segments: u16,
        list: u32,
        segment: u32,
        copies: u8,
        granularity: u8,
    ) -> Vec<u8> {
        let mut b = vec![0; OperatingParameters::HEAD_LEN];
        b[4] = 1;
        be::put16(&mut b[8..], cscds);
        be::put16(&mut b[10..], segments);
        be::put32(&mut b[12..], list);
        be::put32(&mut b[16..], segment);
        (b[36], b[37], b[43]) = (copies, granularity, 2);
        b.extend_from_slice(&[BLOCK_TO_BLOCK, IDENTIFICATION]);
        b
    }

    fn read(b: &[u8]) -> Option<(u8, u64, u64)> {
        Limits::read(b, [512, 4096]).ok().map(|l| (l.copies, l.segment, l.piece))
    }

    #[test]
    fn limits_bound_what_is_asked_for() {
        let cases = [
            ((16, 64, 2560, 256 << 20, 64, 9), Some((64, PIECE, PIECE))),
            // LIO: one segment, one copy at a time.
            ((2, 1, 1024, 256 << 20, 1, 9), Some((1, PIECE, PIECE))),
            ((2, 8, 1024, 100 << 10, 0, 0), Some((1, 64 << 10, 512 << 10))),
            ((2, 8, 64 + 2 * 28, 1 << 20, 2, 0), Some((2, 1 << 20, 2 << 20))),
            ((2, 8, 1024, 0, 2, 16), Some((2, PIECE, PIECE))),
            ((1, 8, 1024, 0, 2, 9), None),
            ((2, 0, 1024, 0, 2, 9), None),
            ((2, 8, 64, 0, 2, 9), None),
            ((2, 8, 1024, 32 << 10, 2, 9), None),
            ((2, 8, 1024, 0, 2, 17), None),
            ((2, 8, 1024, 0, 2, 255), None),
        ];
        for ((cscds, segments, list, segment, copies, granularity), expected) in cases {
            let b = parameters(cscds, segments, list, segment, copies, granularity);
            assert_eq!(read(&b), expected, "{b:?}");
        }
        let whole = parameters(2, 8, 1024, 0, 2, 9);
        assert_eq!(Limits::read(&whole, [512, 512]).map(|l| l.piece), Ok(PIECE));
        assert!(Limits::read(&whole, [520, 512]).is_err(), "a block size that does not divide the granule");
        for n in 0..whole.len() {
            assert_eq!(read(&whole[..n]), None, "cut at {n}");
        }
        let few = [&whole[..34], &[0, 1, 9][..], &whole[37..]].concat();
        assert_eq!(read(&few), Some((1, PIECE, PIECE)), "the limit of all copies applies");
    }
}
