//! rdma-core, loaded at run time where it is: InfiniBand, RoCE and iWARP devices.
//!
//! Each connection has queues of its own, and an event queue of the connection manager. Where there are many, they take
//! memory for messages from one queue of their device (`shared`).
//!
//! What is flushed together is one call of the device. Messages are copied into memory that it knows (`bounce`), and
//! short ones go inline. Data of RDMA Writes leaves from where it lies if that is a buffer of a pool: those are cut from
//! a few regions ([`lunar_runtime::regions`]), each of which is made known once. Zeros leave from one place, all of them. Data of
//! RDMA Reads lands in buffers as well, but not on iWARP, where the key of a read's memory is told to the other side, and
//! would be good for all of the region. Memory that the other side may use is made known as it is exposed, and forgotten
//! when the right is taken back.
//!
//! All connections of a device share one protection domain, so a steering tag of one names memory for the other side of
//! another as well. Nobody is told the tags of others.

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

/// A message of the other side must not end a steering tag of ours: those of user space are of whole regions, which the
/// devices let nobody else end. Such a message would end the connection.
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
