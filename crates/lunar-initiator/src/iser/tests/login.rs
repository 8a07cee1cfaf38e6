//! Logins to targets that answer as LIO's isert and others do.

use super::*;
use crate::connect::{self, Connected, LoginOutcome};
use crate::iser::IserLoginConnection;
use crate::nexus::LoginTarget;
use crate::options::Transport;
use crate::{Options, Portal};
use lunar_wire::iscsi::status::LoginStatus;
use lunar_wire::iscsi::text;
use std::time::Duration;

const NAME: &str = "iqn.2026-11.org.example:disk";
/// A test that takes longer counts as hung.
const LIMIT: Duration = Duration::from_secs(30);

/// A target that answers each login request with scripted responses.
struct Target {
    end: Rc<dyn Endpoint>,
    stat_sn: u32,
}

impl Target {
    async fn next(&self) -> Option<Got> {
        let mut events = EndpointEvents::default();
        while events.is_empty() {
            let _ = self.end.readable().await;
            self.end.poll(&mut events);
        }
        self.end.receives(1, LOGIN_LEN);
        match &events.list[..] {
            [EndpointEvent::Message(range, None)] => Some(got(&events.bytes[range.clone()])),
            [EndpointEvent::End(_)] => None,
            other => panic!("expected one message: {other:?}"),
        }
    }

    fn answer(&mut self, asked: &Bhs, text: &[u8], status: LoginStatus) {
        let flags = asked.flags() & 0x8f;
        let tsih = if flags & 0x83 == 0x83 { 5 } else { 0 };
        let mut bhs = pdu::login_response(asked, flags, tsih, status);
        pdu::stamp(&mut bhs, self.stat_sn, asked.cmd_sn(), asked.cmd_sn() + 31);
        self.stat_sn += 1;
        self.say(bhs, text);
    }

    fn say(&self, mut bhs: Bhs, data: &[u8]) {
        bhs.set_data_len(data.len());
        let message = [&IserHeader::PLAIN.encode()[..], bhs.as_bytes(), data].concat();
        self.end.send(&message, Payload::Empty, None);
        let _ = self.end.flush();
    }
}

type Pairs = Vec<(String, String)>;

