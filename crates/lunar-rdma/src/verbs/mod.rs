//! InfiniBand, RoCE and iWARP devices through rdma-core, which is loaded at run time if it is installed.
//!
//! Each connection has its own queue pair, completion queue, and event channel of the connection manager. If a device has
//! many connections, the later ones share one receive queue (`shared`).
//!
//! One flush posts all queued work in one call. The memory of an operation is one of these:
//!
//! - Messages are copied into registered bounce buffers (`bounce`); short ones go inline.
//! - The data of an RDMA Write is sent in place if it is in a pool buffer. Pools cut their buffers from a few regions
//!   ([`lunar_runtime::regions`]), and each region is registered once. All zeros are sent from one registered buffer.
//! - The data of an RDMA Read arrives in place too, but not on iWARP: there the request carries the key of the
//!   destination, and the peer could use that key for the whole region.
//! - Memory for the peer is registered when it is exposed, and deregistered when it is revoked.
//!
//! All connections of a device share one protection domain, so a steering tag is valid on each of them. A peer learns only
//! the tags of its own connection.

mod async_events;
mod bounce;
mod cm;
mod connect;
mod devices;
mod domain;
mod endpoint;
mod ffi;
mod inbound;
mod library;
mod listener;
mod outgoing;
mod parts;
mod queues;
mod receives;
mod shared;
mod teardown;

/// Whether a message of the peer may invalidate a local steering tag. Devices do not allow that for the regions that user
/// space registers: such a message ends the connection.
pub const TAKES_INVALIDATE: bool = false;

#[cfg(test)]
mod abi_tests;
#[cfg(test)]
mod endpoint_tests;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod manager_tests;

pub use connect::connect;
pub use devices::{LinkTransport, RdmaDevice, RdmaPort, devices};
pub use library::MissingLibrary;
pub use listener::{Listener, Options, PendingRequest, can_listen, listen};
