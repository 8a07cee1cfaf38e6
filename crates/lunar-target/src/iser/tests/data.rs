//! The data of commands.

use super::host::{Host, KEYS, NAMES, pattern};
use crate::test_target::{run_ready, run_test};
use lunar_rdma::RemoteAddress;
use lunar_rdma::mem::{EndpointOp, Faults};
use lunar_wire::iscsi::opcode;
use lunar_wire::iser::{IserCapabilities, IserHeader, SAFE_DATA_LEN};
use lunar_wire::scsi::cdb;
use std::rc::Rc;

/// The RDMA Writes of the target into this memory: offset and length.
fn writes(did: &[EndpointOp], place: RemoteAddress) -> Vec<(u64, usize)> {
    let of = |operation: &EndpointOp| match operation {
        EndpointOp::Write { to, len } if to.stag == place.stag => Some((to.offset - place.offset, *len)),
        EndpointOp::Write { .. } => panic!("an RDMA Write elsewhere"),
        _ => None,
    };
    did.iter().filter_map(of).collect()
}

/// The RDMA Reads from this memory: offset and length.
fn reads(did: &[EndpointOp], place: RemoteAddress) -> Vec<(u64, usize)> {
    let of = |operation: &EndpointOp| match operation {
        EndpointOp::Read { from, len, .. } if from.stag == place.stag => {
            Some((from.offset - place.offset, *len))
        }
        EndpointOp::Read { .. } => panic!("an RDMA Read elsewhere"),
        _ => None,
    };
    did.iter().filter_map(of).collect()
}

#[test]
fn written_data_are_read_back() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        for (blocks, immediate) in [
            (1, 0),
            (1, 512),
            (8, 512),
            (16, 8192),
            (64, 8192),
            (2048, 0),
            (2048, 4096),
            (7000, 0),
            (7000, 4096),
        ] {
            let data = pattern(blocks * 512);
            let (itt, place) = host.write(&cdb::write_10(7, blocks as u16, false), &data, immediate);
            let received = host.answer(itt).await;
            assert_eq!((received.status(), received.residual()), (0, (0, 0)), "{blocks} {immediate}");
            host.revoke_if_exposed(place);
            assert!(host.blocks(7, blocks as u16).await == data, "{blocks} {immediate}");
        }
    });
}

/// A session may always have one buffer, even beyond the limit of the pool.
#[test]
fn write_without_memory_is_task_set_full() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let all_of = |len| std::iter::from_fn(|| target.shared.pool.try_get(len)).collect::<Vec<_>>();
        let memory = [1 << 20, 4096].map(all_of);
        host.faults[1].reads.hold();
        let data = pattern(4096);
        let (first, _) = host.write(&cdb::write_10(0, 8, false), &data, 0);
        run_ready().await;
        host.take_operations();
        let (second, place) = host.write(&cdb::write_10(8, 8, false), &data, 512);
        assert_eq!(host.answer(second).await.status(), 0x28, "TASK SET FULL");
        assert_eq!(reads(&host.take_operations(), place), []);
        drop(memory);
        host.faults[1].reads.release();
        assert_eq!(host.answer(first).await.status(), 0);
        let (again, _) = host.write(&cdb::write_10(8, 8, false), &data, 512);
        assert_eq!(host.answer(again).await.status(), 0);
        assert!(host.blocks(0, 16).await == [&data[..], &data].concat());
    });
}

#[test]
fn write_is_read_after_its_immediate_data() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let data = pattern(4096);
        let (itt, place) = host.write(&cdb::write_10(0, 8, false), &data, 1024);
        assert_eq!(host.answer(itt).await.status(), 0);
        assert_eq!(reads(&host.take_operations(), place), [(1024, 3072)]);
        assert!(host.blocks(0, 8).await == data);
    });
}

#[test]
fn whole_tagged_buffer_is_read_after_immediate_data() {
    run_test(|target| async move {
        let mut host = target.connect().await;
        host.negotiate(1, NAMES, &[KEYS, "TaggedBufferForSolicitedDataOnly=No\n"].concat()).await;
        host.receive_attentions().await;
        let data = pattern(4096);
        let place = host.expose(&data);
        let itt = host.write_from(&cdb::write_10(0, 8, false), &data, 1024, place);
        assert_eq!(host.answer(itt).await.status(), 0);
        assert_eq!(reads(&host.take_operations(), place), [(1024, 3072)]);
        assert!(host.blocks(0, 8).await == data);
    });
}

#[test]
fn fully_immediate_write_is_not_read() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let data = pattern(4096);
        let itt =
            host.write_from(&cdb::write_10(0, 8, false), &data, 4096, RemoteAddress { stag: 0, offset: 0 });
        let received = host.answer(itt).await;
        assert_eq!((received.status(), received.invalidated), (0, None));
        assert!(matches!(host.take_operations()[..], [EndpointOp::Send { .. }]));
        assert!(host.blocks(0, 8).await == data);
    });
}

