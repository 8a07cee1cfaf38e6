//! `floor`: the least work that any iSCSI or NVMe/TCP target must do.
//!
//! It negotiates a login, and responds to READ and WRITE with the right PDUs and zeros. It has no storage, no
//! checks, and only the SCSI commands that initiators need to start: one disk of 1 TiB at every LUN. Its speed
//! is the limit for a real target, measured in the same run with the same client. It does not request data that
//! a WRITE does not send with its command.
//!
//! With `--nvme`, it does the same for NVMe/TCP. There it requests data that are too long for a capsule. With digests,
//! it computes and checks them, as any target must.
//!
//! With `--relay`, it is the least router instead, in front of another target.
#![forbid(unsafe_code)]

#[path = "../aligned.rs"]
mod aligned;
#[path = "../bytes.rs"]
mod bytes;
mod connection;
mod login;
mod nvme_admin;
mod nvme_answers;
mod nvme_connection;
#[path = "../nvme_pdu.rs"]
mod nvme_pdu;
mod outgoing_pdu;
mod relay;
mod relay_tags;
mod scsi;

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use aligned::AlignedBuf;
use anyhow::{Context, Result, bail};
use connection::FloorConnection;
use nvme_answers::NvmeAnswers;
use nvme_connection::NvmeConnection;
use outgoing_pdu::OutgoingPdu;

const RECEIVE_BUFFER: usize = 1 << 20;
/// Slices of one vectored send: the kernel's UIO_MAXIOV.
const MAX_SLICES: usize = 1024;

/// The service of a listener.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FloorRole {
    /// An iSCSI target
    Iscsi,
    /// An NVMe/TCP controller
    Nvme,
    /// An iSCSI router in front of this target
    Relay(SocketAddr),
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (address, role) = parse(&args)?;
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    println!("listening on {}", listener.local_addr()?);
    for socket in listener.incoming().flatten() {
        std::thread::spawn(move || match role {
            // An error means that the peer closed.
            FloorRole::Iscsi => drop(serve(socket)),
            FloorRole::Nvme => serve_nvme(socket).unwrap_or_else(|e| eprintln!("floor: {e:#}")),
            FloorRole::Relay(upstream) => drop(relay::relay(socket, upstream)),
        });
    }
    Ok(())
}

/// The address to listen on, and the service.
fn parse(args: &[String]) -> Result<(SocketAddr, FloorRole)> {
    let parse = |text: &String| text.parse().with_context(|| format!("ADDR:PORT: {text}"));
    match args {
        [listen] => Ok((parse(listen)?, FloorRole::Iscsi)),
        [listen, option] if option == "--nvme" => Ok((parse(listen)?, FloorRole::Nvme)),
        [listen, option, upstream] if option == "--relay" => {
            Ok((parse(listen)?, FloorRole::Relay(parse(upstream)?)))
        }
        _ => bail!("usage: floor ADDR:PORT [--nvme | --relay ADDR:PORT]"),
    }
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

/// One receive, many PDUs, one send, of one queue pair.
fn serve_nvme(mut socket: TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut connection = NvmeConnection::default();
    let mut memory = AlignedBuf::zeroed(RECEIVE_BUFFER);
    let input = memory.bytes();
    let (mut answers, mut have) = (NvmeAnswers::default(), 0);
    loop {
        // An error of the socket means that the peer closed.
        let Ok(received @ 1..) = socket.read(&mut input[have..]) else { return Ok(()) };
        have += received;
        let used = connection.feed(&input[..have], &mut answers)?;
        if send_slices(&mut socket, &mut answers.slices()).is_err() {
            return Ok(());
        }
        answers.clear();
        input.copy_within(used..have, 0);
        have -= used;
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
    send_slices(socket, &mut slices)
}

fn send_slices(socket: &mut TcpStream, mut rest: &mut [IoSlice]) -> std::io::Result<()> {
    while !rest.is_empty() {
        let some = rest.len().min(MAX_SLICES);
        let sent = socket.write_vectored(&rest[..some])?;
        IoSlice::advance_slices(&mut rest, sent);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_selects_the_service() {
        let parsed = |args: &[&str]| parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        let role = |args: &[&str]| parsed(args).expect("a service").1;
        assert_eq!(role(&["127.0.0.1:0"]), FloorRole::Iscsi);
        assert_eq!(role(&["127.0.0.1:0", "--nvme"]), FloorRole::Nvme);
        let upstream = "127.0.0.1:3260".parse().expect("an address");
        assert_eq!(role(&["127.0.0.1:0", "--relay", "127.0.0.1:3260"]), FloorRole::Relay(upstream));
        assert!(parsed(&["127.0.0.1:0", "127.0.0.1:3260"]).is_err());
    }
}
