//! Lengths and bytes of parameter lists and reports.

use super::world::{TestTarget, basic, moving, out_cdb, port, read, send, transport_id};
use crate::testing::{data, disk, fails, lu, nexus, run, run_with};
use crate::{InitiatorPort, LuSettings, Plan};
use lunar_wire::scsi::{Sense, Status, op};

#[test]
fn parameter_list_has_the_length_of_its_service_action() {
    let mut world = TestTarget::new("A");
    let a = world.nexuses.get_mut("A").unwrap();
    let wrong = || fails(Sense::PARAMETER_LIST_LENGTH);
    for action in 0..8 {
        for len in [0, 1, 8, 23, 65537, 0x0100_0000, u32::MAX] {
            assert_eq!(run(a, &out_cdb(action, 1, len)), wrong(), "{action} {len}");
        }
        let basic = run(a, &out_cdb(action, 1, 24));
        let wanted = if action == 7 { wrong() } else { Ok(Plan::Parameters { len: 24 }) };
        assert_eq!(basic, wanted, "{action}");
    }
    for action in 1..7 {
        assert_eq!(run(a, &out_cdb(action, 1, 28)), wrong(), "{action}");
    }
    for len in 25..28 {
        assert_eq!(run(a, &out_cdb(0, 0, len)), wrong());
    }
    assert_eq!(run(a, &out_cdb(8, 0, 24)), fails(Sense::cdb_field(1, 4)));
}

#[test]
fn reservation_before_the_parameters_is_a_conflict() {
    let lu = lu(disk());
    let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
    let mut unmap = [0; 16];
    (unmap[0], unmap[8]) = (op::UNMAP, 24);
    let mut list = [0; 24];
    (list[1], list[3], list[19]) = (22, 16, 1);
    assert_eq!(run(&mut a, &unmap), Ok(Plan::Parameters { len: 24 }));
    assert!(matches!(a.parameters(&unmap, &list), Ok(Plan::Op(_))));
    assert_eq!(run(&mut a, &unmap), Ok(Plan::Parameters { len: 24 }));
    assert_eq!(run(&mut b, &[op::RESERVE_6, 0, 0, 0, 0, 0]), Ok(Plan::Done));
    assert_eq!(a.parameters(&unmap, &list), Err(Status::ReservationConflict.into()));
}

#[test]
fn less_data_than_promised_is_no_parameter_list() {
    let mut world = TestTarget::new("A");
    let a = world.nexuses.get_mut("A").unwrap();
    for len in 0..24 {
        let answer = run_with(a, &out_cdb(0, 0, 24), &basic(0, 1, 0)[..len]);
        assert_eq!(answer, fails(Sense::PARAMETER_LIST_LENGTH));
    }
    assert_eq!(read(a, 0).unwrap(), [0; 8]);
}

#[test]
fn transport_id_lists_are_as_long_as_they_say() {
    let mut world = TestTarget::new("A");
    let a = world.nexuses.get_mut("A").unwrap();
    let id = transport_id("B");
    let list = |flags, said: u32, ids: &[u8]| [&basic(0, 1, flags)[..], &said.to_be_bytes(), ids].concat();
    let len = id.len() as u32;
    let wrong = [
        list(0, len, &id),
        list(8, len - 4, &id),
        list(8, len + 4, &id),
        list(8, u32::MAX, &id),
        list(8, len - 4, &id[..id.len() - 4]),
        list(8, len + 3, &[&id[..], &[0x45, 0, 0]].concat()),
        basic(0, 1, 8),
    ];
    for (i, list) in wrong.iter().enumerate() {
        assert_eq!(send(a, 0, 0, list), fails(Sense::PARAMETER_LIST_LENGTH), "{i}");
    }
    let second = [&id[..], &[0x41, 0, 0, 20], &[0; 20]].concat();
    let sense = Sense::parameter_field(28 + len as u16, 3);
    assert_eq!(send(a, 0, 0, &list(8, second.len() as u32, &second)), fails(sense));
    assert_eq!(read(a, 0).unwrap(), [0; 8]);
    assert_eq!(send(a, 0, 0, &list(8, len, &id)), Ok(Plan::Done));
}

#[test]
fn specified_ports_are_for_register_alone() {
    let mut world = TestTarget::new("A");
    let a = world.nexuses.get_mut("A").unwrap();
    assert_eq!(send(a, 0, 0, &basic(0, 1, 0)), Ok(Plan::Done));
    for action in 1..7 {
        let answer = send(a, action, 1, &basic(1, 1, 8));
        assert_eq!(answer, fails(Sense::parameter_field(20, 3)), "{action}");
    }
}

