//! Makes a [`lunar_block::Backend`] a disk of this host: a ublk device or a FUSE file.

mod error;
pub mod fuse;
pub mod ublk;

pub use error::Error;
