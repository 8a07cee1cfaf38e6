//! NBD over a [`lunar_block::Backend`]: [`client`] makes a backend of an export, [`server`] exports backends.
#![forbid(unsafe_code)]

pub mod client;
pub mod server;
