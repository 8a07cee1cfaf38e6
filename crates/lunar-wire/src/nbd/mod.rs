//! NBD, the Network Block Device protocol: fixed newstyle handshake and transmission, as specified in doc/proto.md of
//! the NBD project. All integers are big-endian.

mod chunk_body;
mod handshake;
mod transmission;

pub use chunk_body::*;
pub use handshake::*;
pub use transmission::*;
