//! PDUs cut at every byte, and malformed PDUs.

use super::*;
use crate::buf::PAGE;
use lunar_wire::iscsi::opcode;
use std::io::Write;

/// Collects PDUs. If configured, it receives large ones at offset 8 of a task's buffer.
#[derive(Default)]
struct Seen {
    pdus: Vec<(Bhs, Vec<u8>, Vec<u8>, bool)>,
    landing: bool,
}

impl PduHandler for Seen {
    fn place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        self.landing.then(|| (Buf::zeroed(header.data_len() + 8), 8))
    }
    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }
    fn is_full(&self) -> bool {
        false
    }
    fn take(&mut self, p: ReceivedPdu<'_>) -> bool {
        let data = match &p.data {
            ReceivedData::Placed(b) => b[8..].to_vec(),
            other => other.bytes().to_vec(),
        };
        self.pdus.push((p.header, p.ahs.to_vec(), data, p.intact));
        true
    }
}

fn pdu(digests: Digests, ahs: &[u8], data: &[u8]) -> Vec<u8> {
    encode(digests, Bhs::new(1), ahs, data)
}

/// Feeds the bytes in receives of `step` bytes.
fn feed(bytes: &[u8], step: usize, digests: Digests, landing: bool) -> Result<Seen, ReceiveError> {
    let mut r = PduReceiver::new(digests, 1 << 20, vec![]);
    let mut seen = Seen { landing, ..Seen::default() };
    for chunk in bytes.chunks(step) {
        r.feed(chunk, &mut seen)?;
    }
    Ok(seen)
}

#[test]
fn pdus_arrive_whatever_the_segmentation() {
    let large: Vec<u8> = (0..50_001u32).map(|i| i as u8).collect();
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        let digests = Digests { header: digests.0, data: digests.1 };
        let parts: [(&[u8], &[u8]); 4] =
            [(&[], &[]), (&[9; 8], &[1, 2, 3, 4, 5]), (&[], &large), (&[7; 4], &[6])];
        let bytes: Vec<u8> = parts.iter().flat_map(|(a, d)| pdu(digests, a, d)).collect();
        for (step, landing) in [(1, false), (7, true), (48, false), (4096, true), (1 << 20, false)] {
            let seen = feed(&bytes, step, digests, landing).expect("good bytes");
            assert_eq!(seen.pdus.len(), 4, "steps of {step}");
            for ((_, ahs, data, intact), (a, d)) in seen.pdus.iter().zip(parts) {
                assert_eq!((&ahs[..], &data[..], *intact), (a, d, true), "steps of {step}");
            }
        }
    }
}

/// Consecutive large segments with small ones between them, from a peer that sends in pieces of several sizes.
#[test]
fn pdus_arrive_from_a_socket() {
    const LENGTHS: [usize; 9] = [50_001, 262_144, 262_143, 0, 5, 20_000, 300_000, 100, 17_002];
    let data: Vec<Vec<u8>> =
        LENGTHS.iter().map(|len| (0..*len).map(|i| (i * 7 + len) as u8).collect()).collect();
    for (digest, landing, piece) in
        [(false, true, 1 << 20), (true, true, 70_001), (false, false, 47), (true, false, 262_192)]
    {
        let digests = Digests { header: digest, data: digest };
        let bytes: Vec<u8> = data.iter().flat_map(|d| pdu(digests, &[], d)).collect();
        let (mut peer, ours) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let sender = std::thread::spawn(move || {
            bytes.chunks(piece).for_each(|c| peer.write_all(c).expect("sent"));
        });
        let seen = compio::runtime::Runtime::new().expect("an event loop").block_on(async {
            let stream = Stream::new(ours).expect("a stream");
            let mut receiver = PduReceiver::new(digests, 1 << 20, vec![]);
            let mut seen = Seen { landing, ..Seen::default() };
            loop {
                stream.readable().await.expect("bytes");
                if receiver.receive(&stream, &mut seen).expect("good bytes") == ReceiveStatus::End {
                    return seen;
                }
            }
        });
        sender.join().expect("all sent");
        assert_eq!(seen.pdus.len(), LENGTHS.len());
        for ((_, _, got, intact), sent) in seen.pdus.iter().zip(&data) {
            assert!(got == sent && *intact, "{} bytes in pieces of {piece}", sent.len());
        }
    }
}

/// Takes the data of large segments in parts: first a page, then two, then the rest with the PDU.
#[derive(Default)]
struct EarlySeen {
    parts: Vec<usize>,
    data: Vec<u8>,
    pdus: usize,
}

impl PduHandler for EarlySeen {
    fn place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        Some((Buf::zeroed(header.data_len()), 0))
    }
    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }
    fn take_early(&mut self, _: &Bhs, buf: &mut Buf, filled: usize) -> usize {
        let next = [PAGE, 2 * PAGE, usize::MAX][self.parts.len()];
        if filled < next {
            return next;
        }
        let part = buf.split_front(next);
        self.data.extend_from_slice(&part);
        self.parts.push(filled);
        [PAGE, 2 * PAGE, usize::MAX][self.parts.len()]
    }
    fn is_full(&self) -> bool {
        false
    }
    fn take(&mut self, p: ReceivedPdu<'_>) -> bool {
        match &p.data {
            ReceivedData::Placed(rest) => self.data.extend_from_slice(rest),
            other => self.data.extend_from_slice(other.bytes()),
        }
        self.pdus += usize::from(p.intact);
        true
    }
}

