//! Initiators that violate the protocol: at worst, the target closes their connection.

use super::host::{Host, advertised, pattern};
use crate::test_target::{run_ready, run_test};
use lunar_rdma::RemoteAddress;
use lunar_rdma::mem::EndpointOp;
use lunar_wire::iscsi::request::{self, DataOutTags};
use lunar_wire::iscsi::{Bhs, NONE, opcode};
use lunar_wire::iser::{HEADER_LEN, IserHeader, OVERHEAD};
use lunar_wire::scsi::cdb;

/// A message with a valid command, modified by `spoil`.
fn command(host: &mut Host, spoil: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let bhs = host.command(&cdb::test_unit_ready());
    let mut message = [&IserHeader::PLAIN.encode()[..], bhs.as_bytes()].concat();
    spoil(&mut message);
    message
}

#[test]
fn invalid_message_ends_only_its_connection() {
    type Corruption = fn(&mut Vec<u8>);
    let rows: [(&str, Corruption); 9] = [
        ("empty", |m| m.clear()),
        ("a part of a header", |m| m.truncate(HEADER_LEN - 1)),
        ("no PDU", |m| m.truncate(HEADER_LEN)),
        ("a part of a PDU", |m| m.truncate(OVERHEAD - 1)),
        ("data that is not there", |m| m[HEADER_LEN + 7] = 200),
        ("much data that is not there", |m| m[HEADER_LEN + 5..HEADER_LEN + 8].fill(0xff)),
        ("additional headers that are not there", |m| m[HEADER_LEN + 4] = 255),
        ("longer than declared", |m| m.extend([0; 5])),
        ("an unknown header", |m| m[0] = 0x70),
    ];
    run_test(move |target| async move {
        let mut other = target.session(1).await;
        for (what, spoil) in rows {
            let mut host = target.session(2).await;
            let message = command(&mut host, spoil);
            host.send_bytes(&message);
            assert!(host.next().await.is_none(), "{what}");
            host.served.await.expect("a clean end");
            // The same before the login.
            let mut host = target.connect().await;
            let message = command(&mut host, spoil);
            host.send_bytes(&message);
            assert!(host.next().await.is_none(), "{what}");
            host.served.await.expect("a clean end");
            other.expect_alive().await;
        }
        assert_eq!(target.sessions(), 1);
    });
}

#[test]
fn invalid_additional_header_ends_connection() {
    run_test(|target| async move {
        for ahs in [[0, 0, 1, 0], [0, 17, 1, 0], [255, 255, 1, 0]] {
            let mut host = target.session(1).await;
            let message = command(&mut host, |m| {
                m[HEADER_LEN + 4] = 1;
                m.extend(ahs);
            });
            host.send_bytes(&message);
            host.expect_close().await;
        }
        target.session(1).await.expect_alive().await;
    });
}

#[test]
fn command_without_advertised_memory_ends_connection() {
    run_test(|target| async move {
        for (reads, immediate) in [(true, 0), (false, 0), (false, 512)] {
            let mut host = target.session(1).await;
            let mut bhs = host.command(&if reads { cdb::read_10(0, 8) } else { cdb::write_10(0, 8, false) });
            if reads {
                request::set_read(&mut bhs, 4096);
            } else {
                request::set_write(&mut bhs, 4096, false);
            }
            // Memory advertised for the other direction does not count.
            let place = advertised(host.expose(&[0; 4096]));
            let (write, read) = if reads { (Some(place), None) } else { (None, Some(place)) };
            host.send(IserHeader::Control { write, read }, bhs, &pattern(immediate));
            host.expect_close().await;
        }
        let mut host = target.session(1).await;
        assert!(host.blocks(0, 8).await == [0; 4096]);
    });
}

#[test]
fn invalid_advertised_memory_ends_connection() {
    run_test(|target| async move {
        let mut other = target.session(1).await;
        for stag in [true, false] {
            for reads in [true, false] {
                let mut host = target.session(2).await;
                let place = match stag {
                    true if reads => host
                        .end
                        .expose(lunar_rdma::MemoryRegion::Sink(lunar_runtime::Buf::zeroed(512)))
                        .unwrap(),
                    true => host.expose(&[0; 512]),
                    false => RemoteAddress { stag: 0x7777_7777, offset: 0 },
                };
                let mut bhs =
                    host.command(&if reads { cdb::read_10(0, 8) } else { cdb::write_10(0, 8, false) });
                let place = Some(advertised(place));
                if reads {
                    request::set_read(&mut bhs, 4096);
                    host.send(IserHeader::Control { write: None, read: place }, bhs, &[]);
                } else {
                    request::set_write(&mut bhs, 4096, false);
                    host.send(IserHeader::Control { write: place, read: None }, bhs, &[]);
                }
                host.expect_close().await;
                other.expect_alive().await;
            }
        }
    });
}

