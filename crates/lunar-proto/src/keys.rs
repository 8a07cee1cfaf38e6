//! The keys of RFC 7143 sections 12 and 13 and of RFC 7145 section 6, one row each.

use std::ops::RangeInclusive;

use crate::parameters::{AllowedDigests, Offer, Parameters, TaskReporting};

/// Access to a negotiated value.
pub struct NegotiatedField<T> {
    /// This side's value.
    pub offer: fn(&Offer) -> T,
    /// Stores the result of the negotiation.
    pub set: fn(&mut Parameters, T),
}

/// The kind of a key's value, and the result function of its negotiation (RFC 7143 section 6.2).
pub enum KeyType {
    /// A boolean whose result is Yes if both sides say Yes.
    And(NegotiatedField<bool>),
    /// A boolean whose result is Yes if either side says Yes.
    Or(NegotiatedField<bool>),
    /// A number whose result is the smaller value.
    Min(RangeInclusive<u32>, NegotiatedField<u32>),
    /// A number whose result is the larger value.
    Max(RangeInclusive<u32>, NegotiatedField<u32>),
    /// A number that each side declares for itself, without negotiation.
    DeclaredNumber(RangeInclusive<u32>, fn(&mut Parameters, u32)),
    /// A digest list: the first value that is allowed.
    Digest(fn(&Offer) -> AllowedDigests, fn(&mut Parameters, bool)),
    /// TaskReporting, a list: the first value that is supported.
    Reporting,
    /// A string that each side declares for itself. The login or text machine of the receiver reads it.
    Declared,
    /// A string for display, of any length. The receiver cuts it.
    ForPeople,
    /// Authentication: AuthMethod and the keys of the methods.
    Security,
    /// A request: SendTargets.
    Request,
    /// A key whose answer is always the same.
    Fixed(&'static str),
    /// As the inner type if RDMAExtensions is Yes; otherwise the key is irrelevant.
    OverRdma(&'static KeyType),
}

/// The roles that may send a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySender {
    /// The initiator only.
    Initiator,
    /// The target only.
    Target,
    /// Both.
    Both,
}

/// The phases in which a key may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// The security stage only.
    Security,
    /// Both stages of any login.
    Login,
    /// Both stages of the leading login.
    LeadingAny,
    /// The operational stage of the leading login.
    Leading,
    /// The operational stage of any login.
    Operational,
    /// The operational stage of any login, and full feature phase.
    OperationalOrLater,
    /// Any phase.
    Always,
    /// Full feature phase only.
    FullFeature,
}

/// A phase in which keys are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegotiationPhase {
    /// SecurityNegotiation, CSG 0.
    Security,
    /// LoginOperationalNegotiation, CSG 1.
    Operational,
    /// FullFeaturePhase.
    FullFeature,
}

/// The definition of a key.
pub struct KeyDefinition {
    /// Its name.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: KeyType,
    /// The roles that may send it.
    pub sender: KeySender,
    /// The phases in which it may be sent.
    pub when: KeyUse,
    /// The key is irrelevant in Discovery sessions.
    pub irrelevant_in_discovery: bool,
}

impl KeyDefinition {
    /// Whether the key may be sent in this phase. `leading`: the login is the first of its session.
    pub fn may_stand(&self, phase: NegotiationPhase, leading: bool) -> bool {
        match self.when {
            KeyUse::Security => phase == NegotiationPhase::Security,
            KeyUse::Login => phase != NegotiationPhase::FullFeature,
            KeyUse::LeadingAny => phase != NegotiationPhase::FullFeature && leading,
            KeyUse::Leading => phase == NegotiationPhase::Operational && leading,
            KeyUse::Operational => phase == NegotiationPhase::Operational,
            KeyUse::OperationalOrLater => phase != NegotiationPhase::Security,
            KeyUse::Always => true,
            KeyUse::FullFeature => phase == NegotiationPhase::FullFeature,
        }
    }
}

