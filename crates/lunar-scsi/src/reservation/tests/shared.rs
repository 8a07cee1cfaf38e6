//! Two servers that share the state of a logical unit decide as one server with the same ports does.

use super::world::{basic, moving, out_cdb, port, read, transport_id};
use crate::testing::{commit, disk, fails, pending, run, run_with};
use crate::{CommandError, InstalledEffects, Lu, LuSettings, Nexus, NexusId, Op, Plan, PlanResult};
use lunar_wire::scsi::{Sense, Status, op};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Nexuses of portal group 1 use the first server, those of group 2 the second.
const NAMES: [&str; 6] = ["A", "B", "A2", "C2", "B'", "s2"];
const MAX: usize = 5;

fn settings() -> LuSettings {
    LuSettings { max_registrants: MAX, ..disk() }
}

/// One logical unit, served by one server or by two.
struct Served {
    lus: Vec<Arc<Lu>>,
    nexuses: BTreeMap<&'static str, Nexus>,
}

/// The result of a command, and the names of the nexuses whose tasks it aborts.
type Outcome = (Result<Option<Vec<u8>>, CommandError>, Vec<&'static str>);

impl Served {
    fn by(servers: usize) -> Served {
        let lus: Vec<_> = (0..servers).map(|_| Arc::new(Lu::new(settings(), None).unwrap())).collect();
        if servers > 1 {
            lus.iter().for_each(|lu| lu.share(|| {}));
        }
        let mut served = Served { lus, nexuses: BTreeMap::new() };
        NAMES.iter().for_each(|name| served.attach(name));
        served
    }

    fn server_of(&self, name: &str) -> usize {
        (port(name).own.portal_group_tag as usize - 1).min(self.lus.len() - 1)
    }

    fn attach(&mut self, name: &'static str) {
        let lu = self.lus[self.server_of(name)].clone();
        let mut nexus = lu.attach(port(name), false);
        assert_eq!(run(&mut nexus, &[0; 6]), fails(Sense::POWER_ON));
        self.nexuses.insert(name, nexus);
    }

    fn log_out(&mut self, name: &str) {
        self.nexuses.remove(name);
        let server = self.server_of(name);
        if let Some(pending) = self.lus[server].follow_nexuses() {
            _ = self.publish(server, pending);
        }
    }

    fn reset(&mut self, server: usize) {
        let server = server.min(self.lus.len() - 1);
        if let Some(pending) = self.lus[server].pending_reset() {
            let (answer, installed) = self.publish(server, pending);
            assert_eq!((answer, installed.aborts_all), (Ok(Plan::Done), true));
        }
    }

    fn clear(&mut self, name: &str) {
        let (server, id) = (self.server_of(name), self.nexuses[name].id());
        match self.lus[server].pending_clear(Some(id)) {
            Some(pending) => assert!(self.publish(server, pending).1.aborts_all),
            None => self.lus[server].task_set_cleared(Some(id)),
        }
    }

    /// Publishes a change: the other server installs it.
    fn publish(&self, server: usize, pending: crate::PendingCommit) -> (PlanResult, InstalledEffects) {
        let (bytes, effects) = (pending.bytes().to_vec(), pending.effects());
        let answer = self.lus[server].commit_shared(pending);
        assert_eq!(self.lus[server].shared_state(), bytes);
        let installed = self.lus[1 - server].install_shared(&bytes, &[&effects], true).unwrap();
        assert_eq!(self.lus[1 - server].shared_state(), bytes);
        (answer, installed)
    }

    fn send(&mut self, name: &str, cdb: &[u8], list: Option<&[u8]>) -> Outcome {
        let server = self.server_of(name);
        let nexus = self.nexuses.get_mut(name).unwrap();
        let mut victims = Vec::new();
        let mut answer = match list {
            Some(list) => run_with(nexus, cdb, list),
            None => run(nexus, cdb),
        };
        if self.lus.len() == 1 {
            answer = commit(&self.lus[0], answer).map(|(plan, _)| plan);
        } else if let Ok(Plan::Op(op)) = answer {
            let Op::Persist(pending) = *op else { panic!("{op:?} of a shared unit was not published") };
            let (result, installed) = self.publish(server, pending);
            (answer, victims) = (result, installed.victims);
        }
        let result = answer.map(|plan| match plan {
            Plan::Data(data) => Some(data),
            Plan::Op(op) => {
                let Op::Preempt { victims: own } = *op else { panic!("{op:?}") };
                victims.extend(own);
                None
            }
            _ => None,
        });
        (result, self.names(&victims))
    }

    fn names(&self, ids: &[NexusId]) -> Vec<&'static str> {
        self.nexuses.iter().filter(|(_, nexus)| ids.contains(&nexus.id())).map(|(name, _)| *name).collect()
    }
}

