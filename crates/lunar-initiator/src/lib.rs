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
mod discovery;
mod error;
mod iser;
pub mod late;
mod lun;
mod made;
pub mod multipath;
mod offload;
mod open;
pub mod options;
mod probe;
mod report;
mod session;
mod slow;
mod speaks;
mod srp;
mod text;
mod url;
pub mod waits;

pub use command::{Command, Completion, Direction, Finished, MAX_CDB_LEN};
pub use connect::{new_isid, parse_isid};
pub use discovery::{Discovery, discover};
pub use error::{Details, Error, Kind};
pub use lun::{Lun, Properties, identity, inspect, is_named, naa, name_of, properties};
pub use lunar_proto::initiator::targets::{FoundTarget, PortalAddress};
pub use made::Make;
pub use offload::ExtendedCopy;
pub use open::{connect, connect_with, log_in, lun_of, open, open_with, resolve, ways};
pub use options::{LateWrites, Options, Portal, Timeouts};
pub use probe::{Exchange, Probe};
pub use report::luns;
pub use session::{
    Batch, CommandId, Event, Facts, IDENTITY_LEN, Pending, Session, SessionHooks, SessionLogin, WeakSession,
    testing,
};
pub use url::{Url, is_url, without_scheme};
