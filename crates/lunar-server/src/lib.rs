//! Builds a server from a configuration, and changes it when the configuration changes.
#![forbid(unsafe_code)]

mod arguments;
pub mod attached;
mod build;
pub mod config;
mod difference;
mod examine;
mod identity;
mod listeners;
pub mod routes;
mod seconds;

pub use arguments::{Arguments, ServeContext};
pub(crate) use build::create_folder_or;
pub use build::{Rest, Units, create_folder, was_served};
pub use difference::{diff, in_force};
pub use examine::{Examined, examine};
pub use lunar_admin::{Change, Difference, folders};
/// What the commands call a [`Diagnostic`].
pub use lunar_config::Diagnostic as Problem;
pub use lunar_config::{Diagnostic, ErrorCode, Position, nearest};
pub(crate) use lunar_config::{io_text, plain};
