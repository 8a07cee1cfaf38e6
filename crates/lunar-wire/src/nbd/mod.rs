//! NBD, the Network Block Device protocol: fixed newstyle handshake and transmission, as the protocol's own
//! document (doc/proto.md of the NBD project) lays them out. All integers are big-endian.

mod handshake;
mod transmission;

pub use handshake::*;
pub use transmission::*;
