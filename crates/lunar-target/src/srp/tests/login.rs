use super::test_target::{HostResponse, NAME, command, login, run_ready};
use super::{TestTarget, golden, on_core};
use crate::Instance;
use crate::config::{AccessRule, ChapAccount, IpNetwork};
use crate::srp::port_id;
use lunar_wire::scsi::cdb;
use lunar_wire::srp::{LoginFormat, LoginReject, LoginRejectReason, LoginRequest, PortId, PreviousChannels};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A rule that allows full access to these initiator names, and to this network.
fn access(initiators: &[&str], network: Option<[u8; 4]>) -> AccessRule {
    AccessRule {
        initiators: initiators.iter().map(|name| name.to_string()).collect(),
        networks: network.map(|a| IpNetwork { address: a.into(), bits: 8 }).into_iter().collect(),
        ..AccessRule::default()
    }
}

#[test]
fn port_id_derives_from_target_name() {
    let id = port_id(NAME);
    assert_eq!((id.extension(), id.guid()), (0x9fb1_bf94_f001_06ed, 0x9fb1_bf94_f001_06ed));
    assert_ne!(id, port_id("iqn.2026-11.org.example:disk2"));
}

#[test]
fn both_login_forms_are_accepted() {
    on_core(async move || {
        let (target, mut hosts) = (TestTarget::new(), Vec::new());
        for form in [LoginFormat::RdmaCm, LoginFormat::Ib] {
            let request = LoginRequest { tag: 0x0102_0304_0506_0708, ..login(1) };
            let host = target.connect_srp(&request.encode(form)).await.expect("a login");
            let previous = if form == LoginFormat::RdmaCm { "80" } else { "81" };
            let head = "c0000000 00000004 0102030405060708 00002044 00000128 0006";
            let mut wanted = golden(&format!("{head} {previous}"));
            wanted.resize(52, 0);
            assert_eq!(host.welcome.encode()[..], wanted, "{form:?}");
            // The host must live until the next login.
            hosts.push(host);
        }
    });
}

#[test]
fn target_sends_nothing_before_first_command() {
    on_core(async move || {
        let target = TestTarget::with_ping_timeout(std::time::Duration::from_millis(1));
        let mut host = target.host(1, false).await;
        // As long as many pings and their timeouts.
        lunar_runtime::sleep_until(std::time::Instant::now() + std::time::Duration::from_millis(30)).await;
        run_ready().await;
        assert_eq!(host.faults[1].log(), []);
        assert_eq!(
            host.execute(&command(1, &cdb::test_unit_ready())).await,
            HostResponse::check(1, (6, 0x29, 0))
        );
    });
}

#[test]
fn invalid_login_is_rejected_with_reason() {
    type Change = fn(&mut LoginRequest);
    let bad: [(&str, LoginRejectReason, Change); 5] = [
        ("long units", LoginRejectReason::IT_IU_TOO_LONG, |login| login.it_iu_len = 8261),
        ("short units", LoginRejectReason::UNABLE, |login| login.it_iu_len = 63),
        ("formats", LoginRejectReason::FORMATS, |login| login.formats = 0x0e),
        ("no such port", LoginRejectReason::NOT_ASSOCIATED, |login| {
            login.target = port_id("iqn.2026-11.org.example:a")
        }),
        ("no such half", LoginRejectReason::NOT_ASSOCIATED, |login| {
            login.target = PortId::new(1, login.target.guid());
        }),
    ];
    on_core(async move || {
        let target = TestTarget::new();
        for (what, reason, change) in bad {
            let mut request = LoginRequest { tag: 9, ..login(1) };
            change(&mut request);
            let refused = target.connect_srp(&request.encode(LoginFormat::RdmaCm)).await.err();
            assert_eq!(refused, Some(LoginReject { reason, tag: 9, formats: 6 }), "{what}");
        }
    });
}

#[test]
fn non_login_private_data_is_rejected() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut channels = login(1).encode(LoginFormat::RdmaCm);
        channels[10] |= 2;
        let mut opcode = login(1).encode(LoginFormat::RdmaCm);
        opcode[11] = 2;
        // Empty private data arrive as zeros: a login with lengths of zero.
        let nothing = Vec::new();
        for (private, reason) in [
            (channels, LoginRejectReason::NO_MULTICHANNEL),
            (opcode, LoginRejectReason::UNABLE),
            (nothing, LoginRejectReason::UNABLE),
        ] {
            let refused = target.connect_srp(&private).await.err().expect("a refusal");
            assert_eq!(refused.reason, reason);
        }
    });
}