impl KeyDefinition {
    /// The allowed values as text, for messages.
    pub fn rule(&self) -> String {
        match &self.kind {
            KeyType::And(_) | KeyType::Or(_) => "the value must be Yes or No".into(),
            KeyType::Min(range, _) | KeyType::Max(range, _) | KeyType::DeclaredNumber(range, _) => {
                format!("the value must be a number from {} to {}", range.start(), range.end())
            }
            KeyType::Digest(..) | KeyType::Reporting => "no supported value in the list".into(),
            KeyType::Declared => format!("the value must have at most {VALUE_LEN} bytes"),
            KeyType::ForPeople => "any text".into(),
            KeyType::OverRdma(_) => "the key is valid over RDMA only".into(),
            KeyType::Security | KeyType::Request | KeyType::Fixed(_) => {
                "the key is not valid in this request".into()
            }
        }
    }
}

/// The index of a key in [`TABLE`].
pub fn find(name: &str) -> Option<usize> {
    TABLE.iter().position(|k| k.name == name)
}

const fn key(name: &'static str, kind: KeyType, sender: KeySender, when: KeyUse) -> KeyDefinition {
    KeyDefinition { name, kind, sender, when, irrelevant_in_discovery: false }
}

/// A key of the leading login that both sides negotiate, and that is irrelevant in Discovery sessions.
const fn session(name: &'static str, kind: KeyType) -> KeyDefinition {
    KeyDefinition {
        name,
        kind,
        sender: KeySender::Both,
        when: KeyUse::Leading,
        irrelevant_in_discovery: true,
    }
}

macro_rules! field {
    ($name:ident) => {
        NegotiatedField { offer: |o| o.$name, set: |p, v| p.$name = v }
    };
    ($name:ident as $small:ty) => {
        NegotiatedField {
            offer: |o| o.$name.into(),
            set: |p, v| p.$name = <$small>::try_from(v).unwrap_or(<$small>::MAX),
        }
    };
}

const SIZE: RangeInclusive<u32> = 512..=0xff_ffff;

