//! rdma-core, loaded at run time where it is: InfiniBand, RoCE and iWARP devices.
//!
//! Each connection has queues of its own (there is no shared receive queue), and an event queue of the connection
//! manager. What it sends and receives is copied into memory that its device knows ([`bounce`]); memory that the other
//! side may use is made known as it is exposed, and forgotten when the right is taken back.
//!
//! All connections of a device share one protection domain, so a steering tag of one names memory for the other side of
//! another as well. Nobody is told the tags of others.

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

/// A message of the other side must not end a steering tag of ours: those of user space are of whole regions, which the
/// devices let nobody else end. Such a message would end the connection.
pub const TAKES_INVALIDATE: bool = false;

#[cfg(test)]
mod abi_tests;
#[cfg(test)]
mod endpoint_tests;
#[cfg(test)]
mod fake;

pub use connect::connect;
pub use devices::{Device, Port, Transport, devices};
pub use library::Missing;
pub use listener::{Listener, Options, Pending, listen};
