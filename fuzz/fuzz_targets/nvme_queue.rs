#![no_main]

#[path = "../bodies/nvme_queue.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
