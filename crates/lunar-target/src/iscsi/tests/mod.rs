//! The target against an initiator over TCP that is played on the same core: what is sent stays in the socket until the test
//! gives the core away.

mod allocations;
mod connections;
mod host;
mod late;
mod pieces;
