//! Workloads on storage, and what they measure.
//!
//! A [`Rig`] has targets open on the cores of this machine; it runs a [`Job`], and what comes of it is an
//! [`Outcome`]. Faces of tools and whole experiments are jobs, and a [`Document`] is what is kept of them.
#![forbid(unsafe_code)]

mod beside;
pub mod compare;
mod content;
mod cpu;
mod device;
pub mod document;
mod error;
pub mod faces;
mod host;
pub mod job;
mod offsets;
pub mod outcome;
pub mod overhead;
pub mod people;
pub mod plain;
mod record;
pub mod report;
pub mod reproduce;
mod rig;
pub mod rounds;
mod run;
#[cfg(test)]
mod sample;
mod scatter;
mod steps;
mod terse;
mod transport;
mod undo;
pub mod verify;
mod watch;
pub mod words;

pub use document::Document;
pub use error::{Error, Kind};
pub use host::Host;
pub use job::Job;
pub use outcome::Outcome;
pub use rig::{Opening, Rig, Target};
pub use terse::terse;
pub use transport::Transport;
pub use undo::undo_all;
pub use watch::Watch;
