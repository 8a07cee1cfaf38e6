//! The CHAP user is part of an initiator port.

use super::world::TestTarget;
use crate::testing::disk;

#[test]
fn other_user_of_the_same_port_is_another_registrant() {
    TestTarget::new("A@alice B").play(
        "A@alice register 0 a -> good
         A@alice reserve a 3 -> good
         A@alice logout -> done
         A@bob login -> done
         A@bob read -> conflict
         A@bob write -> conflict
         A@bob release a 3 -> conflict
         A@bob register a b -> conflict
         A@bob register 0 b -> good
         A@bob write -> conflict
         B keys -> a b
         A@bob logout -> done
         A login -> done
         A write -> conflict
         A logout -> done
         A@alice login -> done
         A@alice write -> good
         A@alice release a 3 -> good",
    );
}

#[test]
fn named_port_is_that_of_its_user() {
    TestTarget::new("A@alice B@bob").play(
        "B@bob register 0 b for A -> good
         A@alice register b a -> good
         B@bob reserve b 1 -> good
         B@bob move b c A -> good
         A@alice held -> c 1
         A@alice write -> good
         A@alice logout -> done
         A@eve login -> done
         A@eve write -> conflict",
    );
}

#[test]
fn reservation_moves_to_no_user_by_chance() {
    TestTarget::new("A@alice A@eve B").play(
        "B register 0 b -> good
         B reserve b 1 -> good
         B move b c A -> 5/26/00@24
         A@eve held -> b 1
         A@alice register 0 a -> good
         B move b c A -> good
         A@alice held -> c 1
         A@alice write -> good
         A@eve write -> conflict",
    );
}

/// Another user logs in with the name and ISID of a registered port that is logged out.
#[test]
fn move_goes_to_the_registered_user_who_is_away() {
    TestTarget::new("A@alice B").play(
        "A@alice register 0 a -> good
         B register 0 b -> good
         B reserve b 1 -> good
         A@alice logout -> done
         A@eve login -> done
         B move b c A -> good
         A@eve write -> conflict
         A@alice login -> done
         A@alice held -> c 1
         A@alice write -> good",
    );
}

#[test]
fn spec_i_pt_names_the_registered_user_who_is_away() {
    for name in ["A", "*A"] {
        TestTarget::new("A@alice B").play(&format!(
            "A@alice register 0 b -> good
             A@alice logout -> done
             A@eve login -> done
             B register 0 b for {name} -> good
             B keys -> b b
             A@eve register b a -> conflict
             A@alice login -> done
             A@alice register b a -> good"
        ));
    }
}

#[test]
fn port_named_before_its_login_is_that_of_the_first_user() {
    TestTarget::new("B").play(
        "B register 0 b for A -> good
         A@alice login -> done
         A@alice register b a -> good
         A@alice logout -> done
         A@bob login -> done
         A@bob register b a -> conflict",
    );
}

#[test]
fn saved_registrations_keep_their_users() {
    let mut world = TestTarget::new("A@alice");
    world.play(
        "A@alice register 0 a aptpl -> save
         A@alice reserve a 3 -> save",
    );
    let (_, saved) = world.lu.saved_state();
    TestTarget::with(disk(), Some(&saved), "A@bob A@alice").play(
        "A@bob write -> conflict
         A@alice write -> good",
    );
}

/// State that an older version saved, or that was saved before CHAP was required.
#[test]
fn saved_registrations_without_a_user_pass_to_the_first_one() {
    let mut world = TestTarget::new("A B");
    world.play(
        "A register 0 a aptpl -> save
         B register 0 b aptpl -> save
         A reserve a 3 -> save",
    );
    let (_, saved) = world.lu.saved_state();
    TestTarget::with(disk(), Some(&saved), "A@alice A@bob B").play(
        "A@alice held -> a 3
         A@alice write -> good
         A@bob write -> conflict
         A@bob register a 0 -> conflict
         B write -> conflict
         B keys -> a b",
    );
}
