//! Each service action: keys, conflicts, unit attentions, saved state.

use super::world::{TestTarget, basic, out_cdb};
use crate::testing::disk;
use crate::{LuSettings, Plan};
use lunar_wire::scsi::Status;

fn play(names: &str, script: &str) {
    TestTarget::new(names).play(script);
}

#[test]
fn holder_of_a_reservation_is_named() {
    let mut world = TestTarget::new("A B");
    world.play("A register 0 a -> good\n B register 0 b -> good");
    assert_eq!(world.lu.reservation_holder(), None);
    world.play("B reserve b 1 -> good");
    assert_eq!(world.lu.reservation_holder().as_deref(), Some("iqn.2026-11.org.example:b"));
    world.play("B release b 1 -> good\n A reserve a 7 -> good");
    assert_eq!(
        (world.lu.reservations(), world.lu.reservation_holder()),
        ((2, true), None),
        "all registrants"
    );
}

#[test]
fn register_checks_the_reservation_key() {
    play(
        "A B",
        "A register 0 0 -> good
         A generation -> 0
         A register 7 a -> conflict
         A register 0 a -> good
         A generation -> 1
         A register 0 b -> conflict
         A register b c -> conflict
         A register a b -> good
         B register 0 b -> good
         A keys -> b b
         A status -> A1=b, B1=b
         A register b 0 -> good
         A keys -> b
         A generation -> 4
         A tur -> good
         B tur -> good",
    );
}

#[test]
fn register_and_ignore_asks_for_no_key() {
    play(
        "A B",
        "A ignore 7 0 -> good
         A ignore 7 a -> good
         A ignore 7 b -> good
         B keys -> b
         A ignore 7 0 -> good
         A keys ->",
    );
}

#[test]
fn registrations_are_those_of_initiator_port_and_target_port() {
    play(
        "A A2 A' B",
        "A register 0 a -> good
         A2 register a b -> conflict
         A' register a b -> conflict
         A reserve a 1 -> good
         A2 write -> conflict
         A' write -> conflict
         A logout -> done
         A login -> done
         A write -> good
         A release a 1 -> good
         B held -> none",
    );
}

#[test]
fn reserve_is_for_registrants_and_once() {
    play(
        "A B",
        "A reserve a 1 -> conflict
         A register 0 a -> good
         B register 0 b -> good
         A reserve 0 1 -> conflict
         A reserve b 1 -> conflict
         A reserve a 1 -> good
         A reserve a 1 -> good
         A reserve a 3 -> conflict
         B reserve b 1 -> conflict
         B held -> a 1
         A status -> A1=a*1, B1=b
         A generation -> 2
         A register a c -> good
         B held -> c 1",
    );
}

#[test]
fn scope_and_type_are_checked_where_they_count() {
    play(
        "A B",
        "A register 0 a -> good
         A reserve a 0 -> 5/24/00@c2.3
         A reserve a 2 -> 5/24/00@c2.3
         A reserve a 4 -> 5/24/00@c2.3
         A reserve a 9 -> 5/24/00@c2.3
         A reserve a 21 -> 5/24/00@c2.7
         A release a 21 -> 5/24/00@c2.7
         A reserve a 1 -> good
         B register 0 b -> good
         B preempt b a 2 -> 5/24/00@c2.3
         B held -> a 1
         B register b c -> good
         A preempt a c 2f -> good",
    );
}

#[test]
fn release_is_for_the_holder() {
    play(
        "A B",
        "A release a 1 -> conflict
         A register 0 a -> good
         B register 0 b -> good
         A release a 1 -> good
         A reserve a 5 -> good
         B release b 5 -> good
         B held -> a 5
         A release b 5 -> conflict
         A release a 1 -> 5/26/04
         B held -> a 5
         A release a 5 -> good
         B tur -> 6/2a/04
         B held -> none
         A generation -> 2",
    );
}

#[test]
fn release_is_reported_to_registrants() {
    for (kind, result) in
        [(1, "good"), (3, "good"), (5, "6/2a/04"), (6, "6/2a/04"), (7, "6/2a/04"), (8, "6/2a/04")]
    {
        play(
            "A B C",
            &format!(
                "A register 0 a -> good
                 B register 0 b -> good
                 A reserve a {kind} -> good
                 A release a {kind} -> good
                 A tur -> good
                 B tur -> {result}
                 B tur -> good
                 C tur -> good"
            ),
        );
    }
}

