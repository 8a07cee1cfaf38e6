//! Invariants under random sequences of commands.

use super::world::{TestTarget, basic, moving, read, send, transport_id};
use crate::testing::{disk, run};
use crate::{Lu, LuSettings};
use lunar_wire::be;
use lunar_wire::scsi::op;
use proptest::prelude::*;

const NAMES: [&str; 7] = ["A", "B", "C", "A2", "A'", "s", "B@u"];
const MAX: usize = 6;

/// Sender, service action, scope and type, the two keys, flags, the named port, and another event.
type Step = (usize, u8, u8, u64, u64, u8, usize, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![9 => prop::sample::select(vec![1u8, 3, 5, 6, 7, 8]), 1 => any::<u8>()];
    let step = (0..NAMES.len(), 0u8..8, kind, 0u64..4, 0u64..4, 0u8..16, 0..NAMES.len(), 0u8..20);
    prop::collection::vec(step, 1..60)
}

fn settings() -> LuSettings {
    LuSettings { max_registrants: MAX, ..disk() }
}

fn play(world: &mut TestTarget, step: &Step) {
    let (who, action, kind, key, action_key, flags, other, event) = *step;
    if event == 0 {
        world.nexuses.remove(NAMES[who]);
        return world.attach(NAMES[who]);
    }
    let nexus = world.nexuses.get_mut(NAMES[who]).unwrap();
    // A unit attention affects only the command that reports it, so clear all of them first.
    while run(nexus, &[op::REQUEST_SENSE, 0, 0, 0, 18, 0]) != run(nexus, &[op::REQUEST_SENSE, 0, 0, 0, 18, 0])
    {
    }
    let id = transport_id(NAMES[other]);
    let list = match action {
        7 => moving(key, action_key, flags & 3, 1 + (flags >> 2 & 1) as u16, &id),
        0 if flags & 8 != 0 => {
            [&basic(key, action_key, flags)[..], &(id.len() as u32).to_be_bytes(), &id].concat()
        }
        _ => basic(key, action_key, flags & 7),
    };
    let _ = match event {
        1 => run(nexus, &[op::RESERVE_6, 0, 0, 0, 0, 0]),
        2 => run(nexus, &[op::RELEASE_6, 0, 0, 0, 0, 0]),
        _ => send(nexus, action, kind, &list),
    };
}

/// Checks that READ KEYS, READ RESERVATION and READ FULL STATUS agree.
fn check(lu: &std::sync::Arc<Lu>) -> Result<(), TestCaseError> {
    // A logical unit reset ends RESERVE, which would block the reports.
    lu.reset();
    let mut observer = lu.attach(super::world::port("Z"), false);
    prop_assert!(run(&mut observer, &[0; 6]).is_err());
    let keys = read(&mut observer, 0).unwrap();
    let held = read(&mut observer, 1).unwrap();
    let full = read(&mut observer, 3).unwrap();
    let count = (keys.len() - 8) / 8;
    prop_assert!(count <= MAX);
    prop_assert!(keys[8..].chunks(8).all(|k| be::get64(k) != 0));
    let (mut rest, mut holders, mut registrants) = (&full[8..], Vec::new(), 0);
    while !rest.is_empty() {
        registrants += 1;
        if rest[12] & 1 != 0 {
            holders.push((be::get64(rest), rest[13]));
        }
        rest = &rest[24 + be::get32(&rest[20..]) as usize..];
    }
    prop_assert_eq!(registrants, count);
    match held.get(8..) {
        Some(entry) if !entry.is_empty() => {
            let (key, kind) = (be::get64(entry), entry[13]);
            let wanted = if kind >= 7 { count } else { 1 };
            prop_assert!(count > 0);
            prop_assert_eq!(holders.len(), wanted);
            prop_assert!(holders.iter().all(|h| h.1 == kind && (kind >= 7 || h.0 == key)));
            prop_assert!(kind < 7 || key == 0);
        }
        _ => prop_assert!(holders.is_empty()),
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_sequence_keeps_the_invariants(steps in steps()) {
        let mut world = TestTarget::with(settings(), None, &NAMES.join(" "));
        for step in &steps {
            play(&mut world, step);
            check(&world.lu)?;
        }
    }

    #[test]
    fn saved_state_restores_unchanged(steps in steps()) {
        let mut world = TestTarget::with(settings(), None, &NAMES.join(" "));
        for step in &steps {
            play(&mut world, step);
        }
        let (_, saved) = world.lu.saved_state();
        let again = TestTarget::with(settings(), Some(&saved), "");
        prop_assert_eq!(again.lu.saved_state().1, saved);
        check(&again.lu)?;
    }

    #[test]
    fn no_parameter_list_panics(
        action in 0u8..8,
        kind: u8,
        head in prop::collection::vec(any::<u8>(), 24..=28),
        ids in prop::collection::vec(any::<u8>(), 0..80),
        fits: bool,
    ) {
        let mut world = TestTarget::with(settings(), None, "A");
        let nexus = world.nexuses.get_mut("A").unwrap();
        let mut list = [&head[..], &ids].concat();
        if fits && list.len() >= 28 {
            list[20] |= 8;
            let len = list.len() as u32 - if action == 7 { 24 } else { 28 };
            be::put32(&mut list[if action == 7 { 20 } else { 24 }..], len);
        }
        let _ = send(nexus, 0, 0, &basic(0, 1, 0));
        let cdb = super::world::out_cdb(action, kind, list.len() as u32);
        if run(nexus, &cdb).is_ok() {
            let mut padded = cdb.clone();
            padded.resize(16, 0);
            let _ = nexus.parameters(&padded, &list);
        }
        check(&world.lu)?;
    }
}
