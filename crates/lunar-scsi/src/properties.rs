//! Properties that hold for every command, whatever the bytes of its CDB.

use crate::lba_range::MAX_TRANSFER;
use crate::testing::*;
use crate::{CopyResult, Lu, LuSettings, Nexus, Op, Plan, PlanResult, table};
use lunar_wire::scsi::Status;
use proptest::collection::vec;
use proptest::prelude::*;

/// CDBs of random bytes. Most have a known operation code and no reserved bit set.
fn cdb() -> impl Strategy<Value = [u8; 16]> {
    (any::<[u8; 16]>(), any::<prop::sample::Index>(), 0..8u8, any::<bool>()).prop_map(
        |(noise, row, form, small)| {
            let (disk, cdrom) = (disk(), cdrom());
            let rows: Vec<_> = table::rows(&disk).chain(table::rows(&cdrom)).collect();
            let row = rows[row.index(rows.len())];
            let usage = row.usage;
            if form == 0 {
                return noise;
            }
            let mut cdb = noise;
            for (i, byte) in cdb.iter_mut().enumerate() {
                let mask = usage.get(i).copied().unwrap_or(0);
                *byte &= mask;
                // Small numbers address the medium; random numbers mostly exceed it.
                if small && (2..usage.len().saturating_sub(3)).contains(&i) {
                    *byte = 0;
                }
            }
            cdb[0] = usage[0];
            cdb[1] |= row.service_action.unwrap_or(0) as u8;
            cdb
        },
    )
}

fn inside(offset: u64, len: u64, capacity: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= capacity)
}

/// Whether a plan addresses only the medium, and transfers no more than the limit.
fn is_bounded(plan: &Plan, capacity: u64) -> bool {
    let moved = |len: u32| len <= MAX_TRANSFER;
    match plan {
        Plan::Done | Plan::Data(_) | Plan::Passthrough => true,
        Plan::Parameters { len } => *len != 0,
        Plan::Read { offset, len } | Plan::Write { offset, len, .. } => {
            moved(*len) && inside(*offset, *len as u64, capacity)
        }
        Plan::Op(op) => match &**op {
            Op::Prefetch { offset, len } | Op::WriteSame { offset, len, .. } => {
                inside(*offset, *len, capacity)
            }
            Op::Verify { offset, len, .. } => {
                moved(u32::try_from(*len).unwrap_or(u32::MAX)) && inside(*offset, *len, capacity)
            }
            Op::WriteVerify { offset, len, .. }
            | Op::WriteAtomic { offset, len, .. }
            | Op::CompareAndWrite { offset, len, .. }
            | Op::OrWrite { offset, len, .. } => moved(*len) && inside(*offset, *len as u64, capacity),
            Op::Unmap { extents, .. } => extents.iter().all(|(offset, len)| inside(*offset, *len, capacity)),
            Op::LbaStatus { offset, .. } => *offset < capacity,
            _ => true,
        },
    }
}

fn is_sound(answer: &PlanResult, capacity: u64) -> bool {
    match answer {
        Ok(plan) => is_bounded(plan, capacity),
        Err(failure) => (failure.status == Status::CheckCondition) == failure.sense.is_some(),
    }
}

