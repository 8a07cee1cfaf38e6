//! The target: portals, access lists, sessions, and the data mover over TCP.
#![forbid(unsafe_code)]

pub mod access;
mod exec;
mod gate;
mod registry;
mod server;
mod session;
pub mod setup;
mod tcp;
mod unit;

pub use tcp::testing;

pub use server::{Bound, Server};
pub use session::{Count, Counters, Info};
pub use unit::Unit;
