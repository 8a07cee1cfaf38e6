//! Helpers of the tests of the running program: starting `lunar serve`, and a raw iSCSI client.
//!
//! The client uses none of the product's crates on purpose: a mistake in the encoding of a PDU must not
//! cancel out because both ends make it. Everything here panics with a reason: it is for tests only. Every
//! PDU that comes in is checked against the layout and the numbering rules of RFC 7143 (see [`check`]), so
//! that each test also watches reserved bits, padding, digests, StatSN, ExpCmdSN and MaxCmdSN.
#![forbid(unsafe_code)]

pub mod admin;
pub mod amounts;
pub mod chap;
pub mod check;
pub mod command;
pub mod config;
pub mod digest;
pub mod expect;
pub mod login;
pub mod nbd;
pub mod pdu;
pub mod peer;
pub mod ports;
pub mod queued_session;
pub mod random;
pub mod raw;
pub mod relay;
pub mod routed;
pub mod script;
pub mod scsi;
pub mod server;
pub mod stopped_thread;
pub mod tool;

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
