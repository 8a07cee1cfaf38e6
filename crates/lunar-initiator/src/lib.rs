//! The initiator: sessions with iSCSI targets, and their logical units as storage.
//!
//! A [`Session`] lives on the core whose event loop opened it; its handle may be used from everywhere. A
//! [`Lun`] of it is a [`lunar_block::Backend`], and takes any CDB besides. [`blocking`] is the same for programs
//! without an event loop.
//!
//! # Structure
//!
//! The files have layers: a file imports only files below it, and `cargo xtask tidy` reports cycles of more than two files.
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
//!
//! A command from the core of the session goes straight to the state; other cores send a message. All commands of one turn
//! of the event loop leave in one send. A large Data-In is received into the buffer of its command, after its header was
//! checked. Small ones are predicted: the receiver expects responses in the order of the commands and receives several at
//! once.
//!
//! # Errors and recovery
//!
//! - `lun/disposition.rs` maps each SCSI status to done, retry, retry later, or an error.
//! - When a connection is lost, commands that may be repeated wait for the next one. The others end with an error that says
//!   so. Commands run again only when each LUN in use has shown its identity, also after a unit attention that may mean
//!   another disk.
//! - A connection that is given up is reset. Otherwise the kernel could deliver old data after newer writes on another path.
//! - A time limit starts when the bytes before the command have left: a slow line is not a late target.
//! - A sent write without a response becomes an *orphan* (`session/orphans.rs`), because a stalled target may execute it
//!   later. An orphan keeps its buffer and its range: newer writes of the same bytes wait. It ends by one of three proofs: a
//!   login at the same target port with the same ISID, a reset that was sent after the loss and answered, or an answered
//!   ABORT TASK. Time limits and dropped futures do not end it. `late_writes=risk` turns orphans off.
//! - All paths of a multipath LUN share the ranges. If the session of an orphan does not return within
//!   `fast_io_fail_timeout`, the logical unit is reset through another path. COMPARE AND WRITE is repeated only if it
//!   certainly did not run.
//! - `session/tests/late_writes.rs` is a model without a clock that loses paths at every step.
#![forbid(unsafe_code)]

mod addresses;
pub mod blocking;
pub mod command;
mod connect;
mod designators;
mod discovery;
mod error;
mod hints;
mod io_error;
mod iser;
mod lun;
pub mod multipath;
mod nexus;
mod offload;
mod open;
pub mod options;
mod portal;
mod probe;
mod protocol_mismatch;
mod rdma_connector;
pub mod reinstatement;
mod report_luns;
mod session;
mod slow_path;
mod srp;
mod text;
mod url;
pub mod waits;

pub use command::{Command, CommandResult, Completion, Direction, MAX_CDB_LEN};
pub use designators::{identity, is_named, naa, name_of};
pub use discovery::{Discovery, discover};
pub use error::{Details, Error, ErrorCode, Hint};
pub use lun::{Lun, Properties, inspect, properties};
pub use lunar_proto::initiator::targets::{DiscoveredTarget, PortalAddress};
pub use nexus::{new_isid, parse_isid};
pub use offload::ExtendedCopy;
pub use open::{connect, connect_with, log_in, lun_of, open, open_with, portal_urls, resolve};
pub use options::{LateWrites, Options, Timeouts};
pub use portal::Portal;
pub use probe::{Exchange, Probe};
pub use rdma_connector::RdmaConnector;
pub use report_luns::luns;
pub use session::{
    Batch, CommandId, Event, IDENTITY_LEN, Pending, Session, SessionHooks, SessionInfo, SessionLogin,
    WeakSession, testing,
};
pub use url::{Url, is_url, without_scheme};
