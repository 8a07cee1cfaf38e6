//! The fuzz target of this crate over its seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/url.rs"]
mod url;

const TARGETS: [(&str, harness::Body); 1] = [("url", url::run)];
