//! The bytes of an NBD server, from its greeting on. Input: the size of a receive as a byte, the flags of the
//! greeting, then messages. At the start of a message, the byte 0xfe stands for the magic of an option reply, 0xff
//! for that of a structured reply chunk, and 0xfd for that of a simple reply, so that a fuzzer need not find them.
//! The same bytes are also parsed as a URL.

use lunar_nbd::client::NbdUrl;
use lunar_nbd::client::testing::{ServerTranscript, talk};
use lunar_proto::nbd::NbdCommand;
use lunar_proto::nbd::client::{NegotiationFailure, NegotiationStep};
use lunar_wire::nbd::{
    CHUNK_LEN, CHUNK_MAGIC, ChunkHeader, OPTION_REPLY_LEN, OPTION_REPLY_MAGIC, OptionReply, SIMPLE_REPLY_LEN,
    SIMPLE_REPLY_MAGIC, greeting,
};

/// Commands in flight. Their cookies count up from 1 << 32.
const COMMANDS: [(NbdCommand, u64, u32); 6] = [
    (NbdCommand::Read { whole: false }, 0, 64),
    (NbdCommand::Read { whole: false }, 4096, 1024),
    (NbdCommand::Write { fua: true }, 8192, 512),
    (NbdCommand::BlockStatus { one: true }, 0, 4096),
    (NbdCommand::WriteZeroes { fua: false, unmap: true, fast: false }, 0, 4096),
    (NbdCommand::Flush, 0, 0),
];

pub fn run(input: &[u8]) {
    let Some((step, rest)) = input.split_first() else { return };
    if let Some(url) = std::str::from_utf8(input).ok().and_then(|text| text.parse::<NbdUrl>().ok()) {
        assert_eq!(url.to_string().parse(), Ok(url));
    }
    let bytes = expand(rest);
    let whole = talk(&COMMANDS, &bytes, bytes.len().max(1));
    check(&whole, bytes.len());
    assert_eq!(
        talk(&COMMANDS, &bytes, 1 + 7 * usize::from(*step)),
        whole,
        "the result depends on the segmentation"
    );
}

fn check(talk: &ServerTranscript, sent: usize) {
    assert!(talk.said.len() < 1024, "a handshake without end");
    match &talk.negotiated {
        Some(NegotiationStep::Agreed(export)) => {
            let block = u64::from(export.block_size);
            assert!(
                export.size.is_multiple_of(block) && export.max_payload.is_multiple_of(export.block_size)
            );
            assert!(export.max_payload > 0 && i64::try_from(export.size).is_ok());
        }
        Some(NegotiationStep::Failed(NegotiationFailure::Refused { said, exports, .. })) => {
            assert!(exports.iter().chain([said]).all(|text| !text.contains(char::is_control)));
            assert!(exports.len() <= sent);
        }
        _ => return assert!(talk.outcomes.is_empty()),
    }
    for (outcome, (command, _, len)) in talk.outcomes.iter().zip(COMMANDS) {
        let Some((result, bytes)) = outcome else { continue };
        let moves = matches!(command, NbdCommand::Read { .. } | NbdCommand::Write { .. });
        assert_eq!(bytes.len(), if moves { len as usize } else { 0 });
        if let Ok(status) = result {
            let asked = matches!(command, NbdCommand::BlockStatus { .. });
            assert!(status.is_some_and(|status| status.len > 0) == asked);
        }
    }
}

/// Replaces each mark at the start of a message by the magic number that it stands for. The length in the message
/// shows where the next message starts.
fn expand(mut rest: &[u8]) -> Vec<u8> {
    let mut flags = [0; 2];
    let n = rest.len().min(2);
    flags[..n].copy_from_slice(&rest[..n]);
    rest = &rest[n..];
    let mut bytes = greeting(u16::from_be_bytes(flags)).to_vec();
    while let Some((mark, after)) = rest.split_first() {
        let (magic, header) = match mark {
            0xfe => (OPTION_REPLY_MAGIC.to_be_bytes().to_vec(), OPTION_REPLY_LEN),
            0xff => (CHUNK_MAGIC.to_be_bytes().to_vec(), CHUNK_LEN),
            0xfd => (SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec(), SIMPLE_REPLY_LEN),
            _ => {
                bytes.push(*mark);
                rest = after;
                continue;
            }
        };
        let at = bytes.len();
        let taken = after.len().min(header - magic.len());
        bytes.extend(magic);
        bytes.extend_from_slice(&after[..taken]);
        rest = &after[taken..];
        let len = body_len(&bytes[at..]).min(rest.len());
        bytes.extend_from_slice(&rest[..len]);
        rest = &rest[len..];
    }
    bytes
}

/// The length that a header states for the bytes after it. A simple reply states none: its data counts as raw bytes.
fn body_len(header: &[u8]) -> usize {
    let option = header.first_chunk().and_then(OptionReply::decode).map(|reply| reply.len);
    let chunk = header.first_chunk().and_then(ChunkHeader::decode).map(|chunk| chunk.len);
    option.or(chunk).map_or(0, |len| len as usize)
}
