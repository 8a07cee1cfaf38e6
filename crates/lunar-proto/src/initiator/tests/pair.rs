//! The initiator's login against the target's, with key text split at any byte.

use std::sync::Arc;

use lunar_wire::iscsi::status::LoginStatus;
use proptest::prelude::*;

use super::*;
use crate::login::{Authentication, ChapUser, Login as Target, LoginPolicy, LoginStep as Answer, TargetInfo};

/// A target with one name.
struct House(Authentication);

impl LoginPolicy for House {
    fn discovery(&self) -> Result<Authentication, LoginStatus> {
        Ok(self.0.clone())
    }

    fn target(&self, name: &str, _: &str) -> Result<TargetInfo, LoginStatus> {
        assert_eq!(name, DISKS);
        Ok(TargetInfo { alias: Some("Disks".into()), authentication: self.0.clone(), redirect: None })
    }

    fn authorize(&self, _: Option<&str>, initiator: &str, _: Option<&str>) -> Result<(), LoginStatus> {
        assert_eq!(initiator, INITIATOR);
        Ok(())
    }
}

/// Both state machines. Every key text between them is split at `cuts`.
struct Pair {
    initiator: InitiatorLogin,
    target: Target,
    house: House,
    cuts: Vec<usize>,
    stat_sn: u32,
}

impl Pair {
    /// Runs a login to its end, and returns the parameters of both sides if it succeeds.
    fn run(
        wish: LoginParams,
        offer: Offer,
        house: House,
        cuts: Vec<usize>,
    ) -> Result<(LoggedIn, Parameters), LoginError> {
        let (initiator, mut request) = InitiatorLogin::new(wish);
        let target = Target::new(offer, 7, 65536);
        let mut pair = Pair { initiator, target, house, cuts, stat_sn: u32::MAX };
        loop {
            let reply = pair.ask(&request);
            match pair.answer(&reply) {
                InitiatorLoginStep::Send(pdu) => request = pdu,
                InitiatorLoginStep::Done(got) => return Ok((*got, pair.target.parameters().clone())),
                InitiatorLoginStep::Failed(failure) => return Err(failure),
                moved => panic!("{moved:?}"),
            }
        }
    }