/// Sender, service action, type, the two keys, flags, the named port, and another event.
type Step = (usize, u8, u8, u64, u64, u8, usize, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop::sample::select(vec![1u8, 3, 5, 6, 7, 8]);
    let step = (0..NAMES.len(), 0u8..8, kind, 0u64..4, 0u64..4, 0u8..16, 0..NAMES.len(), 0u8..12);
    prop::collection::vec(step, 1..60)
}

fn play(served: &mut Served, step: &Step) -> Vec<Outcome> {
    let (who, action, kind, key, action_key, flags, other, event) = *step;
    let name = NAMES[who];
    match event {
        0 => {
            served.log_out(name);
            served.attach(name);
        }
        1 => served.reset(port(name).own.portal_group_tag as usize - 1),
        5 => served.clear(name),
        2 => return vec![served.send(name, &[op::RESERVE_6, 0, 0, 0, 0, 0], None)],
        3 => return vec![served.send(name, &[op::RELEASE_6, 0, 0, 0, 0, 0], None)],
        4 => {
            // Control mode page with D_SENSE and TAS.
            // With TAS, cleared commands leave no unit attention.
            let list =
                [&[0u8; 4][..], &[0x0a, 0x0a, (flags & 1) << 2, 0, 0, (flags & 4) << 4], &[0; 6]].concat();
            let cdb = [op::MODE_SELECT_6, 0x10 | (flags >> 1 & 1), 0, 0, list.len() as u8, 0];
            return vec![served.send(name, &cdb, Some(&list))];
        }
        _ => {
            let id = transport_id(NAMES[other]);
            let list = match action {
                7 => moving(key, action_key, flags & 3, 1 + (flags >> 2 & 1) as u16, &id),
                0 if flags & 8 != 0 => {
                    let len = (id.len() as u32).to_be_bytes();
                    [&basic(key, action_key, flags & 0xd)[..], &len, &id].concat()
                }
                _ => basic(key, action_key, flags & 5),
            };
            let cdb = out_cdb(action, kind, list.len() as u32);
            return vec![served.send(name, &cdb, Some(&list))];
        }
    }
    Vec::new()
}

/// The view of each nexus: all unit attentions, access, and the reports.
fn seen(served: &mut Served) -> Vec<Outcome> {
    let mut seen = Vec::new();
    for name in NAMES {
        for action in 0..4 {
            seen.push(served.send(
                name,
                &[op::PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0],
                None,
            ));
        }
        for cdb in [[op::READ_10, 0, 0, 0, 0, 0, 0, 0, 1, 0], [op::WRITE_10, 0, 0, 0, 0, 0, 0, 0, 1, 0]] {
            seen.push(served.send(name, &cdb, None));
        }
        seen.push(served.send(name, &[op::MODE_SENSE_6, 0, 0x0a, 0, 0xff, 0], None));
    }
    seen
}

proptest! {
    #[test]
    fn two_servers_decide_as_one_does(steps in steps()) {
        let (mut one, mut two) = (Served::by(1), Served::by(2));
        for (i, step) in steps.iter().enumerate() {
            prop_assert_eq!(play(&mut one, step), play(&mut two, step), "step {}: {:?}", i, step);
            prop_assert_eq!(seen(&mut one), seen(&mut two), "after step {}: {:?}", i, step);
        }
    }

    #[test]
    fn any_bytes_as_shared_state_change_all_or_nothing(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        effects in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let served = Served::by(2);
        let before = served.lus[0].shared_state();
        if served.lus[0].install_shared(&bytes, &[&effects], true).is_err() {
            prop_assert_eq!(&served.lus[0].shared_state(), &before);
        }
        let valid = served.lus[1].shared_state();
        if served.lus[0].install_shared(&valid, &[&effects], true).is_err() {
            prop_assert_eq!(&served.lus[0].shared_state(), &before);
        }
    }
}

