//! Faulty initiators: the target ends their connection at most.

use super::host::{Host, advertised, pattern};
use super::test_target::{play, quiet};
use lunar_rdma::RemoteAddress;
use lunar_rdma::mem::EndpointOp;
use lunar_wire::iscsi::request::{self, DataOutTags};
use lunar_wire::iscsi::{Bhs, NONE, opcode};
use lunar_wire::iser::{HEADER_LEN, IserHeader, OVERHEAD};
use lunar_wire::scsi::cdb;

/// A message with a valid command, changed by `spoil`.
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
        ("more than it says", |m| m.extend([0; 5])),
        ("an unknown header", |m| m[0] = 0x70),
    ];
    play(move |target| async move {
        let mut other = target.session(1).await;
        for (what, spoil) in rows {
            let mut host = target.session(2).await;
            let message = command(&mut host, spoil);
            host.say_bytes(&message);
            assert!(host.next().await.is_none(), "{what}");
            host.served.await.expect("it ends well");
            // The same before the login.
            let mut host = target.connect().await;
            let message = command(&mut host, spoil);
            host.say_bytes(&message);
            assert!(host.next().await.is_none(), "{what}");
            host.served.await.expect("it ends well");
            other.goes_on().await;
        }
        assert_eq!(target.sessions(), 1);
    });
}

#[test]
fn invalid_additional_header_ends_connection() {
    play(|target| async move {
        for ahs in [[0, 0, 1, 0], [0, 17, 1, 0], [255, 255, 1, 0]] {
            let mut host = target.session(1).await;
            let message = command(&mut host, |m| {
                m[HEADER_LEN + 4] = 1;
                m.extend(ahs);
            });
            host.say_bytes(&message);
            host.over().await;
        }
        target.session(1).await.goes_on().await;
    });
}

#[test]
fn command_without_advertised_memory_ends_connection() {
    play(|target| async move {
        for (reads, immediate) in [(true, 0), (false, 0), (false, 512)] {
            let mut host = target.session(1).await;
            let mut bhs = host.command(&if reads { cdb::read_10(0, 8) } else { cdb::write_10(0, 8, false) });
            if reads {
                request::set_read(&mut bhs, 4096);
            } else {
                request::set_write(&mut bhs, 4096, false);
            }
            // Memory for the other direction does not count.
            let place = advertised(host.lend(&[0; 4096]));
            let (write, read) = if reads { (Some(place), None) } else { (None, Some(place)) };
            host.say(IserHeader::Control { write, read }, bhs, &pattern(immediate));
            host.over().await;
        }
        let mut host = target.session(1).await;
        assert!(host.blocks(0, 8).await == [0; 4096]);
    });
}

#[test]
fn invalid_advertised_memory_ends_connection() {
    play(|target| async move {
        let mut other = target.session(1).await;
        for stag in [true, false] {
            for reads in [true, false] {
                let mut host = target.session(2).await;
                let place = match stag {
                    true if reads => host
                        .end
                        .expose(lunar_rdma::MemoryRegion::Sink(lunar_runtime::Buf::zeroed(512)))
                        .unwrap(),
                    true => host.lend(&[0; 512]),
                    false => RemoteAddress { stag: 0x7777_7777, offset: 0 },
                };
                let mut bhs =
                    host.command(&if reads { cdb::read_10(0, 8) } else { cdb::write_10(0, 8, false) });
                let place = Some(advertised(place));
                if reads {
                    request::set_read(&mut bhs, 4096);
                    host.say(IserHeader::Control { write: None, read: place }, bhs, &[]);
                } else {
                    request::set_write(&mut bhs, 4096, false);
                    host.say(IserHeader::Control { write: place, read: None }, bhs, &[]);
                }
                host.over().await;
                other.goes_on().await;
            }
        }
    });
}

/// The initiator knows neither tag nor offset, but could guess them.
#[test]
fn data_out_message_does_not_replace_rdma_read() {
    play(|target| async move {
        let mut other = target.session(2).await;
        for ttt in (0..16).map(|base| base << 5) {
            let mut host = target.session(1).await;
            host.faults[1].reads.hold();
            let (itt, _) = host.write(&cdb::write_10(0, 8, false), &[0xee; 4096], 0);
            quiet().await;
            let burst = DataOutTags { lun: 0, itt, ttt };
            host.say(IserHeader::PLAIN, request::data_out(burst, 0, 0, true, 0), &[0xdd; 4096]);
            host.over().await;
            assert!(other.blocks(0, 8).await == [0; 4096]);
        }
    });
}

