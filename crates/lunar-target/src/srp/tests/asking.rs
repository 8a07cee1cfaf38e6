//! What the target asks by itself: signs of life, to take note of events and of the end.

use super::world::{Answer, Host, command, rest};
use super::{World, on_core};
use crate::registry::Letter;
use crate::setup::Access;
use lunar_wire::scsi::cdb;
use lunar_wire::srp::{Aer, CreditRequest, aer_response, credit_response};
use std::time::Duration;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// One that has said something: before that nothing is sent.
async fn spoken(world: &World) -> Host {
    let mut host = world.host(1, false).await;
    assert_eq!(host.does(&command(1, &cdb::test_unit_ready())).await, Answer::check(1, (6, 0x29, 0)));
    host
}

async fn asked(host: &mut Host) -> CreditRequest {
    CreditRequest::decode(&host.hear().await.expect("a sign of life is wanted")).expect("a request")
}

#[test]
fn a_silent_initiator_is_asked_for_a_sign_of_life() {
    on_core(async move || {
        let world = World::pinging(LONG);
        let mut host = spoken(&world).await;
        let first = asked(&mut host).await;
        assert_eq!(first.credits, 0);
        host.say(&credit_response(first.tag));
        // It does not wait for the end of the time that it has given.
        assert_eq!(host.does(&command(2, &cdb::test_unit_ready())).await, Answer::good(2));
        assert_eq!(world.shared.registry.list().len(), 1);
    });
}

#[test]
fn one_that_gives_signs_of_life_stays() {
    on_core(async move || {
        let world = World::pinging(Duration::from_secs(1));
        let mut host = spoken(&world).await;
        let mut tags = Vec::new();
        for _ in 0..2 {
            let request = asked(&mut host).await;
            tags.push(request.tag);
            host.say(&credit_response(request.tag));
        }
        assert_eq!((tags, world.shared.registry.list().len()), (vec![1, 2], 1));
    });
}

#[test]
fn one_that_gives_none_is_given_up() {
    on_core(async move || {
        let world = World::pinging(Duration::from_millis(1));
        let mut host = spoken(&world).await;
        assert_eq!(asked(&mut host).await.credits, 0);
        host.ends().await;
        while !world.shared.registry.list().is_empty() {
            rest().await;
        }
    });
}

#[test]
fn a_session_that_is_thrown_out_is_told_so() {
    on_core(async move || {
        let world = World::new();
        let mut host = world.host(1, false).await.ready().await;
        let ended = world.shared.registry.end(|_| true, "somebody wants it so").await;
        assert_eq!(ended, 1);
        host.is_logged_out(0).await;
    });
}

#[test]
fn when_the_server_stops_a_command_is_answered_before_its_initiator_is_told() {
    on_core(async move || {
        let world = World::new();
        let mut host = world.host(1, false).await.ready().await;
        host.ask(&command(2, &cdb::test_unit_ready()));
        rest().await;
        world.shared.registry.tell_all(None, |done| Letter::Stop { done }).await;
        assert_eq!(host.answer().await, Answer::good(2));
        host.is_logged_out(0).await;
    });
}

#[test]
fn events_are_told_where_the_access_list_asks_for_it_and_one_at_a_time() {
    let anybody = Access { aen: true, ..Access::default() };
    on_core(async move || {
        let world = World::with(|target| target.access = vec![anybody]);
        let mut host = world.host(1, false).await.ready().await;
        let unit = world.shared.setup().targets.values().next().expect("a target").luns[&0].clone();
        let changes = || world.shared.registry.tell_each(|_| Some(Letter::Attention(unit.clone())));
        changes();
        let heard = host.hear().await.expect("an event");
        let event = Aer::decode(&heard).expect("an event");
        assert_eq!((event.lun, event.sense.len(), &event.sense[12..14]), (0, 18, &[0x2a, 0x09][..]));
        // The first is not answered yet.
        changes();
        host.is_silent().await;
        host.say(&aer_response(event.tag));
        rest().await;
        changes();
        assert_eq!(
            Aer::decode(&host.hear().await.expect("an event")).map(|next| next.tag),
            Ok(event.tag + 1)
        );
    });
}
