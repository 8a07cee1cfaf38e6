//! Checks that fast paths obey the command table: none skips a rule of a row.

use crate::table::{self, ReservationClass, Row};
use crate::testing::*;
use crate::{Concurrency, Lu, LuSettings, Nexus, Plan, PlanResult};
use lunar_wire::scsi::{Sense, op};
use std::sync::Arc;

/// A logical unit, and the nexus that sends the command.
type LuAndNexus = (Arc<Lu>, Nexus);

/// A condition under which some commands must not reach the medium.
struct Rule {
    name: &'static str,
    world: fn() -> LuAndNexus,
    /// Whether this condition blocks a row.
    stops: fn(&Row) -> bool,
}

fn plain() -> LuAndNexus {
    let lu = lu(disk());
    let nexus = nexus(&lu, "a");
    (lu, nexus)
}

fn with(settings: LuSettings) -> LuAndNexus {
    let lu = lu(settings);
    let nexus = nexus(&lu, "a");
    (lu, nexus)
}

fn protected() -> LuAndNexus {
    let lu = lu(disk());
    let mut nexus = lu.attach(port("a"), true);
    assert_eq!(run(&mut nexus, &[op::TEST_UNIT_READY]), fails(Sense::POWER_ON));
    (lu, nexus)
}

/// Another nexus holds a persistent reservation of this type.
fn reserved(kind: u8) -> LuAndNexus {
    let (lu, asks) = plain();
    let mut holder = nexus(&lu, "b");
    for (action, key, action_key) in [(0, 0, 1), (1, 1, 0)] {
        let mut list = [0; 24];
        (list[7], list[15]) = (key, action_key);
        let cdb = [op::PERSISTENT_RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, 24, 0];
        commit(&lu, run_with(&mut holder, &cdb, &list)).expect("reserved");
    }
    // The registration outlives its nexus.
    drop(holder);
    (lu, asks)
}

fn after(cdb: &[u8]) -> LuAndNexus {
    let (lu, mut nexus) = with(LuSettings { removable: true, ..disk() });
    let answer = run(&mut nexus, cdb);
    commit(&lu, answer).expect("done");
    (lu, nexus)
}

fn changed(change: fn(&Lu)) -> LuAndNexus {
    let (lu, nexus) = plain();
    change(&lu);
    (lu, nexus)
}

fn busy(lu: &Lu) {
    let mut state = lu.change();
    state.busy = true;
    state.mark_changed();
}

const RULES: &[Rule] = &[
    Rule { name: "none", world: plain, stops: |_| false },
    Rule {
        name: "write cache off",
        world: || with(LuSettings { write_cache: false, ..disk() }),
        stops: |_| false,
    },
    Rule {
        name: "medium read only",
        world: || with(LuSettings { read_only: true, ..disk() }),
        stops: |r| r.writes,
    },
    Rule { name: "access read only", world: protected, stops: |r| r.writes },
    Rule { name: "write exclusive", world: || reserved(1), stops: |r| r.allowed == ReservationClass::Never },
    Rule {
        name: "exclusive access",
        world: || reserved(3),
        stops: |r| r.allowed != ReservationClass::Always,
    },
    Rule { name: "unit attention", world: || changed(Lu::reset), stops: |r| !r.despite_attention },
    Rule { name: "busy", world: || changed(busy), stops: |_| true },
    Rule { name: "ejected", world: || after(&[op::START_STOP_UNIT, 0, 0, 0, 2, 0]), stops: |r| r.medium },
    Rule { name: "sanitizing", world: || after(&[op::SANITIZE, 2]), stops: |r| !r.while_sanitizing },
];

/// A CDB of this row for one block at LBA 0.
fn one_block(row: &Row) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (row.opcode, row.service_action.unwrap_or(0) as u8);
    let count = match row.opcode >> 5 {
        0 => 4,
        1 | 2 => 8,
        5 => 9,
        _ => 13,
    };
    cdb[count] = row.usage.get(count).map_or(0, |mask| mask & 1);
    cdb
}

/// The CDB of [`one_block`], and all CDBs that differ from it in one bit.
fn variants(row: &Row) -> impl Iterator<Item = [u8; 16]> {
    let whole = one_block(row);
    let bits = (8..128).map(move |bit| {
        let mut cdb = whole;
        cdb[bit / 8] ^= 1 << (bit % 8);
        cdb
    });
    std::iter::once(whole).chain(bits)
}

/// Whether a target may execute the plan at once, beside other commands.
fn is_at_once(answer: &PlanResult) -> bool {
    matches!(answer, Ok(Plan::Read { .. } | Plan::Write { .. }))
}

fn is_stable(lu: &Lu, cdb: &[u8; 16]) -> bool {
    !lu.write_cache() || cdb[0] != op::WRITE_6 && cdb[1] & 0x08 != 0
}

#[test]
fn plan_that_is_done_at_once_keeps_each_rule_of_its_row() {
    for rule in RULES {
        for row in table::rows(&disk()) {
            let (lu, mut nexus) = (rule.world)();
            let cdb = one_block(row);
            let answer = nexus.begin(&cdb);
            let what = format!("{:02x} under {}: {answer:?}", row.opcode, rule.name);
            assert!(!is_at_once(&answer) || row.concurrency == Concurrency::Shared, "not alone: {what}");
            assert!(!is_at_once(&answer) || !(rule.stops)(row), "not refused: {what}");
            if let Ok(Plan::Write { stable, .. }) = answer {
                assert!(row.writes, "no write: {what}");
                assert_eq!(stable, is_stable(&lu, &cdb), "{what}");
            }
            let addressed = row.writes && row.service_action.is_none();
            assert!(rule.name != "none" || !addressed || answer.is_ok(), "never tried: {what}");
        }
    }
}

#[test]
fn snapshot_plan_matches_the_table() {
    let mut fast = 0;
    for rule in RULES {
        for row in table::rows(&disk()) {
            let (_lu, mut nexus) = (rule.world)();
            nexus.refresh();
            for cdb in variants(row) {
                let Some(plan) = nexus.snapshot.plan(&cdb) else { continue };
                fast += 1;
                assert!(!(rule.stops)(row), "{cdb:02x?} under {}", rule.name);
                assert_eq!(nexus.dispatch(&cdb, None), Ok(plan), "{cdb:02x?} under {}", rule.name);
            }
        }
    }
    assert!(fast > 100, "{fast}");
}
