//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/notify_replies.rs"]
mod notify_replies;

const TARGETS: [(&str, harness::Body); 1] = [("notify_replies", notify_replies::run)];
