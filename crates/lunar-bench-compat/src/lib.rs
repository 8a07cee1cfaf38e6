//! The tools that the seeds measured with, as faces of the one engine: their options, their lines, their
//! arithmetic. Each prints what its tool prints while it goes, and gives back a [`Document`].
//!
//! A run that ends early (a target vanished, somebody asked for the end) is no error of a face: what was
//! measured is in the document, and the last outcome says why it ended
//! ([`Document::ended_early`]).

#![forbid(unsafe_code)]

pub mod blockdev_perftest;
mod clock;
mod copy;
pub mod db_mix;
pub mod dd;
pub mod disktest;
mod failures;
mod operands;
mod paper;
mod route;
pub mod sgp_dd;

#[cfg(doc)]
use lunar_bench::Document;
use lunar_bench::{Error, Kind, Watch};
use lunar_block::Future;
use lunar_runtime::CoreSelection;
use std::io::{self, Write};

/// What a face is run with.
pub struct Stage<'a> {
    /// A handle to end it.
    pub watch: &'a Watch,
    /// Where it prints, line by line.
    pub out: &'a mut dyn Write,
}

/// An option that makes no sense, and what to do instead.
fn refused(what: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, what, hint)
}

/// One core for the `index`-th of several that run at once; they take turns.
fn one_core(index: usize) -> Result<CoreSelection, Error> {
    let cpus = CoreSelection::All.usable()?;
    Ok(CoreSelection::List(vec![cpus[index % cpus.len()]]))
}

/// What a disk of a face cannot do.
fn unsupported<'a>() -> Future<'a, io::Result<()>> {
    Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
}

#[cfg(test)]
pub(crate) mod testing;
