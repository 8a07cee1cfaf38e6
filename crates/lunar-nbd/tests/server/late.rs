//! Tests of requests that are still in the socket when their client ends the connection.

use super::client::Client;
use super::{MIB, Server, memory};
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture, TryIo};
use lunar_runtime::Buf;
use lunar_wire::nbd::command::{DISC, WRITE};
use socket2::SockRef;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A write at this offset blocks its core.
const BLOCKS: u64 = MIB / 2;

/// A backend that can block a core.
struct Hanging {
    medium: Arc<dyn Backend>,
    hangs: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl Backend for Hanging {
    fn info(&self) -> BackendInfo {
        self.medium.info()
    }
    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        if offset == BLOCKS {
            self.hangs.send(()).expect("the test is waiting");
            self.goes_on.lock().expect("an unpoisoned lock").recv().expect("the test unblocks the core");
        }
        self.medium.try_write(offset, data)
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.medium.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.medium.write(offset, buf, fua)
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.medium.flush()
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.medium.unmap(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.medium.write_zeroes(offset, len, unmap)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.medium.describe()
    }
}

fn write(client: &mut Client, offset: u64) {
    client.request(WRITE, 0, offset, 512);
    client.write(&[1; 512]);
}

/// Returns the first byte of the medium after writes of ones stayed in the socket of a blocked core. `leave` ends the
/// connection of their client.
fn left_in_the_socket(leave: impl FnOnce(Client) -> Option<Client>) -> u8 {
    let ((hangs, hung), (go_on, goes_on)) = (channel(), channel());
    let disk = Hanging { medium: memory(MIB), hangs, goes_on: Mutex::new(goes_on) };
    let server = Server::of(Arc::new(disk));
    let mut client = Client::simple(server.tcp(), "disk");
    write(&mut client, BLOCKS);
    hung.recv().expect("the core is blocked");
    (0..3).for_each(|_| write(&mut client, 0));
    let left = leave(client);
    go_on.send(()).expect("the core is waiting");
    // The server serves this connection only when the first one has ended.
    let first = Client::simple(server.tcp(), "disk").read_at(0, 512)[0];
    drop(left);
    first
}

#[test]
fn requests_before_a_reset_do_not_begin_after_it() {
    let reset = |client: Client| {
        SockRef::from(&client.socket).set_linger(Some(Duration::ZERO)).expect("SO_LINGER is set");
        None
    };
    assert_eq!(left_in_the_socket(reset), 0);
}

#[test]
fn requests_before_a_close_without_leave_do_not_begin() {
    let close = |mut client: Client| {
        client.half_close();
        Some(client)
    };
    assert_eq!(left_in_the_socket(close), 0);
}

#[test]
fn requests_before_leave_and_close_are_executed() {
    let leave = |mut client: Client| {
        client.request(DISC, 0, 0, 0);
        client.half_close();
        Some(client)
    };
    assert_eq!(left_in_the_socket(leave), 1);
}
