//! The initiator: sessions with iSCSI targets, and their logical units as storage.
//!
//! A [`Session`] lives on the core whose event loop opened it; its handle may be used from everywhere. A
//! [`Lun`] of it is a [`lunar_block::Backend`], and takes any CDB besides. [`blocking`] is the same for programs
//! without an event loop.
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
