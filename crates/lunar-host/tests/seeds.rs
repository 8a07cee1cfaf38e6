//! The fuzz target of this crate over its seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/nbd.rs"]
mod nbd;

const TARGETS: [(&str, harness::Body); 1] = [("nbd", nbd::run)];
