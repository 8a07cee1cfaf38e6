//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/initiator.rs"]
mod initiator_session;
#[path = "../../../fuzz/bodies/nvme_queue.rs"]
mod nvme_queue;
#[path = "../../../fuzz/bodies/url.rs"]
mod url;

const TARGETS: [(&str, harness::Body); 3] =
    [("initiator", initiator_session::run), ("nvme_queue", nvme_queue::run), ("url", url::run)];
