//! A raw NBD client.

use lunar_wire::be;
use lunar_wire::nbd::{
    CHUNK_LEN, CHUNK_MAGIC, ChunkHeader, GREETING_LEN, OPTION_REPLY_LEN, OptionHeader, OptionReply,
    REQUEST_LEN, Request, SIMPLE_REPLY_LEN, SimpleReply, chunk, command, option, reply,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// A client that panics on errors, and whose reads time out.
pub struct Client {
    pub socket: TcpStream,
    cookie: u64,
    structured: bool,
}

/// A reply, or a chunk of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub cookie: u64,
    /// 0 means success.
    pub error: u32,
    /// The type and payload of a chunk, or None for a simple reply.
    pub chunk: Option<(u16, Vec<u8>)>,
    pub done: bool,
}

impl Client {
    /// Connects, and sends the client flags. The option phase follows.
    pub fn connect(address: SocketAddr) -> Client {
        let socket = TcpStream::connect(address).expect("the client connects");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("the timeout is set");
        let mut client = Client { socket, cookie: 0, structured: false };
        assert_eq!(&client.read(GREETING_LEN), b"NBDMAGICIHAVEOPT\0\x03");
        client.write(&[0, 0, 0, 3]);
        client
    }

    /// Connects and enters the transmission phase, with simple replies.
    pub fn simple(address: SocketAddr, export: &str) -> Client {
        let mut client = Client::connect(address);
        client.go(export);
        client
    }

    /// Connects and enters the transmission phase, with structured replies and `base:allocation`.
    pub fn structured(address: SocketAddr, export: &str) -> Client {
        let mut client = Client::connect(address);
        assert_eq!(client.ask(option::STRUCTURED_REPLY, &[])[0].0, reply::ACK);
        let mut data = named(export);
        data.extend([0, 0, 0, 1]);
        data.extend(named("base:allocation"));
        assert_eq!(client.ask(option::SET_META_CONTEXT, &data)[0].0, reply::META_CONTEXT);
        client.structured = true;
        client.go(export);
        client
    }

    fn go(&mut self, export: &str) {
        let mut data = named(export);
        // Requests NBD_INFO_BLOCK_SIZE: this client respects the block size.
        data.extend([0, 1, 0, 3]);
        assert_eq!(self.ask(option::GO, &data).last().expect("a reply").0, reply::ACK);
    }

    /// Sends an option. Returns all replies to it.
    pub fn ask(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.write(&OptionHeader { option, len: data.len() as u32 }.encode());
        self.write(data);
        let mut replies = Vec::new();
        loop {
            let header: [u8; OPTION_REPLY_LEN] =
                self.read(OPTION_REPLY_LEN).try_into().expect("an option reply header");
            let header = OptionReply::decode(&header).expect("a valid option reply header");
            assert_eq!(header.option, option);
            replies.push((header.reply, self.read(header.len as usize)));
            if header.reply == reply::ACK || header.reply & reply::ERROR != 0 {
                return replies;
            }
        }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the bytes are sent");
    }

    pub fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).expect("the bytes are received");
        bytes
    }

    /// Reads from the socket. Returns whether the server has closed.
    pub fn is_closed(&mut self) -> bool {
        match self.socket.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Shuts down the sending side only.
    pub fn half_close(&mut self) {
        self.socket.shutdown(Shutdown::Write).expect("the socket is shut down");
    }

    /// Sends a request. Returns its cookie.
    pub fn request(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> u64 {
        self.cookie += 1;
        let request = Request { flags, command, cookie: self.cookie, offset, len };
        let bytes: [u8; REQUEST_LEN] = request.encode();
        self.write(&bytes);
        self.cookie
    }

    /// Receives a reply or chunk. `data` is the length of the data that follows a successful simple reply.
    pub fn answer(&mut self, data: usize) -> Answer {
        let magic = self.read(4);
        if be::get32(&magic) == CHUNK_MAGIC {
            let header = [magic, self.read(CHUNK_LEN - 4)].concat().try_into().expect("a chunk header");
            let header = ChunkHeader::decode(&header).expect("a valid chunk header");
            let payload = self.read(header.len as usize);
            let error = if header.kind == chunk::ERROR { be::get32(&payload) } else { 0 };
            let done = header.flags == chunk::DONE;
            return Answer { cookie: header.cookie, error, chunk: Some((header.kind, payload)), done };
        }
        let header = [magic, self.read(SIMPLE_REPLY_LEN - 4)].concat().try_into().expect("a simple reply");
        let SimpleReply { error, cookie } = SimpleReply::decode(&header).expect("a valid simple reply");
        let chunk = (error == 0 && data > 0).then(|| (chunk::OFFSET_DATA, self.read(data)));
        Answer { cookie, error, chunk, done: true }
    }

    /// Sends a request whose reply has no data. Returns the error of the reply.
    pub fn error_of(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> u32 {
        let cookie = self.request(command, flags, offset, len);
        let answer = self.answer(0);
        assert_eq!(answer.cookie, cookie);
        answer.error
    }

    /// Writes. Returns the error of the reply.
    pub fn write_at(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.request(command::WRITE, flags, offset, data.len() as u32);
        self.write(data);
        self.answer(0).error
    }

    /// Reads. Returns the data of all chunks.
    pub fn read_at(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let cookie = self.request(command::READ, 0, offset, len as u32);
        let mut bytes = vec![0xee; len];
        loop {
            let answer = self.answer(len);
            assert_eq!((answer.cookie, answer.error), (cookie, 0));
            match answer.chunk {
                Some((chunk::OFFSET_DATA, data)) if !self.structured => return data,
                Some((chunk::OFFSET_DATA, payload)) => {
                    let at = (be::get64(&payload) - offset) as usize;
                    bytes[at..at + payload.len() - 8].copy_from_slice(&payload[8..]);
                }
                Some((chunk::OFFSET_HOLE, payload)) => {
                    let at = (be::get64(&payload) - offset) as usize;
                    bytes[at..at + be::get32(&payload[8..]) as usize].fill(0);
                }
                other => panic!("{other:?}"),
            }
            if answer.done {
                return bytes;
            }
        }
    }

    /// Returns the extents of one BLOCK_STATUS reply as (length, flags).
    pub fn status(&mut self, flags: u16, offset: u64, len: u32) -> Vec<(u32, u32)> {
        self.request(command::BLOCK_STATUS, flags, offset, len);
        let Answer { chunk: Some((chunk::BLOCK_STATUS, payload)), done: true, .. } = self.answer(0) else {
            panic!("not a single BLOCK_STATUS chunk")
        };
        assert_eq!(be::get32(&payload), 1);
        payload[4..].chunks(8).map(|extent| (be::get32(extent), be::get32(&extent[4..]))).collect()
    }
}

fn named(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat()
}
