//! Text Requests in full feature phase on the target side (RFC 7143 sections 6.4, 11.10, 11.11, appendix C).

use std::collections::BTreeSet;

use lunar_wire::iscsi::flag::{CONTINUE, FINAL};
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::text::{pairs, push};
use lunar_wire::iscsi::{Bhs, NONE, pdu};

use crate::Pdu;
use crate::keys::{self, KeySender, KeyType, NegotiationPhase};
use crate::login::SessionType;
use crate::parameters::{Offer, Parameters};
use crate::text_reassembly::{TextReassembly, piece};

/// Maximum number of keys in one negotiation.
const KEYS: usize = 1024;

/// The prefix of Lunar's own keys (RFC 7143 section 13.26). The caller of [`TextServer::request`] defines their
/// meaning.
const OWN: &str = "X-org.lunar.";

/// The value of SendTargets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTargets<'a> {
    /// All: every target that the initiator may use. Discovery sessions only.
    All,
    /// The target of this name. In a Discovery session, any that All would list; otherwise only the target of the
    /// session.
    Named(&'a str),
    /// An empty value: the target of this session. Normal sessions only.
    Empty,
}

/// A target in the response to SendTargets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// TargetName.
    pub name: String,
    /// TargetAddress values: `host:port,tag`.
    pub addresses: Vec<String>,
}

/// The response to a Text Request.
#[derive(Debug, PartialEq, Eq)]
pub enum TextStep {
    /// Send this PDU. The caller stamps StatSN, ExpCmdSN and MaxCmdSN.
    Reply {
        /// The Text Response.
        pdu: Pdu,
        /// MaxRecvDataSegmentLength that the initiator declared, in bytes. It applies after this PDU.
        max_xmit_data_segment_length: Option<u32>,
    },
    /// Send a Reject. The negotiation ends.
    Reject(RejectReason),
}

/// A text negotiation in progress.
#[derive(Debug)]
struct TextSequence {
    itt: u32,
    gather: TextReassembly,
    seen: BTreeSet<String>,
    /// Key text that is not sent yet.
    out: Vec<u8>,
    declared: Option<u32>,
}

/// The text negotiations of one connection, one at a time.
#[derive(Debug)]
pub struct TextServer {
    session_type: SessionType,
    text_limit: usize,
    /// The latest Target Transfer Tag.
    ttt: u32,
    sequence: Option<TextSequence>,
}

impl TextServer {
    /// A connection without a negotiation. `text_limit` is the maximum key text of one negotiation, in bytes.
    pub fn new(session_type: SessionType, text_limit: usize) -> Self {
        TextServer { session_type, text_limit, ttt: 0, sequence: None }
    }

