//! Compatibility with other benchmarks: their options, output and arithmetic, on the engine of `lunar-bench`. Each
//! prints what its tool prints while it runs, and returns a [`Document`].
//!
//! A run that ends early, because a target vanished or the user stopped it, is not an error. The document holds the
//! results up to then, and the last outcome has the reason ([`Document::ended_early`]).

#![forbid(unsafe_code)]

pub mod blockdev_perftest;
mod clock;
mod copy_disk;
pub mod db_mix;
pub mod dd;
pub mod disktest;
mod failures;
mod operands;
mod route;
pub mod sgp_dd;
mod tool_output;

#[cfg(doc)]
use lunar_bench::Document;
use lunar_bench::{Error, ErrorKind, RunHandle};
use lunar_block::LocalBoxFuture;
use lunar_runtime::CoreSelection;
use std::io::{self, Write};

/// The environment of a run.
pub struct RunContext<'a> {
    /// The handle that stops the run.
    pub handle: &'a RunHandle,
    /// The output, written line by line.
    pub out: &'a mut dyn Write,
}

/// The error of an invalid option, with its fix.
fn refused(what: impl Into<String>, hint: impl Into<String>) -> Error {
    let hint: String = hint.into();
    Error::new(ErrorKind::Invalid, what, hint)
}

/// One core for the `index`-th of several concurrent runs, in round-robin order.
fn one_core(index: usize) -> Result<CoreSelection, Error> {
    let cpus = CoreSelection::All.usable()?;
    Ok(CoreSelection::List(vec![cpus[index % cpus.len()]]))
}

/// The result of an operation that a disk here does not support.
fn unsupported<'a>() -> LocalBoxFuture<'a, io::Result<()>> {
    Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
}

#[cfg(test)]
pub(crate) mod testing;
