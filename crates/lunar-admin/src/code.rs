//! An [`ErrorCode`] in JSON: its stable name. A name of another version is read as [`ErrorCode::Other`].

use lunar_runtime::error::ErrorCode;
use serde::{Deserialize, Deserializer, Serializer};
use std::borrow::Cow;

pub(super) fn serialize<S: Serializer>(code: &ErrorCode, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(code.name())
}

pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ErrorCode, D::Error> {
    Ok(ErrorCode::from_name(&Cow::<str>::deserialize(from)?))
}
