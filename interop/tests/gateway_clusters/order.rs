//! A search for an order of commands that explains all their answers as those of one server.

use crate::commands::{GATEWAYS, HOSTS};
use crate::model::{Answer, Command, Model};
use std::collections::HashSet;
use std::time::Instant;

/// A command of a host, with the time at which it was sent and answered.
#[derive(Debug)]
pub struct Event {
    pub command: Command,
    pub sent: Instant,
    pub answered: Instant,
    /// None: the command was aborted. It may have taken place before.
    pub answer: Option<Answer>,
}

/// The part of the history that is explained.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Place {
    /// The number of commands of each host.
    done: [usize; HOSTS.len()],
    /// The number of changes of the log.
    changes: usize,
    /// The last time at which a command was sent that made a change.
    change_sent: Option<Instant>,
    /// The same, for commands through each gateway that made none.
    read_sent: [Option<Instant>; GATEWAYS.len()],
}

impl Place {
    fn done_by(mut self, host: usize) -> [usize; HOSTS.len()] {
        self.done[host] += 1;
        self.done
    }

    /// Adds a command. `None`: it was answered before an explained one was sent, so it cannot follow that one. A gateway
    /// answers commands that change nothing from its own copy of the state, and another one may have a newer copy at that
    /// time. So the order of such commands through two gateways is open.
    fn then(mut self, host: usize, event: &Event, is_change: bool) -> Option<Place> {
        let at = usize::from(HOSTS[host]) - 1;
        let reads = if is_change { self.read_sent.into_iter().max().flatten() } else { self.read_sent[at] };
        if Some(event.answered) < reads.max(self.change_sent) {
            return None;
        }
        let last = if is_change { &mut self.change_sent } else { &mut self.read_sent[at] };
        *last = (*last).max(Some(event.sent));
        self.done = self.done_by(host);
        self.changes += usize::from(is_change);
        Some(self)
    }
}

/// The search for an order, depth first.
pub struct Search<'a> {
    model: &'a mut Model,
    histories: &'a [Vec<Event>],
    /// The members that made the changes.
    members: &'a [u8],
    end: &'a [u8],
    /// Places with their states from which no order leads to the end.
    failed: HashSet<(Place, Vec<u8>)>,
}

impl<'a> Search<'a> {
    /// A search whose order makes the changes of these members, and leads to the state `end`.
    pub fn new(
        model: &'a mut Model,
        histories: &'a [Vec<Event>],
        members: &'a [u8],
        end: &'a [u8],
    ) -> Search<'a> {
        Search { model, histories, members, end, failed: HashSet::new() }
    }

    /// Whether an order of all commands begins with this state.
    pub fn explains_all(mut self, state: &[u8]) -> bool {
        self.continues(Place::default(), state)
    }

    /// Whether an order of the other commands leads from this state to the end.
    fn continues(&mut self, place: Place, state: &[u8]) -> bool {
        let histories = self.histories;
        let mut next: Vec<_> = (0..HOSTS.len())
            .filter_map(|host| Some((host, histories[host].get(place.done[host])?)))
            .collect();
        if next.is_empty() {
            return place.changes == self.members.len() && state == self.end;
        }
        if self.failed.contains(&(place, state.to_vec())) {
            return false;
        }
        next.sort_by_key(|(_, event)| event.answered);
        let is_explained = next.into_iter().any(|(host, event)| self.explains(place, state, host, event));
        if !is_explained {
            self.failed.insert((place, state.to_vec()));
        }
        is_explained
    }

    /// Whether the command may be next.
    fn explains(&mut self, place: Place, state: &[u8], host: usize, event: &Event) -> bool {
        let (answer, next) = self.model.execute(state, host, &event.command);
        let is_aborted = event.answer.is_none();
        if is_aborted {
            let without = Place { done: place.done_by(host), ..place };
            if self.continues(without, state) {
                return true;
            }
        } else if event.answer != Some(answer) {
            return false;
        }
        if next.is_none() && is_aborted
            || next.is_some() && self.members.get(place.changes) != Some(&HOSTS[host])
        {
            return false;
        }
        let is_change = next.is_some();
        let state = next.unwrap_or_else(|| state.to_vec());
        place.then(host, event, is_change).is_some_and(|place| self.continues(place, &state))
    }
}

pub fn shown(histories: &[Vec<Event>], members: &[u8]) -> String {
    let mut events: Vec<_> =
        histories.iter().enumerate().flat_map(|(host, all)| all.iter().map(move |e| (host, e))).collect();
    events.sort_by_key(|(_, event)| event.sent);
    let begin = events[0].1.sent;
    let mut text = format!("changes of the gateways {members:?}\n");
    for (host, event) in events {
        let [sent, answered] = [event.sent, event.answered].map(|time| (time - begin).as_micros());
        let (command, gateway) = (&event.command, HOSTS[host]);
        text += &format!(
            "{sent:6} to {answered:6} us, host {host} on gateway {gateway}: {:02x?} {:02x?}\n    {:02x?}\n",
            command.cdb, command.parameters, event.answer
        );
    }
    text
}

mod tests {
    use super::*;
    use crate::commands::hosts;
    use interop::reserve::RESERVATION_CONFLICT;
    use std::time::Duration;

    /// Commands of two hosts, one after the other, and whether they are explained.
    fn is_explained(first: (usize, Command, Answer), second: (usize, Command, Answer), member: u8) -> bool {
        let mut model = Model::new(&hosts(), &GATEWAYS);
        let before = model.state();
        let end = model.execute(&before, first.0, &first.1).1.expect("a change");
        let mut histories: Vec<Vec<Event>> = (0..HOSTS.len()).map(|_| Vec::new()).collect();
        let begin = Instant::now();
        for (at, (host, command, answer)) in [first, second].into_iter().enumerate() {
            let time = |ms| begin + Duration::from_millis(at as u64 * 10 + ms);
            histories[host].push(Event { command, sent: time(0), answered: time(5), answer: Some(answer) });
        }
        Search::new(&mut model, &histories, &[member], &end).explains_all(&before)
    }

    #[test]
    fn contradictions_in_a_history_are_found() {
        let list = [[0; 8], 7u64.to_be_bytes(), [0; 8]].concat();
        let register = Command { cdb: vec![0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], parameters: list };
        let keys = Command { cdb: vec![0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0], parameters: Vec::new() };
        let good = |data: &[u8]| Answer { status: 0, sense: 0, data: data.to_vec() };
        let (none, one) = (good(&[0; 8]), good(&[0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7]));
        let conflict = Answer { status: RESERVATION_CONFLICT, ..good(&[]) };
        for (answer, keys_read, member, expected) in [
            (good(&[]), one.clone(), 1, true),
            (good(&[]), none, 1, false),
            (good(&[]), one.clone(), 2, false),
            (conflict, one, 1, false),
        ] {
            let (first, second) = ((0, register.clone(), answer), (3, keys.clone(), keys_read));
            assert_eq!(
                is_explained(first.clone(), second.clone(), member),
                expected,
                "{first:?}, {second:?}"
            );
        }
    }
}