/// The initiator does not know tag and offset, but could guess them.
#[test]
fn data_out_message_does_not_replace_rdma_read() {
    run_test(|target| async move {
        let mut other = target.session(2).await;
        for ttt in (0..16).map(|base| base << 5) {
            let mut host = target.session(1).await;
            host.faults[1].reads.hold();
            let (itt, _) = host.write(&cdb::write_10(0, 8, false), &[0xee; 4096], 0);
            run_ready().await;
            let burst = DataOutTags { lun: 0, itt, ttt };
            host.send(IserHeader::PLAIN, request::data_out(burst, 0, 0, true, 0), &[0xdd; 4096]);
            host.expect_close().await;
            assert!(other.blocks(0, 8).await == [0; 4096]);
        }
    });
}

#[test]
fn unsolicited_data_out_fails_only_its_command() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        // Announced although InitialR2T is Yes.
        let place = host.expose(&[0xee; 4096]);
        let mut bhs = host.command(&cdb::write_10(0, 8, false));
        request::set_write(&mut bhs, 4096, true);
        host.send(IserHeader::Control { write: Some(advertised(place)), read: None }, bhs, &[]);
        let burst = DataOutTags { lun: 0, itt: bhs.itt(), ttt: NONE };
        host.send(IserHeader::PLAIN, request::data_out(burst, 0, 0, true, 0), &[0xee; 4096]);
        assert_eq!(host.answer(bhs.itt()).await.status(), 2);
        // Not announced, while an RDMA Read is in flight.
        host.faults[1].reads.hold();
        let (itt, _) = host.write(&cdb::write_10(0, 8, false), &[0xee; 4096], 0);
        run_ready().await;
        let burst = DataOutTags { lun: 0, itt, ttt: NONE };
        host.send(IserHeader::PLAIN, request::data_out(burst, 0, 0, true, 0), &[0xdd; 512]);
        host.faults[1].reads.release();
        assert_eq!(host.answer(itt).await.status(), 2);
        assert!(host.blocks(0, 8).await == [0; 4096]);
    });
}

#[test]
fn duplicate_tag_is_rejected_and_memory_is_kept() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        host.faults[1].reads.hold();
        let data = pattern(4096);
        let (itt, place) = host.write(&cdb::write_10(0, 8, false), &data, 0);
        run_ready().await;
        host.take_operations();
        host.itt -= 1;
        host.write(&cdb::write_10(8, 8, false), &[0xee; 4096], 0);
        let received = host.receive(opcode::REJECT).await;
        assert_eq!((received.bhs.response(), received.invalidated), (7, None), "task in progress");
        host.faults[1].reads.release();
        let received = host.answer(itt).await;
        assert_eq!((received.status(), received.invalidated), (0, Some(place.stag)));
        assert!(host.blocks(0, 8).await == data && host.blocks(8, 8).await == [0; 4096]);
    });
}

#[test]
fn excess_immediate_data_ends_connection_at_most() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        // More data than the command has.
        let mut bhs = host.command(&cdb::write_10(0, 1, false));
        request::set_write(&mut bhs, 512, false);
        host.send(IserHeader::PLAIN, bhs, &[0xee; 1024]);
        assert_eq!(host.answer(bhs.itt()).await.status(), 2);
        // More data than fit into a receive buffer.
        let mut bhs = host.command(&cdb::write_10(0, 64, false));
        request::set_write(&mut bhs, 32768, false);
        host.send(IserHeader::PLAIN, bhs, &[0xee; 32768]);
        host.expect_close().await;
        let mut host = target.session(1).await;
        assert!(host.blocks(0, 1).await == [0; 512]);
    });
}

#[test]
fn lost_connection_is_cleaned_up_at_any_point() {
    run_test(|target| async move {
        for after in 0..12 {
            let mut host = target.session(1).await;
            host.faults[1].lose_after.set(Some(after + 1));
            for i in 0..4 {
                host.write(&cdb::write_10(i * 8, 8, false), &pattern(4096), 512);
                host.read(&cdb::read_10(i * 8, 8), 4096);
            }
            while host.next().await.is_some() {}
            assert!(
                host.take_operations().iter().filter(|o| !matches!(o, EndpointOp::ReadEnded { .. })).count()
                    <= after + 1
            );
            host.served.await.expect("a clean end");
            assert_eq!((target.sessions(), target.shared.pool.used()), (0, 0));
        }
    });
}

#[test]
fn misplaced_requests_are_rejected() {
    run_test(|target| async move {
        let mut host = target.session(1).await;
        for op in [opcode::LOGIN, 0x1c, opcode::SCSI_RESPONSE] {
            let mut bhs = Bhs::new(op | 0x40);
            bhs.set_itt(77);
            host.send_immediate(bhs, &[]);
            let received = host.receive(opcode::REJECT).await;
            assert_eq!(
                received.data[..48],
                {
                    request::stamp(&mut bhs, host.cmd_sn, received.bhs.stat_sn());
                    *bhs.as_bytes()
                }[..]
            );
        }
        host.expect_alive().await;
    });
}
