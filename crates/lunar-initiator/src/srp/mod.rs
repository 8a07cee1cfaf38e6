//! SRP, the SCSI RDMA Protocol (SRP r16a): the same sessions where nothing of iSCSI travels. The session speaks PDUs to a
//! data mover, which puts their commands into SRP's units, and makes PDUs of what the target answers.
//!
//! There is one login, with the connection itself, and neither discovery nor key text nor CHAP.

mod answers;
mod channels;
mod credits;
mod incoming;
mod login;
mod mover;
mod ports;
mod requests;
#[cfg(test)]
mod tests;
mod words;

pub use login::{Wire, request};
pub use ports::{DIGITS, are_digits, half, initiator_port, no_discovery, target_name, target_port};
pub use words::{asked, granted};
