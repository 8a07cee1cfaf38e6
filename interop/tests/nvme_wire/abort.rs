//! Abort of commands of an I/O queue.

use super::{queue, read, server, write};
use interop::nvme::{NvmeEntry, NvmeFrame, NvmeReply, RawController, pdu};
use interop::scsi::pattern;

/// Command Abort Requested. The host may repeat the command.
const ABORTED: u16 = 0x07;
/// Bit 0 of the result: the command was not aborted.
const NOT_ABORTED: u64 = 1;

fn entry(queue: u16, id: u16) -> NvmeEntry {
    NvmeEntry::new(8, 0).dword(10, u32::from(id) << 16 | u32::from(queue))
}

fn abort(controller: &mut RawController, queue: u16, id: u16) -> NvmeReply {
    controller.admin.execute(&entry(queue, id), &[])
}

/// Fails unless an Abort has succeeded with this result.
fn is(reply: &NvmeReply, result: u64) {
    assert_eq!((reply.status, reply.result & NOT_ABORTED), (0, result));
}

#[test]
fn aborted_write_that_waits_for_data_writes_nothing() {
    let server = server();
    let (mut controller, mut queue) = queue(&server, "host");
    let old = pattern(64 << 10, 1);
    write(&mut queue, 8, &old);
    let id = queue.submit(&NvmeEntry::write(1, 8, 128), &[]);
    let request = queue.recv_for(id);
    let abort_id = controller.admin.submit(&entry(1, id), &[]);
    // The identifier is free again when the requested data have arrived. Until then the Abort waits, too.
    queue.expect_silence();
    controller.admin.expect_silence();
    let tag = request.get16(10);
    for (part, flags) in pattern(64 << 10, 2).chunks(32 << 10).zip([0, pdu::LAST]) {
        let offset = if flags == 0 { 0 } else { 32 << 10 };
        queue.send(&NvmeFrame::host_data(flags, id, tag, offset, part));
    }
    queue.collect(id, &[]).is(ABORTED);
    is(&controller.admin.collect(abort_id, &[]), 0);
    queue.expect_silence();
    assert_eq!(read(&mut queue, 8, 128), old);
    is(&abort(&mut controller, 1, id), NOT_ABORTED);
}

#[test]
fn abort_ends_with_a_queue_whose_data_never_arrive() {
    let server = server();
    let (mut controller, mut queue) = queue(&server, "host");
    let id = queue.submit(&NvmeEntry::write(1, 8, 128), &[]);
    queue.recv_for(id);
    let abort_id = controller.admin.submit(&entry(1, id), &[]);
    controller.admin.expect_silence();
    drop(queue);
    is(&controller.admin.collect(abort_id, &[]), 0);
}

/// A read of namespace 2 takes 0.5 s.
#[test]
fn abort_ends_with_its_running_command() {
    let server = server();
    let (mut controller, mut queue) = queue(&server, "host");
    let id = queue.submit(&NvmeEntry::read(2, 0, 1), &[]);
    // The queue has taken the first command when it has executed the second one.
    read(&mut queue, 0, 1);
    is(&abort(&mut controller, 1, id), 0);
    queue.collect(id, &[]).is(ABORTED);
    read(&mut queue, 0, 1);
}

#[test]
fn command_that_is_not_there_is_not_aborted() {
    let server = server();
    let (mut controller, mut queue) = queue(&server, "host");
    for (of, id) in [(1, 77), (2, 0), (0, 0), (u16::MAX, u16::MAX)] {
        is(&abort(&mut controller, of, id), NOT_ABORTED);
    }
    // The data of source ranges are collected before the command becomes a task.
    let id = queue.submit(&NvmeEntry::blocks(0x19, 1, 0, 1).on_host(32), &[]);
    let request = queue.recv_for(id);
    is(&abort(&mut controller, 1, id), NOT_ABORTED);
    queue.answer(&request, &[0; 32]);
    queue.collect(id, &[]).is(0);
}
