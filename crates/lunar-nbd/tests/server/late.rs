//! Requests that are still in the socket when their connection has come to its end.

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

/// A write here blocks the core that takes it.
const BLOCKS: u64 = MIB / 2;

/// A medium on which a core hangs.
struct Hanging {
    medium: Arc<dyn Backend>,
    hangs: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl Backend for Hanging {
    fn facts(&self) -> BackendInfo {
        self.medium.facts()
    }
    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        if offset == BLOCKS {
            self.hangs.send(()).expect("the test waits");
            self.goes_on.lock().expect("one core hangs").recv().expect("the test lets it go on");
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

/// What the first block holds after its writes were left in the socket of a core that hung; `leave` makes the end.
fn left_in_the_socket(leave: impl FnOnce(Client) -> Option<Client>) -> u8 {
    let ((hangs, hung), (go_on, goes_on)) = (channel(), channel());
    let disk = Hanging { medium: memory(MIB), hangs, goes_on: Mutex::new(goes_on) };
    let server = Server::of(Arc::new(disk));
    let mut client = Client::simple(server.tcp(), "disk");
    write(&mut client, BLOCKS);
    hung.recv().expect("the core hangs");
    (0..3).for_each(|_| write(&mut client, 0));
    let left = leave(client);
    go_on.send(()).expect("the core waits");
    // It is served when the first is over.
    let first = Client::simple(server.tcp(), "disk").read_at(0, 512)[0];
    drop(left);
    first
}

#[test]
fn requests_before_a_reset_do_not_begin_after_it() {
    let reset = |client: Client| {
        SockRef::from(&client.socket).set_linger(Some(Duration::ZERO)).expect("a socket");
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
