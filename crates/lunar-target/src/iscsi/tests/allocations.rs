//! The fast path allocates no memory, from the PDU of a command to the socket.

use super::connections::{TwoConnections, joined};
use crate::iscsi::dispatch::PduDispatcher;
use crate::iscsi::receive::{PduHandler, ReceivedData, ReceivedPdu};
use crate::test_target::run_test;
use lunar_runtime::SendPump;
use lunar_wire::iscsi::{Bhs, opcode, request};
use lunar_wire::scsi::cdb;

/// Bytes of a command's data.
const LEN: u32 = 4096;
const BLOCKS: u16 = 8;

/// Counts the allocations while a command is processed and answered.
fn allocations(joined: &TwoConnections, header: Bhs, data: &[u8]) -> u64 {
    let connection = joined.nexus().state().front().connections()[0].clone();
    let counted = allocation_counter::measure(|| {
        let pdu =
            ReceivedPdu { header, ahs: &[], data: ReceivedData::Bytes(data), intact: true, behind: &[] };
        let nexus = joined.nexus();
        let receives = nexus.begin_receive();
        assert!(receives.is_some());
        assert!(PduDispatcher::new(&mut nexus.state(), &connection).take(pdu));
        nexus.end_receive();
        SendPump::flush(&connection);
    });
    counted.count_total
}

#[test]
fn cached_read_and_immediate_write_of_4_kib_allocate_nothing() {
    run_test(|target| async move {
        let (mut host, _other, joined) = joined(&target).await;
        let [mut reads, mut writes] = [Vec::new(), Vec::new()];
        // The first commands fill the queue, the pool and the snapshot of the nexus.
        for _ in 0..8 {
            let mut read = host.command(&cdb::read_10(0, BLOCKS));
            request::set_read(&mut read, LEN);
            reads.push(allocations(&joined, read, &[]));
            host.next().await.expect("an answer");
            let mut write = host.command(&cdb::write_10(0, BLOCKS, false));
            request::set_write(&mut write, LEN, false);
            write.set_data_len(LEN as usize);
            writes.push(allocations(&joined, write, &[7; LEN as usize]));
            assert_eq!(host.receive(opcode::SCSI_RESPONSE).await.scsi_status(), 0);
        }
        assert_eq!((&reads[4..], &writes[4..]), (&[0; 4][..], &[0; 4][..]), "{reads:?} {writes:?}");
    });
}