#[test]
fn holder_who_unregisters_releases() {
    for (kind, result) in [(1, "good"), (3, "good"), (5, "6/2a/04"), (6, "6/2a/04")] {
        play(
            "A B C",
            &format!(
                "A register 0 a -> good
                 B register 0 b -> good
                 A reserve a {kind} -> good
                 A register a 0 -> good
                 A tur -> good
                 B tur -> {result}
                 C tur -> good
                 B held -> none"
            ),
        );
    }
}

#[test]
fn all_registrants_reservation_lives_as_long_as_a_registrant() {
    for kind in [7, 8] {
        play(
            "A B",
            &format!(
                "A register 0 a -> good
                 B register 0 b -> good
                 A reserve a {kind} -> good
                 B reserve b {kind} -> good
                 B held -> 0 {kind}
                 B status -> A1=a*{kind}, B1=b*{kind}
                 A register a 0 -> good
                 B tur -> good
                 B held -> 0 {kind}
                 A write -> conflict
                 B ignore 0 0 -> good
                 B tur -> good
                 B held -> none
                 A write -> good"
            ),
        );
    }
}

#[test]
fn any_holder_releases_an_all_registrants_reservation() {
    play(
        "A B",
        "A register 0 a -> good
         B register 0 b -> good
         A reserve a 7 -> good
         B release b 7 -> good
         A tur -> 6/2a/04
         A held -> none",
    );
}

#[test]
fn clear_removes_everything() {
    play(
        "A B C",
        "A register 0 a -> good
         B register 0 b -> good
         A reserve a 3 -> good
         C clear 0 -> conflict
         B clear a -> conflict
         B clear b -> good
         B keys ->
         B held -> none
         B generation -> 3
         A tur -> 6/2a/03
         A tur -> good
         B tur -> good
         C tur -> good",
    );
}

#[test]
fn preempt_removes_registrations() {
    play(
        "A B C",
        "A register 0 a -> good
         B register 0 b -> good
         C register 0 b -> good
         A preempt b b 0 -> conflict
         A preempt a 0 1 -> 5/26/00@8
         A preempt a c 1 -> conflict
         A generation -> 3
         A preempt a b 0 -> good
         A generation -> 4
         A keys -> a
         A held -> none
         B tur -> 6/2a/05
         C tur -> 6/2a/05
         A tur -> good
         B preempt b a 1 -> conflict",
    );
}

#[test]
fn preempt_by_key_leaves_the_reservation_of_another_key() {
    play(
        "A B C",
        "A register 0 a -> good
         B register 0 b -> good
         C register 0 c -> good
         A reserve a 5 -> good
         B preempt b c 5 -> good
         A held -> a 5
         A keys -> a b
         C tur -> 6/2a/05
         A tur -> good
         B preempt b 0 5 -> 5/26/00@8",
    );
}

#[test]
fn preempt_takes_the_reservation_of_the_holders_key() {
    play(
        "A B C",
        "A register 0 a -> good
         B register 0 b -> good
         C register 0 c -> good
         A reserve a 5 -> good
         B preempt b a 5 -> good
         B held -> b 5
         B keys -> b c
         A tur -> 6/2a/05
         C tur -> good
         A write -> conflict
         B write -> good
         B generation -> 4",
    );
}

#[test]
fn preempt_with_another_type_is_reported_to_registrants() {
    play(
        "A B C",
        "A register 0 a -> good
         B register 0 b -> good
         C register 0 c -> good
         A reserve a 5 -> good
         B preempt b a 6 -> good
         B held -> b 6
         A tur -> 6/2a/05
         C tur -> 6/2a/04
         B tur -> good",
    );
}

#[test]
fn holder_may_preempt_itself() {
    play(
        "A B",
        "A register 0 a -> good
         B register 0 a -> good
         A reserve a 1 -> good
         A preempt a a 3 -> good
         A held -> a 3
         A keys -> a
         A tur -> good
         B tur -> 6/2a/05",
    );
}

#[test]
fn preempt_by_key_zero_removes_all_other_registrants() {
    play(
        "A B C",
        "A register 0 a -> good
         B register 0 b -> good
         C register 0 c -> good
         A reserve a 7 -> good
         B preempt b a 5 -> good
         B held -> 0 7
         A tur -> 6/2a/05
         C preempt c 0 5 -> good
         C held -> c 5
         C keys -> c
         B tur -> 6/2a/05",
    );
}

#[test]
fn preempt_of_own_key_removes_the_sender() {
    play(
        "A B",
        "A register 0 a -> good
         A reserve a 7 -> good
         A preempt a a 7 -> good
         A tur -> good
         B keys ->
         B held -> none",
    );
}

