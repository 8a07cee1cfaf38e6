//! An iSCSI initiator in user space: sessions with targets, and their logical units as storage.
//!
//! A program reads and writes a LUN without a kernel module, without root, and without a block device. There are three
//! ways to use this crate. They differ in the thread that does the work. All read, write, flush and unmap. Multipath,
//! extents, reservations by [`Session`] and settings in [`Options`] need the crate's root.
//!
//! | module | for | threads |
//! |---|---|---|
//! | [`blocking`] | programs without an event loop | one in the background, for all logical units |
//! | [`any_executor`] | tasks of tokio and other executors | the same background thread |
//! | the crate's root | the highest speed | one event loop for each core: [`Cores`] |
//!
//! # Blocking calls
//!
//! ```no_run
//! use lunar_initiator::blocking::BlockingLun;
//!
//! let lun = BlockingLun::open(&"iscsi://192.0.2.1/iqn.2026-11.org.example:disks/0".parse()?)?;
//! let mut data = vec![0; 4096];
//! lun.read_at(0, &mut data)?;
//! lun.write_at(4096, &data)?;
//! lun.flush()?;
//! lun.close()?;
//! # Ok::<(), lunar_initiator::Error>(())
//! ```
//!
//! # In a task of tokio
//!
//! The futures of [`any_executor`] are `Send` and run on any executor.
//!
//! ```no_run
//! use lunar_initiator::any_executor::AsyncLun;
//!
//! # async fn task() -> Result<(), lunar_initiator::Error> {
//! let lun = AsyncLun::open(&"iscsi://192.0.2.1/iqn.2026-11.org.example:disks/0".parse()?).await?;
//! let (mut first, mut second) = ([0; 512], [0; 512]);
//! lun.read_at(0, &mut first).await?;
//! lun.read_at(512, &mut second).await?;
//! lun.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # One event loop for each core
//!
//! A [`Session`] lives on the core whose event loop opened it. There, a command takes no lock and crosses to no other
//! thread. Any thread may use the handle. A [`Lun`] is a [`Backend`]: an operation takes ownership of a buffer and
//! returns it. [`Lun::scsi`] takes any CDB.
//!
//! ```no_run
//! use lunar_initiator::{Backend, Buf, Cores, Url};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url: Url = "iscsi://192.0.2.1/iqn.2026-11.org.example:disks/0?commands=64".parse()?;
//! let cores = Cores::start(&[0, 1])?;
//! let read = cores.wait(1, move || async move {
//!     let lun = lunar_initiator::open(&url).await?;
//!     let (result, data) = lun.read(0, Buf::zeroed(4096)).await;
//!     result.map(|()| data.len())
//! })??;
//! assert_eq!(read, 4096);
//! # Ok(())
//! # }
//! ```
//!
//! [`Backend::queue`] keeps many operations in flight without a future for each. [`multipath`] joins several paths to one
//! logical unit.
//!
//! # Errors
//!
//! An [`Error`] has an [`ErrorCode`] for the program, and a message and a [`Hint`] for people. Any version may add
//! codes and events. A session recovers from a lost connection by itself. [`Timeouts`] limits the time for that.
//! [`LateWrites`] selects what happens to writes that were in flight.
//!
//! # Features
//!
//! `rdma` adds iSER and SRP: URLs with `iser://` and `srp://`. It is off by default, because most programs use TCP and do not
//! need the crate that loads `libibverbs`. Without it, such a URL is an error. The command `lunar` enables it.
//!
//! # Platform
//!
//! Linux, with io_uring where it is permitted, and with a polling driver elsewhere.
//!
//! # Structure
//!
//! The files form layers: a file imports only files below it. `cargo xtask tidy` reports cycles of more than two
//! files.
//!
//! | file or folder | contents |
//! |---|---|
//! | `session/local_session.rs` | the session on its own core: socket, send, receive |
//! | `session/session_state.rs` | tasks, CmdSN and command window, without I/O |
//! | `session/connection_state.rs` | negotiated keys, StatSN, send queue and logout of one connection |
//! | `session/recovery.rs`, `session/error_handler.rs` | reconnection; time limits, aborts and resets |
//! | `lun` | a LUN as a `Backend`, and retries |
//! | `multipath` | several sessions with one logical unit as a `Backend` |
//! | `url` | the text form of a target; its settings are rows of a table |
//! | `nvme` | controllers and namespaces over NVMe/TCP: see [`nvme`] |
//!
//! On the core of the session, a command goes directly to the session state. Other cores send a message. All commands
//! of one event loop iteration leave in one send. The data of a large Data-In are received directly into the
//! command's buffer, once the header has been checked. Small Data-Ins are predicted: the receiver expects responses
//! in the order of the commands and receives several at once.
//!
//! # Errors and recovery
//!
//! - `lun/disposition.rs` maps each SCSI status to done, retry, retry later, or an error.
//! - When a connection is lost, repeatable commands wait for the next connection. The others fail with
//!   [`ErrorCode::ConnectionLost`]. Before commands to a LUN are sent again, the session checks the LUN's identity.
//!   It does the same after a unit attention that may announce another logical unit.
//! - An abandoned connection is reset. Otherwise the kernel could deliver its data after newer writes on another
//!   path.
//! - The time limit of a command starts when all bytes before it have been sent: a slow network does not count as a
//!   slow target.
//! - A sent write without a response becomes an *orphan* (`session/orphans.rs`), because a stalled target may execute
//!   it later. An orphan keeps its buffer and locks its range: newer writes to the same bytes wait. One of three proofs
//!   ends it: a login at the same target port with the same ISID, a reset that was sent after the loss and answered, or
//!   an answered ABORT TASK. Time limits and dropped futures do not end it. `late_writes=risk` turns orphans off.
//! - All paths of a multipath LUN share these locks. If the session of an orphan does not return within
//!   `fast_io_fail_timeout`, the logical unit is reset through another path. COMPARE AND WRITE is repeated only if it
//!   certainly did not run.
//! - `session/tests/late_writes.rs` is a model without a clock that loses paths at every step.
#![forbid(unsafe_code)]
#![deny(missing_docs, missing_debug_implementations)]
// Without the feature `rdma`, some items are unused.
#![cfg_attr(not(feature = "rdma"), allow(dead_code))]

