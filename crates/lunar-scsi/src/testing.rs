//! Helpers for the tests of this crate.

use crate::{
    CommandError, CommitOutcome, InitiatorPort, Lu, LuIdentity, LuSettings, Nexus, NexusPorts, Op,
    PassthroughMode, PeripheralDeviceType, Plan, PlanResult, TargetPort, TargetPorts, TransportProtocol,
};
use lunar_wire::scsi::{Sense, Status, op};
use lunar_wire::srp::PortId;
use std::sync::Arc;

/// Blocks of [`disk`].
pub(crate) const BLOCKS: u64 = 2048;

/// A thin provisioned disk of 1 MiB with 512-byte blocks.
pub(crate) fn disk() -> LuSettings {
    LuSettings {
        device_type: PeripheralDeviceType::Disk,
        identity: LuIdentity {
            vendor: "LUNAR".into(),
            product: "VIRTUAL DISK".into(),
            revision: "0001".into(),
            serial: "0123456789abcdef".into(),
            naa: vec![0x30, 1, 2, 3, 4, 5, 6, 7],
            designators: None,
        },
        block_size: 512,
        physical_block_size: 4096,
        capacity: BLOCKS * 512,
        read_only: false,
        removable: false,
        write_cache: true,
        thin: true,
        max_atomic: 1 << 20,
        medium_compares: false,
        max_registrants: 32,
        reservable: true,
        passthrough: PassthroughMode::None,
        explicit_access: true,
        shared: false,
    }
}

/// A CD-ROM with an image of 1 MiB.
pub(crate) fn cdrom() -> LuSettings {
    let blocks = LuSettings { block_size: 2048, physical_block_size: 2048, ..disk() };
    LuSettings {
        device_type: PeripheralDeviceType::CdRom,
        read_only: true,
        removable: true,
        thin: false,
        ..blocks
    }
}

/// A logical unit of these settings.
pub(crate) fn lu(settings: LuSettings) -> Arc<Lu> {
    Arc::new(Lu::new(settings, None).unwrap())
}

/// The ports of an initiator of this name at portal group 1. The target has groups 1 and 2.
pub(crate) fn port(initiator: &str) -> Arc<NexusPorts> {
    Arc::new(NexusPorts {
        initiator: InitiatorPort::Iscsi { name: initiator.into(), isid: [0x80, 0, 0, 1, 0, 0] },
        user: String::new(),
        target: "iqn.2026-11.org.example:disk".into(),
        own: iscsi_port(1),
        ports: TargetPorts::new([1, 2].map(iscsi_port)),
    })
}

/// The iSCSI port of a portal group.
pub(crate) fn iscsi_port(group: u16) -> TargetPort {
    TargetPort::new(TransportProtocol::Iscsi, group, None)
}

/// The ports of an NVMe host with this identifier, through a portal group.
pub(crate) fn nvme_port(id: u8, group: u16) -> Arc<NexusPorts> {
    let initiator = InitiatorPort::Nvme { name: "nqn.2026-11.org.example:host".into(), id: [id; 16] };
    let own = TargetPort::new(TransportProtocol::Nvme, group, None);
    Arc::new(NexusPorts { initiator, own, ports: TargetPorts::new([own]), ..(*port("x")).clone() })
}

/// The ports of an SRP initiator. Each of the groups 1 and 2 of the target has an iSCSI port and an SRP port.
pub(crate) fn srp_port() -> Arc<NexusPorts> {
    let protocols = [TransportProtocol::Iscsi, TransportProtocol::Srp];
    let ports = [1, 2].map(|group| protocols.map(|protocol| TargetPort::new(protocol, group, None)));
    let initiator = InitiatorPort::Srp(PortId::new(1, 2));
    let (own, ports) = (ports[0][1], TargetPorts::new(ports.concat()));
    Arc::new(NexusPorts { initiator, own, ports, ..(*port("")).clone() })
}

/// A nexus whose POWER ON attention is cleared.
pub(crate) fn nexus(lu: &Arc<Lu>, initiator: &str) -> Nexus {
    nexus_of(lu, port(initiator))
}

/// Like [`nexus`], with these ports.
pub(crate) fn nexus_of(lu: &Arc<Lu>, ports: Arc<NexusPorts>) -> Nexus {
    let mut nexus = lu.attach(ports, false);
    assert_eq!(run(&mut nexus, &[op::TEST_UNIT_READY]), fails(Sense::POWER_ON));
    nexus
}

/// Runs a CDB, padded with zeros.
pub(crate) fn run(nexus: &mut Nexus, cdb: &[u8]) -> PlanResult {
    nexus.begin(&padded(cdb))
}

/// Runs a CDB whose plan is `Plan::Parameters`, with this parameter data.
pub(crate) fn run_with(nexus: &mut Nexus, cdb: &[u8], parameters: &[u8]) -> PlanResult {
    match run(nexus, cdb)? {
        Plan::Parameters { .. } => nexus.parameters(&padded(cdb), parameters),
        other => panic!("{other:?} instead of a wish for parameters"),
    }
}

/// The pending commit of a plan.
pub(crate) fn pending(answer: PlanResult) -> crate::PendingCommit {
    match answer {
        Ok(Plan::Op(op)) => match *op {
            Op::Persist(pending) => pending,
            op => panic!("{op:?} instead of a pending commit"),
        },
        other => panic!("{other:?} instead of a pending commit"),
    }
}

/// Commits a pending commit, if any. Returns the resulting plan, and whether there was one.
pub(crate) fn commit(lu: &Lu, answer: PlanResult) -> Result<(Plan, bool), CommandError> {
    let draft = match answer? {
        Plan::Op(op) => match *op {
            Op::Persist(draft) => draft,
            op => return Ok((Plan::op(op), false)),
        },
        plan => return Ok((plan, false)),
    };
    match lu.commit(draft) {
        CommitOutcome::Done(answer) => answer.map(|plan| (plan, true)),
        CommitOutcome::Again(_) => panic!("a single-threaded test has no concurrent commit"),
    }
}

/// Runs a CDB, and returns its Data-In.
pub(crate) fn data(nexus: &mut Nexus, cdb: &[u8]) -> Vec<u8> {
    match run(nexus, cdb) {
        Ok(Plan::Data(data)) => data,
        other => panic!("{other:?} instead of data"),
    }
}

/// A CHECK CONDITION.
pub(crate) fn fails(sense: Sense) -> PlanResult {
    Err(CommandError { status: Status::CheckCondition, sense: Some(sense) })
}

fn padded(cdb: &[u8]) -> Vec<u8> {
    let mut padded = cdb.to_vec();
    padded.resize(cdb.len().max(16), 0);
    padded
}
