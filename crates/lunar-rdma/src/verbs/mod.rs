//! InfiniBand, RoCE and iWARP devices through rdma-core, which is loaded at run time if it is installed.
//!
//! Each connection has its own queue pair, completion queue, and event channel of the connection manager. If a device
//! has many connections, the later ones share one receive queue (`shared`).
//!
//! One flush posts all queued work in a single call. The memory of an operation is one of these:
//!
//! - Messages are copied into registered bounce buffers (`bounce`). Short ones are sent inline.
//! - The data of an RDMA Write is sent in place if it is in a pool buffer. Pools cut their buffers from a few regions
//! - The data of an RDMA Read are received in place too, except on iWARP: there the request contains the key of the
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

/// Whether a message of the peer may invalidate a local steering tag. Devices do not permit this for regions
/// registered from user space: such a message ends the connection.
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