fn pairs(text: &[u8]) -> Pairs {
    let pairs = text::pairs(text).map(|pair| pair.expect("key text"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// LIO's response to a login text: each requested key with LIO's own value, except the keys in `but`.
fn as_lio(asked: &[u8], but: &[(&str, &str)]) -> Vec<u8> {
    let mut said = Vec::new();
    for (key, value) in pairs(asked) {
        let own = but.iter().find(|(other, _)| *other == key).map(|(_, value)| *value);
        match (&*key, own) {
            ("InitiatorName" | "InitiatorAlias" | "SessionType" | "MaxRecvDataSegmentLength", None) => {}
            ("TargetName", None) => text::push(&mut said, "TargetPortalGroupTag", "1"),
            ("TaskReporting" | "iSCSIProtocolLevel", None) => text::push(&mut said, &key, "NotUnderstood"),
            (_, own) => {
                text::push(&mut said, &key, own.unwrap_or(value.split(',').next().unwrap_or_default()))
            }
        }
    }
    said
}

fn options() -> Options {
    Options { transport: Transport::Iser, ..Options::new("iqn.2026-11.org.example:host") }
}

/// Logs in to a target that overrides these keys. Returns the result, the target, and the keys of the requests.
fn log_in(
    target_name: Option<&str>,
    options: Options,
    but: &'static [(&'static str, &'static str)],
) -> (Result<Connected, Error>, Target, Vec<Pairs>) {
    let (ours, end) = mem::pair(TERMS, ConnParam { receives: (1, LOGIN_LEN), ..TERMS }, Default::default());
    let mut target = Target { end, stat_sn: 3 };
    let portal = Portal { host: "127.0.0.1".into(), port: 1 };
    let login_target = LoginTarget {
        portal: portal.clone(),
        target: target_name.map(str::to_owned),
        isid: [0x80, 0, 0, 0, 0, 1],
        is_extra_channel: false,
    };
    compio::runtime::Runtime::new().expect("an event loop").block_on(async {
        let served = compio::runtime::spawn(async move {
            let mut asked = Vec::new();
            while let Some(got) = target.next().await {
                assert_eq!((got.bhs.opcode(), got.read, got.write), (opcode::LOGIN, None, None));
                let mut said = as_lio(&got.data, but);
                if got.bhs.flags() & 0x0c == 0x04 {
                    // LIO also proposes keys that the initiator left out.
                    text::push(&mut said, "IFMarker", "No");
                    text::push(&mut said, "OFMarker", "No");
                }
                asked.push(pairs(&got.data));
                target.answer(&got.bhs, &said, LoginStatus::SUCCESS);
                if got.bhs.flags() & 0x83 == 0x83 {
                    break;
                }
            }
            (target, asked)
        });
        let wire = connect::LoginConnection::Iser(IserLoginConnection::with((ours, Vec::new())));
        let mut nobody = ();
        let came = connect::log_in(wire, &portal, &login_target, &options, &mut nobody);
        let came = compio::time::timeout(LIMIT, came).await.expect("the login ended in time");
        let came = came.map(|attempt| match attempt {
            LoginOutcome::LoggedIn(connected) => *connected,
            LoginOutcome::Redirected(there) => panic!("{there}"),
        });
        let (target, asked) = served.await.expect("a target");
        (came, target, asked)
    })
}

fn said<'a>(texts: &'a [Pairs], key: &str) -> Option<&'a str> {
    texts.iter().flatten().find(|(k, _)| k == key).map(|(_, v)| &**v)
}

#[test]
fn login_at_lio_succeeds_and_ends_in_a_session() {
    let (came, target, asked) = log_in(Some(NAME), options(), &[]);
    let Connected { wire, login, .. } = came.expect("a successful login");
    let want = [
        ("RDMAExtensions", Some("Yes")),
        ("TargetRecvDataSegmentLength", Some("8192")),
        ("InitiatorRecvDataSegmentLength", Some("8192")),
        ("InitialR2T", Some("Yes")),
        ("MaxOutstandingR2T", Some("1")),
        ("MaxRecvDataSegmentLength", None),
        ("HeaderDigest", None),
        ("DataDigest", None),
    ];
    want.iter().for_each(|(key, want)| assert_eq!(said(&asked, key), *want, "{key}"));
    let p = &login.parameters;
    assert!(
        p.rdma_extensions && p.initial_r2t && p.immediate_data && p.tagged_buffer_for_solicited_data_only
    );
    assert_eq!((p.max_xmit_data_segment_length, login.tsih), (8192, 5));
    // A message after the login finds a posted receive.
    target.say(pdu::nop_in(0, NONE, 9), &[]);
    let (line, begun) = wire.into_line();
    let mut state = SessionState::new(32, Instant::now);
    let command_window =
        CommandWindow { cmd_sn: login.cmd_sn, exp_cmd_sn: login.exp_cmd_sn, max_cmd_sn: login.max_cmd_sn };
    state.connect(login.parameters.clone(), command_window, login.exp_stat_sn, line.out());
    let mut incoming = line.incoming(state.connection.digests(), 8192, begun);
    assert!(incoming.has_begun());
    assert!(matches!(incoming.resume(&mut state), Ok(ReceiveStatus::More)));
    state.connection.out().flush(&line).expect("a connection");
    let mut events = EndpointEvents::default();
    target.end.poll(&mut events);
    let [EndpointEvent::Message(range, None)] = &events.list[..] else { panic!("{events:?}") };
    let pong = got(&events.bytes[range.clone()]).bhs;
    assert_eq!((pong.opcode(), pong.itt(), pong.ttt()), (opcode::NOP_OUT, NONE, 9));
}

#[test]
fn target_that_takes_less_is_sent_less() {
    let (came, ..) = log_in(Some(NAME), options(), &[("TargetRecvDataSegmentLength", "4096")]);
    let p = came.expect("a successful login").login.parameters;
    assert_eq!((p.target_recv_data_segment_length, p.max_xmit_data_segment_length), (4096, 4096));
}

/// STGT and SCST negotiate ImmediateData=No.
#[test]
fn target_without_immediate_data_will_do() {
    let (came, ..) = log_in(Some(NAME), options(), &[("ImmediateData", "No")]);
    assert!(!came.expect("a successful login").login.parameters.immediate_data);
}

#[test]
fn target_without_extensions_is_refused() {
    let (came, ..) = log_in(Some(NAME), options(), &[("RDMAExtensions", "No")]);
    let error = came.err().expect("the login failed");
    assert_eq!(error.code, ErrorCode::ProtocolError);
    assert!(error.to_string().contains("RDMAExtensions"), "{error}");
}

#[test]
fn digests_are_not_offered_over_rdma_whatever_the_options_say() {
    let crc = lunar_proto::parameters::AllowedDigests { none: false, crc32c: true };
    let mut options = options();
    (options.offer.header_digest, options.offer.data_digest) = (crc, crc);
    let (came, _, asked) = log_in(Some(NAME), options, &[]);
    assert!(said(&asked, "HeaderDigest").is_none() && said(&asked, "DataDigest").is_none());
    let p = came.expect("a successful login").login.parameters;
    assert!(!p.header_digest && !p.data_digest);
}

/// Each part of a long text response must fit into one message.
#[test]
fn discovery_session_declares_what_a_message_holds() {
    let mut options = options();
    options.offer.max_recv_data_segment_length = 32768;
    let (came, _, asked) = log_in(None, options, &[]);
    assert!(said(&asked, "RDMAExtensions").is_none());
    assert_eq!(said(&asked, "MaxRecvDataSegmentLength"), Some("8192"));
    assert!(!came.expect("a successful login").login.parameters.rdma_extensions);
}
