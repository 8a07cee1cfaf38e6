//! The delivered PDUs equal the sent ones, whatever the prediction.

use super::*;
use crate::iscsi::receive::encode;

const NO: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

/// Commands whose responses are predicted: tag, data length, and the buffer while it is not lent to a prediction.
struct Asked {
    commands: Vec<(u32, usize, Option<Buf>)>,
    /// Received PDUs: opcode, tag, data, and whether the data was received directly into the buffer of its command.
    came: Vec<(u8, u32, Vec<u8>, bool)>,
    intact: bool,
}

impl Asked {
    fn new(commands: &[(u32, usize)]) -> Asked {
        let with_buffer = |&(tag, len): &(u32, usize)| (tag, len, Some(Buf::zeroed(len)));
        Asked { commands: commands.iter().map(with_buffer).collect(), came: Vec::new(), intact: true }
    }
}

impl PduHandler for Asked {
    fn place(&mut self, _: &Bhs) -> Option<(Buf, usize)> {
        None
    }
    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }
    fn predict(&mut self, sight: &mut ReceivePrediction) {
        for (tag, len, buf) in &mut self.commands {
            if !sight.has_room(*len) {
                return;
            }
            let buf = if *len > 0 { Some(buf.take().expect("the buffer was returned")) } else { None };
            sight.push(PredictedPdu { tag: *tag, buf });
        }
    }
    fn give_back(&mut self, answer: PredictedPdu) {
        let (.., place) = self.commands.iter_mut().find(|c| c.0 == answer.tag).expect("its command");
        assert!(place.is_none() && answer.buf.is_some());
        *place = answer.buf;
    }
    fn is_full(&self) -> bool {
        false
    }
    fn take(&mut self, pdu: ReceivedPdu<'_>) -> bool {
        let (tag, opcode) = (pdu.header.itt(), pdu.header.opcode());
        let (data, landed) = match pdu.data {
            ReceivedData::Placed(buf) => (buf.to_vec(), true),
            ref other => (other.bytes().to_vec(), false),
        };
        if let Some(at) = self.commands.iter().position(|c| c.0 == tag) {
            let (_, len, buf) = self.commands.remove(at);
            assert!(landed || len == 0 || buf.is_some(), "the buffer of {tag} was not returned");
        }
        self.intact &= pdu.intact;
        self.came.push((opcode, tag, data, landed));
        true
    }
}

/// A PDU with this many bytes of data.
fn pdu(digests: Digests, (opcode, tag, len): (u8, u32, usize)) -> Vec<u8> {
    let mut header = Bhs::new(opcode);
    header.set_itt(tag);
    encode(digests, header, &[], &data(tag, len))
}

fn data(tag: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + tag as usize) as u8).collect()
}

const IN: u8 = opcode::DATA_IN;
const END: u8 = opcode::SCSI_RESPONSE;
const COMMANDS: [(u32, usize); 5] = [(1, 4096), (2, 0), (3, 20_001), (4, 513), (5, 2048)];
type Sent = [(u8, u32, usize)];
const IN_ORDER: &Sent = &[(IN, 1, 4096), (END, 2, 0), (IN, 3, 20_001), (IN, 4, 513), (IN, 5, 2048)];

/// Receives the PDUs of `sent` in pieces of `piece` bytes.
fn receive(sent: &Sent, digests: Digests, piece: usize) -> Asked {
    let bytes: Vec<u8> = sent.iter().flat_map(|s| pdu(digests, *s)).collect();
    let mut asked = Asked::new(&COMMANDS);
    let mut receiver = PduReceiver::new(digests, 1 << 20, vec![]);
    for piece in bytes.chunks(piece) {
        assert_eq!(receiver.feed(piece, &mut asked).expect("good bytes"), ReceiveStatus::More);
    }
    asked
}

#[test]
fn any_prediction_delivers_the_pdus_that_were_sent() {
    let scripts: [&Sent; 7] = [
        IN_ORDER,
        // out of order
        &[(IN, 3, 20_001), (IN, 1, 4096), (IN, 5, 2048), (IN, 4, 513), (END, 2, 0)],
        // an unrelated PDU between them
        &[(IN, 1, 4096), (opcode::NOP_IN, 77, 5), (END, 2, 0), (IN, 3, 20_001)],
        // less data, more data, and a status instead of data
        &[(IN, 1, 4092), (END, 2, 0), (IN, 3, 20_001)],
        &[(IN, 1, 4096), (END, 2, 34), (IN, 3, 30_000), (IN, 4, 513)],
        &[(END, 1, 18), (END, 2, 0), (END, 3, 0), (IN, 4, 513)],
        &[(IN, 2, 0), (IN, 2, 16)],
    ];
    for (script, digests) in scripts.iter().flat_map(|s| [(s, NO), (s, BOTH)]) {
        for piece in [1, 7, 47, 48, 52, 53, 4000, 4144, 4145, 4152, 4200, 25_000, 1 << 20] {
            let asked = receive(script, digests, piece);
            let expected = script.iter().map(|(opcode, tag, len)| (*opcode, *tag, data(*tag, *len)));
            let came = asked.came.iter().map(|(opcode, tag, data, _)| (*opcode, *tag, data.clone()));
            assert!(came.eq(expected) && asked.intact, "pieces of {piece}: {script:?}");
        }
    }
}

#[test]
fn predicted_data_is_received_into_its_buffer() {
    for digests in [NO, BOTH] {
        for (piece, landing) in [(4200, &[1, 3, 5][..]), (25_000, &[1, 3, 4, 5]), (1 << 20, &[1, 3, 4])] {
            let asked = receive(IN_ORDER, digests, piece);
            let landed = asked.came.iter().filter(|(.., landed)| *landed).map(|(_, tag, ..)| *tag);
            assert!(landed.eq(landing.iter().copied()), "pieces of {piece}");
        }
    }
}

#[test]
fn wrong_digest_of_predicted_data_is_detected() {
    let bytes: Vec<u8> = IN_ORDER.iter().flat_map(|s| pdu(BOTH, *s)).collect();
    let first = pdu(BOTH, IN_ORDER[0]).len();
    for at in 0..first {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        let mut asked = Asked::new(&COMMANDS);
        let ended = PduReceiver::new(BOTH, 1 << 20, vec![]).feed(&bad, &mut asked);
        match ended {
            Err(ReceiveError::HeaderDigest | ReceiveError::TooLong(_)) => {
                assert!(at < 52 && asked.came.is_empty())
            }
            Err(e) => panic!("{e}"),
            Ok(_) => assert!(at < 8 || at >= 52 && !asked.intact, "byte {at}"),
        }
        assert!(asked.commands.iter().all(|c| c.2.is_some()), "byte {at}: a buffer was not returned");
    }
}

#[test]
fn wrong_prediction_pauses_prediction() {
    let mut asked = Asked::new(&COMMANDS);
    let mut receiver = PduReceiver::new(NO, 1 << 20, vec![]);
    let nop = pdu(NO, (opcode::NOP_IN, 9, 0));
    receiver.feed(&nop, &mut asked).expect("good bytes");
    for _ in 0..PAUSE {
        assert!(!receiver.prediction.look(&mut asked));
    }
    assert!(receiver.prediction.look(&mut asked));
}
