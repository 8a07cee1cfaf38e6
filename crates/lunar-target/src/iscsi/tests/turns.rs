//! Connections that share a core.

use super::host::Host;
use crate::iscsi::full_feature::RunningSession;
use crate::test_target::run_test;
use lunar_wire::iscsi::{flag, opcode, request};
use lunar_wire::scsi::{Status, cdb};

/// READs whose data a socket takes at once.
const READS: usize = 3;
const BLOCKS: u16 = 512;
const BYTES: u32 = 512 * BLOCKS as u32;

#[test]
fn short_command_waits_for_one_turn_of_long_queue() {
    run_test(|target| async move {
        let (mut busy, opened) = Host::logged_in(&target, 1).await;
        let session = RunningSession::start(opened);
        let connection = session.nexus().state().front().connections()[0].clone();
        lunar_runtime::spawn(session.run());
        busy.run(&cdb::test_unit_ready()).await;
        let mut other = Host::session(&target, 2).await;
        for _ in 0..READS {
            let mut read = busy.command(&cdb::read_10(0, BLOCKS));
            request::set_read(&mut read, BYTES);
            busy.queue(read, &[]);
        }
        busy.send();
        assert_eq!(other.run(&cdb::test_unit_ready()).await, Status::Good as u8);
        let (queued, _) = connection.transport().queued();
        assert!(queued > 0, "all data were sent first");
        let mut ended = 0;
        while ended < READS {
            let data_in = busy.receive(opcode::DATA_IN).await;
            ended += usize::from(data_in.flags() & flag::STATUS != 0);
        }
    });
}
