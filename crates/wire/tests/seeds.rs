//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/scsi_answers.rs"]
mod scsi_answers;

const TARGETS: [(&str, harness::Body); 1] = [("scsi_answers", scsi_answers::run)];
