//! Builds a server from a configuration, and changes it when the configuration changes.
//!
//! The keys, their checks and the difference of two configurations are modules here, not a crate: their values are types of
//! `lunar-target` and `lunar-router`, and nothing needs them without these crates.
//!
//! # Reload
//!
//! A LUN keeps its logical unit object while it is served from the same medium or under the same identity. So one task set
//! lock and one device server are in front of a medium. `build/change.rs` works in this order:
//!
//! 1. Quiesce every unit that changes or leaves: it returns BUSY, its lock is held exclusively, its medium is flushed. A
//!    unit that is not quiet within 10 s ends the reload.
//! 2. Offer media that no unit keeps: this process may open them in another way. Their locks stay, and a new descriptor
//!    takes its lock before the old one is closed.
//! 3. Do everything that can fail: open media, check settings, load state. After a failure, all units continue as before.
//! 4. Replace blocks and settings in one step, and raise the unit attentions. A unit that leaves stays busy, releases its
//!    blocks, and writes no state.
//!
//! A session does not lock the blocks for each command. It keeps a reference until its epoch changes, which every
//! replacement causes.
//!
//! # Media
//!
//! A start does not create a missing file that was served before, and rejects another file at its path
//! (`build/medium_history.rs`). A reload rejects another file at the path of a served one (`build/unlinked.rs`). The state
//! and the serial number of a unit are locked while it is served (`build/state_lock.rs`). `lunar check --media` calls the
//! same functions and changes nothing.

mod arguments;
pub mod attached;
mod build;
pub mod config;
mod difference;
mod examine;
pub mod hints;
mod identity;
pub mod inherited;
pub mod listeners;
pub mod routes;
pub mod standby;

pub use arguments::{Arguments, ServeContext, lun_argument, remote_lun_argument};
pub(crate) use build::create_folder_or;
pub use build::{MediumWatch, Rest, Units, create_folder, used_state_files, was_served};
pub use difference::{diff, in_force};
pub use examine::{Examined, examine};
pub use lunar_admin::{Change, Difference, folders};
pub use lunar_config::{Diagnostic, ErrorCode, Position, nearest};
pub(crate) use lunar_config::{io_text, plain};