#[test]
fn long_write_is_read_in_bursts() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let data = pattern(600 << 10);
        let (itt, place) = host.write(&cdb::write_10(0, 1200, false), &data, 0);
        assert_eq!(host.answer(itt).await.status(), 0);
        // MaxBurstLength of the test target, and one R2T at a time.
        let want = [(0, 262_144), (262_144, 262_144), (524_288, (600 << 10) - 524_288)];
        assert_eq!(reads(&host.take_operations(), place), want);
        assert!(host.blocks(0, 1200).await == data);
    });
}

#[test]
fn concurrent_writes_complete_in_any_order() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        host.faults[1].reads.hold();
        let all: Vec<Vec<u8>> = (0..24).map(|i| vec![i as u8 + 1; 8192]).collect();
        let mut open: Vec<u32> = all
            .iter()
            .zip(0..)
            .map(|(data, i)| host.write(&cdb::write_10(i * 16, 16, false), data, 0).0)
            .collect();
        crate::test_target::run_ready().await;
        // Responses to other commands overtake them.
        host.expect_alive().await;
        host.faults[1].reads.release();
        while !open.is_empty() {
            let received = host.receive(opcode::SCSI_RESPONSE).await;
            assert_eq!(received.status(), 0);
            open.retain(|itt| *itt != received.bhs.itt());
        }
        for (data, i) in all.iter().zip(0..) {
            assert!(host.blocks(i * 16, 16).await == *data, "{i}");
        }
    });
}

#[test]
fn residual_matches_written_bytes() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        host.write(&cdb::write_10(0, 8, false), &pattern(4096), 4096);
        host.receive(opcode::SCSI_RESPONSE).await;
        // Expected bytes, residual flag and count for two blocks, and transferred bytes.
        for (expected, residual, moved) in [
            (1024, (0, 0), 1024),
            (4096, (0x02, 3072), 1024),
            (512, (0x04, 512), 512),
            (1000, (0x04, 24), 1000),
        ] {
            host.take_operations();
            let (itt, place) = host.read(&cdb::read_10(0, 2), expected);
            let received = host.answer(itt).await;
            assert_eq!((received.status(), received.residual()), (0, residual), "{expected}");
            assert_eq!(writes(&host.take_operations(), place), [(0, moved)], "{expected}");
            let memory = host.revoke_memory(place);
            assert!(memory[..moved] == pattern(4096)[..moved] && memory[moved..].iter().all(|b| *b == 0));
        }
    });
}

#[test]
fn write_of_wrong_length_is_cut_or_rejected() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let data = pattern(4096);
        let (itt, place) = host.write(&cdb::write_10(0, 2, false), &data, 0);
        let received = host.answer(itt).await;
        assert_eq!((received.status(), received.residual()), (0, (0x02, 3072)));
        assert_eq!(reads(&host.take_operations(), place), [(0, 1024)]);
        assert!(host.blocks(0, 2).await == data[..1024]);
        let (itt, place) = host.write(&cdb::write_10(0, 16, false), &data, 0);
        let received = host.answer(itt).await;
        assert_eq!((received.status(), received.residual()), (2, (0x04, 4096)));
        assert!(host.blocks(0, 2).await == data[..1024]);
        assert!(host.blocks(2, 6).await == [0; 3072], "no data are stored");
        host.revoke_memory(place);
    });
}

#[test]
fn long_read_is_written_before_response() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let data = pattern(1 << 20);
        let (itt, _) = host.write(&cdb::write_10(0, 2048, false), &data, 0);
        assert_eq!(host.answer(itt).await.status(), 0);
        host.take_operations();
        let (itt, place) = host.read(&cdb::read_10(0, 2048), 1 << 20);
        let received = host.answer(itt).await;
        assert_eq!((received.status(), received.residual()), (0, (0, 0)));
        let did = host.take_operations();
        let moved = writes(&did, place);
        assert_eq!(moved.iter().map(|(_, len)| len).sum::<usize>(), 1 << 20);
        let sends = did.iter().filter(|o| matches!(o, EndpointOp::Send { .. })).count();
        assert_eq!((sends, matches!(did.last(), Some(EndpointOp::Send { .. }))), (1, true));
        assert!(host.revoke_memory(place) == data);
    });
}

#[test]
fn check_condition_writes_no_data() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        let (itt, _) = host.read(&cdb::read_10(u32::MAX, 8), 4096);
        let received = host.answer(itt).await;
        assert_eq!((received.status(), received.residual()), (2, (0x02, 4096)));
        assert_eq!((received.data[2] & 0x7f, received.data[2 + 2]), (0x70, 5), "ILLEGAL REQUEST");
        assert!(matches!(host.take_operations()[..], [EndpointOp::Send { .. }]));
    });
}

