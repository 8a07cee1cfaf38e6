//! `floor`: the least work that any iSCSI target must do.
//!
//! It negotiates a login, and responds to READ and WRITE with the right PDUs and zeros. It has no storage, no
//! checks, and only the SCSI commands that initiators need to start: one disk of 1 TiB at every LUN. Its speed
//! is the limit for a real target, measured in the same run with the same client. It does not request data that
//! a WRITE does not send with its command.
#![forbid(unsafe_code)]

#[path = "../aligned.rs"]
mod aligned;
#[path = "../bytes.rs"]
mod bytes;
mod connection;
mod login;
mod outgoing_pdu;
mod scsi;

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use aligned::AlignedBuf;
use anyhow::{Context, Result};
use connection::FloorConnection;
use outgoing_pdu::OutgoingPdu;

const RECEIVE_BUFFER: usize = 1 << 20;
/// Slices of one vectored send: the kernel's UIO_MAXIOV.
const MAX_SLICES: usize = 1024;

fn main() -> Result<()> {
    let address: SocketAddr =
        std::env::args().nth(1).context("usage: floor ADDR:PORT")?.parse().context("ADDR:PORT")?;
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    println!("listening on {}", listener.local_addr()?);
    for socket in listener.incoming().flatten() {
        std::thread::spawn(move || serve(socket)); // an error means that the peer closed
    }
    Ok(())
}

/// One receive, many PDUs, one send; until the logout.
fn serve(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut connection = FloorConnection::default();
    let mut memory = AlignedBuf::zeroed(RECEIVE_BUFFER);
    let input = memory.bytes();
    let mut answers = Vec::new();
    loop {
        let received = socket.read(input)?;
        if received == 0 {
            return Ok(());
        }
        let more = connection.feed(&input[..received], &mut answers);
        send(&mut socket, &answers)?;
        answers.clear();
        if !more {
            return Ok(());
        }
    }
}

fn send(socket: &mut TcpStream, answers: &[OutgoingPdu]) -> std::io::Result<()> {
    let mut slices: Vec<IoSlice> = Vec::with_capacity(answers.len() * 2);
    for answer in answers {
        slices.push(IoSlice::new(&answer.header));
        if !answer.data.as_bytes().is_empty() {
            slices.push(IoSlice::new(answer.data.as_bytes()));
        }
    }
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let some = rest.len().min(MAX_SLICES);
        let sent = socket.write_vectored(&rest[..some])?;
        IoSlice::advance_slices(&mut rest, sent);
    }
    Ok(())
}
