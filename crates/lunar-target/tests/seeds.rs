//! Runs the fuzz targets of this crate, of the device server and of the runtime over their seeds.

#[path = "../../../fuzz/bodies/cdb.rs"]
mod cdb;
#[path = "../../../fuzz/bodies/connection.rs"]
mod connection;
#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/nvme_receive.rs"]
mod nvme_receive;

const TARGETS: [(&str, harness::Body); 3] =
    [("cdb", cdb::run), ("connection", connection::run), ("nvme_receive", nvme_receive::run)];