#[test]
fn unsolicited_data_out_fails_only_its_command() {
    play(|target| async move {
        let mut host = target.session(1).await;
        // Announced although InitialR2T is Yes.
        let place = host.lend(&[0xee; 4096]);
        let mut bhs = host.command(&cdb::write_10(0, 8, false));
        request::set_write(&mut bhs, 4096, true);
        host.say(IserHeader::Control { write: Some(advertised(place)), read: None }, bhs, &[]);
        let burst = DataOutTags { lun: 0, itt: bhs.itt(), ttt: NONE };
        host.say(IserHeader::PLAIN, request::data_out(burst, 0, 0, true, 0), &[0xee; 4096]);
        assert_eq!(host.answer(bhs.itt()).await.status(), 2);
        // Not announced, while an RDMA Read is in flight.
        host.faults[1].reads.hold();
        let (itt, _) = host.write(&cdb::write_10(0, 8, false), &[0xee; 4096], 0);
        quiet().await;
        let burst = DataOutTags { lun: 0, itt, ttt: NONE };
        host.say(IserHeader::PLAIN, request::data_out(burst, 0, 0, true, 0), &[0xdd; 512]);
        host.faults[1].reads.release();
        assert_eq!(host.answer(itt).await.status(), 2);
        assert!(host.blocks(0, 8).await == [0; 4096]);
    });
}

#[test]
fn duplicate_tag_is_rejected_and_memory_is_kept() {
    play(|target| async move {
        let mut host = target.session(1).await;
        host.faults[1].reads.hold();
        let data = pattern(4096);
        let (itt, place) = host.write(&cdb::write_10(0, 8, false), &data, 0);
        quiet().await;
        host.did();
        host.itt -= 1;
        host.write(&cdb::write_10(8, 8, false), &[0xee; 4096], 0);
        let told = host.told(opcode::REJECT).await;
        assert_eq!((told.bhs.response(), told.invalidated), (7, None), "task in progress");
        host.faults[1].reads.release();
        let told = host.answer(itt).await;
        assert_eq!((told.status(), told.invalidated), (0, Some(place.stag)));
        assert!(host.blocks(0, 8).await == data && host.blocks(8, 8).await == [0; 4096]);
    });
}

#[test]
fn excess_immediate_data_ends_connection_at_most() {
    play(|target| async move {
        let mut host = target.session(1).await;
        // More than the command has.
        let mut bhs = host.command(&cdb::write_10(0, 1, false));
        request::set_write(&mut bhs, 512, false);
        host.say(IserHeader::PLAIN, bhs, &[0xee; 1024]);
        assert_eq!(host.answer(bhs.itt()).await.status(), 2);
        // More than a receive buffer has.
        let mut bhs = host.command(&cdb::write_10(0, 64, false));
        request::set_write(&mut bhs, 32768, false);
        host.say(IserHeader::PLAIN, bhs, &[0xee; 32768]);
        host.over().await;
        let mut host = target.session(1).await;
        assert!(host.blocks(0, 1).await == [0; 512]);
    });
}

#[test]
fn lost_connection_is_cleaned_up_at_any_point() {
    play(|target| async move {
        for after in 0..12 {
            let mut host = target.session(1).await;
            host.faults[1].lose_after.set(Some(after + 1));
            for i in 0..4 {
                host.write(&cdb::write_10(i * 8, 8, false), &pattern(4096), 512);
                host.read(&cdb::read_10(i * 8, 8), 4096);
            }
            while host.next().await.is_some() {}
            assert!(
                host.did().iter().filter(|o| !matches!(o, EndpointOp::ReadEnded { .. })).count() <= after + 1
            );
            host.served.await.expect("it ends well");
            assert_eq!((target.sessions(), target.shared.pool.used()), (0, 0));
        }
    });
}

#[test]
fn misplaced_requests_are_rejected() {
    play(|target| async move {
        let mut host = target.session(1).await;
        for op in [opcode::LOGIN, 0x1c, opcode::SCSI_RESPONSE] {
            let mut bhs = Bhs::new(op | 0x40);
            bhs.set_itt(77);
            host.ask(bhs, &[]);
            let told = host.told(opcode::REJECT).await;
            assert_eq!(
                told.data[..48],
                {
                    request::stamp(&mut bhs, host.cmd_sn, told.bhs.stat_sn());
                    *bhs.as_bytes()
                }[..]
            );
        }
        host.goes_on().await;
    });
}
