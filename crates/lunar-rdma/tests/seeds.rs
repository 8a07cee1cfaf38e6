//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/iwarp.rs"]
mod iwarp;
#[path = "../../../fuzz/bodies/mpa.rs"]
mod mpa;

const TARGETS: [(&str, harness::Body); 2] = [("iwarp", iwarp::run), ("mpa", mpa::run)];
