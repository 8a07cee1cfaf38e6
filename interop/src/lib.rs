//! Helpers for tests of the running program: they start `lunar serve`, and contain an iSCSI client and a scripted target.
//!
//! The client uses no crate of the product. With shared code, both ends could make the same encoding error, and no test
//! would detect it. Failures panic with a reason. The client checks each received PDU against the layout and numbering
//! rules of RFC 7143 (see [`check`]). So each test also checks reserved bits, padding, digests, StatSN, ExpCmdSN and
//! MaxCmdSN.
#![forbid(unsafe_code)]

pub mod admin;
pub mod admissible;
pub mod amounts;
pub mod browser;
pub mod ceph;
pub mod certificates;
pub mod chap;
pub mod check;
pub mod command;
pub mod compare;
pub mod config;
pub mod digest;
pub mod expect;
pub mod gateways;
pub mod json;
pub mod login;
pub mod machine;
pub mod namespace;
pub mod nbd;
pub mod nvme;
pub mod pdu;
pub mod peer;
pub mod ports;
pub mod queued_session;
pub mod random;
pub mod raw;
pub mod relay;
pub mod reserve;
pub mod routed;
pub mod script;
pub mod scsi;
pub mod server;
pub mod service_manager;
pub mod spdk;
pub mod stopped_thread;
pub mod tool;
pub mod two_servers;

pub use chap::Chap;
pub use config::{INITIATOR, TARGET};
pub use expect::{KeyResponse, PduOutcome, negotiate};
pub use login::Login;
pub use pdu::{NONE, Pdu, op};
pub use peer::Peer;
pub use random::Random;
pub use raw::{Raw, Received};
pub use relay::Relay;
pub use scsi::{Reply, sense};
pub use server::{Folder, Server, Shared, lunar_bin, shared};