    /// Processes a Text Request with its complete data segment. `max_xmit` is the initiator's
    /// MaxRecvDataSegmentLength in bytes. `targets` returns the targets that this initiator may see. `own` answers a
    /// key with prefix `X-org.lunar.` and its value; `None` if the key is not understood.
    pub fn request(
        &mut self,
        header: &Bhs,
        data: &[u8],
        max_xmit: u32,
        targets: impl FnMut(SendTargets<'_>) -> Vec<TargetRecord>,
        own: impl FnMut(&str, &str) -> Option<String>,
    ) -> TextStep {
        self.advance(header, data, max_xmit, targets, own).unwrap_or_else(|reason| {
            self.sequence = None;
            TextStep::Reject(reason)
        })
    }

    fn advance(
        &mut self,
        header: &Bhs,
        data: &[u8],
        max_xmit: u32,
        targets: impl FnMut(SendTargets<'_>) -> Vec<TargetRecord>,
        own: impl FnMut(&str, &str) -> Option<String>,
    ) -> Result<TextStep, RejectReason> {
        if header.is_final() && header.continues() {
            return Err(RejectReason::Protocol);
        }
        let mut sequence = self.sequence_of(header)?;
        let asks = data.is_empty() && !header.continues();
        if !sequence.out.is_empty() && !asks {
            return Err(RejectReason::Protocol);
        }
        if sequence.out.is_empty() {
            let text =
                sequence.gather.take(data, header.continues()).map_err(|_| RejectReason::LongOperation)?;
            match text {
                Some(text) => sequence.take(&text, self.session_type, targets, own)?,
                None => return Ok(self.reply(header, sequence, 0, vec![])),
            }
        }
        let rest = sequence.out.split_off(piece(&sequence.out, max_xmit.max(1) as usize));
        let data = std::mem::replace(&mut sequence.out, rest);
        let flags = match (sequence.out.is_empty(), header.is_final()) {
            (false, _) => CONTINUE,
            (true, true) => FINAL,
            (true, false) => 0,
        };
        Ok(self.reply(header, sequence, flags, data))
    }

    /// The negotiation to which the tags belong, or a new one, which ends any other.
    fn sequence_of(&mut self, header: &Bhs) -> Result<TextSequence, RejectReason> {
        if header.ttt() == NONE {
            let gather = TextReassembly::new(self.text_limit);
            let (itt, seen, out) = (header.itt(), BTreeSet::new(), vec![]);
            return Ok(TextSequence { itt, gather, seen, out, declared: None });
        }
        let current = self.sequence.take().filter(|s| s.itt == header.itt() && self.ttt == header.ttt());
        current.ok_or(RejectReason::InvalidField)
    }

    /// Ends the negotiation if F is set; otherwise keeps it under a new Target Transfer Tag.
    fn reply(&mut self, header: &Bhs, sequence: TextSequence, flags: u8, data: Vec<u8>) -> TextStep {
        if flags & FINAL != 0 {
            self.sequence = None;
            let pdu = Pdu::new(pdu::text_response(header, flags, NONE), data);
            return TextStep::Reply { pdu, max_xmit_data_segment_length: sequence.declared };
        }
        self.ttt = self.ttt.wrapping_add(1) & 0x7fff_ffff;
        self.sequence = Some(sequence);
        let pdu = Pdu::new(pdu::text_response(header, flags, self.ttt), data);
        TextStep::Reply { pdu, max_xmit_data_segment_length: None }
    }
}

impl TextSequence {
    /// Processes a complete key text, and appends the answers.
    fn take(
        &mut self,
        text: &[u8],
        session_type: SessionType,
        mut targets: impl FnMut(SendTargets<'_>) -> Vec<TargetRecord>,
        mut own: impl FnMut(&str, &str) -> Option<String>,
    ) -> Result<(), RejectReason> {
        for pair in pairs(text) {
            let (key, value) = pair.map_err(|_| RejectReason::Protocol)?;
            if self.seen.len() == KEYS || !self.seen.insert(key.to_owned()) {
                return Err(RejectReason::Protocol);
            }
            // A NUL would end the pair, so such an answer is dropped.
            let answer =
                key.starts_with(OWN).then(|| own(key, value)).flatten().filter(|a| !a.contains('\0'));
            if let Some(answer) = answer {
                push(&mut self.out, key, &answer);
                continue;
            }
            let row = keys::find(key).map(|row| &keys::TABLE[row]);
            match row {
                Some(row) if matches!(row.kind, KeyType::Request) => {
                    self.send_targets(value, session_type, &mut targets)
                }
                Some(_) if session_type == SessionType::Discovery => return Err(RejectReason::Protocol),
                Some(row) => self.declare(row, value)?,
                None => push(&mut self.out, key, "NotUnderstood"),
            }
        }
        Ok(())
    }

    /// Processes a key of full feature phase. Keys of the login are rejected (RFC 7143 section 13).
    fn declare(&mut self, row: &keys::KeyDefinition, value: &str) -> Result<(), RejectReason> {
        if row.sender == KeySender::Target || !row.may_stand(NegotiationPhase::FullFeature, true) {
            return Err(RejectReason::Protocol);
        }
        let mut now = Parameters::default();
        keys::settle(row, value, &Offer::default(), &mut now).map_err(|_| RejectReason::Protocol)?;
        if matches!(row.kind, KeyType::DeclaredNumber(..)) {
            self.declared = Some(now.max_xmit_data_segment_length);
        }
        Ok(())
    }

    fn send_targets(
        &mut self,
        value: &str,
        session_type: SessionType,
        targets: &mut impl FnMut(SendTargets<'_>) -> Vec<TargetRecord>,
    ) {
        let asked = match (value, session_type) {
            ("All", SessionType::Discovery) => SendTargets::All,
            ("", SessionType::Normal) => SendTargets::Empty,
            ("All" | "", _) => return push(&mut self.out, "SendTargets", "Reject"),
            (name, _) => SendTargets::Named(name),
        };
        for record in targets(asked) {
            push(&mut self.out, "TargetName", &record.name);
            record.addresses.iter().for_each(|a| push(&mut self.out, "TargetAddress", a));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::iscsi::opcode;
    use proptest::prelude::*;

    /// A connection to a server with this number of targets.
    struct Pair {
        exchange: TextServer,
        targets: usize,
        max_xmit: u32,
    }

    impl Pair {
        fn new(session_type: SessionType, targets: usize, max_xmit: u32) -> Self {
            Pair { exchange: TextServer::new(session_type, 65536), targets, max_xmit }
        }

        fn send(&mut self, flags: u8, itt: u32, ttt: u32, text: &[u8]) -> TextStep {
            let mut header = Bhs::new(opcode::TEXT);
            header.set_flags(flags);
            header.set_itt(itt);
            header.set_ttt(ttt);
            let n = self.targets;
            let targets = |asked: SendTargets<'_>| match asked {
                SendTargets::All => (0..n).map(record).collect(),
                SendTargets::Empty => vec![record(0)],
                SendTargets::Named(name) => (0..n).map(record).filter(|r| r.name == name).collect(),
            };
            let step = self.exchange.request(&header, text, self.max_xmit, targets, own);
            if let TextStep::Reply { pdu, .. } = &step {
                let h = &pdu.header;
                assert_eq!((h.opcode(), h.itt(), h.data_len()), (opcode::TEXT_RESPONSE, itt, pdu.data.len()));
                assert_eq!(h.is_final(), h.ttt() == NONE, "TXT-004");
                assert!(!(h.is_final() && (h.continues() || flags & FINAL == 0)), "TXT-005, TXT-008");
                assert!(pdu.data.len() <= self.max_xmit as usize);
            }
            step
        }

        /// The flags, Target Transfer Tag and text of a reply.
        fn reply(&mut self, flags: u8, ttt: u32, text: &str) -> (u8, u32, String) {
            match self.send(flags, 1, ttt, text.as_bytes()) {
                TextStep::Reply { pdu, .. } => {
                    (pdu.header.flags(), pdu.header.ttt(), String::from_utf8(pdu.data).unwrap())
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn record(i: usize) -> TargetRecord {
        let addresses = ["192.0.2.1:3260,1", "[2001:db8::1]:3260,1"].map(str::to_owned).to_vec();
        TargetRecord { name: format!("iqn.2026-11.org.example:t{i}"), addresses }
    }

    /// The answers to `X-org.lunar.` keys.
    fn own(key: &str, value: &str) -> Option<String> {
        match key {
            "X-org.lunar.echo" => Some(value.to_owned()),
            "X-org.lunar.long" => Some("a,".repeat(500)),
            "X-org.lunar.broken" => Some("a\0b".into()),
            "X-org.lunar.none" => None,
            other => panic!("asked for {other}"),
        }
    }

    fn text_of(n: usize) -> String {
        (0..n)
            .map(|i| {
                format!(
                    "TargetName=iqn.2026-11.org.example:t{i}\0TargetAddress=192.0.2.1:3260,1\0\
                    TargetAddress=[2001:db8::1]:3260,1\0"
                )
            })
            .collect()
    }

    /// DSC-003 to DSC-006, DSC-009: which requests are allowed in which session.
    #[test]
    fn send_targets_value_depends_on_session_type() {
        use SessionType::*;
        let first = text_of(1);
        for (session_type, targets, value, want) in [
            (Discovery, 2, "All", text_of(2)),
            (Discovery, 0, "All", String::new()),
            (Discovery, 2, "iqn.2026-11.org.example:t0", first.clone()),
            (Discovery, 2, "iqn.2026-11.org.example:none", String::new()),
            (Discovery, 2, "", "SendTargets=Reject\0".into()),
            (Normal, 2, "", first),
            (Normal, 2, "All", "SendTargets=Reject\0".into()),
        ] {
            let got =
                Pair::new(session_type, targets, 8192).reply(FINAL, NONE, &format!("SendTargets={value}\0"));
            assert_eq!(got, (FINAL, NONE, want), "{session_type:?} {value}");
        }
    }

    /// The initiator must send SendTargets alone (RFC 7143 appendix C), but other keys beside it are unambiguous.
    #[test]
    fn send_targets_beside_other_keys_is_answered() {
        use SessionType::*;
        let (list, unknown) = (text_of(1), "X-a=NotUnderstood\0");
        for (session_type, text, want) in [
            (Discovery, "SendTargets=All\0X-a=1\0", format!("{list}{unknown}")),
            (Discovery, "X-a=1\0SendTargets=All", format!("{unknown}{list}")),
            (Normal, "SendTargets=\0X-a=1\0", format!("{list}{unknown}")),
            (Normal, "InitiatorAlias=a\0SendTargets=", list.clone()),
        ] {
            let got = Pair::new(session_type, 1, 8192).reply(FINAL, NONE, text);
            assert_eq!(got, (FINAL, NONE, want), "{session_type:?} {text}");
        }
    }

    /// Other X- keys are not understood, in a Discovery session too.
    #[test]
    fn own_keys_are_answered_by_the_server() {
        use SessionType::*;
        for (session_type, text, want) in [
            (Normal, "X-org.lunar.echo=?\0", Some("X-org.lunar.echo=?\0")),
            (Discovery, "X-org.lunar.echo=?\0", Some("X-org.lunar.echo=?\0")),
            (Discovery, "X-org.lunar.echo=\0", Some("X-org.lunar.echo=\0")),
            (Normal, "X-org.lunar.none=?\0", Some("X-org.lunar.none=NotUnderstood\0")),
            (Normal, "X-org.lunar.broken=?\0", Some("X-org.lunar.broken=NotUnderstood\0")),
            (
                Normal,
                "X-a=1\0X-org.lunar.echo=2\0InitiatorAlias=x\0",
                Some("X-a=NotUnderstood\0X-org.lunar.echo=2\0"),
            ),
            (Normal, "X-org.lunarecho=?\0", Some("X-org.lunarecho=NotUnderstood\0")),
            (Discovery, "X-org.lunar.none=?\0", Some("X-org.lunar.none=NotUnderstood\0")),
            (Discovery, "X-org.lunarecho=?\0", Some("X-org.lunarecho=NotUnderstood\0")),
            (Normal, "X-org.lunar.echo=1\0X-org.lunar.echo=2\0", None),
        ] {
            let step = Pair::new(session_type, 1, 8192).send(FINAL, 1, NONE, text.as_bytes());
            let got = match &step {
                TextStep::Reply { pdu, .. } => Some(std::str::from_utf8(&pdu.data).unwrap()),
                TextStep::Reject(RejectReason::Protocol) => None,
                other => panic!("{other:?}"),
            };
            assert_eq!(got, want, "{session_type:?} {text}");
        }
    }

    /// A request and a response of an own key, both split over several PDUs.
    #[test]
    fn own_keys_come_in_pieces_too() {
        let mut p = Pair::new(SessionType::Discovery, 0, 64);
        let (_, ttt, _) = p.reply(CONTINUE, NONE, "X-org.lun");
        let (mut flags, mut ttt, mut all) = p.reply(FINAL, ttt, "ar.long=?\0");
        while flags & FINAL == 0 {
            let (f, t, more) = p.reply(FINAL, ttt, "");
            (flags, ttt) = (f, t);
            all += &more;
        }
        assert_eq!(all, format!("X-org.lunar.long={}\0", "a,".repeat(500)));
    }

    /// DSC-012: a thousand targets in segments of 512 bytes (spdk#1442). No segment ends within a pair.
    #[test]
    fn long_lists_come_in_pieces() {
        let mut p = Pair::new(SessionType::Discovery, 1000, 512);
        let mut all = String::new();
        let (mut flags, mut ttt, mut text) = p.reply(FINAL, NONE, "SendTargets=All\0");
        while flags & FINAL == 0 {
            assert_eq!(flags, CONTINUE);
            assert!(text.ends_with('\0'), "pieces end after a pair");
            all += &text;
            (flags, ttt, text) = p.reply(FINAL, ttt, "");
        }
        assert_eq!(all + &text, text_of(1000));
        assert_eq!(p.send(FINAL, 1, ttt, b""), p.send(FINAL, 1, NONE, b""), "nothing is left over");
    }

    /// TXT-009: a new request starts a new negotiation. TXT-011: a stale tag, the tag of another task.
    #[test]
    fn sequences_and_their_tags() {
        let mut p = Pair::new(SessionType::Discovery, 100, 512);
        let (_, ttt, first) = p.reply(FINAL, NONE, "SendTargets=All\0");
        p.reply(FINAL, ttt, "");
        let (_, fresh, again) = p.reply(FINAL, NONE, "SendTargets=All\0");
        assert_eq!(first, again);
        assert_eq!(p.send(FINAL, 1, ttt, b""), TextStep::Reject(RejectReason::InvalidField));
        assert_eq!(
            p.send(FINAL, 1, fresh, b""),
            TextStep::Reject(RejectReason::InvalidField),
            "it was forgotten"
        );
        let (_, ttt, _) = p.reply(FINAL, NONE, "SendTargets=All\0");
        assert_eq!(p.send(FINAL, 2, ttt, b""), TextStep::Reject(RejectReason::InvalidField));
        let (_, ttt, _) = p.reply(FINAL, NONE, "SendTargets=All\0");
        assert_eq!(p.send(FINAL, 1, ttt, b"SendTargets=All\0"), TextStep::Reject(RejectReason::Protocol));
    }

    #[test]
    fn invalid_texts_are_rejected() {
        for (flags, text, reason) in [
            (FINAL | CONTINUE, "", RejectReason::Protocol),
            (FINAL, "MaxBurstLength=512\0", RejectReason::Protocol),
            (FINAL, "HeaderDigest=None\0", RejectReason::Protocol),
            (FINAL, "InitiatorName=iqn.2026-11.org.example:a\0", RejectReason::Protocol),
            (FINAL, "TargetAlias=a\0", RejectReason::Protocol),
            (FINAL, "MaxRecvDataSegmentLength=511\0", RejectReason::Protocol),
            (FINAL, "MaxRecvDataSegmentLength=512\0MaxRecvDataSegmentLength=512\0", RejectReason::Protocol),
            (FINAL, "SendTargets", RejectReason::Protocol),
            (CONTINUE, &"A".repeat(65537), RejectReason::LongOperation),
        ] {
            let mut p = Pair::new(SessionType::Normal, 1, 8192);
            assert_eq!(p.send(flags, 1, NONE, text.as_bytes()), TextStep::Reject(reason), "{text}");
        }
        let mut p = Pair::new(SessionType::Discovery, 1, 8192);
        let other = p.send(FINAL, 1, NONE, b"MaxRecvDataSegmentLength=512\0");
        assert_eq!(other, TextStep::Reject(RejectReason::Protocol), "DSC-002");
    }

    /// KEY-036, NEG-026, NEG-030: a declaration takes effect at the end of its negotiation, or never.
    #[test]
    fn declarations_take_effect_at_the_end() {
        let mut p = Pair::new(SessionType::Normal, 1, 8192);
        let step = p.send(0, 1, NONE, b"MaxRecvDataSegmentLength=4096\0X-a=1\0InitiatorAlias=host\0");
        let TextStep::Reply { pdu, max_xmit_data_segment_length: None } = step else { panic!("{step:?}") };
        assert_eq!((pdu.header.flags(), &*pdu.data), (0, b"X-a=NotUnderstood\0".as_slice()));
        let ttt = pdu.header.ttt();
        let step = p.send(FINAL, 1, ttt, b"");
        assert!(matches!(step, TextStep::Reply { max_xmit_data_segment_length: Some(4096), .. }));

        let (_, ttt, _) = p.reply(0, NONE, "MaxRecvDataSegmentLength=4096\0");
        let again = p.send(FINAL, 1, ttt, b"MaxRecvDataSegmentLength=4096\0");
        assert_eq!(again, TextStep::Reject(RejectReason::Protocol));
    }

    proptest! {
        /// NEG-004, TXT-001: the way in which the request is split does not change the response.
        #[test]
        fn splits_change_nothing(cuts in prop::collection::vec(0usize..17, 0..6), max_xmit in 1u32..600) {
            let text = "SendTargets=All\0";
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut p = Pair::new(SessionType::Discovery, 5, max_xmit);
            let (mut ttt, mut from) = (NONE, 0);
            for cut in cuts {
                let (flags, next, empty) = p.reply(CONTINUE, ttt, &text[from..cut.min(16)]);
                prop_assert_eq!((flags, empty), (0, String::new()));
                (ttt, from) = (next, cut.min(16));
            }
            let (mut flags, mut ttt, mut all) = p.reply(FINAL, ttt, &text[from..]);
            while flags & FINAL == 0 {
                let (f, t, more) = p.reply(FINAL, ttt, "");
                (flags, ttt) = (f, t);
                all += &more;
            }
            prop_assert_eq!(all, text_of(5));
        }

        #[test]
        fn random_input_does_not_panic(pdus in prop::collection::vec((any::<u8>(), 0u32..3, any::<Vec<u8>>()), 0..40)) {
            let mut p = Pair::new(SessionType::Normal, 3, 512);
            for (flags, back, data) in pdus {
                let ttt = if back == 0 { NONE } else { p.exchange.ttt.wrapping_sub(back - 1) };
                p.send(flags, 1, ttt, &data);
            }
        }
    }
}
