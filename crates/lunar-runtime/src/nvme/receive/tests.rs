//! PDUs cut at every byte, and faulty ones.

use super::*;
use lunar_wire::nvme::{DataPdu, NvmePduKind, Sqe, nvm_opcode, pdu_flag};

const MAX_DATA: usize = 1 << 20;
const DIGESTS: [Digests; 4] = [
    Digests { header: false, data: false },
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests { header: true, data: true },
];

/// Collects PDUs. If configured, it receives large data at offset 8 of a command's buffer.
#[derive(Default)]
struct Seen {
    pdus: Vec<(NvmePduKind, Vec<u8>, Vec<u8>, bool)>,
    landing: bool,
    refuses: Option<NvmePduError>,
    full_after: Option<usize>,
}

impl NvmePduHandler for Seen {
    fn place(&mut self, pdu: &NvmePdu, _: &[u8]) -> Option<(Buf, usize)> {
        self.landing.then(|| (Buf::zeroed(pdu.data.len() + 8), 8))
    }

    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }

    fn is_full(&self) -> bool {
        self.full_after.is_some_and(|limit| self.pdus.len() >= limit)
    }

    fn take(&mut self, received: ReceivedNvmePdu<'_>) -> Result<bool, NvmePduError> {
        let data = match &received.data {
            ReceivedData::Placed(buf) => buf[8..].to_vec(),
            other => other.bytes().to_vec(),
        };
        self.pdus.push((received.pdu.kind, received.header.to_vec(), data, received.intact));
        self.refuses.map_or(Ok(true), Err)
    }
}

/// A PDU on the wire: header, digest, data, digest.
fn pdu(header: &[u8], digests: Digests, data: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    if digests.header {
        bytes.extend(crc32c(&[header]).to_le_bytes());
    }
    bytes.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        bytes.extend(crc32c(&[data]).to_le_bytes());
    }
    bytes
}

fn capsule(digests: Digests, data: &[u8]) -> Vec<u8> {
    let common = PduHeader::of(NvmePduKind::Command, 0, digests, data.len()).encode();
    pdu(&[&common[..], &Sqe::new(nvm_opcode::WRITE, 7, 1).0].concat(), digests, data)
}

fn host_data(digests: Digests, data: &[u8]) -> Vec<u8> {
    let part = DataPdu { command: 7, tag: 1, offset: 0, len: data.len() as u32 };
    pdu(&part.encode(NvmePduKind::HostData, pdu_flag::LAST, digests), digests, data)
}

fn receiver(digests: Digests) -> NvmeReceiver {
    NvmeReceiver::new(true, digests, MAX_DATA, Vec::new())
}

#[test]
fn pdus_arrive_whatever_the_segmentation() {
    let large: Vec<u8> = (0..50_001u32).map(|i| i as u8).collect();
    for digests in DIGESTS {
        let parts: [&[u8]; 4] = [&[], &[5; 512], &large, &[6; 4]];
        let bytes = [
            capsule(digests, parts[0]),
            capsule(digests, parts[1]),
            host_data(digests, parts[2]),
            host_data(digests, parts[3]),
        ]
        .concat();
        for (step, landing) in [(1, false), (7, true), (72, false), (4096, true), (1 << 20, false)] {
            let mut seen = Seen { landing, ..Seen::default() };
            let mut receiver = receiver(digests);
            for chunk in bytes.chunks(step) {
                assert_eq!(receiver.feed(chunk, &mut seen).expect("good"), ReceiveStatus::More);
            }
            let kinds =
                [NvmePduKind::Command, NvmePduKind::Command, NvmePduKind::HostData, NvmePduKind::HostData];
            assert_eq!(seen.pdus.iter().map(|pdu| pdu.0).collect::<Vec<_>>(), kinds, "steps of {step}");
            for ((kind, header, data, intact), expected) in seen.pdus.iter().zip(parts) {
                assert!(*intact && data == expected && header.len() == kind.header_len());
            }
        }
    }
}

#[test]
fn data_behind_padding_are_found() {
    let mut bytes = vec![4, 0, 72, 80, 84, 0, 0, 0];
    bytes.extend([0; 64]);
    bytes.extend([9; 8]);
    bytes.extend([1, 2, 3, 4]);
    let mut seen = Seen::default();
    receiver(DIGESTS[0]).feed(&bytes, &mut seen).expect("good");
    assert_eq!(seen.pdus[0].2, [1, 2, 3, 4]);
}

#[test]
fn header_digest_mismatch_ends_the_connection() {
    let mut bytes = capsule(DIGESTS[3], &[]);
    bytes[10] ^= 1;
    let result = receiver(DIGESTS[3]).feed(&bytes, &mut Seen::default());
    let Err(NvmeReceiveError::Pdu { error, header }) = result else { panic!("{result:?}") };
    assert_eq!((error.status, &header[..]), (fatal_error::HEADER_DIGEST, &bytes[..72]));
}

#[test]
fn data_digest_mismatch_is_passed_on() {
    let large = vec![1; 40_000];
    for (data, step) in [(&[1; 16][..], 1 << 20), (&large, 5000)] {
        let mut bytes = host_data(DIGESTS[3], data);
        bytes[40] ^= 1;
        let (mut seen, mut receiver) = (Seen::default(), receiver(DIGESTS[3]));
        for chunk in bytes.chunks(step) {
            assert_eq!(receiver.feed(chunk, &mut seen).expect("good"), ReceiveStatus::More);
        }
        assert_eq!(seen.pdus.iter().map(|pdu| pdu.3).collect::<Vec<_>>(), [false]);
    }
}

#[test]
fn faulty_header_is_reported_before_its_data_arrive() {
    for (header, error) in [
        ([5, 0, 24, 0, 24, 0, 0, 0], NvmePduError::field(0)),
        ([4, 0, 72, 0, 0xff, 0xff, 0xff, 0xff], NvmePduError::field(4)),
    ] {
        let result = receiver(DIGESTS[0]).feed(&header, &mut Seen::default());
        let Err(NvmeReceiveError::Pdu { error: found, header: copy }) = result else { panic!("{result:?}") };
        assert_eq!((found, &copy[..]), (error, &header[..]));
    }
}

#[test]
fn fault_that_the_handler_finds_has_the_header() {
    let error = NvmePduError::of(fatal_error::SEQUENCE);
    for data in [vec![1; 4], vec![1; 40_000]] {
        let bytes = host_data(DIGESTS[0], &data);
        let mut seen = Seen { refuses: Some(error), ..Seen::default() };
        let mut receiver = receiver(DIGESTS[0]);
        let mut results = bytes.chunks(10_000).map(|chunk| receiver.feed(chunk, &mut seen));
        let fault = results.find_map(Result::err).expect("a fault");
        let NvmeReceiveError::Pdu { error: found, header } = fault else { panic!("{fault}") };
        assert_eq!((found, &header[..]), (error, &bytes[..24]));
    }
}

#[test]
fn full_handler_gets_the_rest_later() {
    let bytes = [capsule(DIGESTS[0], &[]), capsule(DIGESTS[0], &[1; 4])].concat();
    let mut seen = Seen { full_after: Some(1), ..Seen::default() };
    let mut receiver = receiver(DIGESTS[0]);
    assert_eq!(receiver.feed(&bytes, &mut seen).expect("good"), ReceiveStatus::Full);
    assert!(receiver.has_begun() && seen.pdus.len() == 1);
    seen.full_after = None;
    assert_eq!(receiver.resume(&mut seen).expect("good"), ReceiveStatus::More);
    assert!(!receiver.has_begun() && seen.pdus.len() == 2);
}
