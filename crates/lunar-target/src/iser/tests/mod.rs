//! The target against an initiator that is played here, message by message, as Linux (ib_iser with Open-iSCSI) plays
//! it: with the receives that it posts, and no more.

mod data;
mod faults;
pub(crate) mod host;
mod login;
mod recording_endpoint;
mod slow_reads;
mod stale_commands;
mod task_management;
pub(crate) mod test_target;
