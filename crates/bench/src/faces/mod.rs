//! The tools that the seeds measured with, as faces of the one engine: their options, their lines, their
//! arithmetic. Each prints what its tool prints while it goes, and gives back a [`Document`].
//!
//! A run that ends early (a target vanished, somebody asked for the end) is no error of a face: what was
//! measured is in the document, and the last outcome says why it ended
//! ([`Document::ended_early`]).

pub mod blockdev_perftest;
mod burst;
mod clock;
mod copy;
pub mod db_mix;
pub mod dd;
pub mod disktest;
mod operands;
mod paper;
mod route;
pub mod sgp_dd;
pub(crate) mod stream;

#[cfg(doc)]
use crate::Document;
use crate::{Error, Kind, Rig, Target, Watch};
use block::Backend;
use control::config::Cores;
use std::io::Write;
use std::sync::Arc;

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

/// A disk that the page cache of this host does not stand before.
fn is_remote(target: &Target) -> bool {
    !matches!(target, Target::Path(_) | Target::Null(_) | Target::Memory(_))
}

/// One core for the `index`-th of several that run at once; they take turns.
fn one_core(index: usize) -> Result<Cores, Error> {
    let cpus = Cores::All.usable().map_err(Error::invalid)?;
    Ok(Cores::List(vec![cpus[index % cpus.len()]]))
}

/// Puts before remote disks what a kernel has before a block device: its page cache, or, where that is passed
/// by, the cutting of large requests. True if there was something to do.
pub(crate) fn like_a_block_device(rig: &mut Rig, target: &Target, direct: bool) -> bool {
    if !is_remote(target) {
        return false;
    }
    rig.wrap(|_, disk| -> Arc<dyn Backend> {
        match direct {
            true => Arc::new(burst::Burst::new(disk)),
            false => Arc::new(stream::Stream::new(disk)),
        }
    });
    true
}

/// Makes what the first session wrote stable, outside of any measurement.
pub(crate) fn flush(rig: &Rig) -> Result<(), String> {
    let Some(place) = rig.places.first() else { return Ok(()) };
    let disk = place.disk.clone();
    let flushed = rig.cores.wait(place.core, move || async move { disk.flush().await });
    flushed.and_then(|result| result).map_err(|e| format!("flush: {e}"))
}

#[cfg(test)]
pub(crate) mod testing;
