//! SRP, the SCSI RDMA Protocol (SRP r16a): the same sessions where nothing of iSCSI travels. The session exchanges PDUs with a
//! data mover, which puts their commands into SRP's units, and makes PDUs of what the target answers.
//!
//! There is one login, with the connection itself, and neither discovery nor key text nor CHAP.

mod answers;
mod channels;
mod credits;
mod datamover;
mod description;
mod incoming;
mod login;
mod ports;
mod requests;
#[cfg(test)]
mod tests;

pub use description::{asked, granted};
pub use login::{LoginConnection, request};
pub use ports::{DIGITS, are_digits, half, initiator_port, no_discovery, target_name, target_port};
