//! The byte stream of a connection. Input: a byte of flags (header digest, data digest, data placed in task buffers),
//! the size of a receive as a byte, then pieces: a byte of form, the length as two bytes, the bytes. Form 0 is raw
//! bytes. Form 1 is a PDU: 48 bytes of header, additional headers of as many words as byte 4 states, data; lengths
//! and digests are filled in. Form 2 repeats the data 64 times. Form 3 is form 1 with one bit flipped.

use lunar_target::testing::{Frame, Framing};
use lunar_wire::iscsi::{BHS_LEN, Bhs};

const MAX_DATA: usize = 128 << 10;

pub fn run(input: &[u8]) {
    let [flags, step, pieces @ ..] = input else { return };
    let framing = Framing {
        header_digest: flags & 1 != 0,
        data_digest: flags & 2 != 0,
        lands: flags & 4 != 0,
        max_data: MAX_DATA,
    };
    let stream = stream(&framing, pieces);
    let (whole, broken) = framing.frames(&stream, stream.len());
    whole.iter().for_each(|frame| check(&framing, frame));
    let bytes: usize = whole.iter().map(|f| BHS_LEN + f.ahs.len() + f.data.len()).sum();
    assert!(bytes <= stream.len(), "more bytes delivered than received");
    let pieces = framing.frames(&stream, 1 + 97 * *step as usize);
    assert!(pieces == (whole, broken), "the result depends on the segmentation");
}

fn check(framing: &Framing, frame: &Frame) {
    assert_eq!(frame.data.len(), frame.header.data_len());
    assert_eq!(frame.ahs.len(), frame.header.ahs_len());
    assert!(frame.data.len() <= MAX_DATA);
    assert!(frame.intact || framing.data_digest);
}

fn stream(framing: &Framing, mut pieces: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let [form, hi, lo, rest @ ..] = pieces {
        let len = usize::from(u16::from_be_bytes([*hi, *lo])).min(rest.len());
        let (piece, after) = rest.split_at(len);
        pieces = after;
        let at = stream.len();
        match form % 4 {
            0 => stream.extend_from_slice(piece),
            1 => stream.extend(pdu(framing, piece, 1)),
            2 => stream.extend(pdu(framing, piece, 64)),
            _ => {
                stream.extend(pdu(framing, piece, 1));
                let bit = usize::from(form / 4) * 5;
                if let Some(byte) = stream.get_mut(at + bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }
    stream
}

fn pdu(framing: &Framing, piece: &[u8], times: usize) -> Vec<u8> {
    let Some((header, rest)) = piece.split_first_chunk::<BHS_LEN>() else { return Vec::new() };
    let (ahs, data) = rest.split_at((usize::from(header[4]) * 4).min(rest.len() / 4 * 4));
    framing.encode(Bhs::from_bytes(*header), ahs, &data.repeat(times))
}
