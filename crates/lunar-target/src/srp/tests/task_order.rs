//! Commands that take the task set lock exclusively, sent with all data while another command holds it.

use super::test_target::{HostResponse, TestTarget, command, on_core};
use crate::LogicalUnit;
use lunar_scsi::{
    Concurrency, CoreIndex, InitiatorPort, Nexus, NexusPorts, TargetPort, TargetPorts, TransportProtocol,
};
use lunar_wire::scsi::{cdb, op};
use lunar_wire::srp::{DataBuffer, PortId, SrpCommand, SrpTaskAttribute};
use std::sync::Arc;

/// A target, and its logical unit.
fn target() -> (TestTarget, Arc<LogicalUnit>) {
    let mut unit = None;
    let target = TestTarget::with(|target| unit = target.luns.get(&0).cloned());
    (target, unit.expect("a disk"))
}

fn nexus(unit: &LogicalUnit) -> Nexus {
    let port = NexusPorts {
        initiator: InitiatorPort::Srp(PortId::new(7, 7)),
        user: String::new(),
        target: super::test_target::NAME.into(),
        own: TargetPort::new(TransportProtocol::Srp, 1, None),
        ports: TargetPorts::new([]),
    };
    unit.lu.attach(Arc::new(port), false)
}

/// The operation codes and service actions that the command table marks as exclusive.
fn exclusive() -> Vec<[u8; 2]> {
    let (_world, unit) = target();
    let nexus = nexus(&unit);
    let all = (0..=255).flat_map(|opcode| (0..32).map(move |action| [opcode, action]));
    let mut found: Vec<_> = all.filter(|cdb| nexus.concurrency(cdb) == Concurrency::Exclusive).collect();
    // Operation codes other than SANITIZE need only one entry for all service actions.
    found.dedup_by_key(|[opcode, action]| (*opcode, if *opcode == op::SANITIZE { *action } else { 0 }));
    found
}

/// A command with this operation code that has an effect, and its Data-Out.
fn sample([opcode, action]: [u8; 2]) -> ([u8; 16], Vec<u8>) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, action);
    match opcode {
        op::WRITE_ATOMIC_16 | op::ORWRITE_16 | op::COMPARE_AND_WRITE => {
            cdb[13] = 1;
            (cdb, vec![0; if opcode == op::COMPARE_AND_WRITE { 1024 } else { 512 }])
        }
        op::MODE_SELECT_6 | op::MODE_SELECT_10 => {
            let (len_at, header) = if opcode == op::MODE_SELECT_6 { (4, 4) } else { (8, 8) };
            let mut list = vec![0; header + 20];
            list[header..header + 3].copy_from_slice(&[0x08, 0x12, 0x04]);
            (cdb[1], cdb[len_at]) = (0x10, list.len() as u8);
            (cdb, list)
        }
        // Overwrite with a pattern of four bytes.
        op::SANITIZE if action == 1 => {
            cdb[8] = 8;
            (cdb, vec![1, 0, 0, 4, 7, 7, 7, 7])
        }
        op::SANITIZE => (cdb, Vec::new()),
        _ => panic!("{opcode:02x}: an exclusive command needs a sample here"),
    }
}

/// Sends the command while another one holds the lock. It must not be answered before the lock is released.
async fn expect_waits_for_lock(cdb: &[u8; 16], data: &[u8], attribute: SrpTaskAttribute) {
    let (target, unit) = target();
    let mut host = target.host(1, false).await.receive_attentions().await;
    let inside = unit.task_set.handle(CoreIndex::current()).lock_shared().await;
    let data_out = if data.is_empty() { DataBuffer::None } else { DataBuffer::Immediate(data) };
    host.send(&SrpCommand { data_out, attribute, ..command(5, cdb) });
    host.expect_silence().await;
    drop(inside);
    assert_eq!(host.answer().await, HostResponse::good(5), "{cdb:02x?}");
}

#[test]
fn exclusive_command_with_data_waits_for_lock() {
    on_core(async move || {
        let rows = exclusive();
        assert!(rows.iter().any(|[opcode, _]| *opcode == op::WRITE_ATOMIC_16), "{rows:02x?}");
        for row in rows.into_iter().filter(|row| row[0] != op::SANITIZE || (1..=2).contains(&row[1])) {
            let (cdb, data) = sample(row);
            expect_waits_for_lock(&cdb, &data, SrpTaskAttribute::Simple).await;
        }
    });
}

#[test]
fn ordered_write_with_data_waits_for_lock() {
    on_core(async move || {
        expect_waits_for_lock(&cdb::write_10(0, 1, false), &[7; 512], SrpTaskAttribute::Ordered).await;
        expect_waits_for_lock(&cdb::test_unit_ready(), &[], SrpTaskAttribute::Ordered).await;
    });
}
