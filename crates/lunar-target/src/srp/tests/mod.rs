//! Tests of the target against a scripted initiator, both in one process.

mod accounting;
mod data;
mod login;
mod malformed;
mod medium_watch;
mod passthrough;
mod reservations;
mod session_end;
mod stale_commands;
mod target_requests;
mod task_management;
mod task_order;
mod test_target;
mod write_cache;

use test_target::{TestTarget, golden, on_core};
