//! The target against an initiator that says what a test wants, with both ends in one process.

mod asking;
mod bad;
mod cache;
mod data;
mod late;
mod login;
mod manage;
mod order;
mod pass;
mod reservations;
mod watch;
mod world;

use world::{World, golden, on_core};
