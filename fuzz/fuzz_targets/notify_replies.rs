#![no_main]

#[path = "../bodies/notify_replies.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
