//! Abort of commands of an I/O queue.

use super::{queue, read, server, write};
use interop::nvme::{NvmeEntry, NvmeReply, RawController};
use interop::scsi::pattern;

/// Command Abort Requested. The host may repeat the command.
const ABORTED: u16 = 0x07;
/// Bit 0 of the result: the command was not aborted.
const NOT_ABORTED: u64 = 1;

fn abort(controller: &mut RawController, queue: u16, id: u16) -> NvmeReply {
    let entry = NvmeEntry::new(8, 0).dword(10, u32::from(id) << 16 | u32::from(queue));
    controller.admin.execute(&entry, &[])
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
    is(&abort(&mut controller, 1, id), 0);
    // The identifier is free again when the requested data have arrived.
    queue.expect_silence();
    queue.answer(&request, &pattern(64 << 10, 2));
    queue.collect(id, &[]).is(ABORTED);
    assert_eq!(read(&mut queue, 8, 128), old);
    is(&abort(&mut controller, 1, id), NOT_ABORTED);
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
