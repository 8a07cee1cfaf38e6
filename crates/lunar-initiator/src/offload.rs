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
use lunar_wire::be;
use lunar_wire::scsi::cdb;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The maximum number of bytes of one command. It is small enough for progress reports and a quick stop.
const PIECE: u64 = 4 << 20;
/// The length of the parameter list header, of a CSCD descriptor (E4h), and of a block to block segment descriptor
/// (02h), in bytes.
const HEADER: usize = 16;
const CSCD: usize = 32;
const SEGMENT: usize = 28;
/// Descriptor type codes.
const IDENTIFICATION: u8 = 0xe4;
const BLOCK_TO_BLOCK: u8 = 0x02;
/// LIST ID USAGE: no list identifier is used, and the target keeps no result.
const NO_LIST_ID: u8 = 0x18;
/// The length of the operating parameters up to their list of descriptor types, and the allocation length, in bytes.
const PARAMETERS: usize = 44;
const ANSWER: u16 = 255;

/// Copies from a source to a destination of the same target.
pub struct ExtendedCopy {
    destination: Arc<Lun>,
    cscds: [[u8; CSCD]; 2],
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
        if source.session().facts().target != session.facts().target {
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

    /// The parameter list (SPC-4 section 6.4.2).
    fn list(&self, id: u8, offset: u64, len: u64) -> Vec<u8> {
        let mut b = vec![0; HEADER];
        (b[0], b[1]) = if self.limits.nameless { (0, NO_LIST_ID) } else { (id, 0) };
        be::put16(&mut b[2..], (2 * CSCD) as u16);
        b.extend_from_slice(self.cscds.as_flattened());
        let mut at = offset;
        while at < offset + len {
            let len = (offset + len - at).min(self.limits.segment);
            b.extend_from_slice(&self.segment(at, len));
            at += len;
        }
        let segments = (b.len() - HEADER - 2 * CSCD) as u32;
        be::put32(&mut b[8..], segments);
        b
    }

    /// A segment descriptor (SPC-4 section 6.4.6.4). It counts the length in blocks of the source.
    fn segment(&self, offset: u64, len: u64) -> [u8; SEGMENT] {
        let [from, to] = self.block_sizes;
        let mut b = [0; SEGMENT];
        b[0] = BLOCK_TO_BLOCK;
        be::put16(&mut b[2..], (SEGMENT - 4) as u16);
        be::put16(&mut b[6..], 1);
        be::put16(&mut b[10..], (len / from) as u16);
        be::put64(&mut b[12..], offset / from);
        be::put64(&mut b[20..], offset / to);
        b
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

/// The identification CSCD descriptor of a logical unit (SPC-4 section 6.4.5.4). It has the layout of a designator in
/// VPD page 83h.
fn cscd(lun: &Lun) -> Result<[u8; CSCD], Error> {
    let properties = lun.properties();
    let name = copy_name(&properties.identity)
        .ok_or_else(|| not("a LUN has neither an NAA nor an EUI-64 designator"))?;
    let mut b = [0; CSCD];
    (b[0], b[1]) = (IDENTIFICATION, properties.device_type);
    b[4..4 + name.len()].copy_from_slice(name);
    // Clears the protocol identifier and the PIV bit.
    (b[4], b[5]) = (b[4] & 0x0f, b[5] & 0x3f);
    be::put24(&mut b[29..], properties.block_size);
    Ok(b)
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
    /// Reads the operating parameters (SPC-4 section 6.24.4). A field of zero sets no limit.
    fn read(b: &[u8], block_sizes: [u64; 2]) -> Result<Limits, Error> {
        let Some((head, types)) = b.split_at_checked(PARAMETERS) else {
            return Err(not("the target does not report the limits of its copy manager"));
        };
        let types = &types[..types.len().min(head[43].into())];
        let unit = block_sizes.into_iter().chain([1u64.checked_shl(head[37].into()).unwrap_or(0)]).max();
        let unit = unit.unwrap_or(0);
        let even = |n: &u64| *n > 0 && unit.is_multiple_of(*n) && GRANULE.is_multiple_of(*n);
        if ![BLOCK_TO_BLOCK, IDENTIFICATION].iter().all(|kind| types.contains(kind)) {
            return Err(not("the copy manager of the target lacks the required descriptor types (E4h, 02h)"));
        }
        if head[37] > 16 || be::get16(&head[8..]) < 2 || !block_sizes.iter().chain([&unit]).all(even) {
            return Err(not("the copy limits of the target do not fit the block sizes of the LUNs"));
        }
        let room = (be::get32(&head[12..]) as usize).saturating_sub(2 * CSCD) / SEGMENT;
        let segments = u64::from(be::get16(&head[10..])).min(room as u64);
        let longest = match be::get32(&head[16..]) {
            0 => u64::MAX,
            n => n.into(),
        };
        // The descriptor has a 16-bit block count.
        let segment = longest.min(block_sizes[0] * u64::from(u16::MAX)).min(PIECE) / GRANULE * GRANULE;
        let piece = PIECE.min(segments * segment);
        if piece == 0 {
            return Err(not("the copy limits of the target are too small"));
        }
        Ok(Limits { nameless: head[4] & 1 != 0, copies: copies(head), segment, piece, unit })
    }
}

/// The maximum number of concurrent copies: the lower of the limits for copies with list identifiers and for all
/// copies.
fn copies(head: &[u8]) -> u8 {
    let all = match be::get16(&head[34..]) {
        0 => u8::MAX,
        n => n.min(u8::MAX.into()) as u8,
    };
    head[36].clamp(1, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds operating parameters: CSCDs, segments, descriptor bytes, segment bytes, copies, granularity.
    fn parameters(
        cscds: u16,
        segments: u16,
        list: u32,
        segment: u32,
        copies: u8,
        granularity: u8,
    ) -> Vec<u8> {
        let mut b = vec![0; PARAMETERS];
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
