//! Configuration, state files and the admin socket.
#![forbid(unsafe_code)]