mod addresses;
pub mod any_executor;
pub mod backend;
pub mod blocking;
pub mod command;
mod connect;
mod designators;
mod discovery;
mod error;
mod event_loop;
mod hints;
mod io_error;
mod iser;
mod lun;
pub mod multipath;
mod nexus;
pub mod nvme;
mod offload;
mod open;
pub mod options;
mod portal;
mod probe;
mod protocol_mismatch;
#[cfg(feature = "rdma")]
pub mod rdma;
#[cfg(feature = "rdma")]
mod rdma_connector;
mod transport;
// Public for the routers and attachments of Lunar, which end the writes of a process before them.
#[doc(hidden)]
pub mod reinstatement;
mod report_luns;
mod retry;
mod session;
mod shared_lun;
mod slow_path;
mod srp;
mod text;
mod time_limit;
mod url;
// Public for the messages of the command lunar.
#[doc(hidden)]
pub mod waits;

pub use command::{Command, CommandResult, Completion, Direction, MAX_CDB_LEN};
pub use designators::{identity, is_named, naa, name_of};
pub use discovery::{Discovery, discover};
pub use error::{Details, Error, ErrorCode, Hint, Remedy};
pub use lun::{Lun, Properties, inspect, properties};
pub use lunar_block::{Backend, BackendQueue, LocalBoxFuture};
#[doc(inline)]
pub use lunar_proto::initiator::login::LoggedIn;
pub use lunar_proto::initiator::targets::{DiscoveredTarget, PortalAddress};
#[doc(inline)]
pub use lunar_proto::parameters::Parameters;
#[doc(inline)]
pub use lunar_runtime::stream::TcpInfo;
pub use lunar_runtime::{Buf, Cores};
pub use lunar_wire::scsi::{Sense, cdb};
pub use nexus::{TargetPort, new_isid, parse_isid};
pub use offload::ExtendedCopy;
pub use open::{connect, connect_with, log_in, lun_of, open, open_with, portal_urls, resolve};
pub use options::{LateWrites, Options, Timeouts};
pub use portal::Portal;
pub use probe::{Exchange, Probe};
pub use report_luns::{lun_address, lun_number, luns};
pub use retry::with_retry;
pub use session::{
    Batch, CommandId, Event, IDENTITY_LEN, Pending, Session, SessionHooks, SessionInfo, SessionLogin,
    WeakSession,
};
// Public for the fuzzers of Lunar.
#[doc(hidden)]
pub use session::testing;
pub use url::{Url, is_url, without_scheme};

/// Compiles the example of the README.
#[cfg(doctest)]
#[derive(Debug)]
#[doc = include_str!("../README.md")]
pub struct Readme;
