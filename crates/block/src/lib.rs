//! Where blocks live. A [`Backend`] is a line of bytes with a capacity; kinds of it hold null, memory, files and
//! devices, and filters wrap any of them.
#![forbid(unsafe_code)]

mod backend;

pub use backend::{Backend, Extent, Facts, Finished, Future, Inline};
