#![no_main]

#[path = "../bodies/rbd_location.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