/// All keys. A key that bounds another precedes it, because keys of one text are settled in this order.
pub static TABLE: &[KeyDefinition] = &[
    key("SessionType", KeyType::Declared, KeySender::Initiator, KeyUse::LeadingAny),
    key("InitiatorName", KeyType::Declared, KeySender::Initiator, KeyUse::Login),
    key("InitiatorAlias", KeyType::ForPeople, KeySender::Initiator, KeyUse::Always),
    key("TargetName", KeyType::Declared, KeySender::Both, KeyUse::Login),
    key("TargetAlias", KeyType::Declared, KeySender::Target, KeyUse::Always),
    key("TargetAddress", KeyType::Declared, KeySender::Target, KeyUse::Always),
    key("TargetPortalGroupTag", KeyType::Declared, KeySender::Target, KeyUse::Login),
    key("AuthMethod", KeyType::Security, KeySender::Both, KeyUse::Security),
    key("CHAP_A", KeyType::Security, KeySender::Both, KeyUse::Security),
    key("CHAP_I", KeyType::Security, KeySender::Both, KeyUse::Security),
    key("CHAP_C", KeyType::Security, KeySender::Both, KeyUse::Security),
    key("CHAP_N", KeyType::Security, KeySender::Both, KeyUse::Security),
    key("CHAP_R", KeyType::Security, KeySender::Both, KeyUse::Security),
    key(
        "HeaderDigest",
        KeyType::Digest(|o| o.header_digest, |p, v| p.header_digest = v),
        KeySender::Both,
        KeyUse::Operational,
    ),
    key(
        "DataDigest",
        KeyType::Digest(|o| o.data_digest, |p, v| p.data_digest = v),
        KeySender::Both,
        KeyUse::Operational,
    ),
    key(
        "MaxRecvDataSegmentLength",
        KeyType::DeclaredNumber(SIZE, |p, v| p.max_xmit_data_segment_length = v),
        KeySender::Both,
        KeyUse::OperationalOrLater,
    ),
    session("MaxConnections", KeyType::Min(1..=65535, field!(max_connections as u16))),
    key(
        "ErrorRecoveryLevel",
        KeyType::Min(0..=2, field!(error_recovery_level as u8)),
        KeySender::Both,
        KeyUse::Leading,
    ),
    session("InitialR2T", KeyType::Or(field!(initial_r2t))),
    session("ImmediateData", KeyType::And(field!(immediate_data))),
    session("DataPDUInOrder", KeyType::Or(field!(data_pdu_in_order))),
    session("DataSequenceInOrder", KeyType::Or(field!(data_sequence_in_order))),
    session("MaxBurstLength", KeyType::Min(SIZE, field!(max_burst_length))),
    session("FirstBurstLength", KeyType::Min(SIZE, field!(first_burst_length))),
    session("MaxOutstandingR2T", KeyType::Min(1..=65535, field!(max_outstanding_r2t as u16))),
    key(
        "DefaultTime2Wait",
        KeyType::Max(0..=3600, field!(default_time2wait as u16)),
        KeySender::Both,
        KeyUse::Leading,
    ),
    key(
        "DefaultTime2Retain",
        KeyType::Min(0..=3600, field!(default_time2retain as u16)),
        KeySender::Both,
        KeyUse::Leading,
    ),
    session("TaskReporting", KeyType::Reporting),
    session("iSCSIProtocolLevel", KeyType::Min(0..=31, field!(protocol_level as u8))),
    key("X#NodeArchitecture", KeyType::Declared, KeySender::Both, KeyUse::Leading),
    key("SendTargets", KeyType::Request, KeySender::Initiator, KeyUse::FullFeature),
    // Obsolete (RFC 7143 section 13.25); initiators still send them.
    key("IFMarker", KeyType::Fixed("No"), KeySender::Both, KeyUse::Operational),
    key("OFMarker", KeyType::Fixed("No"), KeySender::Both, KeyUse::Operational),
    key("IFMarkInt", KeyType::Fixed("Reject"), KeySender::Both, KeyUse::Operational),
    key("OFMarkInt", KeyType::Fixed("Reject"), KeySender::Both, KeyUse::Operational),
    // iSER (RFC 7145 section 6). On plain TCP RDMAExtensions is No, and then the other keys are irrelevant.
    session("RDMAExtensions", KeyType::And(field!(rdma_extensions))),
    key(
        "TargetRecvDataSegmentLength",
        KeyType::OverRdma(&KeyType::Min(SIZE, field!(target_recv_data_segment_length))),
        KeySender::Both,
        KeyUse::Operational,
    ),
    key(
        "InitiatorRecvDataSegmentLength",
        KeyType::OverRdma(&KeyType::Min(SIZE, field!(initiator_recv_data_segment_length))),
        KeySender::Both,
        KeyUse::Operational,
    ),
    session(
        "TaggedBufferForSolicitedDataOnly",
        KeyType::OverRdma(&KeyType::And(field!(tagged_buffer_for_solicited_data_only))),
    ),
    session("iSERHelloRequired", KeyType::OverRdma(&KeyType::Fixed("No"))),
    key("MaxOutstandingUnexpectedPDUs", KeyType::Declared, KeySender::Both, KeyUse::Operational),
    key("MaxAHSLength", KeyType::Declared, KeySender::Both, KeyUse::Operational),
];

/// The longest value of a key without a limit of its own (RFC 7143 section 6.1), in bytes.
pub(crate) const VALUE_LEN: usize = 255;

/// The value is invalid. During login this is an initiator error, in full feature phase a protocol error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidKeyValue;

/// Settles an offered key: applies its result function, stores the result in `now`, and returns the answer if one is
/// due. The error means that the value is invalid.
pub fn settle(
    key: &KeyDefinition,
    value: &str,
    offer: &Offer,
    now: &mut Parameters,
) -> Result<Option<String>, InvalidKeyValue> {
    match key.kind {
        KeyType::OverRdma(_) if !now.rdma_extensions => Ok(Some("Irrelevant".to_owned())),
        KeyType::OverRdma(kind) => settle_as(kind, key.name, value, offer, now),
        ref kind => settle_as(kind, key.name, value, offer, now),
    }
}

