//! The target: portals, access lists, sessions, and the data mover over TCP.
#![forbid(unsafe_code)]

pub mod access;
mod exec;
mod gate;
mod registry;
mod rest;
mod seldom;
mod server;
mod session;
pub mod setup;
mod state_file;
mod tcp;
mod unit;

pub use tcp::testing;

pub use rest::Resting;
pub use server::{Bound, Server};
pub use session::{Count, Counters, Info};
pub use state_file::remove_leftovers;
pub use unit::Unit;
