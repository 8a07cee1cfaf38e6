//! The fuzz target of importers, over its seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/import.rs"]
mod import;

const TARGETS: &[(&str, harness::Body)] = &[("import", import::run)];
