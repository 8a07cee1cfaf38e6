//! Reservations through the nexuses of a logical unit, as initiators use them.

mod classes;
mod hand_over;
mod parameters;
mod scripts;
mod sequences;
mod shared;
mod users;
mod world;
