//! Negotiation of an export ("Handshake", "Option types"): structured replies if the server supports them, then the
//! metadata context `base:allocation`, then GO.

use super::{ExportInfo, MAX_PAYLOAD, said};
use lunar_wire::be;
use lunar_wire::nbd::{
    BlockSizes, EXPORT_LEN, EXPORT_ZEROS, ExportReply, GREETING_LEN, MAGIC, MAX_STRING, OPTION_REPLY_LEN,
    OptionHeader, OptionReply, greeting_flags, handshake_flag, info, option, reply, transmission_flag,
};

/// Maximum length of the data of a reply, in bytes.
const MAX_REPLY: usize = 64 << 10;
/// Maximum number of replies of a server; one more ends the negotiation.
const MAX_REPLIES: u32 = 4096;
/// Maximum number of export names kept for the error message.
const MAX_EXPORTS: usize = 32;
/// Maximum value of the minimum block size, in bytes.
const MAX_BLOCK: u32 = 64 << 10;
const ALLOCATION: &[u8] = b"base:allocation";

/// The result of [`ClientNegotiation::feed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NegotiationStep {
    /// One message was processed, or more bytes are needed.
    More,
    /// The transmission phase begins.
    Agreed(ExportInfo),
    /// The negotiation failed. Send the output that is pending, then close the connection.
    Failed(NegotiationFailure),
}

/// The reason why the negotiation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NegotiationFailure {
    /// The peer violates the protocol, or is not an NBD server.
    Broken(&'static str),
    /// The server refused the export.
    Refused {
        /// A description of the reply type.
        why: &'static str,
        /// The server's message; may be empty.
        said: String,
        /// The server requires TLS.
        tls: bool,
        /// Names of the server's exports, if it listed them.
        exports: Vec<String>,
    },
}

/// The message that is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Structured,
    Context,
    Go,
    ExportName,
    List,
}

/// The negotiation with one server.
pub struct ClientNegotiation {
    name: String,
    state: State,
    zeros: bool,
    replies: u32,
    structured: bool,
    allocation: Option<u32>,
    export: Option<ExportReply>,
    sizes: BlockSizes,
    refusal: Option<NegotiationFailure>,
    exports: Vec<String>,
}

fn broken(why: &'static str) -> NegotiationStep {
    NegotiationStep::Failed(NegotiationFailure::Broken(why))
}

impl ClientNegotiation {
    /// A negotiation of the export with this name, at most 4096 bytes. An empty name selects the default export.
    pub fn new(name: &str) -> ClientNegotiation {
        ClientNegotiation {
            name: name.into(),
            state: State::Greeting,
            zeros: true,
            replies: 0,
            structured: false,
            allocation: None,
            export: None,
            sizes: BlockSizes { min: 1, preferred: 1, max_payload: MAX_PAYLOAD },
            refusal: None,
            exports: Vec::new(),
        }
    }

