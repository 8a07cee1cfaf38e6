//! The bytes of an NBD client, from its flags on. Input: the size of a receive as a byte, then the bytes. Between
//! messages, the byte 0xfe stands for the magic of an option and 0xff for that of a request, so that a fuzzer need
//! not find them.

use lunar_nbd::server::testing::{ClientTranscript, talk};
use lunar_proto::nbd::{ExportOffer, NbdCommand};
use lunar_wire::nbd::{OPTION_LEN, OptionHeader, REQUEST_LEN, Request};

const SIZE: u64 = 1 << 20;

fn offers() -> Vec<ExportOffer> {
    let offer = |name: &str, flags| ExportOffer {
        name: name.into(),
        description: "a disk".into(),
        size: SIZE,
        flags,
        block_size: 512,
        preferred: 4096,
        max_payload: 64 << 10,
    };
    vec![offer("a", 0x0d6d), offer("read-only", 0x0507)]
}

pub fn run(input: &[u8]) {
    let Some((step, rest)) = input.split_first() else { return };
    let bytes = expand(rest);
    let whole = talk(offers(), &bytes, bytes.len().max(1));
    check(&whole, bytes.len());
    assert_eq!(
        talk(offers(), &bytes, 1 + 7 * usize::from(*step)),
        whole,
        "the result depends on the segmentation"
    );
}

fn check(talk: &ClientTranscript, sent: usize) {
    let payloads: usize = talk.requests.iter().map(|(_, _, payload)| REQUEST_LEN + payload.len()).sum();
    assert!(payloads <= sent, "more bytes delivered than received");
    assert!(talk.said.len() <= sent.div_ceil(OPTION_LEN) * 1024, "answers are disproportionate to the input");
    let Some(agreed) = talk.agreed else { return assert!(talk.requests.is_empty()) };
    for (request, verdict, payload) in &talk.requests {
        match verdict {
            Ok(NbdCommand::Disconnect) | Err(_) => assert!(payload.is_empty()),
            Ok(command) => {
                let end = request.offset.checked_add(request.len.into()).expect("no overflow");
                let block = u64::from(agreed.terms.block_size);
                assert!(end <= SIZE && end % block == 0 && request.offset % block == 0);
                let writes = matches!(command, NbdCommand::Write { .. });
                assert_eq!(payload.len(), if writes { request.len as usize } else { 0 });
                assert!(agreed.export == 0 || !writes, "a write to a read-only export is accepted");
            }
        }
    }
}

/// Replaces each mark at the start of a message by the magic number that it stands for. The length in the message
/// shows where the next message starts.
fn expand(mut rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let flags = rest.len().min(4);
    bytes.extend_from_slice(&rest[..flags]);
    rest = &rest[flags..];
    while let Some((mark, after)) = rest.split_first() {
        let (magic, header): (&[u8], usize) = match mark {
            0xfe => (&[0x49, 0x48, 0x41, 0x56, 0x45, 0x4f, 0x50, 0x54], OPTION_LEN - 8),
            0xff => (&[0x25, 0x60, 0x95, 0x13], REQUEST_LEN - 4),
            _ => {
                bytes.push(*mark);
                rest = after;
                continue;
            }
        };
        let at = bytes.len();
        bytes.extend_from_slice(magic);
        let data = after.len().min(header);
        bytes.extend_from_slice(&after[..data]);
        rest = &after[data..];
        let len = body_len(&bytes[at..]).min(rest.len());
        bytes.extend_from_slice(&rest[..len]);
        rest = &rest[len..];
    }
    bytes
}

/// The length that a header states for the bytes after it.
fn body_len(header: &[u8]) -> usize {
    if let Ok(header) = header.try_into() {
        return OptionHeader::decode(header).map_or(0, |option| option.len as usize);
    }
    header.try_into().ok().and_then(Request::decode).map_or(0, |request| request.payload_len())
}
