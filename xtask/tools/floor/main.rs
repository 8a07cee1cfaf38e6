//! `floor`: the least work that any iSCSI target must do.
//!
//! It negotiates a login, and responds to READ and WRITE with the right PDUs and zeros. It has no storage, no
//! checks, and only the SCSI commands that initiators need to start: one disk of 1 TiB at every LUN. Its speed
//! is the limit for a real target, measured in the same run with the same client. It does not request data that
//! a WRITE does not send with its command.
//!
//! With `--relay`, it is the least router instead, in front of another target.
#![forbid(unsafe_code)]

#[path = "../aligned.rs"]
mod aligned;
#[path = "../bytes.rs"]
mod bytes;
mod connection;
mod login;
mod outgoing_pdu;
mod relay;
mod relay_tags;
mod scsi;

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use aligned::AlignedBuf;
use anyhow::{Context, Result, bail};
use connection::FloorConnection;
use outgoing_pdu::OutgoingPdu;

const RECEIVE_BUFFER: usize = 1 << 20;
/// Slices of one vectored send: the kernel's UIO_MAXIOV.
const MAX_SLICES: usize = 1024;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (address, upstream) = addresses(&args)?;
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    println!("listening on {}", listener.local_addr()?);
    for socket in listener.incoming().flatten() {
        // An error means that the peer closed.
        std::thread::spawn(move || match upstream {
            None => serve(socket),
            Some(upstream) => relay::relay(socket, upstream),
        });
    }
    Ok(())
}

/// The address to listen on, and that of the upstream target with --relay.
fn addresses(args: &[String]) -> Result<(SocketAddr, Option<SocketAddr>)> {
    let parse = |text: &String| text.parse().with_context(|| format!("ADDR:PORT: {text}"));
    match args {
        [listen] => Ok((parse(listen)?, None)),
        [listen, option, upstream] if option == "--relay" => Ok((parse(listen)?, Some(parse(upstream)?))),
        _ => bail!("usage: floor ADDR:PORT [--relay ADDR:PORT]"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relay_option_names_the_upstream() {
        let parsed = |args: &[&str]| addresses(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(parsed(&["127.0.0.1:0"]).expect("an address").1, None);
        let relayed = parsed(&["127.0.0.1:0", "--relay", "127.0.0.1:3260"]).expect("two addresses").1;
        assert_eq!(relayed.expect("the upstream").port(), 3260);
        assert!(parsed(&["127.0.0.1:0", "127.0.0.1:3260"]).is_err());
    }
}
