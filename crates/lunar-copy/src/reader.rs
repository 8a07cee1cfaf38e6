//! Reading the source, including one on a damaged medium.

use crate::{CopyErrorCause, CopyFailure, CopyMeter};
use lunar_block::Backend;
use lunar_runtime::Buf;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The unit of unreadable ranges on a damaged medium, in bytes.
const SMALLEST: u64 = 4096;

/// Reads a disk.
#[derive(Clone)]
pub(crate) struct SourceReader {
    pub(crate) disk: Arc<dyn Backend>,
    pub(crate) skip_errors: bool,
    pub(crate) meter: Arc<CopyMeter>,
}

impl SourceReader {
    /// Fills `buf` from `offset`. If errors are skipped, unreadable ranges become zeros and are returned.
    pub(crate) async fn read(&self, offset: u64, buf: Buf) -> (Result<Vec<Range<u64>>, CopyFailure>, Buf) {
        let (result, mut buf) = self.disk.read(offset, buf).await;
        let result = match result {
            Ok(()) => Ok(Vec::new()),
            Err(e) if self.skip_errors && is_damage(&e) => self.salvage(offset, &mut buf).await,
            Err(e) => Err(CopyFailure::new(offset, CopyErrorCause::Read(e))),
        };
        if result.is_ok() {
            self.meter.read.add(buf.len() as u64);
        }
        (result, buf)
    }

    /// Reads ever smaller parts of a range that cannot be read as a whole.
    async fn salvage(&self, offset: u64, buf: &mut Buf) -> Result<Vec<Range<u64>>, CopyFailure> {
        let (mut bad, mut parts) = (Vec::new(), halves(0..buf.len() as u64));
        while let Some(part) = parts.pop() {
            let (place, start) = (part.start as usize..part.end as usize, offset + part.start);
            let (result, got) = self.disk.read(start, Buf::zeroed(place.len())).await;
            match result {
                Ok(()) => buf[place].copy_from_slice(&got),
                Err(e) if !is_damage(&e) => return Err(CopyFailure::new(start, CopyErrorCause::Read(e))),
                Err(_) if part.end - part.start > SMALLEST => parts.extend(halves(part)),
                Err(_) => {
                    buf[place].fill(0);
                    bad.push(start..offset + part.end);
                }
            }
        }
        Ok(bad)
    }
}

/// The two halves of a range, in reverse order; one part if it is small.
fn halves(range: Range<u64>) -> Vec<Range<u64>> {
    let half = ((range.end - range.start) / 2).next_multiple_of(SMALLEST);
    let middle = range.end.min(range.start + half.max(SMALLEST));
    [middle..range.end, range.start..middle].into_iter().filter(|part| !part.is_empty()).collect()
}

/// Whether an error means a damaged range rather than a lost medium. A remote medium error has no errno and the kind
/// `Other`.
pub(crate) fn is_damage(e: &io::Error) -> bool {
    let damages = [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::BADMSG];
    let is_one = |number| damages.iter().any(|damage| damage.raw_os_error() == number);
    e.raw_os_error().map_or(e.kind() == io::ErrorKind::Other, is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_not_absence() {
        assert!(is_damage(&Errno::IO.into()) && is_damage(&io::Error::other("MEDIUM ERROR")));
        assert!(!is_damage(&Errno::NODEV.into()) && !is_damage(&io::ErrorKind::ConnectionReset.into()));
        assert!(!is_damage(&io::Error::new(io::ErrorKind::TimedOut, "no answer")));
    }

    #[test]
    fn halves_cover_and_end() {
        let parts = |range| -> Vec<_> { halves(range).iter().map(|part| (part.start, part.end)).collect() };
        assert_eq!(parts(0..100), [(0, 100)]);
        assert_eq!(parts(0..4096), [(0, 4096)]);
        assert_eq!(parts(0..4097), [(4096, 4097), (0, 4096)]);
        assert_eq!(parts(8192..8192 + 65536), [(40960, 73728), (8192, 40960)]);
    }
}
