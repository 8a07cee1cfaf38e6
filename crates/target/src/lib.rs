//! The target: portals, access lists, sessions, and the data mover over TCP.
#![forbid(unsafe_code)]

pub mod setup;
mod unit;

pub use unit::Unit;
