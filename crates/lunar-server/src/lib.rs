//! Configuration, state files and the admin socket.
#![forbid(unsafe_code)]

pub mod admin;
mod arguments;
pub mod attached;
mod build;
pub mod config;
mod difference;
mod examine;
pub mod folders;
mod identity;
mod listeners;
mod problem;
pub mod routes;
mod seconds;

pub use arguments::{Arguments, Place};
pub(crate) use build::create_folder_or;
pub use build::{Rest, Units, create_folder, was_served};
pub use difference::{Change, Difference, diff, in_force};
pub use examine::{Examined, examine};
pub use lunar_proto::nearest::nearest;
pub use problem::{ErrorCode, Position, Problem};

/// What the operating system says about an error, without its number.
pub(crate) fn io_text(e: &std::io::Error) -> String {
    plain(&e.to_string())
}

/// The text of an error as the end of a sentence: without the number of the operating system, in lower case.
pub(crate) fn plain(text: &str) -> String {
    let mut chars = lunar_runtime::error::without_errno(text).chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}
