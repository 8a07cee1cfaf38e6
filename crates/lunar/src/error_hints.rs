//! Hints that depend on the process and on the URL of a command.

use crate::exit::{self, Exit, Failure};
use lunar_initiator::Url;
use lunar_initiator::options::Transport;

/// Hint for an error that may come from limits of this process.
pub fn process_limits(e: &std::io::Error) -> &'static str {
    if lunar_runtime::descriptors::is_exhausted(e) {
        return lunar_runtime::descriptors::HINT;
    }
    "check the limits of this process: ulimit -a"
}

/// Adds a hint about the target name to a rejection. An invalid iSCSI name is not an error by itself, because some targets
/// use one. Over SRP, targets have identifiers instead of names.
pub fn with_url_hint(url: &Url, failure: Failure) -> Failure {
    let is_srp = url.transport == Transport::Srp;
    let Some(target) = url.target.as_deref().filter(|_| !is_srp) else { return failure };
    // A missing secret or key has its own hint.
    let has_own = |problem: &lunar_server::Diagnostic| problem.hint.as_deref() != Some(exit::NOT_FOUND_HINT);
    let hint = match failure.exit {
        Exit::NotFound if failure.problems.iter().all(has_own) => return failure,
        Exit::Refused | Exit::NotFound if !lunar_proto::name::is_valid(target) => format!(
            "\"{}\" is not a valid iSCSI name (iqn.YYYY-MM.DOMAIN:NAME, eui. or naa.); lunar discover {} lists the \
             targets",
            target.escape_debug(),
            url.portal
        ),
        Exit::NotFound => {
            format!("lunar ls {} lists the targets and LUNs of this portal", portal_argument(url))
        }
        _ => return failure,
    };
    let hinted = |problem| lunar_server::Diagnostic { hint: Some(hint.clone()), ..problem };
    Failure { problems: failure.problems.into_iter().map(hinted).collect(), ..failure }
}

/// The portal of a URL, in the form of a command's argument.
fn portal_argument(url: &Url) -> String {
    match url.transport {
        Transport::Iser => format!("iser://{}", url.portal),
        _ => url.portal.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_runtime::error::with_context;

    #[test]
    fn process_limits_hint_needs_errno_not_words() {
        let full = || std::io::Error::from(rustix::io::Errno::MFILE);
        let limit = lunar_runtime::descriptors::HINT;
        assert_eq!(
            [process_limits(&full()), process_limits(&with_context(full(), "cannot listen"))],
            [limit; 2]
        );
        assert_ne!(process_limits(&std::io::Error::other("too many files (os error 24)")), limit);
    }

    #[test]
    fn invalid_target_name_is_hinted_after_rejection() {
        let hint = |url: &str, exit| {
            let url = Url::parse(url).expect("a URL");
            with_url_hint(&url, Failure::new(exit, "refused", "as before")).problems[0]
                .hint
                .clone()
                .unwrap_or_default()
        };
        assert!(hint("iscsi://h/nope/0", Exit::Refused).starts_with("\"nope\" is not a valid"));
        assert_eq!(hint("iscsi://h/nope/0", Exit::TimedOut), "as before");
        assert_eq!(hint("iscsi://h/iqn.2026-11.org.example:a/0", Exit::Refused), "as before");
        assert_eq!(hint("iscsi://h", Exit::Refused), "as before");
        let of_error = |error: lunar_initiator::Error| {
            let url = Url::parse("iscsi://h/nope/0").expect("a URL");
            with_url_hint(&url, error.into()).problems[0].hint.clone().unwrap_or_default()
        };
        let missing = lunar_initiator::Error::new(lunar_initiator::ErrorCode::NotFound, "missing");
        assert!(of_error(missing.clone()).starts_with("\"nope\" is not a valid"));
        assert_eq!(of_error(missing.with_hint("create the file")), "create the file");
        assert_eq!(hint("srp://h/5c0f2813d1be3e7a/0", Exit::NotFound), "as before");
    }
}
