//! `floor --relay`: the least work that any iSCSI router must do.
//!
//! Each connection has its own upstream connection, and one thread for each direction. A thread rewrites the tags and
//! sequence numbers of all PDUs of a receive in place, and sends them with one send. It copies no data. Both logins are
//! one negotiation, so that both sides have the same lengths. Digests are not supported.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::RECEIVE_BUFFER;
use crate::aligned::AlignedBuf;
use crate::bytes::{BHS, RESERVED_TAG, get24, get32, padded, put32};
use crate::relay_tags::RelayTags;

/// The upstream CmdSN minus that of the client. Any number but 0 shows that both sides have their own.
const CMD_SN_SHIFT: u32 = 0x1000;
/// The client's StatSN minus that of the upstream.
const STAT_SN_SHIFT: u32 = 0x2000;

/// Relays a connection until one side closes it.
pub fn relay(client: TcpStream, upstream: SocketAddr) -> std::io::Result<()> {
    let upstream = TcpStream::connect(upstream)?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    let tags = Arc::new(Mutex::new(RelayTags::default()));
    let (responses_from, responses_to, shared) =
        (upstream.try_clone()?, client.try_clone()?, Arc::clone(&tags));
    std::thread::spawn(move || forward(responses_from, responses_to, &shared, response));
    forward(client, upstream, &tags, request);
    Ok(())
}