#[test]
fn rejected_write_is_not_read() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        for immediate in [0, 512] {
            let (itt, _) = host.write(&cdb::write_10(u32::MAX, 8, false), &pattern(4096), immediate);
            let received = host.answer(itt).await;
            assert_eq!((received.status(), received.data[2 + 2]), (2, 5), "ILLEGAL REQUEST");
            assert!(matches!(host.take_operations()[..], [EndpointOp::Send { .. }]));
        }
    });
}

#[test]
fn full_feature_data_segment_is_at_most_128_bytes() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        // One byte more would not fit into the receive buffers of this host. A Reject contains the rejected headers.
        let mut bhs = host.command(&cdb::test_unit_ready());
        bhs.set_opcode(0x1c);
        let ahs = [0; 1020];
        bhs.set_ahs_len(ahs.len());
        host.send_bytes(&[&IserHeader::PLAIN.encode()[..], bhs.as_bytes(), &ahs].concat());
        host.cmd_sn -= 1;
        let received = host.receive(opcode::REJECT).await;
        assert_eq!((received.data.len(), &received.data[..48]), (SAFE_DATA_LEN, &bhs.as_bytes()[..]));
        // Longer parameter data are transferred by RDMA.
        let (itt, place) = host.read(&cdb::report_supported_operation_codes(4096), 4096);
        let received = host.answer(itt).await;
        let moved = 4096 - received.residual().1 as usize;
        assert!(moved > SAFE_DATA_LEN && received.data.is_empty());
        assert_eq!(writes(&host.take_operations(), place).iter().map(|w| w.1).sum::<usize>(), moved);
    });
}

/// Sense data beyond the limit of a message are cut.
#[test]
fn sense_data_are_cut_to_initiator_limit() {
    use lunar_runtime::send_queue::Payload;
    use lunar_wire::iscsi::pdu;
    for len in [18_usize, 125, 126, 127, 252] {
        let sense: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let data = [&(len as u16).to_be_bytes()[..], &sense].concat();
        let (head, payload) =
            super::super::datamover::message(pdu::scsi_response(1, 0, 0, 2), Payload::Bytes(data));
        let message = [&head[..], payload.bytes()].concat();
        let pdu = lunar_wire::iser::IserPdu::decode(&message).expect("a PDU");
        let kept = len.min(126);
        assert_eq!(pdu.data, [&(kept as u16).to_be_bytes()[..], &sense[..kept]].concat());
    }
}

#[test]
fn only_agreed_tags_are_invalidated() {
    run_test(|target| async move {
        for invalidate in [true, false] {
            let private = IserCapabilities { zero_based: false, invalidate }.encode();
            let mut host = target.connect_with(&private, [Rc::<Faults>::default(), Rc::default()]).await;
            host.log_in(1).await;
            host.receive_attentions().await;
            let agreed = |stag| invalidate.then_some(stag);
            let (itt, place) = host.read(&cdb::read_10(0, 1), 512);
            assert_eq!(host.answer(itt).await.invalidated, agreed(place.stag));
            let (itt, place) = host.write(&cdb::write_10(0, 8, false), &pattern(4096), 512);
            assert_eq!(host.answer(itt).await.invalidated, agreed(place.stag));
            let (itt, place) = host.read(&cdb::read_10(u32::MAX, 1), 512);
            assert_eq!(host.answer(itt).await.invalidated, agreed(place.stag), "also with an error");
            // Commands without advertised memory, and requests other than commands.
            let bhs = host.command(&cdb::test_unit_ready());
            host.send(IserHeader::PLAIN, bhs, &[]);
            assert_eq!(host.answer(bhs.itt()).await.invalidated, None);
            let itt = host.ping(&[]);
            let received = host.receive(opcode::NOP_IN).await;
            assert_eq!((received.bhs.itt(), received.invalidated), (itt, None));
        }
    });
}

impl Host {
    /// Revokes memory that a response may have invalidated.
    fn revoke_if_exposed(&self, place: RemoteAddress) {
        let _ = self.end.revoke(place.stag);
    }
}

#[test]
fn write_is_read_while_sends_wait() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        host.faults[1].sends.hold();
        let (read, place) = host.read(&cdb::read_10(0, 8), 4096);
        run_ready().await;
        assert_eq!(host.take_operations(), [], "its data wait");
        let data = pattern(4096);
        let (write, from) = host.write(&cdb::write_10(64, 8, false), &data, 0);
        run_ready().await;
        assert_eq!(reads(&host.take_operations(), from), [(0, 4096)]);
        host.faults[1].sends.release();
        assert_eq!(host.answer(read).await.status(), 0);
        assert_eq!(host.answer(write).await.status(), 0);
        assert!(host.revoke_memory(place) == [0; 4096] && host.blocks(64, 8).await == data);
    });
}
