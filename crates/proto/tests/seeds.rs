//! The fuzz targets of this crate over their seeds.

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/bodies/login.rs"]
mod login;
#[path = "../../../fuzz/bodies/text_keys.rs"]
mod text_keys;
#[path = "../../../fuzz/bodies/transfer.rs"]
mod transfer;

const TARGETS: [(&str, harness::Body); 3] =
    [("login", login::run), ("text_keys", text_keys::run), ("transfer", transfer::run)];
