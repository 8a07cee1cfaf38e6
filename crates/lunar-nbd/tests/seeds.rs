//! Runs the fuzz targets of this crate with their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/nbd.rs"]
mod nbd;
#[path = "../../../fuzz/bodies/nbd_client.rs"]
mod nbd_client;

const TARGETS: [(&str, harness::Body); 2] = [("nbd", nbd::run), ("nbd_client", nbd_client::run)];
