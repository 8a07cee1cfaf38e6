//! Segments in pipes, from sockets that deliver them in pieces.

use super::super::{PipedBytes, encode};
use super::*;
use crate::Buf;
use crate::pipe::tests::counts;
use compio::driver::{DriverType, ProactorBuilder};
use compio::runtime::RuntimeBuilder;
use std::io::Write;
use std::net::{TcpListener, TcpStream};

/// A task whose pipe has bytes of earlier segments.
struct PipeTask {
    earlier: Vec<u8>,
    /// The bytes of the task after each segment, and whether they were in a pipe.
    seen: Vec<(Vec<u8>, bool)>,
}

impl PipeTask {
    fn new(earlier: usize) -> PipeTask {
        PipeTask { earlier: data(earlier, 1), seen: Vec::new() }
    }
}

impl PduHandler for PipeTask {
    fn place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        let mut buf = Buf::zeroed(self.earlier.len() + header.data_len());
        buf[..self.earlier.len()].copy_from_slice(&self.earlier);
        Some((buf, self.earlier.len()))
    }
    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }
    fn takes_pipe(&self, _: &Bhs) -> bool {
        true
    }
    fn pipe(&mut self, header: &Bhs, room: usize) -> Option<PipedBytes> {
        if self.earlier.len() + header.data_len() > room {
            return None;
        }
        let mut piped = PipedBytes::empty()?;
        assert_eq!(piped.push(&self.earlier), self.earlier.len());
        Some(piped)
    }
    fn is_full(&self) -> bool {
        false
    }
    fn take(&mut self, pdu: ReceivedPdu<'_>) -> bool {
        assert!(pdu.intact);
        self.seen.push(match pdu.data {
            ReceivedData::Piped(piped) => {
                let mut bytes = vec![0; piped.len()];
                piped.move_to(&mut bytes).expect("bytes of a pipe");
                (bytes, true)
            }
            ReceivedData::Placed(buf) => (buf.to_vec(), false),
            other => ([&self.earlier, other.bytes()].concat(), false),
        });
        true
    }
}

fn data(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 1000 + at * 7 + seed) as u8 | 1).collect()
}

fn pdus(digests: Digests, segments: &[Vec<u8>]) -> Vec<u8> {
    segments.iter().flat_map(|data| encode(digests, Bhs::new(1), &[], data)).collect()
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    (peer, listener.accept().expect("accepted").0)
}

/// Receives these bytes, which a peer sends in pieces of `piece` bytes before it closes.
fn received(bytes: Vec<u8>, piece: usize, digests: Digests, task: &mut PipeTask) {
    received_by(&ProactorBuilder::new(), bytes, piece, digests, task);
}

fn received_by(
    driver: &ProactorBuilder,
    bytes: Vec<u8>,
    piece: usize,
    digests: Digests,
    task: &mut PipeTask,
) {
    let (mut peer, ours) = tcp();
    let sender = std::thread::spawn(move || {
        bytes.chunks(piece).for_each(|part| peer.write_all(part).expect("sent"));
    });
    RuntimeBuilder::new().with_proactor(driver.clone()).build().expect("an event loop").block_on(async {
        let stream = Stream::new(ours).expect("a stream");
        let mut receiver = PduReceiver::new(digests, 1 << 21, vec![]);
        loop {
            stream.readable().await.expect("bytes");
            if receiver.receive(&stream, task).expect("good bytes") == ReceiveStatus::End {
                return;
            }
        }
    });
    sender.join().expect("all sent");
}

#[test]
fn large_segments_are_received_into_pipes() {
    let segments: Vec<_> =
        [262_144, 262_144, 20_000, 262_143, 100, 131_072, 17_001].map(|len| data(len, len)).into();
    let (standard, mut polling) = (ProactorBuilder::new(), ProactorBuilder::new());
    polling.driver_type(DriverType::Poll);
    for (piece, header, driver) in
        [(1 << 20, false, &standard), (70_001, true, &standard), (262_192, false, &polling)]
    {
        let digests = Digests { header, data: false };
        let mut task = PipeTask::new(0);
        received_by(driver, pdus(digests, &segments), piece, digests, &mut task);
        assert!(task.seen.iter().map(|(bytes, _)| bytes).eq(&segments), "pieces of {piece}");
        assert!(task.seen.iter().filter(|(_, piped)| *piped).count() >= 2, "pieces of {piece}");
    }
    assert_eq!(counts().1, 0, "no pipe is lent");
}

