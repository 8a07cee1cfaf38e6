//! NBD for [`lunar_block::Backend`]: [`client`] makes an export a backend, and [`server`] exports backends.
//!
//! One crate contains both, because they share the protocol and are tested against each other.
//!
//! # Server
//!
//! 1. The handshake is a machine without I/O in `lunar-proto`. Afterwards a table checks the flags, range and
//!    alignment of each request.
//! 2. One receive returns many requests. The payload of a rejected write is skipped. A large payload is received
//!    directly into the buffer of the write.
//! 3. Requests that need not wait are executed at once. All others become tasks, so replies are sent in any order.
//!    While a connection has too many requests, or 4 MiB of queued replies, it receives nothing. A write without a
//!    buffer stops the receiver; a read waits in its task.
//! 4. Zeros in a read are reported as holes. They are found in the data, because a request for the extents could
//!    wait.
//!
//! A request that changes data is dropped if its client has reset the connection, or closed it without NBD_CMD_DISC.
//! On shutdown, new requests fail with ESHUTDOWN, running ones finish, and every backend is flushed.
//!
//! # Client
//!
//! A cookie consists of a slot and the number of its uses, so a repeated reply matches no command. Each reply is
//! checked against its request before any data is stored: its range, overlaps, and completeness at the end. If a
//! server violates the protocol, the client disconnects. All commands in flight then fail, and none is repeated.
#![forbid(unsafe_code)]

pub mod client;
pub mod server;
