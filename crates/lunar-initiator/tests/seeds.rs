//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/initiator.rs"]
mod initiator_session;
#[path = "../../../fuzz/bodies/url.rs"]
mod url;

const TARGETS: [(&str, harness::Body); 2] = [("initiator", initiator_session::run), ("url", url::run)];