#[test]
fn preempt_and_abort_names_those_whose_tasks_end() {
    play(
        "A B C C2",
        "A register 0 a -> good
         B register 0 b -> good
         C register 0 c all -> good
         A reserve a 6 -> good
         B abort b a 6 -> abort A
         B held -> b 6
         A tur -> 6/2a/05
         B abort b c 6 -> abort C C2
         C2 tur -> 6/2a/05
         B abort b c 6 -> conflict
         B abort b b 6 -> good
         B tur -> good
         B held -> b 6",
    );
}

#[test]
fn host_of_two_paths_is_preempted_as_one() {
    play(
        "A A2 B",
        "A register 0 a -> good
         A2 register 0 a -> good
         B register 0 b -> good
         A reserve a 6 -> good
         A2 write -> good
         A2 preempt a a 6 -> good
         B status -> A2=a*6, B1=b
         A tur -> 6/2a/05
         A ignore 0 a -> good
         B preempt b a 6 -> good
         B status -> B1=b*6
         A read -> 6/2a/05
         A2 read -> 6/2a/05
         A read -> conflict
         A2 read -> conflict",
    );
}

#[test]
fn all_tg_pt_registration_covers_every_target_port() {
    play(
        "A A2 B B2",
        "A register 0 a all -> good
         B status -> A1=a, A2=a
         A2 reserve a 5 -> good
         A write -> good
         A register a b -> good
         A register b c all -> good
         B status -> A1=c, A2=a*5
         A ignore 0 d all -> good
         B status -> A1=d, A2=d*5
         B2 register 0 b -> good
         B register 0 9 all -> conflict
         B keys -> b d d
         B register 0 b all -> good
         B ignore 0 0 all -> good
         A2 register d e -> good
         A register d 0 all -> good
         B status -> A2=e*5
         A2 ignore 0 0 all -> good
         B keys ->",
    );
}

#[test]
fn spec_i_pt_registers_all_named_ports_or_none() {
    play(
        "A B C C'",
        "A register 0 a for -> good
         A register a 0 -> good
         A register 0 a for B C' -> good
         C keys -> a a a
         C status -> A1=a, B1=a, C1'=a
         A register a b for C -> 5/26/00@20.3
         A register a 0 -> good
         A register 0 9 for B -> conflict
         A register 0 a for B A -> good
         A ignore 0 0 -> good
         A register 0 a for *C -> good
         C status -> A1=a, B1=a, C1=a, C1'=a
         A ignore 0 0 -> good
         A register 0 a for B *D -> 5/26/00@76
         A ignore 0 a for B -> 5/1a/00",
    );
}

#[test]
fn spec_i_pt_with_all_tg_pt_registers_on_all_target_ports() {
    play(
        "A B",
        "A register 0 a all for B -> good
         A status -> A1=a, A2=a, B1=a, B2=a",
    );
}

#[test]
fn register_and_move_by_the_holder_moves_the_reservation() {
    play(
        "A B C B2",
        "A move a b B -> conflict
         A register 0 a -> good
         A move a b B -> 5/24/00@c1.4
         C register 0 c -> good
         A reserve a 3 -> good
         C move c b B -> conflict
         A move c b B -> conflict
         A move a 0 B -> 5/26/00@8
         A move a b A -> 5/26/00@24
         A move a b B3 -> 5/26/00@18
         A move a b *B -> 5/26/00@24.7
         A generation -> 2
         A move a b B -> good
         A status -> A1=a, B1=b*3, C1=c
         A generation -> 3
         B move b d B2 unreg -> good
         A status -> A1=a, B2=d*3, C1=c
         B2 move d e C unreg -> good
         A status -> A1=a, C1=e*3
         A tur -> good
         C tur -> good",
    );
}

#[test]
fn all_registrants_reservation_does_not_move() {
    play(
        "A B",
        "A register 0 a -> good
         A reserve a 8 -> good
         A move a b B -> conflict",
    );
}

#[test]
fn registrants_are_bounded_and_a_refusal_changes_nothing() {
    let mut world = TestTarget::with(LuSettings { max_registrants: 3, ..disk() }, None, "A B C");
    world.play(
        "A register 0 a all -> good
         B register 0 b all -> 5/55/04
         B register 0 b for C -> 5/55/04
         A keys -> a a
         A generation -> 1
         B register 0 b -> good
         C register 0 c -> 5/55/04
         C ignore 0 c -> 5/55/04
         B ignore 0 c -> good
         A reserve a 1 -> good
         A move a c C -> 5/55/04
         A status -> A1=a*1, A2=a, B1=c
         A move a d B -> good
         A status -> A1=a, A2=a, B1=d*1",
    );
}

