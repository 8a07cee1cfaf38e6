//! The handshake: MPA request and reply, and the negotiated parameters (RFC 5044 section 7.1, RFC 6581).

use super::{FirstFrame, NegotiatedMpa, Options};
use crate::ConnParam;
use lunar_runtime::Stream;
use lunar_wire::iwarp::mpa::{MAX_PRIVATE, REPLY_KEY, REVISION, UNKNOWN};
use lunar_wire::iwarp::{EnhancedData, MalformedFrame, MpaFrame};
use std::io;
use std::time::Duration;

/// The read depth for a peer that announces none. Exceeding the peer's actual depth by one read ends the connection.
const DEFAULT_DEPTH: u16 = 8;
/// The length of one receive in bytes.
const RECEIVE: usize = 1024;

/// A frame and the bytes after it, or the fault.
pub(super) type FrameResult = Result<(MpaFrame, Vec<u8>), MalformedFrame>;

/// Reads a frame that starts with `bytes`.
///
/// # Errors
/// Those of the socket; a timeout.
pub(super) async fn read(
    stream: &Stream,
    key: &[u8; 16],
    bytes: Vec<u8>,
    limit: Duration,
) -> io::Result<FrameResult> {
    let slow =
        |_| io::Error::new(io::ErrorKind::TimedOut, "the peer did not send a complete MPA frame in time");
    compio::time::timeout(limit, read_unbounded(stream, key, bytes)).await.map_err(slow)?
}

async fn read_unbounded(stream: &Stream, key: &[u8; 16], mut bytes: Vec<u8>) -> io::Result<FrameResult> {
    let mut more = [0; RECEIVE];
    loop {
        match MpaFrame::decode(key, &bytes) {
            Ok(None) => {}
            Ok(Some((frame, len))) => return Ok(Ok((frame, bytes.split_off(len)))),
            Err(malformed) => return Ok(Err(malformed)),
        }
        stream.readable().await?;
        match stream.receive(&mut more)? {
            None => {}
            Some(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the peer closed the connection during the MPA handshake",
                ));
            }
            Some(got) => bytes.extend_from_slice(&more[..got]),
        }
    }
}

/// Sends all of a frame.
///
/// # Errors
/// Those of the socket; a timeout.
pub(super) async fn write(stream: &Stream, bytes: &[u8], limit: Duration) -> io::Result<()> {
    let slow = |_| io::Error::new(io::ErrorKind::TimedOut, "sending an MPA frame to the peer timed out");
    compio::time::timeout(limit, stream.send_all(bytes)).await.map_err(slow)?
}

/// Checks the length of private data.
///
/// # Errors
/// When it is too long.
pub(super) fn check_private(private: &[u8]) -> io::Result<()> {
    let why = format!("private data of {} bytes: the limit is {MAX_PRIVATE}", private.len());
    match private.len() > MAX_PRIVATE {
        true => Err(io::Error::new(io::ErrorKind::InvalidInput, why)),
        false => Ok(()),
    }
}

/// The MPA request of the initiator.
pub(super) fn ask(private: &[u8], terms: &ConnParam, options: &Options) -> MpaFrame {
    let enhanced = EnhancedData { ird: known(terms.ird), ord: known(terms.ord), ..EnhancedData::default() };
    MpaFrame {
        revision: REVISION,
        crc: options.crc,
        enhanced: Some(enhanced),
        private: private.to_vec(),
        ..MpaFrame::default()
    }
}

/// The parameters that a reply negotiates, for the initiator.
pub(super) fn asked(asked: &MpaFrame, reply: &MpaFrame, terms: &ConnParam) -> NegotiatedMpa {
    NegotiatedMpa {
        crc: asked.crc || reply.crc,
        ord: reads(terms.ord, reply.enhanced.map(|e| e.ird)),
        ird: terms.ird,
        receives: terms.receives,
        first: None,
    }
}

/// The reply that accepts a request, and the negotiated parameters.
pub(super) fn answer(
    request: &MpaFrame,
    private: Vec<u8>,
    terms: &ConnParam,
    options: &Options,
) -> (MpaFrame, NegotiatedMpa) {
    let (enhanced, first) = match &request.enhanced {
        Some(wanted) => {
            let (enhanced, first) = grant(wanted, terms);
            (Some(enhanced), first)
        }
        None => (None, FirstFrame::Any),
    };
    let crc = request.crc || options.crc;
    let frame = MpaFrame { revision: request.revision, crc, enhanced, private, ..MpaFrame::default() };
    let ord = reads(terms.ord, request.enhanced.map(|e| e.ird));
    (frame, NegotiatedMpa { crc, ord, ird: terms.ird, receives: terms.receives, first: Some(first) })
}

/// The reply that rejects a request.
pub(super) fn refusal(request: Option<&MpaFrame>, private: Vec<u8>) -> Vec<u8> {
    let revision = request.map_or(REVISION, |r| r.revision);
    let enhanced = request.and_then(|r| r.enhanced).map(|_| EnhancedData::default());
    let crc = request.is_some_and(|r| r.crc);
    MpaFrame { revision, crc, rejected: true, enhanced, private, ..MpaFrame::default() }.encode(&REPLY_KEY)
}

