//! Tests of the target with an initiator that behaves like Linux (`ib_iser` with Open-iSCSI), message by message, with
//! the same receive buffers.

mod connect;
mod data;
mod faults;
mod host;
mod login;
mod recording_endpoint;
mod slow_reads;
mod stale_commands;
mod task_management;