#[test]
fn access_of_holder_registrant_and_others() {
    const CONFLICT: &str = "conflict";
    const GOOD: &str = "good";
    // Type; read and write of another registrant; read and write of an unregistered nexus.
    let table = [
        (1, GOOD, CONFLICT, GOOD, CONFLICT),
        (3, CONFLICT, CONFLICT, CONFLICT, CONFLICT),
        (5, GOOD, GOOD, GOOD, CONFLICT),
        (6, GOOD, GOOD, CONFLICT, CONFLICT),
        (7, GOOD, GOOD, GOOD, CONFLICT),
        (8, GOOD, GOOD, CONFLICT, CONFLICT),
    ];
    for (kind, b_reads, b_writes, c_reads, c_writes) in table {
        play(
            "A B C",
            &format!(
                "A register 0 a -> good
                 B register 0 b -> good
                 A reserve a {kind} -> good
                 A read -> good
                 A write -> good
                 B read -> {b_reads}
                 B write -> {b_writes}
                 C read -> {c_reads}
                 C write -> {c_writes}
                 C tur -> good
                 C inquiry -> good
                 C capacity -> good
                 C luns -> good
                 C sense -> good
                 C keys -> a b
                 C register 0 c -> good
                 A release a {kind} -> good
                 B sense -> good
                 C sense -> good
                 C write -> good"
            ),
        );
    }
}

#[test]
fn reserve_6_and_10_keep_all_others_out() {
    for form in ["6", "10"] {
        play(
            "A B",
            &format!(
                "A reserve{form} -> good
                 A reserve{form} -> good
                 A read -> good
                 A write -> good
                 B reserve6 -> conflict
                 B reserve10 -> conflict
                 B tur -> conflict
                 B read -> conflict
                 B write -> conflict
                 B inquiry -> good
                 B luns -> good
                 B sense -> good
                 B capacity -> good
                 B start -> good
                 B stop -> conflict
                 B mode -> conflict
                 B release{form} -> good
                 B read -> conflict
                 B keys -> conflict
                 A keys -> conflict
                 A register 0 a -> conflict
                 A release{form} -> good
                 B write -> good
                 B reserve6 -> good"
            ),
        );
    }
}

/// Another nexus sends RESERVE between the CDB of a PERSISTENT RESERVE OUT and its parameter list.
#[test]
fn reserve_overtakes_a_parameter_list() {
    let mut world = TestTarget::new("A B");
    let cdb = [&out_cdb(0, 0, 24)[..], &[0; 6]].concat();
    let begun = world.nexuses.get_mut("A").unwrap().begin(&cdb);
    assert_eq!(begun, Ok(Plan::Parameters { len: 24 }));
    world.play("B reserve6 -> good");
    let answer = world.nexuses.get_mut("A").unwrap().parameters(&cdb, &basic(0, 1, 0));
    assert_eq!(answer, Err(Status::ReservationConflict.into()));
    world.play("B release6 -> good\nB keys ->");
}

#[test]
fn reserve_ends_with_its_nexus_and_with_a_reset() {
    play(
        "A B",
        "A reserve6 -> good
         B write -> conflict
         A logout -> done
         B write -> good
         A login -> done
         A write -> good
         B reserve6 -> good
         A write -> conflict
         A reset -> done
         A write -> 6/29/03
         A write -> good",
    );
}

#[test]
fn third_party_reserve_is_unknown() {
    play("A", "A reserve6for -> 5/24/00@c1.4");
}

#[test]
fn reserve_by_registrant_changes_no_persistent_reservation() {
    play(
        "A B C",
        "A register 0 a -> good
         B register 0 b -> good
         A reserve6 -> conflict
         A release6 -> conflict
         A reserve a 1 -> good
         A reserve6 -> good
         A release6 -> good
         B reserve6 -> conflict
         B release10 -> conflict
         A keys -> a b
         A held -> a 1
         A release a 1 -> good
         A reserve a 5 -> good
         B reserve10 -> good
         B release10 -> good
         C reserve6 -> conflict
         A held -> a 5
         B tur -> good",
    );
}

#[test]
fn persistent_reservation_survives_reset_and_logout() {
    play(
        "A B",
        "A register 0 a -> good
         A reserve a 3 -> good
         A reset -> done
         B tur -> 6/29/03
         A logout -> done
         B read -> conflict
         B held -> a 3",
    );
}

