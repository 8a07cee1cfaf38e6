//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/notify_replies.rs"]
mod notify_replies;
#[path = "../../../fuzz/bodies/rbd_location.rs"]
mod rbd_location;

const TARGETS: [(&str, harness::Body); 2] =
    [("notify_replies", notify_replies::run), ("rbd_location", rbd_location::run)];