fn settle_as(
    kind: &KeyType,
    name: &str,
    value: &str,
    offer: &Offer,
    now: &mut Parameters,
) -> Result<Option<String>, InvalidKeyValue> {
    use lunar_wire::iscsi::text::{boolean, yes_no};
    let both = |f: &NegotiatedField<bool>, join: fn(bool, bool) -> bool, now: &mut Parameters| {
        let result = join(boolean(value).ok_or(InvalidKeyValue)?, (f.offer)(offer));
        (f.set)(now, result);
        Ok(Some(yes_no(result).to_owned()))
    };
    match kind {
        KeyType::And(f) => both(f, |a, b| a & b, now),
        KeyType::Or(f) => both(f, |a, b| a | b, now),
        KeyType::Min(range, f) => {
            let ours = bound(name, now).min((f.offer)(offer));
            number(value, range, f, now, |theirs| theirs.min(ours))
        }
        KeyType::Max(range, f) => number(value, range, f, now, |theirs| theirs.max((f.offer)(offer))),
        KeyType::DeclaredNumber(range, set) => {
            set(now, in_range(value, range)?);
            Ok(None)
        }
        KeyType::Digest(may, set) => {
            let may = may(offer);
            let chosen = first_of(value, |v| (v == "None" && may.none) || (v == "CRC32C" && may.crc32c))?;
            set(now, chosen == "CRC32C");
            Ok(Some(chosen.to_owned()))
        }
        KeyType::Reporting => {
            let known = |v: &str| TaskReporting::NAMES.iter().find(|n| n.0 == v).map(|n| n.1);
            let chosen = first_of(value, |v| known(v).is_some_and(|r| r <= offer.task_reporting))?;
            now.task_reporting = known(chosen).ok_or(InvalidKeyValue)?;
            Ok(Some(chosen.to_owned()))
        }
        KeyType::Fixed(answer) => Ok(Some((*answer).to_owned())),
        KeyType::Declared if value.len() <= VALUE_LEN => Ok(None),
        KeyType::ForPeople => Ok(None),
        KeyType::Declared | KeyType::Security | KeyType::Request | KeyType::OverRdma(_) => {
            Err(InvalidKeyValue)
        }
    }
}

/// The upper bound that keys settled earlier set for this key (RFC 7143 sections 13.14 and 13.19).
fn bound(name: &str, now: &Parameters) -> u32 {
    match name {
        "FirstBurstLength" => now.max_burst_length,
        "MaxOutstandingR2T" if now.error_recovery_level > 0 && now.data_sequence_in_order => 1,
        _ => u32::MAX,
    }
}

fn number(
    value: &str,
    range: &RangeInclusive<u32>,
    field: &NegotiatedField<u32>,
    now: &mut Parameters,
    join: impl Fn(u32) -> u32,
) -> Result<Option<String>, InvalidKeyValue> {
    let result = join(in_range(value, range)?);
    (field.set)(now, result);
    Ok(Some(result.to_string()))
}

pub(crate) fn in_range(value: &str, range: &RangeInclusive<u32>) -> Result<u32, InvalidKeyValue> {
    let n = lunar_wire::iscsi::text::number(value).ok_or(InvalidKeyValue)?;
    u32::try_from(n).ok().filter(|n| range.contains(n)).ok_or(InvalidKeyValue)
}