#[test]
fn parts_of_a_segment_are_taken_before_it_is_whole() {
    let data: Vec<u8> = (0..50_001u32).map(|i| (i / 7) as u8).collect();
    for (digest, step, parts) in [(false, 1, 2), (false, 1000, 2), (false, 17_000, 2), (true, 1000, 0)] {
        let digests = Digests { header: true, data: digest };
        let bytes = [pdu(digests, &[], &data), pdu(digests, &[], &[5; 9])].concat();
        let (mut receiver, mut early) = (PduReceiver::new(digests, 1 << 20, vec![]), EarlySeen::default());
        for chunk in bytes.chunks(step) {
            receiver.feed(chunk, &mut early).expect("good bytes");
        }
        assert!(early.data == [&data[..], &[5; 9]].concat(), "steps of {step}, digest {digest}");
        assert_eq!((early.parts.len(), early.pdus), (parts, 2), "steps of {step}, digest {digest}");
    }
}

#[test]
fn receive_stops_where_a_part_is_taken() {
    let data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    let (mut peer, ours) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let (digests, mut early) = (Digests::default(), EarlySeen::default());
    let mut receiver = PduReceiver::new(digests, 1 << 20, pdu(digests, &[], &data)[..BHS_LEN].to_vec());
    compio::runtime::Runtime::new().expect("an event loop").block_on(async {
        let stream = Stream::new(ours).expect("a stream");
        receiver.resume(&mut early).expect("a header");
        peer.write_all(&data[..100_000]).expect("room");
        stream.readable().await.expect("bytes");
        receiver.receive(&stream, &mut early).expect("good bytes");
        assert_eq!(early.parts, [PAGE], "the task runs before more are received");
        receiver.receive(&stream, &mut early).expect("good bytes");
        assert_eq!(early.parts, [PAGE, 2 * PAGE]);
        receiver.receive(&stream, &mut early).expect("good bytes");
    });
    assert!(early.pdus == 0 && early.data == data[..3 * PAGE]);
}

#[test]
fn wrong_header_digest_breaks_and_data_digest_is_reported() {
    let both = Digests { header: true, data: true };
    let good = pdu(both, &[], &[1, 2, 3]);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        match feed(&bad, 1 << 20, both, false) {
            Err(ReceiveError::HeaderDigest | ReceiveError::TooLong(_)) => assert!(at < 52),
            Err(e) => panic!("{e}"),
            Ok(seen) if seen.pdus.is_empty() => assert!(at < 52, "a longer length waits for more"),
            Ok(seen) => assert!(at >= 52 && !seen.pdus[0].3, "byte {at}"),
        }
    }
}

#[test]
fn segment_longer_than_declared_breaks() {
    let mut bytes = pdu(Digests::default(), &[], &[]);
    bytes[5] = 0x7f;
    assert!(matches!(feed(&bytes, 48, Digests::default(), false), Err(ReceiveError::TooLong(_))));
}

#[test]
fn last_pdu_is_known_if_it_is_whole() {
    let digests = Digests { header: true, data: true };
    let [write, logout] = [(opcode::SCSI_COMMAND, &[1, 2, 3][..]), (opcode::LOGOUT | 0x40, &[][..])]
        .map(|(first, data)| encode(digests, Bhs::new(first), &[], data));
    let last = |parts: &[&[u8]]| last_opcode(digests, &parts.concat());
    assert_eq!(last(&[]), None);
    assert_eq!(last(&[&write, &logout]), Some(opcode::LOGOUT));
    assert_eq!(last(&[&logout, &write]), Some(opcode::SCSI_COMMAND));
    assert_eq!(last(&[&write, &logout[..logout.len() - 1]]), None);
    assert_eq!(last(&[&write[..write.len() - 1], &logout]), None);
}

#[test]
fn last_pdu_is_known_behind_one_that_has_begun() {
    let digests = Digests { header: false, data: true };
    let logout = encode(digests, Bhs::new(opcode::LOGOUT), &[], &[]);
    for len in [8, 3 * LARGE + 1] {
        let begun = encode(digests, Bhs::new(opcode::SCSI_COMMAND), &[], &vec![7; len]);
        for at in [BHS_LEN / 2, BHS_LEN, BHS_LEN + len, begun.len() - 1, begun.len()] {
            let mut receiver = PduReceiver::new(digests, 4 * LARGE, Vec::new());
            receiver.feed(&begun[..at], &mut Seen { pdus: Vec::new(), landing: false }).expect("a PDU");
            let behind = [&begun[at..], &logout].concat();
            assert_eq!(receiver.last_opcode(&behind), Some(opcode::LOGOUT), "{len} {at}");
            assert_eq!(receiver.last_opcode(&behind[..behind.len() - 1]), None, "{len} {at}");
        }
    }
}
