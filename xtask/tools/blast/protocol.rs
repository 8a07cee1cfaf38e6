//! The parts of a load that depend on the protocol.

use std::fmt::Debug;
use std::io::{IoSlice, Write};
use std::net::TcpStream;

use anyhow::Result;

/// The lengths of a command in the output, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandLayout {
    /// The header, with its digest
    pub head: usize,
    /// The data between both, which the output does not contain
    pub data: usize,
    /// The digest of the data
    pub tail: usize,
}

impl CommandLayout {
    /// Commands of this layout, each with `payload` between header and digest.
    pub fn parts<'a>(self, commands: &'a [u8], payload: &'a [u8]) -> Vec<IoSlice<'a>> {
        let data = &payload[..self.data];
        let whole = commands.chunks_exact(self.head + self.tail).flat_map(|command| {
            let (header, digest) = command.split_at(self.head);
            [header, data, digest]
        });
        whole.filter(|part| !part.is_empty()).map(IoSlice::new).collect()
    }
}

/// The end of a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandEnd {
    /// Its tag, as the target sent it
    pub tag: u32,
    /// Whether it succeeded
    pub is_good: bool,
}

/// The data of every WRITE: equal bytes, so that a digest depends on the length only.
#[derive(Debug)]
pub struct WritePayload {
    /// The bytes of one command
    pub bytes: Vec<u8>,
    /// CRC32C of the first bytes, per length
    digests: Vec<(u32, u32)>,
}

impl WritePayload {
    /// The data of commands of `len` bytes.
    pub fn new(len: u32) -> WritePayload {
        WritePayload { bytes: vec![0x5a; len as usize], digests: Vec::new() }
    }

    /// The digest of `len` bytes.
    pub fn digest(&mut self, len: u32) -> [u8; 4] {
        if let Some((_, crc)) = self.digests.iter().find(|(known, _)| *known == len) {
            return crc.to_le_bytes();
        }
        let crc = crc32c::crc32c(&self.bytes[..len as usize]);
        self.digests.push((len, crc));
        crc.to_le_bytes()
    }
}

/// One connection after its login.
pub trait BlastProtocol: Debug + Send {
    /// The lengths of a command.
    fn layout(&self) -> CommandLayout;

    /// Whether the target accepts another command.
    fn is_open(&self) -> bool;

    /// Appends the header of a command, and the digest of its data. `place` is its offset, in units of its length.
    fn command(&mut self, tag: u32, place: u64, payload: &mut WritePayload, output: &mut Vec<u8>);

    /// Bytes of the header of a response, with its digest.
    fn header_len(&self) -> usize;

    /// Bytes of the whole response with this header.
    fn pdu_len(&self, header: &[u8]) -> usize;

    /// Processes the header of a response. Sends data that it requests; returns the end of a command.
    fn answer(
        &mut self,
        header: &[u8],
        payload: &mut WritePayload,
        socket: &mut TcpStream,
    ) -> Result<Option<CommandEnd>>;
}

/// Sends all slices, in as few calls as the socket allows.
pub fn send_all(socket: &mut TcpStream, mut rest: &mut [IoSlice]) -> Result<()> {
    while rest.iter().any(|slice| !slice.is_empty()) {
        let sent = socket.write_vectored(rest)?;
        IoSlice::advance_slices(&mut rest, sent);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::BHS;

    #[test]
    fn immediate_data_precede_the_digest() {
        let commands = [&[1; BHS][..], b"crc1", &[2; BHS], b"crc2"].concat();
        let sent: Vec<&[u8]> = vec![&[1; BHS], b"data", b"crc1", &[2; BHS], b"data", b"crc2"];
        let parts = CommandLayout { head: BHS, data: 4, tail: 4 }.parts(&commands, b"data");
        assert_eq!(parts.iter().map(|part| &part[..]).collect::<Vec<_>>(), sent);
    }

    #[test]
    fn parts_without_a_digest_are_two_per_command() {
        let layout = CommandLayout { head: BHS, data: 4, tail: 0 };
        assert_eq!(layout.parts(&[3; 2 * BHS], b"data").len(), 4);
    }
}