/// The first acceptable value of a list.
pub(crate) fn first_of(list: &str, good: impl Fn(&str) -> bool) -> Result<&str, InvalidKeyValue> {
    list.split(',').find(|v| good(v)).ok_or(InvalidKeyValue)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settles `key=value` pairs in order against an offer, and returns the answers and the result.
    fn run(
        offer: &Offer,
        pairs: &[(&str, &str)],
    ) -> (Vec<Result<Option<String>, InvalidKeyValue>>, Parameters) {
        let mut now = Parameters::default();
        let answers = pairs
            .iter()
            .map(|(k, v)| settle(&TABLE[find(k).expect(k)], v, offer, &mut now))
            .collect::<Vec<_>>();
        (answers, now)
    }

    fn answer(offer: &Offer, key: &str, value: &str) -> Result<Option<String>, InvalidKeyValue> {
        run(offer, &[(key, value)]).0.remove(0)
    }

    #[test]
    fn names_are_unique() {
        for (i, k) in TABLE.iter().enumerate() {
            assert_eq!(find(k.name), Some(i), "{}", k.name);
        }
    }

    #[test]
    fn booleans_follow_their_result_function() {
        for ours in [false, true] {
            let offer = Offer { initial_r2t: ours, immediate_data: ours, ..Offer::default() };
            for (theirs, text) in [(false, "No"), (true, "Yes")] {
                let (answers, now) = run(&offer, &[("InitialR2T", text), ("ImmediateData", text)]);
                assert_eq!((now.initial_r2t, now.immediate_data), (ours | theirs, ours & theirs));
                let said = [now.initial_r2t, now.immediate_data];
                let want = said.map(|b| Ok(Some(if b { "Yes" } else { "No" }.to_owned())));
                assert_eq!(answers, want);
            }
        }
    }

    /// KEY-001 to KEY-025 against the default offer: the answer to a proposal, or `None` if it is rejected.
    #[test]
    fn answers_by_table() {
        let offer = Offer { default_time2wait: 5, ..Offer::default() };
        for (key, value, want) in [
            ("MaxConnections", "8", Some("1")),
            ("MaxConnections", "0", None),
            ("MaxConnections", "65535", Some("1")),
            ("MaxConnections", "65536", None),
            ("MaxConnections", "Reject", None),
            ("InitialR2T", "Maybe", None),
            ("InitialR2T", "yes", Some("Yes")),
            ("InitialR2T", "NO", Some("No")),
            ("InitialR2T", "", None),
            ("ImmediateData", "Irrelevant", None),
            ("MaxBurstLength", "511", None),
            ("MaxBurstLength", "512", Some("512")),
            ("MaxBurstLength", "0x40000", Some("262144")),
            ("MaxBurstLength", "16777215", Some("1048576")),
            ("MaxBurstLength", "16777216", None),
            ("MaxBurstLength", "512~1024", None),
            ("MaxBurstLength", "4294967808", None),
            ("FirstBurstLength", "512", Some("512")),
            ("FirstBurstLength", "16777215", Some("262144")),
            ("DefaultTime2Wait", "0", Some("5")),
            ("DefaultTime2Wait", "3600", Some("3600")),
            ("DefaultTime2Wait", "3601", None),
            ("DefaultTime2Retain", "0", Some("0")),
            ("DefaultTime2Retain", "60", Some("20")),
            ("MaxOutstandingR2T", "65535", Some("8")),
            ("MaxOutstandingR2T", "1", Some("1")),
            ("MaxOutstandingR2T", "0", None),
            ("DataPDUInOrder", "No", Some("Yes")),
            ("DataSequenceInOrder", "No", Some("Yes")),
            ("ErrorRecoveryLevel", "2", Some("0")),
            ("ErrorRecoveryLevel", "3", None),
            ("TaskReporting", "FastAbort,ResponseFence,RFC3720", Some("FastAbort")),
            ("TaskReporting", "RFC3720,ResponseFence", Some("RFC3720")),
            ("TaskReporting", "Z-none", None),
            ("iSCSIProtocolLevel", "31", Some("1")),
            ("iSCSIProtocolLevel", "0", Some("0")),
            ("iSCSIProtocolLevel", "32", None),
            ("HeaderDigest", "None,CRC32C", Some("None")),
            ("HeaderDigest", "CRC32C,None", Some("CRC32C")),
            ("DataDigest", "Y-com.example.x,CRC32C", Some("CRC32C")),
            ("DataDigest", "Y-com.example.x", None),
            ("DataDigest", "", None),
            ("IFMarker", "Yes", Some("No")),
            ("OFMarker", "No", Some("No")),
            ("IFMarkInt", "2048~8192", Some("Reject")),
            ("OFMarkInt", "2048", Some("Reject")),
            ("RDMAExtensions", "Yes", Some("No")),
            ("InitiatorRecvDataSegmentLength", "8192", Some("Irrelevant")),
        ] {
            assert_eq!(
                answer(&offer, key, value),
                want.map(|w| Some(w.to_owned())).ok_or(InvalidKeyValue),
                "{key}={value}"
            );
        }
    }

    #[test]
    fn declarations_are_not_answered() {
        let offer = Offer::default();
        for (value, want) in [("511", false), ("512", true), ("16777215", true), ("16777216", false)] {
            let (answers, now) = run(&offer, &[("MaxRecvDataSegmentLength", value)]);
            assert_eq!(answers[0], if want { Ok(None) } else { Err(InvalidKeyValue) });
            assert_eq!(now.max_xmit_data_segment_length.to_string() == value, want);
        }
        let key = "X#NodeArchitecture";
        assert_eq!(answer(&offer, key, &"x".repeat(255)), Ok(None));
        assert_eq!(answer(&offer, key, &"x".repeat(256)), Err(InvalidKeyValue));
        assert_eq!(answer(&offer, "InitiatorAlias", &"x".repeat(300)), Ok(None));
    }

    /// NEG-020: a digest that is not allowed is not chosen, neither None nor CRC32C.
    #[test]
    fn required_digest_is_offered() {
        let demand = AllowedDigests { none: false, crc32c: true };
        let offer = Offer { header_digest: demand, ..Offer::default() };
        assert_eq!(answer(&offer, "HeaderDigest", "None"), Err(InvalidKeyValue));
        assert_eq!(answer(&offer, "HeaderDigest", "None,CRC32C"), Ok(Some("CRC32C".into())));
    }

    /// KEY-034, KEY-035, A-06, A-07.
    #[test]
    fn burst_key_is_limited_by_earlier_keys() {
        let offer = Offer { error_recovery_level: 2, ..Offer::default() };
        let (answers, now) = run(
            &offer,
            &[
                ("ErrorRecoveryLevel", "1"),
                ("MaxBurstLength", "4096"),
                ("FirstBurstLength", "65536"),
                ("MaxOutstandingR2T", "4"),
            ],
        );
        assert_eq!(answers[2], Ok(Some("4096".into())));
        assert_eq!(answers[3], Ok(Some("1".into())));
        assert_eq!((now.first_burst_length, now.max_outstanding_r2t), (4096, 1));
        let mut now = run(&offer, &[("MaxBurstLength", "4096")]).1;
        now.bind();
        assert_eq!(now.first_burst_length, 4096);
    }

    #[test]
    fn key_outside_its_phase_is_rejected() {
        use NegotiationPhase::*;
        for (name, leading, want) in [
            ("CHAP_A", true, [true, false, false]),
            ("InitiatorName", false, [true, true, false]),
            ("SessionType", true, [true, true, false]),
            ("SessionType", false, [false, false, false]),
            ("MaxBurstLength", true, [false, true, false]),
            ("MaxBurstLength", false, [false, false, false]),
            ("HeaderDigest", false, [false, true, false]),
            ("MaxRecvDataSegmentLength", false, [false, true, true]),
            ("InitiatorAlias", false, [true, true, true]),
            ("SendTargets", true, [false, false, true]),
        ] {
            let key = &TABLE[find(name).unwrap()];
            assert_eq!(
                [Security, Operational, FullFeature].map(|p| key.may_stand(p, leading)),
                want,
                "{name}"
            );
        }
    }
}
