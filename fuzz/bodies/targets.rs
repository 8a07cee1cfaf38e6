//! The response to SendTargets. Input: a byte for the size of its parts, then its text.

use lunar_proto::initiator::targets::{PortalAddress, parse};
use lunar_proto::initiator::{TextClient, TextStep};
use lunar_proto::name;
use lunar_wire::iscsi::{Bhs, NONE, opcode};

/// Upper limit of the text in bytes.
const LIMIT: usize = 65536;

pub fn run(input: &[u8]) {
    let [part, text @ ..] = input else { return };
    let text = &text[..text.len().min(LIMIT)];
    assert_eq!(ask(text, usize::from(*part) + 64), text);
    match parse(text) {
        Ok(parsed) => {
            assert!(parsed.notes.iter().all(|note| !note.contains(char::is_control)));
            parsed.found.iter().for_each(|target| {
                assert!(name::is_usable(&target.name));
                target.addresses.iter().for_each(hold);
            });
        }
        Err(why) => assert!(!why.contains(char::is_control)),
    }
}

/// Checks that an address can be written and parsed again.
fn hold(address: &PortalAddress) {
    let again = PortalAddress::parse(&address.to_string()).expect("an address in its own notation");
    assert_eq!((again.host, again.port), (address.host.clone(), address.port));
}

/// A text exchange whose response comes in parts, alternately with and without the C bit.
fn ask(text: &[u8], part: usize) -> Vec<u8> {
    let (mut exchange, _) = TextClient::new(1, b"SendTargets=All\0".to_vec(), 8192, LIMIT);
    let mut header = Bhs::new(opcode::TEXT_RESPONSE);
    header.set_itt(1);
    for (i, data) in text.chunks(part).enumerate() {
        header.set_flags(if i % 2 == 0 { 0x40 } else { 0 });
        let TextStep::Send(request) = exchange.response(&header, data) else {
            panic!("the exchange ends too early")
        };
        assert!(request.data.is_empty() && request.header.is_final());
    }
    header.set_flags(0x80);
    header.set_ttt(NONE);
    match exchange.response(&header, &[]) {
        TextStep::Done(all) => all,
        other => panic!("{other:?}"),
    }
}
