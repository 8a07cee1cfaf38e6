//! Parameter lists that are almost valid, which random bytes seldom produce.

use crate::testing::*;
use crate::{Nexus, Op, Plan, PlanResult};
use lunar_wire::be;
use lunar_wire::scsi::op;
use proptest::collection::vec;
use proptest::prelude::*;

/// A valid list with a few bytes changed, which may be cut or extended.
fn mutated(list: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let len = list.len();
    (vec((0..len, any::<u8>()), 0..4), prop_oneof![4 => Just(len), 1 => 1..len + 64]).prop_map(
        move |(changes, len)| {
            let mut list = list.clone();
            changes.iter().for_each(|&(at, value)| list[at] = value);
            list.resize(len, 0);
            list
        },
    )
}

/// Sends a command with a parameter list. The CDB has the list length in `bytes` bytes from byte `at` on.
fn send(n: &mut Nexus, start: &[u8], at: usize, bytes: usize, list: &[u8]) -> PlanResult {
    let mut cdb = [0; 16];
    cdb[..start.len()].copy_from_slice(start);
    cdb[at..at + bytes].copy_from_slice(&(list.len() as u32).to_be_bytes()[4 - bytes..]);
    match n.begin(&cdb)? {
        Plan::Parameters { .. } => n.parameters(&cdb, list),
        plan => Ok(plan),
    }
}

/// Valid lists: SET TARGET PORT GROUPS with two groups, and SANITIZE with a pattern.
const GROUPS: [u8; 12] = [0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1];
const SANITIZE: [u8; 8] = [0x83, 0, 0, 4, 1, 2, 3, 4];

fn log_parameters() -> Vec<u8> {
    let parameter = |code| [0, code, 0x20, 8, 0, 0, 0, 0, 0, 0, 0, 7];
    [&[3, 0, 0, 24][..], &parameter(5), &parameter(6)].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn copy_stays_within_the_media(list in mutated(crate::copy::tests::usual())) {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        if let Ok(Plan::Op(op)) = send(&mut n, &[op::EXTENDED_COPY], 10, 4, &list) {
            let Op::Copy { segments, .. } = *op else { panic!("{op:?}") };
            for (i, segment) in segments.iter().enumerate() {
                if let Ok(range) = segment.range(i as u16, &n, &n) {
                    prop_assert!(range.source + range.len <= BLOCKS * 512);
                    prop_assert!(range.destination + range.len <= BLOCKS * 512);
                }
            }
        }
    }

    #[test]
    fn port_groups_take_known_states_only(list in mutated(GROUPS.to_vec())) {
        let mut n = nexus(&lu(disk()), "a");
        let answer = send(&mut n, &[op::MAINTENANCE_OUT, 0x0a], 6, 4, &list);
        let report = data(&mut n, &[op::MAINTENANCE_IN, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0]);
        prop_assert!(report[4] < 4 && report[16] < 4);
        prop_assert!(answer.is_ok() || report[4] + report[16] == 0, "a refused list changes nothing");
    }

    #[test]
    fn log_values_are_set_whole_or_not_at_all(list in mutated(log_parameters())) {
        let mut n = nexus(&lu(disk()), "a");
        let before = data(&mut n, &[op::LOG_SENSE, 0, 0x43, 0, 0, 0, 0, 1, 0, 0]);
        let answer = send(&mut n, &[op::LOG_SELECT, 0, 0x40], 7, 2, &list);
        let after = data(&mut n, &[op::LOG_SENSE, 0, 0x43, 0, 0, 0, 0, 1, 0, 0]);
        prop_assert!(answer.is_ok() || before == after);
    }

    #[test]
    fn pattern_is_never_longer_than_a_block(list in mutated(SANITIZE.to_vec())) {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        let answer = send(&mut n, &[op::SANITIZE, 0x01], 7, 2, &list);
        let answer = commit(&lu, answer).map(|(plan, _)| plan);
        if let Ok(Plan::Op(op)) = &answer {
            let Op::Sanitize { pattern: Some(pattern), passes, .. } = &**op else { panic!("{op:?}") };
            prop_assert!(*passes > 0 && !pattern.is_empty() && pattern.len() <= 512);
            prop_assert_eq!(pattern.len(), be::get16(&list[2..]) as usize);
        } else {
            prop_assert!(run(&mut n, &[op::TEST_UNIT_READY]).is_ok(), "a refused command begins nothing");
        }
    }
}
