//! Hands a [`lunar_block::Backend`] to a host: as an NBD export, a ublk device or a FUSE file.

mod error;
pub mod fuse;
pub mod nbd;
pub mod ublk;

pub use error::Error;