#[test]
fn access_list_matches_ports_and_networks() {
    let name = "0x000000000000aaaa0000000000000001";
    let elsewhere = || access(&[], Some([10, 0, 0, 0]));
    let chap = AccessRule {
        chap: Some(vec![ChapAccount { name: "a".into(), secret: vec![1; 16].into() }]),
        ..access(&[], None)
    };
    let lists = [
        (vec![access(&[name], None)], [true, false]),
        (vec![access(&["0x*2"], None)], [false, true]),
        (vec![access(&[], Some([127, 0, 0, 0]))], [true, true]),
        (vec![elsewhere()], [false, false]),
        (vec![chap], [false, false]),
    ];
    on_core(async move || {
        for (list, wanted) in lists {
            let target = TestTarget::with(|target| target.access = list.clone());
            for (number, wanted) in [1, 2].into_iter().zip(wanted) {
                let came = target.connect_srp(&login(number).encode(LoginFormat::RdmaCm)).await;
                assert_eq!(
                    came.as_ref().err().map(|r| r.reason),
                    (!wanted).then_some(LoginRejectReason::NOT_ASSOCIATED)
                );
            }
        }
    });
}

#[test]
fn single_channel_login_ends_earlier_channels() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut first = target.host(1, false).await;
        assert_eq!(first.welcome.previous, PreviousChannels::None);
        let second = target.host(1, true).await;
        assert_eq!(second.welcome.previous, PreviousChannels::Kept);
        let mut second = second.receive_attentions().await;
        let mut other = target.host(2, false).await.receive_attentions().await;
        assert_eq!(target.shared.registry.list().len(), 3);
        let mut again = target.host(1, false).await;
        assert_eq!(again.welcome.previous, PreviousChannels::Ended);
        first.expect_close().await;
        second.expect_logout(4).await;
        assert_eq!(target.shared.registry.list().len(), 2);
        assert_eq!(other.execute(&command(2, &cdb::test_unit_ready())).await, HostResponse::good(2));
        again.execute(&command(2, &cdb::test_unit_ready())).await;
    });
}

#[test]
fn excess_channel_is_rejected_and_others_stay() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut hosts = Vec::new();
        for keep in [false, true, true] {
            hosts.push(target.host(1, keep).await.receive_attentions().await);
        }
        let request = LoginRequest { keep_channels: true, ..login(1) };
        let refused =
            target.connect_srp(&request.encode(LoginFormat::RdmaCm)).await.err().expect("a refusal");
        assert_eq!(refused.reason, LoginRejectReason::TOO_MANY_CHANNELS);
        for host in &mut hosts {
            assert_eq!(host.execute(&command(2, &cdb::test_unit_ready())).await, HostResponse::good(2));
        }
    });
}

#[test]
fn refused_single_channel_login_keeps_channels() {
    on_core(async move || {
        let instance = Arc::new(Instance::new("r1"));
        let target = TestTarget::with(|target| target.instance = Some(instance.clone()));
        let mut first = target.host(1, false).await.receive_attentions().await;
        instance.draining.store(true, Relaxed);
        let refused = target.connect_srp(&login(1).encode(LoginFormat::RdmaCm)).await.err();
        assert_eq!(refused.map(|refused| refused.reason), Some(LoginRejectReason::UNABLE));
        assert_eq!(first.execute(&command(2, &cdb::test_unit_ready())).await, HostResponse::good(2));
    });
}

#[test]
fn channels_share_one_initiator_port() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut first = target.host(1, false).await.receive_attentions().await;
        let mut second = target.host(1, true).await.receive_attentions().await;
        let mut other = target.host(2, false).await.receive_attentions().await;
        // REGISTER the key 7, then RESERVE, write exclusive.
        let mut parameters = [0; 24];
        for (tag, (action, kind, key_at)) in (10..).zip([(0, 0, 15), (1, 1, 7)]) {
            parameters.fill(0);
            parameters[key_at] = 7;
            let (at, cdb) = (first.source(&parameters), cdb::persistent_reserve_out(action, kind, 24));
            let out = lunar_wire::srp::SrpCommand {
                data_out: lunar_wire::srp::DataBuffer::Direct(at),
                ..command(tag, &cdb)
            };
            assert_eq!(first.execute(&out).await, HostResponse::good(tag));
        }
        let write = cdb::write_10(0, 0, false);
        assert_eq!(second.execute(&command(20, &write)).await, HostResponse::good(20));
        assert_eq!(other.execute(&command(20, &write)).await.status, 0x18);
    });
}
