//! A login as names and values.

use lunar_wire::srp::{LoginRequest, LoginResponse};

/// Names and values.
pub type Description = Vec<(String, String)>;

/// Describes a login request.
pub fn asked(request: &LoginRequest) -> Description {
    words([
        ("initiator port", request.initiator.to_string()),
        ("target port", request.target.to_string()),
        ("bytes of a command", request.it_iu_len.to_string()),
        ("immediate data", yes_or_no(request.immediate_offset.is_some())),
    ])
}

/// Describes a login response.
pub fn granted(response: &LoginResponse) -> Description {
    words([
        ("bytes of a command", response.it_iu_len.to_string()),
        ("immediate data", yes_or_no(response.immediate)),
        ("bytes of an answer", response.ti_iu_len.to_string()),
        ("credits", response.credits.to_string()),
    ])
}

fn words<const N: usize>(pairs: [(&str, String); N]) -> Description {
    pairs.map(|(name, value)| (name.to_owned(), value)).into()
}

fn yes_or_no(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}