/// Forwards one direction. An error means that a side has closed: both connections end.
fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    tags: &Mutex<RelayTags>,
    rewrite: fn(&mut [u8], &mut RelayTags),
) {
    let mut memory = AlignedBuf::zeroed(RECEIVE_BUFFER);
    let input = memory.bytes();
    let (mut stream, mut have) = (RelayedStream::default(), 0);
    while let Ok(received @ 1..) = from.read(&mut input[have..]) {
        have += received;
        let done = stream.feed(&mut input[..have], &mut lock(tags), rewrite);
        if to.write_all(&input[..done]).is_err() {
            break;
        }
        input.copy_within(done..have, 0);
        have -= done;
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn lock(tags: &Mutex<RelayTags>) -> MutexGuard<'_, RelayTags> {
    tags.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of one direction.
#[derive(Debug, Default)]
struct RelayedStream {
    /// The remaining payload of the last PDU
    skip: usize,
}

impl RelayedStream {
    /// Rewrites all whole headers. Returns the number of bytes to send: all but an incomplete header.
    fn feed(
        &mut self,
        bytes: &mut [u8],
        tags: &mut RelayTags,
        rewrite: fn(&mut [u8], &mut RelayTags),
    ) -> usize {
        let mut at = self.skip.min(bytes.len());
        self.skip -= at;
        while self.skip == 0 && bytes.len() - at >= BHS {
            let header = &mut bytes[at..at + BHS];
            rewrite(header, tags);
            let whole = BHS + usize::from(header[4]) * 4 + padded(get24(header, 5));
            let here = whole.min(bytes.len() - at);
            self.skip = whole - here;
            at += here;
        }
        at
    }
}

/// Rewrites a request of the client.
fn request(header: &mut [u8], tags: &mut RelayTags) {
    let tag = get32(header, 16);
    match header[0] & 0x3f {
        0x05 => put32(header, 16, tags.upstream(tag)), // Data-Out belongs to a known command
        _ if tag == RESERVED_TAG => {}
        opcode => {
            if opcode == 0x02 {
                let referenced = tags.upstream(get32(header, 20));
                put32(header, 20, referenced);
            }
            put32(header, 16, tags.add(tag));
        }
    }
    if header[0] & 0x3f != 0x05 {
        shift(header, 24, CMD_SN_SHIFT);
    }
    shift(header, 28, STAT_SN_SHIFT.wrapping_neg());
}

/// Rewrites a response of the upstream.
fn response(header: &mut [u8], tags: &mut RelayTags) {
    let tag = get32(header, 16);
    if tag != RESERVED_TAG {
        let is_last = match header[0] & 0x3f {
            0x25 => header[1] & 1 != 0, // Data-In with status
            0x31 => false,              // R2T
            _ => true,
        };
        put32(header, 16, if is_last { tags.end(tag) } else { tags.client(tag) });
    }
    shift(header, 24, STAT_SN_SHIFT);
    shift(header, 28, CMD_SN_SHIFT.wrapping_neg());
    shift(header, 32, CMD_SN_SHIFT.wrapping_neg());
}

fn shift(header: &mut [u8], at: usize, by: u32) {
    put32(header, at, get32(header, at).wrapping_add(by));
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn pdu(opcode: u8, tag: u32, data_len: u8) -> Vec<u8> {
        let mut pdu = vec![0; BHS + padded(data_len.into())];
        pdu[0] = opcode;
        pdu[7] = data_len;
        put32(&mut pdu, 16, tag);
        pdu
    }

    #[test]
    fn split_input_gives_same_output() {
        let stream = [pdu(0x01, 70, 5), pdu(0x01, 71, 0), pdu(0x05, 70, 8)].concat();
        let output = |cut: usize| {
            let (mut relayed, mut tags, mut output) =
                (RelayedStream::default(), RelayTags::default(), Vec::new());
            let mut rest = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                rest.extend_from_slice(part);
                let done = relayed.feed(&mut rest, &mut tags, request);
                output.extend(rest.drain(..done));
            }
            output
        };
        let whole = output(0);
        assert_eq!([16, 72, 120].map(|at| get32(&whole, at)), [0, 1, 0], "tags of the relay");
        assert!((1..stream.len()).all(|cut| output(cut) == whole));
    }

    #[test]
    fn tag_is_free_after_the_status() {
        let mut tags = RelayTags::default();
        let mut send = |tag| {
            let mut sent = pdu(0x01, tag, 0);
            request(&mut sent, &mut tags);
            get32(&sent, 16)
        };
        assert_eq!([send(50), send(51)], [0, 1]);
        let mut answer = |opcode, flags| {
            let mut answer = pdu(opcode, 1, 0);
            answer[1] = flags;
            response(&mut answer, &mut tags);
            get32(&answer, 16)
        };
        assert_eq!([answer(0x31, 0x80), answer(0x25, 0x80), answer(0x25, 0x81)], [51; 3]);
        assert_eq!(tags.add(52), 1);
    }

    /// A login and a READ pass through the relay to `floor`.
    #[test]
    fn client_reads_through_the_relay() {
        let [upstream, router] =
            [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
        let [upstream_at, router_at] = [&upstream, &router].map(|at| at.local_addr().expect("an address"));
        std::thread::spawn(move || crate::serve(upstream.accept().expect("the relay").0));
        std::thread::spawn(move || relay(router.accept().expect("the client").0, upstream_at));
        let mut client = TcpStream::connect(router_at).expect("a connection");
        let mut login = pdu(0x43, 7, 0);
        login[1] = 0x87;
        put32(&mut login, 24, 1);
        let mut read = pdu(0x01, 8, 0);
        (read[1], read[32]) = (0xc1, 0x28);
        put32(&mut read, 20, 512);
        put32(&mut read, 24, 1);
        let mut answer = [0; BHS + 512];
        client.write_all(&login).expect("a login");
        client.read_exact(&mut answer[..BHS]).expect("its response");
        let text = padded(get24(&answer, 5));
        client.read_exact(&mut answer[..text]).expect("the keys");
        client.write_all(&read).expect("a READ");
        client.read_exact(&mut answer).expect("its data");
        assert_eq!((answer[0], get32(&answer, 16), get32(&answer, 28)), (0x25, 8, 2));
        assert_eq!(get32(&answer, 24), STAT_SN_SHIFT + 2, "StatSN of the relay");
    }
}
