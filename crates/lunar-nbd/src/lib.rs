//! NBD over a [`lunar_block::Backend`]: [`client`] makes a backend of an export, [`server`] exports backends.
//!
//! One crate has both ends, because they share the protocol and are tested against each other.
//!
//! # Server
//!
//! 1. The handshake is a machine without I/O in `lunar-proto`; afterwards a table checks each request: flags, range,
//!    alignment.
//! 2. One receive brings many requests. The payload of a rejected write is skipped; a large payload is received into the
//!    buffer that is written.
//! 3. Requests that need no waiting run at once. All others become tasks, so replies come in any order. Above a limit of
//!    requests, or of 4 MiB of replies, the connection is not read. A write without a buffer stops the receiver; a read
//!    waits in its task.
//! 4. Zeros in a read are reported as holes. They are found in the bytes: asking a backend for extents would cost a wait.
//!
//! A request that changes something is dropped if its client has reset the connection, or closed it without NBD_CMD_DISC. On
//! shutdown, new requests get ESHUTDOWN, running ones end, and every backend is flushed.
//!
//! # Client
//!
//! A cookie names a slot and the count of its uses, so a repeated reply matches nothing. Each reply is checked against its
//! request before a byte is stored: range, overlap, and completeness at the end. A server that breaks a rule is
//! disconnected. All commands in flight then fail, and none is repeated.
#![forbid(unsafe_code)]

pub mod client;
pub mod server;
