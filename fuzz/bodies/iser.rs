//! A message of iSER: its header and its PDU, and what is said while a connection is made.

use lunar_wire::iser::{Abilities, HEADER_LEN, Header, OVERHEAD, Pdu};

pub fn run(input: &[u8]) {
    let abilities = Abilities::decode(input);
    assert_eq!(Abilities::decode(&abilities.encode()), abilities);
    let header = Header::decode(input);
    if let Ok(header) = header {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
    let Ok(pdu) = Pdu::decode(input) else { return };
    assert_eq!(header, Ok(Header::Control { write: pdu.write, read: pdu.read }));
    assert_eq!(pdu.bhs.0, input[HEADER_LEN..OVERHEAD]);
    let padding = input.len() - OVERHEAD - pdu.ahs.len() - pdu.data.len();
    assert!(padding <= 4 && (pdu.ahs.len(), pdu.data.len()) == (pdu.bhs.ahs_len(), pdu.bhs.data_len()));
}
