//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/shared_state.rs"]
mod shared_state;

const TARGETS: [(&str, harness::Body); 1] = [("shared_state", shared_state::run)];
