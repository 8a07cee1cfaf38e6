//! Hands a [`block::Backend`] to a host: as an NBD export, a ublk device or a FUSE file.

pub mod nbd;
mod error;
pub mod fuse;
pub mod ublk;

pub use error::Error;
