//! The target: portals, access lists, sessions, and the data mover over TCP.
#![forbid(unsafe_code)]