#[test]
fn only_first_preempting_node_of_a_cluster_gets_the_disk() {
    play(
        "A B C",
        "# Three nodes register keys of their own, and one wins.
         A ignore 0 a1 -> good
         B ignore 0 b1 -> good
         C ignore 0 c1 -> good
         A reserve a1 5 -> good
         B reserve b1 5 -> conflict
         C reserve c1 5 -> conflict
         B write -> good
         # A falls silent: B and C both find its key, the first to preempt has it.
         B held -> a1 5
         C held -> a1 5
         C preempt c1 a1 5 -> good
         B preempt b1 a1 5 -> conflict
         B held -> c1 5
         A write -> 6/2a/05
         A write -> conflict
         A read -> good
         # It comes back as one of many.
         A reserve a1 5 -> conflict
         A ignore 0 a1 -> good
         A write -> good
         A reserve a1 5 -> conflict",
    );
}

#[test]
fn aptpl_registrations_are_saved_and_restored() {
    let mut world = TestTarget::new("A B C");
    world.play(
        "A register 0 a aptpl -> save
         B register 0 b aptpl -> save
         A reserve a 5 -> save
         B reserve b 5 -> conflict",
    );
    let (version, saved) = world.lu.saved_state();
    assert_eq!(version, 3);
    let mut again = TestTarget::with(disk(), Some(&saved), "A B C");
    again.play(
        "A generation -> 0
         A status -> A1=a*5, B1=b
         B write -> good
         C write -> conflict
         C abort c c 1 -> conflict
         B abort b a 5 -> abort A save
         B preempt b b 5 -> save
         B release b 5 -> save
         B register b c -> save
         B reserve c 1 -> good",
    );
    let (_, saved) = again.lu.saved_state();
    TestTarget::with(disk(), Some(&saved), "A").play("A keys ->");
}

#[test]
fn without_aptpl_nothing_comes_back() {
    let mut world = TestTarget::new("A");
    world.play("A register 0 a -> good\nA reserve a 1 -> good");
    let (_, saved) = world.lu.saved_state();
    TestTarget::with(disk(), Some(&saved), "B").play("B keys ->\nB held -> none\nB write -> good");
}

#[test]
fn aptpl_is_refused_where_nothing_is_kept() {
    let mut world = TestTarget::new("A B");
    world.lu.set_volatile();
    world.play(
        "A register 0 a aptpl -> 5/26/00@20.0
         A ignore 0 a aptpl -> 5/26/00@20.0
         A keys ->
         A register 0 a -> good
         A reserve a 1 -> good
         A move a b B aptpl -> 5/26/00@17.0
         A held -> a 1
         A move a b B -> good",
    );
}

#[test]
fn register_and_move_and_clear_are_saved() {
    let mut world = TestTarget::new("A B");
    world.play(
        "A register 0 a -> good
         A reserve a 3 -> good
         A move a b B unreg aptpl -> save",
    );
    let (_, saved) = world.lu.saved_state();
    TestTarget::with(disk(), Some(&saved), "A B").play(
        "A status -> B1=b*3
         B clear b -> save
         A keys ->",
    );
}

#[test]
fn initiators_of_both_protocols_share_a_disk() {
    play(
        "A s t2",
        "A register 0 a -> good
         s register 0 b -> good
         t2 register 0 c all -> good
         A status -> A1=a, s1=b, t1=c, t2=c
         s reserve b 5 -> good
         A write -> good
         A status -> A1=a, s1=b*5, t1=c, t2=c
         t2 register c 0 -> good
         t2 write -> conflict
         A abort a b 5 -> abort s
         A status -> A1=a*5, t1=c",
    );
}

#[test]
fn port_is_registered_on_target_ports_of_its_protocol() {
    play(
        "A s",
        "s register 0 a for t u -> good
         s status -> s1=a, t1=a, u1=a
         s ignore 0 0 -> good
         A register 0 b for s -> 5/26/00@28
         A register 0 b all for v -> good
         A status -> A1=b, A2=b, t1=a, u1=a, v1=b, v2=b",
    );
}

#[test]
fn reservation_moves_to_a_port_of_srp_and_back() {
    play(
        "A s",
        "A register 0 a -> good
         A reserve a 3 -> good
         A move a b s through 1 -> 5/26/00@24.3
         A move a b B through 8001 -> 5/26/00@24.3
         A move a b s unreg through 8003 -> 5/26/00@18
         A move a b s unreg -> good
         s status -> s1=b*3
         s move b c A -> good
         s status -> A1=c*3, s1=b",
    );
}

#[test]
fn registrations_of_srp_are_saved_and_come_back() {
    let mut world = TestTarget::new("A s");
    world.play(
        "A register 0 a -> good
         s register 0 b aptpl -> save
         s reserve b 1 -> save",
    );
    let (_, saved) = world.lu.saved_state();
    TestTarget::with(disk(), Some(&saved), "A s").play(
        "A status -> A1=a, s1=b*1
         A write -> conflict
         s write -> good",
    );
}
