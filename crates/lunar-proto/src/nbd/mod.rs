//! NBD without I/O. The server's side is here: exports, negotiation, validation of requests. The client's side is
//! [`client`]. Section titles in quotes are those of doc/proto.md of the NBD project.

pub mod client;
mod handshake;
mod request;

pub use handshake::{Handshake, HandshakeStep, MAX_OPTION};
use lunar_wire::nbd::ExportReply;
pub use request::{NbdCommand, NegotiatedOptions, RequestError};

/// An export as reported to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOffer {
    /// Its name. An empty requested name selects the first export.
    pub name: String,
    /// Human-readable description; may be empty.
    pub description: String,
    /// Size in bytes.
    pub size: u64,
    /// Its transmission flags, without SEND_DF, which depends on the client.
    pub flags: u16,
    /// Minimum block size in bytes, a power of two: offsets and lengths are multiples of it.
    pub block_size: u32,
    /// Preferred block size in bytes, a power of two.
    pub preferred: u32,
    /// Maximum length of READ and WRITE in bytes.
    pub max_payload: u32,
}

/// The result of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedExport {
    /// Index of the selected export in the offers.
    pub export: usize,
    /// The options by which its requests are validated.
    pub terms: NegotiatedOptions,
}

impl NegotiatedExport {
    /// The export in replies of the negotiation.
    fn reply(&self) -> ExportReply {
        ExportReply { size: self.terms.size, flags: self.terms.flags }
    }
}