/// The enhanced data of the reply. Selects the peer's empty first message by cost at this end: a Write, else a Read,
/// else a Send.
fn grant(wanted: &EnhancedData, terms: &ConnParam) -> (EnhancedData, FirstFrame) {
    let ird = if wanted.ord == UNKNOWN { UNKNOWN } else { known(terms.ird) };
    let ord = if wanted.ird == UNKNOWN { UNKNOWN } else { reads(known(terms.ord), Some(wanted.ird)) };
    let numbers = EnhancedData { ird, ord, ..EnhancedData::default() };
    if !wanted.peer_to_peer {
        return (numbers, FirstFrame::Any);
    }
    let peer_to_peer = EnhancedData { peer_to_peer: true, ..numbers };
    match wanted {
        EnhancedData { write: true, .. } => (EnhancedData { write: true, ..peer_to_peer }, FirstFrame::Any),
        EnhancedData { read: true, .. } => (EnhancedData { read: true, ..peer_to_peer }, FirstFrame::Any),
        EnhancedData { send: true, .. } => (EnhancedData { send: true, ..peer_to_peer }, FirstFrame::Send),
        // The peer offers none: its first regular message serves.
        _ => (peer_to_peer, FirstFrame::Any),
    }
}

/// The read depth, from the requested one and the peer's limit, if announced.
fn reads(wanted: u16, taken: Option<u16>) -> u16 {
    match taken {
        None | Some(UNKNOWN) => wanted.min(DEFAULT_DEPTH),
        Some(taken) => wanted.min(taken),
    }
}

/// Replaces the reserved value that means "not negotiated".
fn known(reads: u16) -> u16 {
    reads.min(UNKNOWN - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: ConnParam = ConnParam { ord: 64, ird: 4, receives: (1, 64) };

    fn wanting(enhanced: Option<EnhancedData>) -> MpaFrame {
        MpaFrame { revision: if enhanced.is_some() { 2 } else { 1 }, enhanced, ..MpaFrame::default() }
    }

    #[test]
    fn read_depth_is_limited_by_the_peer() {
        for (theirs, agreed, announced) in
            [(99, 64, 64), (3, 3, 3), (0, 0, 0), (UNKNOWN, DEFAULT_DEPTH, UNKNOWN)]
        {
            let wanted = EnhancedData { ird: theirs, ord: 2, ..EnhancedData::default() };
            let (reply, ours) = answer(&wanting(Some(wanted)), vec![], &TERMS, &Options::default());
            let reply = reply.enhanced.unwrap();
            assert_eq!((ours.ord, reply.ord, reply.ird), (agreed, announced, 4), "of {theirs}");
            let frame = wanting(Some(EnhancedData { ird: theirs, ..EnhancedData::default() }));
            assert_eq!(asked(&MpaFrame::default(), &frame, &TERMS).ord, agreed, "of {theirs}");
        }
        let (reply, ours) = answer(&wanting(None), vec![], &TERMS, &Options::default());
        assert_eq!((reply.enhanced, reply.revision, ours.ord), (None, 1, DEFAULT_DEPTH));
        assert_eq!(asked(&MpaFrame::default(), &wanting(None), &TERMS).ord, DEFAULT_DEPTH);
        let few = ConnParam { ord: 1, ..TERMS };
        assert_eq!(asked(&MpaFrame::default(), &wanting(None), &few).ord, 1, "at most the requested depth");
    }

    #[test]
    fn crcs_are_used_if_either_side_wants_them() {
        for (theirs, ours) in [(false, false), (true, false), (false, true), (true, true)] {
            let request = MpaFrame { crc: theirs, ..wanting(None) };
            let options = Options { crc: ours, ..Options::default() };
            let (reply, agreed) = answer(&request, vec![], &TERMS, &options);
            assert_eq!((agreed.crc, reply.crc), (theirs || ours, theirs || ours));
            assert_eq!(asked(&ask(&[], &TERMS, &options), &request, &TERMS).crc, theirs || ours);
        }
    }

    #[test]
    fn cheapest_offered_first_message_is_selected() {
        let offer =
            |send, write, read| EnhancedData { peer_to_peer: true, send, write, read, ird: 1, ord: 1 };
        for (wanted, granted, first) in [
            (offer(true, true, true), offer(false, true, false), FirstFrame::Any),
            (offer(true, false, true), offer(false, false, true), FirstFrame::Any),
            (offer(true, false, false), offer(true, false, false), FirstFrame::Send),
            (offer(false, false, false), offer(false, false, false), FirstFrame::Any),
        ] {
            let terms = ConnParam { ord: 1, ird: 1, ..TERMS };
            assert_eq!(grant(&wanted, &terms), (granted, first));
        }
    }
}
