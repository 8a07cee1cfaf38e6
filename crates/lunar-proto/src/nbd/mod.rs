//! NBD without I/O. The server's side: what is offered, the haggling over it, and which requests are in order.
//! The client's side is [`client`]. Section titles are those of the protocol's document.

pub mod client;
mod handshake;
mod request;

pub use handshake::{Handshake, HandshakeStep, MAX_OPTION};
pub use request::{NbdCommand, NegotiatedOptions, RequestError};

/// An export as reported to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOffer {
    /// Its name. An empty requested name selects the first export.
    pub name: String,
    /// Words for people; may be empty.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Its transmission flags, without SEND_DF, which depends on the client.
    pub flags: u16,
    /// Minimum block in bytes, a power of two: offsets and lengths are multiples of it.
    pub block_size: u32,
    /// Preferred block in bytes, a power of two.
    pub preferred: u32,
    /// The longest READ and WRITE in bytes.
    pub max_payload: u32,
}

/// What a client and a server have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedExport {
    /// Which of the offers.
    pub export: usize,
    /// How requests for it are judged and answered.
    pub terms: NegotiatedOptions,
}
