//! A session in full feature phase, with arbitrary bytes from the target. Input: a byte of flags (data digests), then
//! pieces: a byte of form, the length as two bytes, the bytes. Form 0 is raw bytes. Form 1 is a PDU: 48 bytes of
//! header, data; lengths, digests, StatSN, ExpCmdSN and MaxCmdSN are filled in. Form 2 is the same with the tag of a
//! command in flight, which byte 16 selects. Form 3 submits a command: a byte of direction, its length as two bytes.
//! Form 4 drops the connection. Form 5 sends a Text Request. Form 6 is form 1 with the tag of that request. Form 7
//! aborts the command that a byte selects.

use lunar_initiator::testing::Session;
use lunar_wire::iscsi::{BHS_LEN, Bhs};

pub fn run(input: &[u8]) {
    let [flags, pieces @ ..] = input else { return };
    let mut pieces = pieces;
    let mut session = Session::new(flags & 1 != 0);
    while let [form, hi, lo, rest @ ..] = pieces {
        let len = usize::from(u16::from_be_bytes([*hi, *lo])).min(rest.len());
        let (piece, after) = rest.split_at(len);
        pieces = after;
        act(&mut session, form % 8, piece);
    }
}

fn act(session: &mut Session, form: u8, piece: &[u8]) {
    match form {
        0 => session.receive(piece),
        1 | 2 | 6 => {
            let Some((header, data)) = piece.split_first_chunk::<BHS_LEN>() else { return };
            let mut header = Bhs::from_bytes(*header);
            if let Some(tag) = session.tag(header.as_bytes()[16].into()).filter(|_| form == 2) {
                header.set_itt(tag);
            }
            if let Some(tag) = session.text_tag().filter(|_| form == 6) {
                header.set_itt(tag);
            }
            let bytes = session.encode(header, data);
            // In two parts, so that a segment may be incomplete at the next event.
            let (first, second) = bytes.split_at(bytes.len() / 2);
            session.receive(first);
            session.receive(second);
        }
        3 => {
            let [reads, hi, lo, ..] = piece else { return };
            session.submit(reads & 1 != 0, u16::from_be_bytes([*hi, *lo]).into());
        }
        4 => session.reconnect(),
        5 => session.ask(piece),
        _ => session.abort(piece.first().map_or(0, |which| usize::from(*which))),
    }
}