#[test]
fn segments_are_received_into_pipes_however_they_are_cut() {
    let segments = [data(20_001, 0), data(50_000, 1), data(3, 2), data(40_000, 3)];
    let bytes = pdus(Digests::default(), &segments);
    for step in [1, 48, 100, 5000, 30_000] {
        let (mut receiver, mut task) =
            (PduReceiver::new(Digests::default(), 1 << 20, vec![]), PipeTask::new(500));
        bytes.chunks(step).for_each(|part| _ = receiver.feed(part, &mut task).expect("good bytes"));
        let whole = segments.each_ref().map(|segment| [&task.earlier[..], segment].concat());
        assert!(task.seen.iter().map(|(bytes, _)| bytes).eq(&whole), "steps of {step}");
        let piped: Vec<_> = task.seen.iter().map(|(_, piped)| *piped).collect();
        // Otherwise the first receive of a segment brings no data or many.
        assert!(step != 100 || piped[0], "steps of {step}: {piped:?}");
        assert!(!piped[2], "a small segment");
    }
}

#[test]
fn segments_with_digests_or_zeros_first_go_to_memory() {
    let zeros = [vec![0; 1000], data(200_000, 0)].concat();
    for (data_digest, segment) in [(true, data(200_000, 1)), (false, zeros)] {
        let digests = Digests { header: false, data: data_digest };
        let mut task = PipeTask::new(0);
        received(pdus(digests, &vec![segment.clone(); 4]), 100_000, digests, &mut task);
        assert!(task.seen == vec![(segment, false); 4], "data digest {data_digest}");
    }
}

#[test]
fn segment_whose_pipe_is_full_continues_in_memory() {
    // 240 of the 256 pages of the pipe are used. A socket delivers small pieces, each of which uses one.
    let (segments, earlier) = (vec![data(150_000, 3); 3], 240 * 4096);
    for piece in [48, 100, 1 << 20] {
        let mut task = PipeTask::new(earlier);
        let bytes = pdus(Digests::default(), &segments);
        let mut receiver = PduReceiver::new(Digests::default(), 1 << 20, vec![]);
        bytes.chunks(piece).for_each(|part| _ = receiver.feed(part, &mut task).expect("good bytes"));
        let whole = [&task.earlier[..], &segments[0]].concat();
        assert!(task.seen == vec![(whole.clone(), false); 3], "steps of {piece}");
        let mut task = PipeTask::new(earlier);
        received(bytes, piece.max(3000), Digests::default(), &mut task);
        assert!(task.seen.iter().all(|(bytes, _)| *bytes == whole), "pieces of {piece}");
    }
    assert_eq!(counts().1, 0, "no pipe is lent");
}

#[test]
fn full_pipe_limits_the_next_segments_only() {
    let (mut receiver, mut task) =
        (PduReceiver::new(Digests::default(), 1 << 20, vec![]), PipeTask::new(500));
    receiver.pipe_room = 20_000;
    let bytes = pdus(Digests::default(), &vec![data(50_000, 1); 40]);
    bytes.chunks(100).for_each(|part| _ = receiver.feed(part, &mut task).expect("good bytes"));
    let first = task.seen.iter().position(|(_, piped)| *piped).expect("a pipe is tried again");
    assert!((10..30).contains(&first), "{first}");
}

#[test]
fn pipe_of_a_lost_connection_is_not_used_again() {
    let bytes = pdus(Digests::default(), &[data(200_000, 0), data(200_000, 1)]);
    let mut task = PipeTask::new(0);
    received(bytes[..300_000].to_vec(), 100, Digests::default(), &mut task);
    assert_eq!((task.seen.len(), counts().1), (1, 0));
    let mut empty = PipedBytes::empty().expect("a pipe");
    assert_eq!(empty.push(&[7; 100]), 100);
    let mut bytes = [0; 100];
    empty.move_to(&mut bytes).expect("bytes");
    assert_eq!(bytes, [7; 100], "a pipe has no bytes of an earlier use");
}
