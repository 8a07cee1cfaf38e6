//! Commands of two nexuses on one logical unit. Input: a byte of settings, the number of blocks as two bytes, then
//! commands. The bits of the settings are CD, removable, blocks of 4096 bytes, write cache off, read-only, thick
//! provisioning, passthrough with a shared nexus, and passthrough with a nexus each. A command is a byte with the
//! nexus (lowest bit) and the length of the CDB beyond 16 bytes in words (next three bits), the CDB, the length of
//! the parameter list as a byte, and the parameter list.

use lunar_scsi::{
    CommitOutcome, CopyResult, InitiatorPort, Lu, LuIdentity, LuSettings, Nexus, NexusPorts, Op,
    PassthroughMode, PeripheralDeviceType, Plan, PlanResult, TargetPort, TargetPorts, TransportProtocol,
};
use lunar_wire::scsi::Status;
use std::sync::Arc;

fn settings(flags: u8, blocks: u64) -> LuSettings {
    let cd = flags & 1 != 0;
    let block_size = match (cd, flags & 4 != 0) {
        (true, _) => 2048,
        (_, true) => 4096,
        _ => 512,
    };
    LuSettings {
        device_type: if cd { PeripheralDeviceType::CdRom } else { PeripheralDeviceType::Disk },
        identity: LuIdentity {
            vendor: "LUNAR".into(),
            product: "VIRTUAL DISK".into(),
            revision: "0001".into(),
            serial: "0123456789abcdef".into(),
            naa: vec![0x30, 1, 2, 3, 4, 5, 6, 7],
            designators: None,
        },
        block_size,
        physical_block_size: block_size,
        capacity: blocks * u64::from(block_size),
        read_only: cd || flags & 16 != 0,
        removable: cd || flags & 2 != 0,
        write_cache: flags & 8 == 0,
        thin: !cd && flags & 32 == 0,
        max_atomic: 1 << 20,
        medium_compares: false,
        max_registrants: 4,
        reservable: flags & 0xc0 != 0xc0,
        passthrough: match flags & 0xc0 {
            0x40 => PassthroughMode::Shared,
            0x80 => PassthroughMode::PerNexus,
            _ => PassthroughMode::None,
        },
        explicit_access: flags & 0xc0 != 0xc0,
        shared: false,
    }
}

fn port_of(group: u16) -> TargetPort {
    TargetPort::new(TransportProtocol::Iscsi, group, None)
}

fn nexus(lu: &Arc<Lu>, initiator: &str) -> Nexus {
    let port = NexusPorts {
        initiator: InitiatorPort::Iscsi { name: initiator.into(), isid: [0x80, 0, 0, 1, 0, 0] },
        user: String::new(),
        target: "iqn.2026-11.org.example:disk".into(),
        own: port_of(1),
        ports: TargetPorts::new([1, 2].map(port_of)),
    };
    lu.attach(Arc::new(port), false)
}

pub fn run(input: &[u8]) {
    let [flags, hi, lo, commands @ ..] = input else { return };
    let settings = settings(*flags, u64::from(u16::from_be_bytes([*hi, *lo])));
    let Ok(lu) = Lu::new(settings.clone(), None).map(Arc::new) else { return };
    let mut nexuses = [nexus(&lu, "iqn.2026-11.org.example:a"), nexus(&lu, "iqn.2026-11.org.example:b")];
    let mut rest = commands;
    while let Some((which, cdb, parameters, after)) = command(rest) {
        rest = after;
        let nexus = &mut nexuses[which];
        nexus.concurrency(&cdb);
        let answer = kept(&lu, nexus.begin(&cdb));
        check(&answer, &settings);
        end(&lu, nexus, &answer);
        if let Ok(Plan::Parameters { len }) = answer {
            assert!(len > 0);
            let parameters = &parameters[..parameters.len().min(len as usize)];
            let answer = kept(&lu, nexus.parameters(&cdb, parameters));
            assert!(!matches!(answer, Ok(Plan::Parameters { .. })), "the parameter list is requested twice");
            check(&answer, &settings);
            end(&lu, nexus, &answer);
        }
    }
    let (_, saved) = lu.saved_state();
    assert!(Lu::new(settings, Some(&saved)).is_ok(), "the saved state is rejected");
}

/// The nexus, the CDB, the parameter list, and the rest of the input.
type Command<'a> = (usize, Vec<u8>, &'a [u8], &'a [u8]);

fn command(input: &[u8]) -> Option<Command<'_>> {
    let (first, rest) = input.split_first()?;
    let (cdb, rest) = rest.split_at_checked(16 + usize::from(first >> 1 & 7) * 4)?;
    let (len, rest) = rest.split_first()?;
    let (parameters, rest) = rest.split_at(usize::from(*len).min(rest.len()));
    Some((usize::from(first & 1), cdb.to_vec(), parameters, rest))
}

/// Commits a change of saved state, as if it were on stable storage.
fn kept(lu: &Lu, answer: PlanResult) -> PlanResult {
    match answer? {
        Plan::Op(op) => match *op {
            Op::Persist(draft) => match lu.commit(draft) {
                CommitOutcome::Done(answer) => {
                    let again = matches!(&answer, Ok(Plan::Op(op)) if matches!(**op, Op::Persist(_)));
                    assert!(!again, "the state is saved twice");
                    answer
                }
                CommitOutcome::Again(_) => panic!("the state changed between draft and commit"),
            },
            op => Ok(Plan::Op(Box::new(op))),
        },
        plan => Ok(plan),
    }
}

/// Ends operations that outlive their command.
fn end(lu: &Lu, nexus: &Nexus, answer: &PlanResult) {
    let Ok(Plan::Op(op)) = answer else { return };
    match &**op {
        Op::Sanitize { .. } => lu.sanitize_ended(Ok::<(), ()>(())),
        Op::Copy { list_id, .. } => lu.copy_ended(nexus.id(), *list_id, CopyResult::default()),
        _ => {}
    }
}

/// Checks that a plan stays within the medium and writes only to a writable one, and that a failure has sense data
/// exactly with CHECK CONDITION.
fn check(answer: &PlanResult, settings: &LuSettings) {
    let plan = match answer {
        Err(failure) => {
            return assert_eq!(failure.status == Status::CheckCondition, failure.sense.is_some());
        }
        Ok(plan) => plan,
    };
    let (offset, len, writes) = match plan {
        Plan::Read { offset, len } => (*offset, u64::from(*len), false),
        Plan::Write { offset, len, .. } => (*offset, u64::from(*len), true),
        Plan::Op(op) => match &**op {
            Op::Prefetch { offset, len } | Op::Verify { offset, len, .. } => (*offset, *len, false),
            Op::WriteSame { offset, len, .. } => (*offset, *len, true),
            Op::WriteVerify { offset, len, .. }
            | Op::WriteAtomic { offset, len, .. }
            | Op::CompareAndWrite { offset, len, .. }
            | Op::OrWrite { offset, len, .. } => (*offset, u64::from(*len), true),
            Op::LbaStatus { offset, .. } => (*offset, 1, false),
            Op::Sanitize { .. } => (0, 0, true),
            Op::Unmap { extents, .. } => {
                assert!(extents.iter().all(|(o, n)| inside(*o, *n, settings)), "{plan:?}");
                (0, 0, true)
            }
            _ => return,
        },
        _ => return,
    };
    assert!(inside(offset, len, settings), "{plan:?} leaves the medium");
    assert!(!(writes && settings.read_only), "{plan:?} writes to a read-only medium");
}

fn inside(offset: u64, len: u64, settings: &LuSettings) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= settings.capacity)
}
