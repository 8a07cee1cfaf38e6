//! Tests of the target with an initiator over TCP on the same core: sent bytes stay in the socket until the test
//! yields.

mod accounting;
mod allocations;
mod chunked_write;
mod connections;
mod function_limit;
mod host;
mod lu_counters;
mod lun_forms;
mod passthrough;
mod session_end;
mod stale_commands;
mod truncated_file;
mod turns;
