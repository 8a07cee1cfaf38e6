//! An NVMe/TCP host: controllers of a subsystem, and their namespaces as storage.
//!
//! ```no_run
//! use lunar_initiator::nvme::{self, NvmeUrl};
//! use lunar_initiator::{Backend, Buf, Cores};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url: NvmeUrl = "nvme://192.0.2.1/nqn.2026-11.org.example:disks/1".parse()?;
//! let cores = Cores::start(&[0])?;
//! let read = cores.wait(0, move || async move {
//!     let namespace = nvme::open(&url).await?;
//!     let (result, data) = namespace.read(0, Buf::zeroed(4096)).await;
//!     result.map(|()| data.len())
//! })??;
//! assert_eq!(read, 4096);
//! # Ok(())
//! # }
//! ```
//!
//! An [`NvmeController`] lives on the core whose event loop opened it; any thread may use the handle. An [`NvmeNamespace`] is a
//! [`Backend`](crate::Backend).
//!
//! | file | contents |
//! |---|---|
//! | `queue_state.rs`, `incoming.rs` | a queue pair without I/O: identifiers, order, data, and checks of what arrives |
//! | `host_queue.rs` | its socket, send pump and receive loop |
//! | `io_queue.rs`, `io_queues.rs`, `queue_load.rs` | the I/O queues of a controller on their cores, and the choice among them |
//! | `missing_queues.rs` | I/O queues that are connected later |
//! | `association.rs`, `authenticate.rs` | Connect, DH-HMAC-CHAP, the properties of a controller |
//! | `lifetime.rs` | Keep Alive, events, reconnection, and the rule for unanswered writes |
//! | `namespace` | a namespace as a `Backend`, and retries |
//! | `paths.rs`, `access_log.rs` | several controllers of one namespace, and its access states (ANA) |

mod access_log;
mod association;
mod authenticate;
mod command;
mod controller;
mod controller_info;
pub mod discovery;
mod disk;
mod host_queue;
mod incoming;
mod initialize;
mod io_queue;
mod io_queues;
mod lifetime;
mod local_controller;
mod missing_queues;
mod namespace;
mod namespace_identity;
mod namespace_name;
mod open;
pub mod options;
mod paths;
mod pdu_queue;
mod queue_load;
mod queue_state;
mod queue_tasks;
mod request;
mod status;
// Public for the fuzzers of Lunar.
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use crate::url::nvme::{NvmeUrl, is_url};
pub use association::SubsystemAddress;
pub use command::{NvmeCommand, NvmeResult};
pub use controller::NvmeController;
pub use controller_info::ControllerInfo;
pub use disk::NvmeDisk;
#[doc(inline)]
pub use lunar_wire::nvme::{Cqe, IdentifyController, IdentifyNamespace, NvmeStatus, ReservationKind, Sqe};
pub use namespace::{NvmeNamespace, NvmeRegistrant, NvmeReservations, ReservationChange, inspect};
pub use namespace_identity::{NamespaceIdentity, NamespaceProperties, uuid_text};
pub use namespace_name::NamespaceName;
pub use open::{connect, connect_with, namespace_of, open, open_with};
pub use options::{NvmeOptions, random_host_id};
pub use paths::{NvmePath, NvmePaths};
pub use request::PendingCompletion;