    /// Splits a key text; all parts but the last are sent with the C bit.
    fn parts(&self, data: &[u8]) -> Vec<Vec<u8>> {
        let mut cuts: Vec<_> = self.cuts.iter().map(|c| c % (data.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(data.len());
        let from = std::iter::once(0).chain(cuts.iter().copied());
        from.zip(&cuts).map(|(from, to)| data[from..*to].to_vec()).collect()
    }

    /// Sends a request to the target in parts, and returns its response.
    fn ask(&mut self, request: &Pdu) -> Pdu {
        let mut parts = self.parts(&request.data);
        let last = parts.pop().unwrap();
        for part in parts {
            let mut header = request.header;
            header.set_flags(header.flags() & 0x0c | CONTINUE);
            let step = self.target.request(&header, &part, &self.house);
            assert!(matches!(step, Answer::Reply(pdu) if pdu.data.is_empty()), "LOG-018");
        }
        match self.target.request(&request.header, &last, &self.house) {
            Answer::Reply(pdu) | Answer::Refuse(pdu) => pdu,
            Answer::Ready => self.target.accept(0x55, 32),
            Answer::Drop => panic!("dropped"),
        }
    }

    /// Sends a response to the initiator in parts; it requests each of them.
    fn answer(&mut self, reply: &Pdu) -> InitiatorLoginStep {
        let mut parts = self.parts(&reply.data);
        let last = parts.pop().unwrap();
        for part in parts {
            let mut header = reply.header;
            header.set_flags(header.flags() & 0x0c | CONTINUE);
            match self.respond(header, &part) {
                InitiatorLoginStep::Send(pdu) => assert!(pdu.data.is_empty(), "LOG-018"),
                other => return other,
            }
        }
        self.respond(reply.header, &last)
    }

    fn respond(&mut self, mut header: Bhs, data: &[u8]) -> InitiatorLoginStep {
        header.set_stat_sn(self.stat_sn);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        self.initiator.response(&header, data)
    }
}

/// The users that the target admits.
fn users(required: bool) -> Authentication {
    let user = |name: &str, secret: &[u8]| ChapUser { name: name.into(), secret: Secret::new(secret) };
    let (alice, lunar) = (user("alice", b"alice's secret"), user("lunar", b"lunar's secret"));
    Authentication { required, users: Arc::new([alice]), mutual: Some(lunar), ..Authentication::none() }
}

fn digests() -> impl Strategy<Value = AllowedDigests> {
    let d = |none, crc32c| AllowedDigests { none, crc32c };
    prop::sample::select(vec![d(true, true), d(true, false), d(false, true)])
}

fn offer() -> impl Strategy<Value = Offer> {
    let size = || prop_oneof![512u32..70000, 512u32..=0xff_ffff];
    let reporting = TaskReporting::NAMES.map(|n| n.1).to_vec();
    (
        any::<[bool; 4]>(),
        (size(), size(), size()),
        (0u16..=3600, 0u16..=3600, 1u16..=64, 0u8..=2, 1u16..=4, 1u8..=2),
        (digests(), digests(), prop::sample::select(reporting)),
    )
        .prop_map(|(b, size, n, d)| Offer {
            initial_r2t: b[0],
            immediate_data: b[1],
            data_pdu_in_order: b[2],
            data_sequence_in_order: b[3],
            max_recv_data_segment_length: size.0,
            max_burst_length: size.1.max(size.2),
            first_burst_length: size.1.min(size.2),
            default_time2wait: n.0,
            default_time2retain: n.1,
            max_outstanding_r2t: n.2,
            error_recovery_level: n.3,
            max_connections: n.4,
            protocol_level: n.5,
            header_digest: d.0,
            data_digest: d.1,
            task_reporting: d.2,
            ..Offer::default()
        })
}

fn credentials() -> impl Strategy<Value = Option<Credentials>> {
    let list = prop::sample::subsequence(Algorithm::ALL.to_vec(), 1..=4).prop_shuffle();
    let some = (any::<bool>(), any::<bool>(), list).prop_map(|(back, required, algorithms)| {
        let base = if back { mutual() } else { alice() };
        Some(Credentials { required, algorithms, ..base })
    });
    prop_oneof![Just(None), some]
}

fn meet(a: AllowedDigests, b: AllowedDigests) -> bool {
    a.none && b.none || a.crc32c && b.crc32c
}

proptest! {
    /// Both sides end with the same values, or both fail. NEG-004, NEG-016 to NEG-018, NEG-022 to NEG-026, KEY-001 to
    /// KEY-038, SEC-001 to SEC-013.
    #[test]
    fn both_sides_agree(
        ours in offer(),
        theirs in offer(),
        (credentials, required, discovery, crc32c_first) in (credentials(), any::<bool>(), any::<bool>(), any::<bool>()),
        cuts in prop::collection::vec(0usize..700, 0..4),
    ) {
        let base = if discovery { discovery_wish() } else { wish() };
        let wish = LoginParams { offer: ours.clone(), crc32c_first, credentials: credentials.clone(), ..base };
        prop_assert_eq!(wish.check(), Ok(()));
        let got = Pair::run(wish, theirs.clone(), House(users(required)), cuts);
        let digests = meet(ours.header_digest, theirs.header_digest) && meet(ours.data_digest, theirs.data_digest);
        match got {
            Err(LoginError::Refused(LoginStatus::AUTHENTICATION_FAILURE)) => {
                prop_assert!(required && credentials.is_none());
            }
            Err(failure) => {
                prop_assert_eq!(failure, LoginError::Refused(LoginStatus::INITIATOR_ERROR));
                prop_assert!(!digests);
            }
            Ok((got, target)) => {
                prop_assert!(digests && (credentials.is_some() || !required));
                prop_assert_eq!(got.chap, credentials.map(|c| c.algorithms[0]));
                prop_assert_eq!(got.tsih, 0x55);
                let mirrored = Parameters {
                    max_recv_data_segment_length: target.max_xmit_data_segment_length,
                    max_xmit_data_segment_length: target.max_recv_data_segment_length,
                    ..target
                };
                prop_assert_eq!(&got.parameters, &mirrored);
                let want = (ours.max_recv_data_segment_length, theirs.max_recv_data_segment_length);
                let p = got.parameters;
                prop_assert_eq!((p.max_recv_data_segment_length, p.max_xmit_data_segment_length), want);
                prop_assert!(discovery || p.max_burst_length == ours.max_burst_length.min(theirs.max_burst_length));
            }
        }
    }

    /// For any input: no panic, an end within the limit of exchanges, and requests of bounded length.
    #[test]
    fn random_input_does_not_panic(pdus in prop::collection::vec(
        (any::<u8>(), prop_oneof![any::<Vec<u8>>(), key_text()]), 1..80,
    )) {
        let mut script = Script::new(with(mutual()));
        for (flags, data) in pdus {
            match script.reply_with(flags & 0xcf, &data, |_| ()) {
                InitiatorLoginStep::Send(pdu) => prop_assert!(pdu.data.len() <= SEGMENT_LEN),
                InitiatorLoginStep::Done(_) => panic!("the target cannot have proved itself"),
                _ => break,
            }
        }
    }
}

/// Key text of known keys and plausible values.
fn key_text() -> impl Strategy<Value = Vec<u8>> {
    let key = (0..crate::keys::TABLE.len()).prop_map(|i| crate::keys::TABLE[i].name);
    let values = ["Yes", "No", "None", "CHAP", "5", "65536", "Reject", "Irrelevant", DISKS, "0x00", ""];
    let pair = (key, prop::sample::select(values.to_vec()));
    prop::collection::vec(pair, 0..6).prop_map(|pairs| {
        let mut text = vec![];
        pairs.iter().for_each(|(k, v)| lunar_wire::iscsi::text::push(&mut text, k, v));
        text
    })
}
