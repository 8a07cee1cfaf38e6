//! Registrations that go to the next process of a server.

use super::world::TestTarget;
use crate::LuSettings;
use crate::testing::disk;

/// The next process of a target, with the state that it took.
fn next(before: &TestTarget, settings: LuSettings, names: &str) -> TestTarget {
    let (_, saved) = before.lu.saved_state();
    let after = TestTarget::with(settings, Some(&saved), "");
    after.lu.take_over(&before.lu.hand_over()).unwrap();
    let mut after = after;
    names.split_whitespace().for_each(|name| after.attach(name));
    after
}

#[test]
fn registrations_without_aptpl_are_handed_over() {
    let mut world = TestTarget::new("A B@bob");
    world.play(
        "A register 0 a -> good
         B@bob register 0 b -> good
         A reserve a 1 -> good",
    );
    let generation = super::world::read(world.nexuses.get_mut("A").unwrap(), 0).unwrap()[..4].to_vec();
    let mut again = next(&world, disk(), "A B@bob C");
    again.play(
        "A keys -> a b
         A held -> a 1
         B@bob write -> conflict
         C write -> conflict
         A write -> good",
    );
    assert_eq!(super::world::read(again.nexuses.get_mut("A").unwrap(), 0).unwrap()[..4], generation);
    // A power loss still ends them.
    TestTarget::with(disk(), Some(&again.lu.saved_state().1), "A").play("A keys ->");
}

#[test]
fn saved_registrations_are_not_handed_over() {
    let mut world = TestTarget::new("A B");
    world.play("A register 0 a -> good");
    let old = world.lu.hand_over();
    world.play("B register 0 b aptpl -> save");
    assert_eq!(world.lu.hand_over(), []);
    let again = TestTarget::with(disk(), Some(&world.lu.saved_state().1), "");
    again.lu.take_over(&old).unwrap();
    assert_eq!(again.lu.reservations().0, 2, "saved registrations are newer");
}

#[test]
fn damaged_state_changes_nothing() {
    let mut world = TestTarget::new("A");
    world.play("A register 0 a -> good");
    let good = world.lu.hand_over();
    let again = TestTarget::new("");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(again.lu.take_over(&bad).is_err() && again.lu.take_over(&good[..at]).is_err(), "byte {at}");
    }
    assert_eq!(again.lu.reservations().0, 0);
}
