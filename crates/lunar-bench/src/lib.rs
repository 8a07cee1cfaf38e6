//! Workloads on storage, and what they measure.
//!
//! A [`Rig`] has targets open on the cores of this machine; it runs a [`Job`], and what comes of it is an
//! [`Outcome`]. A [`Document`] keeps the results. Faces of other tools (`lunar-bench-compat`) and whole experiments
//! (`lunar-experiments`) are jobs too.
#![forbid(unsafe_code)]

pub mod beside;
pub mod compare;
mod content;
mod cpu;
pub mod device;
pub mod document;
mod error;
mod host;
pub mod job;
mod offsets;
pub mod outcome;
pub mod overhead;
pub mod people;
pub mod plain;
mod record;
pub mod report;
mod rig;
pub mod rounds;
mod run;
#[cfg(test)]
mod sample;
mod scatter;
mod steps;
mod terse;
pub mod testing;
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
pub use undo::{Undo, undo_all};
pub use watch::Watch;
