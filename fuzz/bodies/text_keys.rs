//! Key=value text. Input: the flags of a Text Request as a byte, then its data.

use lunar_proto::login::SessionType;
use lunar_proto::text::{SendTargets, TargetRecord, TextServer, TextStep};
use lunar_wire::iscsi::name::prepare;
use lunar_wire::iscsi::text::{binary, number, pairs, push};
use lunar_wire::iscsi::{Bhs, NONE, opcode};

const FINAL: u8 = 0x80;
const MAX_XMIT: u32 = 512;

pub fn run(input: &[u8]) {
    let [flags, text @ ..] = input else { return };
    read_and_write_back(text);
    for session_type in [SessionType::Normal, SessionType::Discovery] {
        exchange(session_type, *flags, text);
    }
}

/// Checks that parsed pairs can be written and parsed again.
fn read_and_write_back(text: &[u8]) {
    let (mut again, mut buf) = (vec![], [0; 64]);
    for pair in pairs(text) {
        let Ok((key, value)) = pair else { return };
        push(&mut again, key, value);
        let bytes = binary(value, &mut buf).map_or(0, <[u8]>::len);
        assert!(bytes <= 64 && (bytes == 0 || value.len() >= 2 + bytes));
        let _ = number(value);
        name(value);
    }
    assert!(pairs(&again).eq(pairs(text)));
}

/// Checks that a prepared name (RFC 3722) does not change when it is prepared again.
fn name(value: &str) {
    if let Ok(prepared) = prepare(value) {
        assert_eq!(prepare(&prepared).as_ref(), Ok(&prepared));
    }
    let _ = lunar_proto::name::check(value);
}

/// Sends the text, then requests the rest of the response until it ends.
fn exchange(session_type: SessionType, flags: u8, text: &[u8]) {
    let mut exchange = TextServer::new(session_type, 65536);
    let (mut flags, mut ttt, mut data) = (flags, NONE, text);
    for _ in 0..1000 {
        let mut header = Bhs::new(opcode::TEXT);
        header.set_flags(flags);
        header.set_ttt(ttt);
        let targets = |_: SendTargets<'_>| {
            let addresses = vec!["192.0.2.1:3260,1".to_owned(); 40];
            vec![TargetRecord { name: "iqn.2026-11.org.example:a".into(), addresses }]
        };
        let own = |key: &str, value: &str| key.len().is_multiple_of(2).then(|| value.repeat(2));
        let step = exchange.request(&header, data, MAX_XMIT, targets, own);
        let TextStep::Reply { pdu, .. } = step else { return };
        assert!(pdu.data.len() <= MAX_XMIT as usize);
        if pdu.header.is_final() {
            return;
        }
        (flags, ttt, data) = (FINAL, pdu.header.ttt(), &[]);
    }
    panic!("the response does not end");
}
