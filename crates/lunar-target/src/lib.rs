//! The target: portals, access lists, sessions, and the data mover over TCP.
#![forbid(unsafe_code)]

pub mod access;
pub(crate) mod core;
mod crowds;
mod devices;
mod entry;
mod exec;
mod fence;
mod gate;
mod instance;
mod iscsi;
mod iser;
pub mod lock_file;
mod missing;
mod nexuses;
mod passage;
mod rdma_receiver;
mod registry;
mod rest;
mod server;
mod session;
pub mod setup;
mod share;
mod shared;
pub mod single;
pub mod srp;
mod state_file;
mod streams;
mod told;
mod unit;

pub use iscsi::testing;

pub use instance::{Instance, Visit};
pub use lock_file::LockFile;
pub use missing::OnMissing;
pub use nexuses::Nexuses;
pub use passage::{Data, Fate, Passage, Passed, Reply, Way};
pub use rest::Resting;
pub use server::{Server, cannot_bind};
pub use session::{Count, Counters, Info, Transport};
pub use shared::Bound;
pub use state_file::{remove_leftovers, replace as replace_file};
pub use told::Told;
pub use unit::Unit;
