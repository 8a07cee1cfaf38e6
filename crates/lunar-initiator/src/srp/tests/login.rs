//! Login requests, responses, and rejects.

use super::*;
use crate::ErrorCode;
use lunar_wire::srp::{LoginReject, LoginRejectReason};

/// The private data of a login request.
fn private(options: &Options) -> Vec<u8> {
    let mut seen = Vec::new();
    drop(ask(options, &Default::default(), |asked| seen = asked.private().to_vec()));
    seen
}

#[test]
fn login_names_initiator_and_target_ports() {
    let mut expected = vec![0; 56];
    // Direct descriptors, immediate data, a single channel.
    expected[8..12].copy_from_slice(&[0, 2, 0x80, 0]);
    expected[12..16].copy_from_slice(&8260_u32.to_be_bytes());
    expected[16..32].copy_from_slice(&[0, 0, 0x80, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6, 7, 8]);
    expected[32..40].copy_from_slice(&0x0002_c903_00a0_b0c0_u64.to_be_bytes());
    expected[40..48].copy_from_slice(&0x0002_c903_00a0_b0c1_u64.to_be_bytes());
    expected[48..50].copy_from_slice(&[0, 68]);
    assert_eq!(private(&options()), expected);
}

#[test]
fn without_immediate_data_units_are_short() {
    let mut options = options();
    options.offer.immediate_data = false;
    options.initiator_ext = Some(9);
    let seen = private(&options);
    assert_eq!(seen[8..16], [0, 2, 0, 0, 0, 0, 1, 0x34], "48 + 244 + 16 bytes");
    assert_eq!((seen[23], &seen[48..50]), (9, &[0, 0][..]));
}

#[test]
fn window_after_a_login_is_its_credits_but_one() {
    for (credits, window) in [(0, 0), (1, 1), (2, 1), (64, 63)] {
        assert_eq!(Peer::new(credits, true).state.command_window.window(), window, "{credits}");
    }
    let peer = Peer::new(8, true);
    assert!(peer.state.connection.parameters().immediate_data);
    assert_eq!(peer.state.connection.parameters().first_burst_length, 8192);
    assert!(!Peer::new(8, false).state.connection.parameters().immediate_data);
}

/// Over InfiniBand, private data are padded with zeros.
#[test]
fn zeros_behind_an_answer_change_nothing() {
    let faults: [Rc<Faults>; 2] = Default::default();
    faults.iter().for_each(|faults| faults.pads.set(true));
    let (request, connected) = ask(&options(), &faults, |asked| {
        let accepted = asked.accept(granted(3, true).encode().to_vec(), terms(&options()));
        // The target closes the connection at once.
        drop(now(accepted));
    });
    let wire = finish(connected, &request, &options()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(wire.login().max_cmd_sn, 2);
    let (request, connected) = ask(&options(), &faults, |asked| {
        let reject = LoginReject { reason: LoginRejectReason::NO_RESOURCES, tag: 0, formats: 6 };
        now(asked.reject(reject.encode().to_vec()));
    });
    assert_eq!(finish(connected, &request, &options()).err().map(|e| e.code), Some(ErrorCode::Unreachable));
}

/// The error of a login that is rejected with this private data.
fn refused(private: Vec<u8>) -> Error {
    let (request, connected) = ask(&options(), &Default::default(), |asked| now(asked.reject(private)));
    finish(connected, &request, &options()).err().expect("the login fails")
}

#[test]
fn reject_reasons_have_text_and_hint() {
    for (reason, kind, what, hint) in [
        (LoginRejectReason::UNABLE, ErrorCode::Refused, "cannot make a channel", "log"),
        (LoginRejectReason::NO_RESOURCES, ErrorCode::Unreachable, "lacks resources", "connections"),
        (LoginRejectReason::IT_IU_TOO_LONG, ErrorCode::Refused, "too long", "immediate_data=no"),
        (
            LoginRejectReason::NOT_ASSOCIATED,
            ErrorCode::NotFound,
            "no such target port",
            "0x00008001020304050102030405060708",
        ),
        (
            LoginRejectReason::NOT_ASSOCIATED,
            ErrorCode::NotFound,
            "no such target port",
            "`chap` admits no SRP port",
        ),
        (LoginRejectReason::FORMATS, ErrorCode::Refused, "data buffer formats", "log"),
        (LoginRejectReason::NO_MULTICHANNEL, ErrorCode::Refused, "one channel", "log"),
        (LoginRejectReason::TOO_MANY_CHANNELS, ErrorCode::Refused, "too many channels", "also admit port"),
        (LoginRejectReason(0x42), ErrorCode::Refused, "0x00000042", "log"),
    ] {
        let e = refused(LoginReject { reason, tag: 0, formats: 6 }.encode().to_vec());
        assert_eq!(e.code, kind, "{e}");
        assert!(e.what.contains(what), "{e}");
        assert!(e.hint.as_ref().is_some_and(|text| text.contains(hint)), "{:?}", e.hint);
    }
    let e = refused(b"no".to_vec());
    assert_eq!(e.code, ErrorCode::Unreachable);
    assert!(e.what.contains("without a reason"), "{e}");
}

#[test]
fn answer_that_is_none_is_not_taken() {
    let no_direct = LoginResponse { formats: srp::format::INDIRECT, ..granted(1, false) };
    for private in [vec![0xc0; 51], vec![1; 52], no_direct.encode().to_vec()] {
        let e = not_taken(private);
        assert_eq!(e.code, ErrorCode::ProtocolError, "{e}");
    }
}

/// The error of a login that is accepted with this private data.
fn not_taken(private: Vec<u8>) -> Error {
    let (request, connected) = ask(&options(), &Default::default(), |asked| {
        drop(now(asked.accept(private, terms(&options()))));
    });
    finish(connected, &request, &options()).err().expect("the login fails")
}

/// Padded with zeros over InfiniBand. STGT sends no private data.
#[test]
fn answer_of_an_iser_portal_is_recognised() {
    let padded = |first: u8| [&[first, 0, 0, 0][..], &[0; 192]].concat();
    for private in [Vec::new(), vec![0x80, 0, 0, 0], padded(0xc0), padded(0)] {
        let e = not_taken(private);
        assert_eq!(e.code, ErrorCode::Unreachable, "{e}");
        assert!(e.what.ends_with("the portal seems to serve iSER"), "{e}");
        assert!(e.hint.as_ref().is_some_and(|hint| hint.contains("iser://HOST")), "{:?}", e.hint);
    }
}

#[test]
fn invalid_login_request_fails_before_the_connection() {
    let e = request(&login_target(None), &options()).expect_err("no target");
    assert!(
        e.code == ErrorCode::InvalidArgument && e.hint.as_ref().is_some_and(|hint| hint.contains("srp://")),
        "{e}"
    );
    let e =
        request(&login_target(Some("iqn.2026-11.org.example:a")), &options()).expect_err("no target port");
    assert!(
        e.code == ErrorCode::InvalidArgument && e.hint.as_ref().is_some_and(|hint| hint.contains("ID_EXT")),
        "{e}"
    );
}
