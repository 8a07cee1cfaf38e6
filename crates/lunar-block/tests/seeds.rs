//! The fuzz target of this crate over its seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/nbd_client.rs"]
mod nbd_client;

const TARGETS: [(&str, harness::Body); 1] = [("nbd_client", nbd_client::run)];