#[test]
fn register_and_move_has_exactly_one_transport_id() {
    let mut world = TestTarget::new("A B");
    world.play("A register 0 a -> good\nA reserve a 1 -> good");
    let a = world.nexuses.get_mut("A").unwrap();
    let id = transport_id("B");
    let two = [&id[..], &id].concat();
    assert_eq!(send(a, 7, 0, &moving(10, 1, 0, 1, &two)), fails(Sense::parameter_field(20, 8)));
    let mut list = moving(10, 1, 0, 1, &id);
    list[23] += 4;
    assert_eq!(send(a, 7, 0, &list), fails(Sense::PARAMETER_LIST_LENGTH));
    assert_eq!(send(a, 7, 0, &moving(10, 1, 0, 1, &id[..20])), fails(Sense::PARAMETER_LIST_LENGTH));
}

#[test]
fn report_capabilities_matches_golden_bytes() {
    let mut world = TestTarget::new("A");
    let a = world.nexuses.get_mut("A").unwrap();
    assert_eq!(read(a, 2).unwrap(), [0, 8, 0x1d, 0xb0, 0xea, 0x01, 0, 0]);
    let answer = send(a, 0, 0, &basic(0, 1, 1));
    assert!(crate::testing::commit(&world.lu, answer).is_ok());
    assert_eq!(read(a, 2).unwrap(), [0, 8, 0x1d, 0xb1, 0xea, 0x01, 0, 0]);
    let mut world = TestTarget::new("A");
    world.lu.set_volatile();
    let a = world.nexuses.get_mut("A").unwrap();
    assert_eq!(read(a, 2).unwrap(), [0, 8, 0x1c, 0xb0, 0xea, 0x01, 0, 0]);
}

#[test]
fn reports_of_a_registrant_match_golden_bytes() {
    let mut world = TestTarget::new("A");
    world.play("A register 0 1122334455667788 -> good\nA reserve 1122334455667788 6 -> good");
    let a = world.nexuses.get_mut("A").unwrap();
    let key = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
    assert_eq!(read(a, 0).unwrap(), [&[0, 0, 0, 1, 0, 0, 0, 8][..], &key].concat());
    let held = [&[0, 0, 0, 1, 0, 0, 0, 16][..], &key, &[0, 0, 0, 0, 0, 6, 0, 0]].concat();
    assert_eq!(read(a, 1).unwrap(), held);
    let id = transport_id("A");
    let mut full = vec![0, 0, 0, 1, 0, 0, 0, 24 + id.len() as u8];
    full.extend_from_slice(&key);
    full.extend_from_slice(&[0, 0, 0, 0, 1, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, id.len() as u8]);
    full.extend_from_slice(&id);
    assert_eq!(read(a, 3).unwrap(), full);
}

#[test]
fn report_is_cut_to_the_allocation_length() {
    let mut world = TestTarget::new("A B");
    world.play("A register 0 a for B -> good\nA reserve a 1 -> good");
    let a = world.nexuses.get_mut("A").unwrap();
    for action in 0..4 {
        let whole = read(a, action).unwrap();
        assert_eq!(run(a, &[op::PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, 0, 0, 0]), Ok(Plan::Done));
        for len in [1, 7, 8, 9, 23, 24, 255, 65535] {
            let cdb = [op::PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, (len >> 8) as u8, len as u8, 0];
            assert_eq!(data(a, &cdb), whole[..whole.len().min(len)], "{action} {len}");
        }
    }
    assert_eq!(
        run(a, &[op::PERSISTENT_RESERVE_IN, 4, 0, 0, 0, 0, 0, 0, 8, 0]),
        fails(Sense::cdb_field(1, 4))
    );
}

/// CVE-2025-57275: one registrant more than the maximum.
#[test]
fn registrant_beyond_the_maximum_is_refused() {
    let settings = LuSettings { max_registrants: 9_999, ..disk() };
    let mut world = TestTarget::with(settings, None, "A");
    let lu = world.lu.clone();
    let mut refused = 0;
    for n in 0..10_000u32 {
        let [_, a, b, c] = n.to_be_bytes();
        let mut port = (*port("C")).clone();
        let isid = [0x80, 0, 0, a, b, c];
        port.initiator = InitiatorPort::Iscsi { name: "iqn.2026-11.org.example:c".into(), isid };
        let mut nexus = lu.attach(port.into(), false);
        assert!(run(&mut nexus, &[0; 6]).is_err(), "POWER ON");
        let persists = (n == 9_998) as u8;
        let answer = send(&mut nexus, 0, 0, &basic(0, 1 + n as u64, persists));
        if let Err(failure) = crate::testing::commit(&lu, answer) {
            assert_eq!(failure.sense, Some(Sense::INSUFFICIENT_REGISTRATIONS));
            refused += 1;
        }
    }
    assert_eq!(refused, 1);
    let a = world.nexuses.get_mut("A").unwrap();
    let keys = read(a, 0).unwrap();
    assert_eq!((keys.len(), &keys[4..8]), (65535, &(9_999u32 * 8).to_be_bytes()[..]));
    assert_eq!(read(a, 3).unwrap().len(), 65535);
    let (_, saved) = lu.saved_state();
    let fewer = LuSettings { max_registrants: 16, ..disk() };
    let mut again = TestTarget::with(fewer, Some(&saved), "B");
    again.play("B register 0 b -> 5/55/04");
    assert_eq!(again.lu.saved_state().1, saved);
}
