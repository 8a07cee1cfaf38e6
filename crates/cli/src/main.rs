//! The `lunar` command.
#![forbid(unsafe_code)]

fn main() {}
