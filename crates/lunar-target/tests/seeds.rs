//! Runs the fuzz targets of this crate and of the device server over their seeds.

#[path = "../../../fuzz/bodies/cdb.rs"]
mod cdb;
#[path = "../../../fuzz/bodies/connection.rs"]
mod connection;
#[path = "../../../fuzz/harness.rs"]
mod harness;

const TARGETS: [(&str, harness::Body); 2] = [("cdb", cdb::run), ("connection", connection::run)];
