//! Reservations as initiators see them: through nexuses of a logical unit.

mod classes;
mod parameters;
mod scripts;
mod sequences;
mod users;
mod world;