#[test]
fn missed_changes_report_lost_registrations() {
    let mut served = Served::by(2);
    assert_eq!(served.send("A2", &out_cdb(0, 0, 24), Some(&basic(0, 1, 0))).0, Ok(None));
    assert_eq!(served.send("C2", &out_cdb(0, 0, 24), Some(&basic(0, 2, 0))).0, Ok(None));
    assert_eq!(served.send("A", &out_cdb(0, 0, 24), Some(&basic(0, 3, 0))).0, Ok(None));
    // The second server misses a preemption of its nexus A2.
    let preempts = run_with(served.nexuses.get_mut("A").unwrap(), &out_cdb(4, 1, 24), &basic(3, 1, 0));
    let pending = pending(preempts);
    assert_eq!(served.lus[0].commit_shared(pending), Ok(Plan::Done));
    let state = served.lus[0].shared_state();
    served.lus[1].install_shared(&state, &[], false).unwrap();
    let mut tur = |name| served.send(name, &[0; 6], None).0;
    assert_eq!(tur("A2"), Err(Sense::REGISTRATIONS_PREEMPTED.into()));
    assert_eq!(tur("C2"), Ok(None));
}

#[test]
fn first_server_after_a_power_loss_keeps_what_aptpl_saved() {
    for (aptpl, keys) in [(0, 0), (1, 8)] {
        let mut served = Served::by(2);
        assert_eq!(served.send("A2", &out_cdb(0, 0, 24), Some(&basic(0, 1, aptpl))).0, Ok(None));
        let lu = served.lus[0].clone();
        lu.power_on_shared();
        let data = read(served.nexuses.get_mut("A").unwrap(), 0).unwrap();
        assert_eq!(
            data,
            [&[0, 0, 0, 0, 0, 0, 0, keys][..], &[0, 0, 0, 0, 0, 0, 0, 1][..keys as usize]].concat()
        );
    }
}

#[test]
fn shared_unit_does_not_support_sanitize() {
    let lu = Arc::new(Lu::new(LuSettings { shared: true, ..disk() }, None).unwrap());
    let mut nexus = crate::testing::nexus(&lu, "a");
    assert_eq!(run(&mut nexus, &[op::SANITIZE, 2, 0, 0, 0, 0, 0, 0, 0, 0]), fails(Sense::INVALID_OPCODE));
}

#[test]
fn held_unit_answers_busy_until_it_is_released() {
    let mut served = Served::by(2);
    served.lus[0].hold(true);
    assert_eq!(served.send("A", &[0; 6], None).0, Err(Status::Busy.into()));
    assert_eq!(served.send("A2", &[0; 6], None).0, Ok(None));
    served.lus[0].hold(false);
    assert_eq!(served.send("A", &[0; 6], None).0, Ok(None));
}

/// A session of a victim may begin while the change is published.
#[test]
fn victims_are_those_when_the_change_takes_effect() {
    let mut served = Served::by(2);
    assert_eq!(served.send("A", &out_cdb(0, 0, 24), Some(&basic(0, 1, 0))).0, Ok(None));
    assert_eq!(served.send("B", &out_cdb(0, 0, 24), Some(&basic(0, 2, 0))).0, Ok(None));
    served.log_out("B");
    let preempts = run_with(served.nexuses.get_mut("A").unwrap(), &out_cdb(5, 1, 24), &basic(1, 2, 0));
    let preempts = pending(preempts);
    served.attach("B");
    let victims = vec![served.nexuses["B"].id()];
    assert_eq!(served.lus[0].commit_shared(preempts), Ok(Plan::op(Op::Preempt { victims })));
}

/// The end of the nexus is published, although a change of another server came first.
#[test]
fn reserve_of_a_lost_nexus_ends_after_another_change() {
    let mut served = Served::by(2);
    let own = port("A").own.relative;
    served.lus[0].set_own_ports(vec![own]);
    assert_eq!(served.send("A", &[op::RESERVE_6, 0, 0, 0, 0, 0], None).0, Ok(None));
    served.nexuses.remove("A");
    let state = served.lus[1].shared_state();
    served.lus[0].install_shared(&state, &[], true).unwrap();
    let conflict = Err(Status::ReservationConflict.into());
    assert_eq!(served.send("A2", &[0; 6], None).0, conflict);
    let ends = served.lus[0].follow_nexuses().unwrap();
    _ = served.publish(0, ends);
    assert_eq!(served.send("A2", &[0; 6], None).0, Ok(None));
}

#[test]
fn reserve_through_ports_of_a_fenced_server_ends() {
    let mut served = Served::by(2);
    assert_eq!(served.send("A2", &[op::RESERVE_6, 0, 0, 0, 0, 0], None).0, Ok(None));
    let conflict = Err(Status::ReservationConflict.into());
    assert_eq!(served.send("A", &[0; 6], None).0, conflict);
    served.lus[0].release_ports(&[port("A").own.relative]);
    assert_eq!(served.send("A", &[0; 6], None).0, conflict);
    served.lus[0].release_ports(&[port("A2").own.relative]);
    assert_eq!(served.send("A", &[0; 6], None).0, Ok(None));
}
