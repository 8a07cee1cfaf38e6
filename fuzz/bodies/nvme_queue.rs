//! A queue of an NVMe host, with arbitrary bytes from the controller. Input: a byte of flags (bit 0 header digests, bit 1 data
//! digests), then pieces: a byte of form, the length as two bytes, the bytes. Form 0 is raw bytes. Form 1 is a PDU: its
//! type, its flags, 16 bytes of header, data; lengths and digests are filled in. Form 2 is the same with the identifier of
//! a command in flight, which the first byte of the header selects, and with the length of the data. Form 3 submits a
//! command: a byte of flags (1 reads, 2 may be repeated, 4 may be short), its length as two bytes. Form 4 drops the
//! connection. Form 5 submits a fused pair, whose length is two bytes. Form 6 abandons the command that a byte selects. Form 7
//! drops the connection, and moves the commands that wait to another queue.

use lunar_initiator::nvme::testing::NvmeQueuePair;
use lunar_wire::nvme::{Digests, pdu_type};

pub fn run(input: &[u8]) {
    let [flags, pieces @ ..] = input else { return };
    let mut pieces = pieces;
    let mut queue = NvmeQueuePair::new(Digests { header: flags & 1 != 0, data: flags & 2 != 0 });
    while let [form, hi, lo, rest @ ..] = pieces {
        let len = usize::from(u16::from_be_bytes([*hi, *lo])).min(rest.len());
        let (piece, after) = rest.split_at(len);
        pieces = after;
        act(&mut queue, form % 8, piece);
    }
    queue.finish();
}

fn act(queue: &mut NvmeQueuePair, form: u8, piece: &[u8]) {
    match form {
        0 => queue.receive(piece),
        1 | 2 => {
            let Some(([kind, flags], rest)) = piece.split_first_chunk() else { return };
            let Some((fields, data)) = rest.split_first_chunk() else { return };
            let mut fields: [u8; 16] = *fields;
            if form == 2 {
                fill(queue, *kind, &mut fields, data.len());
            }
            let bytes = queue.encode(*kind, *flags, &fields, data);
            // In two parts, so that data may be incomplete at the next event.
            let (first, second) = bytes.split_at(bytes.len() / 2);
            queue.receive(first);
            queue.receive(second);
        }
        3 => {
            let [flags, hi, lo, ..] = piece else { return };
            let len = u16::from_be_bytes([*hi, *lo]).into();
            queue.submit(flags & 1 != 0, len, flags & 2 != 0, flags & 4 != 0);
        }
        4 => queue.reconnect(),
        5 => {
            let [hi, lo, ..] = piece else { return };
            queue.submit_pair(u16::from_be_bytes([*hi, *lo]).into());
        }
        6 => queue.abandon(piece.first().map_or(0, |which| usize::from(*which))),
        _ => queue.move_waiting(),
    }
}

/// Fills in the identifier of a command in flight, and the length of the data of a C2HData.
fn fill(queue: &mut NvmeQueuePair, kind: u8, fields: &mut [u8; 16], len: usize) {
    let Some(id) = queue.id(fields[0].into()) else { return };
    let at = if kind == pdu_type::CAPSULE_RESPONSE { 12 } else { 0 };
    fields[at..at + 2].copy_from_slice(&id.to_le_bytes());
    if kind == pdu_type::C2H_DATA {
        fields[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    }
}
