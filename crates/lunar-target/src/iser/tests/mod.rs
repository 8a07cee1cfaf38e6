//! The target against an initiator that is played here, message by message, as Linux (ib_iser with Open-iSCSI) plays
//! it: with the receives that it posts, and no more.

mod afar;
mod data;
mod faults;
pub(crate) mod host;
pub(crate) mod house;
mod late;
mod login;
mod manage;
mod spy;
