//! The login of the initiator. Input: a byte of options (1 discovery, 2 CHAP, 4 mutual CHAP, 8 join a session, 16
//! CHAP optional), then responses. A response is its flags, an offset and the byte to write there in the header
//! (offset 0: none; 255: the text gets the CHAP response of the target), the length of the data as two bytes, and the
//! data.

use lunar_proto::Pdu;
use lunar_proto::chap::{Algorithm, Secret};
use lunar_proto::initiator::login::{Credentials, InitiatorLogin, InitiatorLoginStep, LoginParams};
use lunar_proto::initiator::targets::PortalAddress;
use lunar_proto::login::{SEGMENT_LEN, SessionType};
use lunar_proto::parameters::Offer;
use lunar_wire::iscsi::text::{binary, number, pairs, push, push_hex};
use lunar_wire::iscsi::{Bhs, opcode};

const LUNAR: &[u8] = b"lunar's secret";

pub fn run(input: &[u8]) {
    let [wishes, rest @ ..] = input else { return };
    let wish = wish(*wishes);
    let (mut login, mut request) = InitiatorLogin::new(wish.clone());
    let (mut rest, mut stat_sn) = (rest, 0);
    while let [flags, place, byte, hi, lo, after @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*hi, *lo])).min(after.len());
        let (text, after) = after.split_at(len);
        rest = after;
        let mut text = text.to_vec();
        if *place == 255 {
            prove(&request, &mut text);
        }
        let header = header(&wish, *flags, *place, *byte, stat_sn);
        match login.response(&header, &text) {
            InitiatorLoginStep::Send(pdu) => request = pdu,
            end => return over(&end, &wish),
        }
        assert!(request.data.len() <= SEGMENT_LEN && request.header.data_len() == request.data.len());
        assert!(!(request.header.is_final() && request.header.continues()));
        stat_sn += 1;
        assert!(stat_sn <= 64, "the login does not end");
    }
}

fn wish(wishes: u8) -> LoginParams {
    let on = |bit| wishes & bit != 0;
    let mutual = on(4).then(|| ("lunar".to_owned(), Secret::new(LUNAR)));
    let credentials = on(2).then(|| Credentials {
        name: "alice".into(),
        secret: Secret::new(b"alice's secret"),
        mutual,
        algorithms: Algorithm::ALL.to_vec(),
        required: !on(16),
    });
    LoginParams {
        initiator: "iqn.1993-08.org.debian:01:abc".into(),
        initiator_alias: None,
        target: (!on(1)).then(|| "iqn.2026-11.org.example:disks".into()),
        session_type: if on(1) { SessionType::Discovery } else { SessionType::Normal },
        isid: [0x80, 1, 2, 3, 4, 5],
        tsih: if on(8) { 1 } else { 0 },
        cid: 0,
        cmd_sn: 1,
        itt: 1,
        offer: Offer::default(),
        crc32c_first: false,
        credentials,
    }
}

/// A valid response with one byte replaced.
fn header(wish: &LoginParams, flags: u8, place: u8, byte: u8, stat_sn: u32) -> Bhs {
    let mut h = Bhs::new(opcode::LOGIN_RESPONSE);
    h.set_flags(flags);
    h.set_isid(wish.isid);
    h.set_tsih(1);
    h.set_itt(1);
    h.set_stat_sn(stat_sn);
    h.set_exp_cmd_sn(1);
    h.set_max_cmd_sn(32);
    let mut bytes = *h.as_bytes();
    if let (1.., Some(b)) = (place, bytes.get_mut(usize::from(place))) {
        *b = byte;
    }
    Bhs::from_bytes(bytes)
}

/// Appends the CHAP response of the target, if the request has a challenge.
fn prove(request: &Pdu, text: &mut Vec<u8>) {
    let value = |key| pairs(&request.data).filter_map(Result::ok).find(|p| p.0 == key).map(|p| p.1);
    let (Some(id), Some(challenge)) = (value("CHAP_I").and_then(number), value("CHAP_C")) else { return };
    let mut buf = [0; 1024];
    let challenge = binary(challenge, &mut buf).expect("a challenge is binary");
    push(text, "CHAP_N", "lunar");
    push_hex(text, "CHAP_R", &Algorithm::Sha256.response(id as u8, &Secret::new(LUNAR), challenge));
}

fn over(end: &InitiatorLoginStep, wish: &LoginParams) {
    match end {
        InitiatorLoginStep::Done(got) => {
            let p = &got.parameters;
            assert!(got.chap.is_some() || !wish.credentials.as_ref().is_some_and(|c| c.required));
            assert!(
                p.first_burst_length <= p.max_burst_length
                    && p.max_burst_length <= wish.offer.max_burst_length
            );
            assert!((512..=0xff_ffff).contains(&p.max_xmit_data_segment_length));
            let all = got.answers.iter().flat_map(|a| [&a.0, &a.1]).chain(&got.target_alias);
            all.for_each(|said| assert!(!said.contains(char::is_control)));
        }
        InitiatorLoginStep::Moved { address, .. } => assert!(PortalAddress::parse(address).is_ok()),
        InitiatorLoginStep::Failed(failure) => assert!(!failure.to_string().contains(char::is_control)),
        InitiatorLoginStep::Send(_) => {}
    }
}
