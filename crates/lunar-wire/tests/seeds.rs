//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/iser.rs"]
mod iser;
#[path = "../../../fuzz/bodies/nvme.rs"]
mod nvme;
#[path = "../../../fuzz/bodies/scsi_answers.rs"]
mod scsi_answers;
#[path = "../../../fuzz/bodies/srp.rs"]
mod srp;

const TARGETS: [(&str, harness::Body); 4] =
    [("iser", iser::run), ("nvme", nvme::run), ("scsi_answers", scsi_answers::run), ("srp", srp::run)];
