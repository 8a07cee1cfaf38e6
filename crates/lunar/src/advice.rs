//! What to do about a failure of a target, where its words tell more than its kind.

use crate::exit::{Exit, Failure};
use lunar_initiator::options::Transport;
use lunar_initiator::{Kind, Url};

/// A kind of failure, what is found in its words, its exit status, and what to do.
type Row = (Kind, &'static str, Exit, &'static str);

const LOGIN: &str = "look at the network with lunar doctor, or wait longer: login_timeout=TIME in the URL (--timeout only cuts)";
const ABORTED: &str = "look at the disk behind the LUN, and at the target's log; or wait longer: \
                       command_timeout=TIME in the URL";
const NEVER: &str = "look at the disk behind the LUN, and at the target's log; or wait longer: \
                     operation_timeout=TIME in the URL";
const LOST: &str = "look at the network with lunar doctor, or wait longer: recovery_timeout=TIME in the URL";
const DIGESTS: &str = "the target has digests switched off: switch them on there, or leave it the choice: \
                       header_digest=crc32c,none and data_digest=crc32c,none";
const NO_PORTAL: &str = "is it an iSCSI portal at all, and the right port? If so, the target is at fault; \
                         LUNAR_LOG=debug logs more";
const OTHER_DISK: &str = "the paths lead to different disks: each --path must be a way to the same LUN (lunar ls \
                          shows the identity of each)";
const NAMELESS: &str =
    "use one path: without an identity of the LUN, Lunar cannot know whether two paths lead to it";

const TABLE: &[Row] = &[
    (Kind::TimedOut, "no login within", Exit::TimedOut, LOGIN),
    (Kind::TimedOut, "it does not answer", Exit::TimedOut, LOGIN),
    (Kind::TimedOut, "and was aborted", Exit::TimedOut, ABORTED),
    (Kind::TimedOut, "the command did not end within", Exit::TimedOut, NEVER),
    (Kind::TimedOut, "it did not end in time", Exit::TimedOut, NEVER),
    (Kind::TimedOut, "no connection to", Exit::TimedOut, LOST),
    (Kind::Protocol, "Digest=None, which is no answer", Exit::Refused, DIGESTS),
    (Kind::Protocol, "bytes of additional header", Exit::General, NO_PORTAL),
    (Kind::Protocol, "unknown opcode before the login is over", Exit::General, NO_PORTAL),
    (Kind::Identity, "lead to different logical units", Exit::General, OTHER_DISK),
    (Kind::Identity, "without VPD page 83h", Exit::General, NAMELESS),
];

/// What to do where the system refused this process something.
pub fn of_limits(e: &std::io::Error) -> &'static str {
    // An error that was put into words has its number there alone.
    let has_no_descriptor = |text: &str| ["(os error 24)", "(os error 23)"].iter().any(|n| text.contains(n));
    if lunar_runtime::descriptors::is_exhausted(e) || has_no_descriptor(&e.to_string()) {
        return lunar_runtime::descriptors::HINT;
    }
    "look at the limits of this process: ulimit -a"
}

/// The exit status and what to do, where the words are known.
pub fn of_words(kind: Kind, what: &str) -> Option<(Exit, &'static str)> {
    let row = TABLE.iter().find(|row| row.0 == kind && what.contains(row.1));
    row.map(|row| (row.2, row.3))
}

/// A refusal may be due to the name of the target. One that is none by the rules can be used where the target
/// has it, and is looked at only then. Over SRP names are of another kind.
pub fn with_name(url: &Url, failure: Failure) -> Failure {
    let is_srp = url.transport == Transport::Srp;
    let Some(target) = url.target.as_deref().filter(|_| !is_srp) else { return failure };
    let hint = match failure.exit {
        Exit::Refused | Exit::NotFound if !lunar_proto::name::is_valid(target) => format!(
            "\"{}\" is no name that a target should have, iqn.YYYY-MM.DOMAIN:NAME, eui. or naa.; lunar discover {} lists \
             them",
            target.escape_debug(),
            url.portal
        ),
        Exit::NotFound => format!("lunar ls {} lists the targets and LUNs of this portal", of_portal(url)),
        _ => return failure,
    };
    let hinted = |problem| lunar_server::Problem { hint: Some(hint.clone()), ..problem };
    Failure { problems: failure.problems.into_iter().map(hinted).collect(), ..failure }
}

/// The portal of a URL, as a command takes it.
fn of_portal(url: &Url) -> String {
    match url.transport {
        Transport::Iser => format!("iser://{}", url.portal),
        _ => url.portal.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_initiator::Error;

    fn told(kind: Kind, what: &str) -> (u8, String) {
        let failure = Failure::from(Error::new(kind, what));
        (failure.exit as u8, failure.problems[0].hint.clone().unwrap_or_default())
    }

    #[test]
    fn the_time_out_that_cut_is_named() {
        for (what, knob) in [
            ("login to 127.0.0.1:26001: no login within 15 s", "login_timeout="),
            ("the command did not end within 180 s", "operation_timeout="),
            ("the command did not end within 2 s and was aborted", "command_timeout="),
            ("no connection to iqn.x for 120 s: Connection refused", "recovery_timeout="),
        ] {
            let (exit, hint) = told(Kind::TimedOut, what);
            assert!(exit == 8 && hint.contains(knob), "{what}: {hint}");
        }
        assert!(!told(Kind::TimedOut, "something else").1.contains("--timeout"));
    }

    #[test]
    fn what_others_say_is_put_right() {
        let none = "login to h: HeaderDigest=None, which is no answer to what was offered";
        let (exit, hint) = told(Kind::Protocol, none);
        assert!(exit == 5 && hint.contains("header_digest=crc32c,none"), "{hint}");
        let http = "login to h: unknown opcode with 188 bytes of additional header and 3223600 of data";
        assert!(told(Kind::Protocol, http).1.starts_with("is it an iSCSI portal at all"));
        assert!(
            told(Kind::Identity, "a and b lead to different logical units").1.contains("different disks")
        );
    }

    #[test]
    fn a_name_that_is_none_is_told_of_when_it_is_refused() {
        let hint = |url: &str, exit| {
            let url = Url::parse(url).expect("a URL");
            with_name(&url, Failure::new(exit, "refused", "as before")).problems[0]
                .hint
                .clone()
                .unwrap_or_default()
        };
        assert!(hint("iscsi://h/nope/0", Exit::Refused).starts_with("\"nope\" is no name"));
        assert_eq!(hint("iscsi://h/nope/0", Exit::TimedOut), "as before");
        assert_eq!(hint("iscsi://h/iqn.2026-11.org.example:a/0", Exit::Refused), "as before");
        assert_eq!(hint("iscsi://h", Exit::Refused), "as before");
        assert_eq!(hint("srp://h/5c0f2813d1be3e7a/0", Exit::NotFound), "as before");
    }
}
