//! The target against an initiator over TCP that is played on the same core: what is sent stays in the socket until the test
//! gives the core away.

mod allocations;
mod chunked_write;
mod connections;
mod host;
mod stale_commands;
