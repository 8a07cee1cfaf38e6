//! Text keys in full feature phase: requests and responses (RFC 7143 sections 6.4 and 11.10).

use crate::{Error, ErrorCode};
use lunar_proto::keys;
use lunar_wire::iscsi::text::{pairs, push};

/// The maximum length of a text response in bytes.
pub const LIMIT: usize = 16 << 20;

/// Keys and values.
pub type Pairs = Vec<(String, String)>;

/// Encodes a request.
pub fn question(asked: &[(&str, &str)]) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    asked.iter().for_each(|(key, value)| push(&mut text, key, value));
    let is_whole = pairs(&text).eq(asked.iter().map(|pair| Ok(*pair)));
    if !is_whole {
        let what = format!(
            "invalid keys {asked:?}: a key name has letters, digits and .-+@_#, and a value has no NUL"
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    match asked.iter().find(|(key, _)| is_settled(key)) {
        Some((key, _)) => Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("the key {key} can be negotiated only during login"),
        )),
        None => Ok(text),
    }
}

/// Whether a key may only be negotiated in a login, or changes the state of the session.
fn is_settled(key: &str) -> bool {
    key != "SendTargets" && keys::find(key).is_some()
}

/// Decodes a response.
pub fn parse(text: &[u8]) -> Result<Pairs, Error> {
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let malformed = |e: lunar_wire::iscsi::text::MalformedText| {
        Error::new(
            ErrorCode::ProtocolError,
            format!("the Text Response has malformed key text at byte {}: {}", e.at, e.why),
        )
    };
    pairs(text).map(|pair| pair.map(owned).map_err(malformed)).collect()
}

/// The error of a rejected request (RFC 7143 section 11.17.1).
pub fn rejected(reason: u8) -> Error {
    Error::new(ErrorCode::Refused, format!("the target rejected the Text Request: reason {reason:#04x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_is_what_comes_out_of_it() {
        assert_eq!(question(&[("X-a", "1"), ("SendTargets", "")]).unwrap(), b"X-a=1\0SendTargets=\0");
        for bad in [("", "1"), ("X-a", "1\0X-b=2"), ("X a", "1"), ("X-a=", "1"), ("MaxBurstLength", "512")] {
            assert_eq!(question(&[bad]).unwrap_err().code, ErrorCode::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn answer_is_taken_apart_or_is_none() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(parse(b"X-a=1\0X-b=\0").unwrap(), [pair("X-a", "1"), pair("X-b", "")]);
        assert_eq!(parse(b"X-a=1\0X-b").unwrap_err().code, ErrorCode::ProtocolError);
    }
}
