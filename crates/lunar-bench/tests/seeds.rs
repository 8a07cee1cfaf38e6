//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/verify_state.rs"]
mod verify_state;

const TARGETS: [(&str, harness::Body); 1] = [("verify_state", verify_state::run)];
