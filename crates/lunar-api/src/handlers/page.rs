//! The live page: files that the program contains, and that load nothing from anywhere else.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::response::{IntoResponse, Response};

/// The page may load only its own files and connect only to its own server. It runs no inline script, and makes no
/// markup of texts.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// The name of the document. `/` shows it.
const INDEX: &str = "index.html";

macro_rules! files {
    ($($name:literal $kind:ident),* $(,)?) => {
        /// The files: name, media type, content.
        const FILES: &[(&str, &str, &str)] = &[$(($name, $kind, include_str!(concat!("../../page/", $name)))),*];
    };
}

files! {
    "index.html" HTML,
    "page.css" STYLE,
    "icon.svg" IMAGE,
    "main.js" SCRIPT,
    "api.js" SCRIPT,
    "view.js" SCRIPT,
    "plot.js" SCRIPT,
    "tables.js" SCRIPT,
    "routers.js" SCRIPT,
    "health.js" SCRIPT,
    "events.js" SCRIPT,
    "actions.js" SCRIPT,
    "config.js" SCRIPT,
    "metrics.js" SCRIPT,
}

/// The response to a request for a file of the page. It needs no token: the files have no secrets, and a browser loads
/// them before the user can give a token.
pub(crate) fn page_file(method: &Method, path: &str) -> Option<Response> {
    match path.strip_prefix("/page/") {
        _ if !matches!(*method, Method::GET | Method::HEAD) => None,
        Some(name) => file(name),
        None if path == "/" => file(INDEX),
        None => None,
    }
}

fn file(name: &str) -> Option<Response> {
    let (_, kind, content) = FILES.iter().find(|(known, ..)| *known == name)?;
    let headers: [(HeaderName, &str); 7] = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let mut response = (*content).into_response();
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_names_no_other_server_and_has_no_inline_code() {
        for (name, _, content) in FILES {
            for line in content.lines().filter(|line| line.contains("://")) {
                assert!(line.contains("\"http://www.w3.org/2000/svg\""), "{name}: {line}");
            }
            for word in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "@import", "url("]
            {
                assert!(!content.contains(word), "{name}: {word}");
            }
        }
        let index = FILES.iter().find(|(name, ..)| *name == INDEX).unwrap().2;
        assert!(
            !index.contains("style=") && !index.contains("<style") && !index.contains(" on"),
            "inline code"
        );
        assert_eq!(index.matches("<script").count(), index.matches("<script type=\"module\" src=").count());
    }

    #[test]
    fn files_have_their_type_and_the_policy() {
        let get = |path| page_file(&Method::GET, path);
        let response = get("/").unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], HTML);
        assert_eq!(response.headers()[CONTENT_SECURITY_POLICY], POLICY);
        assert_eq!(get("/page/main.js").unwrap().headers()[CONTENT_TYPE], SCRIPT);
        assert!(get("/page/none.js").is_none() && get("/v1/server").is_none() && get("/metrics").is_none());
        assert!(page_file(&Method::POST, "/").is_none());
    }
}
