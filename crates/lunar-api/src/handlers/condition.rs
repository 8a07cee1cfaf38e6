//! Conditions of requests: the entity tags for which a change is meant (RFC 9110 section 13.1).

use crate::problem::Problem;
use axum::http::{HeaderMap, StatusCode, header};

const HINT: &str = "send the ETag of the object, or *";

/// The version for which a change of an existing object is meant, from If-Match. None: `*`, any version. Of several
/// entity tags, the one of the `current` version counts if it is among them.
pub fn required_version(headers: &HeaderMap, current: &str) -> Result<Option<String>, Box<Problem>> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        let what = "the change of an existing object needs If-Match";
        return Err(Problem::new(StatusCode::PRECONDITION_REQUIRED, what, HINT));
    };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let Some(tags) = entity_tags(text) else {
        let what = format!("If-Match {text:?} is no list of entity tags");
        return Err(Problem::new(StatusCode::BAD_REQUEST, what, HINT));
    };
    let strong = tags.into_iter().filter(|(is_weak, _)| !is_weak).map(|(_, tag)| tag);
    let versions: Vec<&str> = strong.collect();
    // A weak entity tag never matches, and no version is empty.
    let first = versions.first().copied().unwrap_or_default();
    let version = versions.into_iter().find(|version| *version == current).unwrap_or(first);
    Ok(Some(version.to_owned()))
}

/// As [`required_version`], for requests that may have no condition.
pub fn optional_version(headers: &HeaderMap, current: &str) -> Result<Option<String>, Box<Problem>> {
    if headers.contains_key(header::IF_MATCH) { required_version(headers, current) } else { Ok(None) }
}

/// Entity tags, each with whether it is weak. None: the text is no list of them.
fn entity_tags(mut text: &str) -> Option<Vec<(bool, &str)>> {
    let mut tags = Vec::new();
    loop {
        let strong = text.strip_prefix("W/");
        let is_weak = strong.is_some();
        let (tag, rest) = strong.unwrap_or(text).strip_prefix('"')?.split_once('"')?;
        tags.push((is_weak, tag));
        text = rest.trim_start();
        if text.is_empty() {
            return Some(tags);
        }
        text = text.strip_prefix(',')?.trim_start();
    }
}

/// Whether a request only creates: `If-None-Match: *`.
pub fn is_new(headers: &HeaderMap) -> Result<bool, Box<Problem>> {
    match headers.get(header::IF_NONE_MATCH) {
        None => Ok(false),
        Some(value) if value.as_bytes().trim_ascii() == b"*" => Ok(true),
        Some(value) => {
            let what = format!("If-None-Match {:?} is not *", value.to_str().unwrap_or_default());
            let hint = "send * to create an object only, or If-Match to change one";
            Err(Problem::new(StatusCode::BAD_REQUEST, what, hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn version(text: &str) -> Result<Option<String>, u16> {
        let headers = HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_str(text).unwrap())]);
        required_version(&headers, "v2").map_err(|problem| problem.status)
    }

    #[test]
    fn entity_tag_of_the_current_version_counts_among_several() {
        assert_eq!(version("*"), Ok(None));
        assert_eq!(version("\"v2\""), Ok(Some("v2".into())));
        assert_eq!(version("\"v1\", \"v2\""), Ok(Some("v2".into())));
        assert_eq!(version("\"v1\",\"v,3\""), Ok(Some("v1".into())));
        assert_eq!(version("W/\"v2\""), Ok(Some(String::new())), "a weak tag never matches");
        for text in ["v2", "\"v2", "\"v2\" \"v3\"", "\"v2\",", "", "*, \"v2\""] {
            assert_eq!(version(text), Err(400), "{text}");
        }
        assert_eq!(required_version(&HeaderMap::new(), "v2").unwrap_err().status, 428);
        assert_eq!(optional_version(&HeaderMap::new(), "v2").unwrap(), None);
    }

    #[test]
    fn only_a_star_means_a_new_object() {
        let of = |text: &str| {
            let headers =
                HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(text).unwrap())]);
            is_new(&headers).map_err(|problem| problem.status)
        };
        assert_eq!([of("*"), of("\"v1\""), of("null")], [Ok(true), Err(400), Err(400)]);
        assert!(!is_new(&HeaderMap::new()).unwrap());
    }
}
