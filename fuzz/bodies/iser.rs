//! iSER: the header, the PDU, and the private data of the connection setup.

use lunar_wire::iser::{HEADER_LEN, IserCapabilities, IserHeader, IserPdu, OVERHEAD};

pub fn run(input: &[u8]) {
    let abilities = IserCapabilities::decode(input);
    assert_eq!(IserCapabilities::decode(&abilities.encode()), abilities);
    let header = IserHeader::decode(input);
    if let Ok(header) = header {
        assert_eq!(IserHeader::decode(&header.encode()), Ok(header));
    }
    let Ok(pdu) = IserPdu::decode(input) else { return };
    assert_eq!(header, Ok(IserHeader::Control { write: pdu.write, read: pdu.read }));
    assert_eq!(pdu.bhs.as_bytes()[..], input[HEADER_LEN..OVERHEAD]);
    let padding = input.len() - OVERHEAD - pdu.ahs.len() - pdu.data.len();
    assert!(padding <= 4 && (pdu.ahs.len(), pdu.data.len()) == (pdu.bhs.ahs_len(), pdu.bhs.data_len()));
}