/// Ends operations that outlast their command, so that the following commands reach other states.
fn end(lu: &Lu, nexus: &Nexus, answer: PlanResult) -> PlanResult {
    let answer = commit(lu, answer).map(|(plan, _)| plan);
    if let Ok(Plan::Op(op)) = &answer {
        match &**op {
            Op::Sanitize { .. } => lu.sanitize_ended(Ok::<(), ()>(())),
            Op::Copy { list_id, .. } => lu.copy_ended(nexus.id(), *list_id, CopyResult::default()),
            _ => {}
        }
    }
    answer
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_bytes_panic_and_no_plan_leaves_the_medium(
        commands in vec((cdb(), vec(any::<u8>(), 0..96)), 1..32),
        capacity in 0..4 * BLOCKS * 512,
        cd in any::<bool>(),
    ) {
        let settings = if cd { cdrom() } else { LuSettings { removable: true, ..disk() } };
        let capacity = capacity / settings.block_size as u64 * settings.block_size as u64;
        let lu = lu(LuSettings { capacity, ..settings });
        let mut nexuses = [nexus(&lu, "a"), nexus(&lu, "b")];
        for (i, (cdb, parameters)) in commands.iter().enumerate() {
            let nexus = &mut nexuses[i % 2];
            let answer = nexus.begin(cdb);
            prop_assert!(is_sound(&answer, capacity), "{cdb:02x?} {answer:?}");
            let answer = end(&lu, nexus, answer);
            if let Ok(Plan::Parameters { len }) = answer {
                let parameters = &parameters[..parameters.len().min(len as usize)];
                let answer = nexus.parameters(cdb, parameters);
                let answer = end(&lu, nexus, answer);
                prop_assert!(is_sound(&answer, capacity), "{cdb:02x?} {parameters:02x?} {answer:?}");
                prop_assert!(!matches!(answer, Ok(Plan::Parameters { .. })), "{cdb:02x?} wants them twice");
            }
        }
        let (_, saved) = lu.saved_state();
        prop_assert!(crate::Lu::new((*lu.settings()).clone(), Some(&saved)).is_ok());
    }

    #[test]
    fn both_paths_give_the_same_plan(
        opcode in prop::sample::select(vec![0x08u8, 0x0a, 0x28, 0x2a, 0xa8, 0xaa, 0x88, 0x8a]),
        flags in prop::sample::select(vec![0u8, 0x08, 0x10, 0x18, 0x04, 0x20]),
        rest in any::<[u8; 16]>(),
        capacity in prop::sample::select(vec![0u64, 512, 1 << 20, 1 << 40, 1 << 62]),
    ) {
        let lu = lu(LuSettings { capacity, ..disk() });
        let mut n = nexus(&lu, "a");
        n.refresh();
        let usage = table::find(&disk(), &[opcode, 0]).unwrap().usage;
        let mut cdb: [u8; 16] = std::array::from_fn(|i| rest[i] & usage.get(i).copied().unwrap_or(0));
        (cdb[0], cdb[1]) = (opcode, flags);
        if let Some(plan) = n.snapshot.plan(&cdb) {
            prop_assert_eq!(n.dispatch(&cdb, None), Ok(plan));
        }
    }
}

/// Commands of a disk with an allocation length: the CDB, and first byte and size of the field.
const OF_DISKS: &[(&[u8], usize, usize)] = &[
    (&[0x03, 0], 4, 1),
    (&[0x03, 1], 4, 1),
    (&[0x12, 0], 3, 2),
    (&[0x12, 1, 0x83], 3, 2),
    (&[0x12, 1, 0xb0], 3, 2),
    (&[0x1a, 0, 0x3f], 4, 1),
    (&[0x37, 0], 7, 2),
    (&[0x5a, 0, 0x3f], 7, 2),
    (&[0x9e, 0x10], 10, 4),
    (&[0xa3, 0x0c, 0], 6, 4),
    (&[0xa3, 0x0c, 0x81, 0x28], 6, 4),
    (&[0xa3, 0x0d, 0x80], 6, 4),
    (&[0xb7, 0], 6, 4),
    (&[0x12, 1, 0x8f], 3, 2),
    (&[0x1c, 0], 3, 2),
    (&[0x3c, 0x03], 6, 3),
    (&[0x3c, 0x0b], 6, 3),
    (&[0x4d, 0, 0x43], 7, 2),
    (&[0x84, 0x03], 10, 4),
    (&[0xa3, 0x0a], 6, 4),
    (&[0xa3, 0x2a], 6, 4),
];

/// The same for a CD-ROM.
const OF_CDROMS: &[(&[u8], usize, usize)] = &[
    (&[0x43, 0], 7, 2),
    (&[0x43, 0, 2], 7, 2),
    (&[0x46, 0], 7, 2),
    (&[0x4a, 1, 0, 0, 0x10], 7, 2),
    (&[0x51, 0], 7, 2),
    (&[0x52, 1, 0, 0, 0, 1], 7, 2),
    (&[0x5a, 0, 0x3f], 7, 2),
    (&[0xbd, 0], 8, 2),
];

#[test]
fn every_allocation_length_cuts_and_none_leaks() {
    cuts(&mut nexus(&lu(disk()), "a"), OF_DISKS);
    cuts(&mut nexus(&lu(cdrom()), "a"), OF_CDROMS);
}

fn cuts(n: &mut Nexus, commands: &[(&[u8], usize, usize)]) {
    for &(start, at, bytes) in commands {
        let mut cdb = [0; 16];
        cdb[..start.len()].copy_from_slice(start);
        let mut ask = |len: usize| {
            cdb[at..at + bytes].copy_from_slice(&(len as u64).to_be_bytes()[8 - bytes..]);
            match n.begin(&cdb) {
                Ok(Plan::Done) => Vec::new(),
                Ok(Plan::Data(data)) if !data.is_empty() => data,
                other => panic!("{cdb:02x?} {other:?}"),
            }
        };
        let longest = if bytes == 1 { 255 } else { 65535 };
        let full = ask(longest);
        assert!(full.len() < longest, "{start:02x?}");
        for len in 0..=longest {
            assert_eq!(ask(len), full[..len.min(full.len())], "{start:02x?} {len}");
        }
    }
}