    /// Processes at most one message at the start of `bytes`, and appends output to `out`. Returns the number of
    /// bytes that it consumed, and the result. It consumes nothing if it needs more bytes.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> (usize, NegotiationStep) {
        match self.state {
            State::Greeting => self.greeting(bytes, out),
            State::ExportName => self.export_name(bytes),
            _ => self.reply(bytes, out),
        }
    }

    fn greeting(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> (usize, NegotiationStep) {
        // Compare as soon as bytes arrive: a peer that is not an NBD server may send less than a greeting, and then
        // wait.
        if !bytes.iter().zip(MAGIC.to_be_bytes()).all(|(got, wanted)| *got == wanted) {
            return (bytes.len(), broken("the server did not begin with an NBD greeting"));
        }
        let Some(bytes) = bytes.first_chunk::<GREETING_LEN>() else { return (0, NegotiationStep::More) };
        let newstyle = |flags: &u16| flags & handshake_flag::FIXED_NEWSTYLE != 0;
        let Some(flags) = greeting_flags(bytes).filter(newstyle) else {
            return (GREETING_LEN, broken("only the old handshake is supported; fixed newstyle is required"));
        };
        self.zeros = flags & handshake_flag::NO_ZEROES == 0;
        let ours = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        out.extend(u32::from(ours).to_be_bytes());
        self.ask(State::Structured, option::STRUCTURED_REPLY, &[], out);
        (GREETING_LEN, NegotiationStep::More)
    }

    fn ask(&mut self, state: State, option: u32, data: &[u8], out: &mut Vec<u8>) {
        self.state = state;
        out.extend(OptionHeader { option, len: data.len() as u32 }.encode());
        out.extend_from_slice(data);
    }

    fn ask_for_context(&mut self, out: &mut Vec<u8>) {
        let (name, one) = (string(self.name.as_bytes()), 1u32.to_be_bytes());
        let data = [&name[..], &one, &string(ALLOCATION)].concat();
        self.ask(State::Context, option::SET_META_CONTEXT, &data, out);
    }

    fn go(&mut self, out: &mut Vec<u8>) {
        let wanted = [1, info::BLOCK_SIZE].map(u16::to_be_bytes).concat();
        let data = [string(self.name.as_bytes()), wanted].concat();
        self.ask(State::Go, option::GO, &data, out);
    }

    /// The option to which the next reply belongs.
    fn asked(&self) -> u32 {
        match self.state {
            State::Structured => option::STRUCTURED_REPLY,
            State::Context => option::SET_META_CONTEXT,
            State::List => option::LIST,
            _ => option::GO,
        }
    }

    fn reply(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> (usize, NegotiationStep) {
        let Some(header) = bytes.first_chunk::<OPTION_REPLY_LEN>() else { return (0, NegotiationStep::More) };
        let Some(OptionReply { option, reply, len }) = OptionReply::decode(header) else {
            return (OPTION_REPLY_LEN, broken("the server sent an option reply with a wrong magic number"));
        };
        if option != self.asked() || len as usize > MAX_REPLY || self.replies == MAX_REPLIES {
            return (
                OPTION_REPLY_LEN,
                broken(
                    "an option reply that is too long, one too many, or for an option that was not requested",
                ),
            );
        }
        let whole = OPTION_REPLY_LEN + len as usize;
        let Some(data) = bytes.get(OPTION_REPLY_LEN..whole) else { return (0, NegotiationStep::More) };
        self.replies += 1;
        let step = self.take(reply, data, out);
        if matches!(step, NegotiationStep::Failed(NegotiationFailure::Refused { .. })) {
            out.extend(OptionHeader { option: option::ABORT, len: 0 }.encode());
        }
        (whole, step)
    }

    fn take(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> NegotiationStep {
        let refused = kind & reply::ERROR != 0;
        let over = refused || kind == reply::ACK;
        match (self.state, kind) {
            (State::Structured, _) if over => {
                self.structured = !refused;
                if refused { self.go(out) } else { self.ask_for_context(out) }
            }
            (State::Context, reply::META_CONTEXT) if data.len() >= 4 => {
                if &data[4..] == ALLOCATION {
                    self.allocation = Some(be::get32(data));
                }
            }
            (State::Context, _) if over => {
                self.allocation = self.allocation.filter(|_| !refused);
                self.go(out);
            }
            (State::Go, reply::INFO) => return self.info(data),
            (State::Go, reply::ACK) => return self.agree(),
            (State::Go, reply::ERR_UNSUP) => {
                self.ask(State::ExportName, option::EXPORT_NAME, self.name.clone().as_bytes(), out);
            }
            (State::Go, _) if refused => return self.refuse(kind, data, out),
            (State::List, reply::SERVER) => self.keep(data),
            (State::List, _) if over => return self.give_up(),
            _ => return broken("the server sent an option reply of an unexpected type"),
        }
        NegotiationStep::More
    }

    fn refuse(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> NegotiationStep {
        let tls = kind == reply::ERR_TLS_REQD;
        self.refusal = Some(NegotiationFailure::Refused {
            why: reason(kind),
            said: said(data),
            tls,
            exports: Vec::new(),
        });
        if kind != reply::ERR_UNKNOWN {
            return self.give_up();
        }
        self.ask(State::List, option::LIST, &[], out);
        NegotiationStep::More
    }

    /// Stores an export name of the list.
    fn keep(&mut self, data: &[u8]) {
        let name = data.split_first_chunk::<4>().and_then(|(len, rest)| rest.get(..be::get32(len) as usize));
        if let Some(name) = name.filter(|_| self.exports.len() < MAX_EXPORTS) {
            self.exports.push(said(name));
        }
    }

    fn give_up(&mut self) -> NegotiationStep {
        match self.refusal.take() {
            Some(NegotiationFailure::Refused { why, said, tls, .. }) => {
                let exports = std::mem::take(&mut self.exports);
                NegotiationStep::Failed(NegotiationFailure::Refused { why, said, tls, exports })
            }
            _ => broken("an export list that was not requested"),
        }
    }

    fn info(&mut self, data: &[u8]) -> NegotiationStep {
        const INVALID: &str = "an NBD_REP_INFO reply has an invalid length";
        let Some((kind, rest)) = data.split_first_chunk::<2>() else { return broken(INVALID) };
        match u16::from_be_bytes(*kind) {
            info::EXPORT => match rest.try_into() {
                Ok(export) => self.export = Some(ExportReply::decode(export)),
                Err(_) => return broken(INVALID),
            },
            info::BLOCK_SIZE => match rest.try_into() {
                Ok(sizes) => self.sizes = BlockSizes::decode(sizes),
                Err(_) => return broken(INVALID),
            },
            _ => {}
        }
        NegotiationStep::More
    }

    /// Processes the reply to EXPORT_NAME. A server that refuses the export closes the connection instead.
    fn export_name(&mut self, bytes: &[u8]) -> (usize, NegotiationStep) {
        let whole = EXPORT_LEN + if self.zeros { EXPORT_ZEROS } else { 0 };
        let Some(export) = bytes.get(..whole).and_then(<[u8]>::first_chunk) else {
            return (0, NegotiationStep::More);
        };
        self.export = Some(ExportReply::decode(export));
        (whole, self.agree())
    }

    fn agree(&self) -> NegotiationStep {
        let Some(ExportReply { size, flags }) = self.export else {
            return broken("the replies do not contain the size of the export");
        };
        let BlockSizes { min: block_size, max_payload, .. } = self.sizes;
        if i64::try_from(size).is_err() {
            return broken("the export is larger than 2^63 - 1 bytes");
        }
        if !block_size.is_power_of_two() || block_size > MAX_BLOCK || max_payload < block_size {
            return broken("the block sizes of the export are invalid");
        }
        let has_flags = flags & transmission_flag::HAS_FLAGS != 0;
        NegotiationStep::Agreed(ExportInfo {
            size: size - size % u64::from(block_size),
            flags: if has_flags { flags } else { 0 },
            structured: self.structured,
            allocation: self.allocation,
            block_size,
            max_payload: max_payload.min(MAX_PAYLOAD) / block_size * block_size,
        })
    }

    /// Maximum length of an export name, in bytes.
    pub const MAX_NAME: usize = MAX_STRING;
}

/// A description of an error reply type.
fn reason(kind: u32) -> &'static str {
    match kind {
        reply::ERR_POLICY => "forbidden by the policy of the server",
        reply::ERR_UNKNOWN => "no such export",
        reply::ERR_TLS_REQD => "the server requires TLS",
        reply::ERR_SHUTDOWN => "the server is shutting down",
        reply::ERR_BLOCK_SIZE_REQD => "the server requires its block sizes",
        _ => "no reason given",
    }
}

/// Encodes a string with its length in front.
fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}
