//! An NBD client on a Unix socket, with simple replies and many requests in flight.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const OPTION_GO: u32 = 7;
const ACK: u32 = 1;
const REQUEST: u32 = 0x2560_9513;
const REPLY: [u8; 4] = [0x67, 0x44, 0x66, 0x98];
/// Commands of the NBD protocol.
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;

/// A connection in the transmission phase.
pub struct Nbd {
    socket: UnixStream,
    cookie: u64,
    input: Vec<u8>,
    /// Cookies and lengths of reads in flight.
    reads: Vec<(u64, usize)>,
}

/// The next event of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum NbdReply {
    /// A reply: cookie, error, data of a read.
    End(u64, u32, Vec<u8>),
    Closed,
    /// The time limit expired.
    Nothing,
}

impl Nbd {
    /// Opens the default export.
    pub fn connect(path: &Path) -> Result<Nbd, String> {
        let socket = UnixStream::connect(path).map_err(|e| format!("connect to {}: {e}", path.display()))?;
        let mut nbd = Nbd { socket, cookie: 0, input: Vec::new(), reads: Vec::new() };
        nbd.greet().map_err(|e| format!("handshake with {}: {e}", path.display()))?;
        Ok(nbd)
    }

    fn greet(&mut self) -> std::io::Result<()> {
        self.socket.set_read_timeout(Some(crate::raw::patience()))?;
        self.socket.read_exact(&mut [0; 18])?;
        self.socket.write_all(&[0, 0, 0, 3])?;
        self.socket.write_all(b"IHAVEOPT")?;
        for field in [OPTION_GO, 6, 0] {
            self.socket.write_all(&field.to_be_bytes())?;
        }
        self.socket.write_all(&[0, 0])?;
        loop {
            let mut reply = [0; 20];
            self.socket.read_exact(&mut reply)?;
            let field = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("4 bytes"));
            self.socket.read_exact(&mut vec![0; field(16) as usize])?;
            match field(12) {
                ACK => return Ok(()),
                error if error >> 31 != 0 => return Err(std::io::Error::other(format!("reply {error:#x}"))),
                _ => {}
            }
        }
    }

    /// Sends a request, and returns its cookie. [`Nbd::next`] reports a connection that the peer has closed.
    pub fn send(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> u64 {
        self.cookie += 1;
        let head = [&REQUEST.to_be_bytes()[..], &[0, 0], &command.to_be_bytes(), &self.cookie.to_be_bytes()];
        let place = [&offset.to_be_bytes()[..], &length.to_be_bytes(), data];
        let _ = self.socket.write_all(&[head.concat(), place.concat()].concat());
        if command == READ {
            self.reads.push((self.cookie, length as usize));
        }
        self.cookie
    }

    /// Waits for the reply to any request.
    pub fn next(&mut self, limit: Duration) -> NbdReply {
        let end = Instant::now() + limit;
        loop {
            if let Some(answer) = self.parse() {
                return answer;
            }
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left)).expect("a time-out");
            let mut chunk = [0; 65536];
            match self.socket.read(&mut chunk) {
                Ok(n @ 1..) => self.input.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return NbdReply::Nothing;
                }
                Ok(_) | Err(_) => return NbdReply::Closed,
            }
        }
    }

    fn parse(&mut self) -> Option<NbdReply> {
        let head: [u8; 16] = self.input.get(..16)?.try_into().ok()?;
        assert_eq!(head[..4], REPLY, "not a simple reply");
        let error = u32::from_be_bytes(head[4..8].try_into().expect("4 bytes"));
        let cookie = u64::from_be_bytes(head[8..].try_into().expect("8 bytes"));
        let read = self.reads.iter().position(|(other, _)| *other == cookie);
        let length = read.filter(|_| error == 0).map_or(0, |at| self.reads[at].1);
        if self.input.len() < 16 + length {
            return None;
        }
        read.map(|at| self.reads.swap_remove(at));
        let data = self.input.drain(..16 + length).skip(16).collect();
        Some(NbdReply::End(cookie, error, data))
    }
}
