//! The target against an initiator that is played here, message by message, as Linux (ib_iser with Open-iSCSI) plays
//! it: with the receives that it posts, and no more.

mod afar;
mod data;
mod faults;
mod host;
mod house;
mod login;
mod manage;
mod spy;
