//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/initiator_login.rs"]
mod initiator_login;
#[path = "../../../fuzz/bodies/login.rs"]
mod login;
#[path = "../../../fuzz/bodies/nvme_commands.rs"]
mod nvme_commands;
#[path = "../../../fuzz/bodies/targets.rs"]
mod targets;
#[path = "../../../fuzz/bodies/text_keys.rs"]
mod text_keys;
#[path = "../../../fuzz/bodies/transfer.rs"]
mod transfer;

const TARGETS: [(&str, harness::Body); 6] = [
    ("initiator_login", initiator_login::run),
    ("login", login::run),
    ("nvme_commands", nvme_commands::run),
    ("targets", targets::run),
    ("text_keys", text_keys::run),
    ("transfer", transfer::run),
];
