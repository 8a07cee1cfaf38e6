//! Shared by commands that use targets: event loop, timeout, exit statuses.

use crate::exit::{Exit, Failure};
use clap::Args;
use lunar_initiator::Url;
use lunar_runtime::Cores;
use lunar_server::Diagnostic;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::pin::pin;
use std::time::Duration;

/// Options of every command that uses a target.
#[derive(Args, Clone, Copy, Debug)]
pub struct ClientArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Stop with exit status 8 after this time (5, 5s, 2m, 500ms)
    #[arg(long, value_name = "TIME", value_parser = lunar_proto::duration::positive)]
    pub timeout: Option<Duration>,
}

/// Runs a command on a new event loop, and waits for its end.
///
/// # Errors
/// Those of the command; [`Exit::TimedOut`] when the timeout ends first.
pub fn run<T, W>(common: ClientArgs, work: impl FnOnce() -> W + Send + 'static) -> Result<T, Failure>
where
    T: Send + 'static,
    W: Future<Output = Result<T, Failure>> + 'static,
{
    let cores = Cores::one().map_err(|e| cannot_start(&e))?;
    let ended = cores.wait(0, move || async move {
        let Some(limit) = common.timeout else { return work().await };
        let mut work = pin!(work());
        let ended = compio::time::timeout(limit, work.as_mut()).await;
        // On a timeout, the work still exists, so its latest wait is known.
        ended.unwrap_or_else(|_| Err(late(limit, lunar_initiator::waits::latest())))
    });
    ended.unwrap_or_else(|e| Err(cannot_start(&e)))
}

/// The error of a timeout, with the operation in progress if known.
pub fn late(limit: Duration, waited: Option<String>) -> Failure {
    let waited = waited.map_or(String::new(), |waited| format!(": waiting for {waited}"));
    let what = format!("timed out after {}{waited}", humantime::format_duration(limit));
    Failure::new(Exit::TimedOut, what, "check the network with lunar doctor, or raise --timeout")
}

fn cannot_start(e: &std::io::Error) -> Failure {
    Diagnostic::new(format!("cannot start an event loop: {e}"), crate::error_hints::process_limits(e)).into()
}

/// Parses a URL, or the host and port of a portal alone. The command is interactive: unless the URL states otherwise,
/// it logs in once, and does not wait for writes that may arrive late.
///
/// # Errors
/// The fault of the URL.
pub fn url(text: &str) -> Result<Url, Failure> {
    if lunar_proto::name::is_valid(text) {
        let what = format!("{} is the name of a target, not a portal", text.escape_debug());
        return Err(Failure::new(
            Exit::Invalid,
            what,
            format!("add the portal of the target: iscsi://HOST/{text}"),
        ));
    }
    let is_portal = !text.contains("://") && !text.contains('/');
    let url = match text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()) {
        true => Url::parse(&format!("iscsi://[{text}]")),
        false if is_portal => Url::parse(&format!("iscsi://{text}")),
        false => Url::parse(text),
    };
    Ok(url?.with_default("login_tries", "1")?.with_default("late_writes", "risk")?)
}

/// Formats a value as JSON for stdout.
///
/// # Errors
/// When it cannot be serialized.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|e| Diagnostic::new(format!("cannot write JSON: {e}"), "run without --json"))?;
    Ok(text + "\n")
}

/// Formats a list as JSON for stdout, in the form of the API.
///
/// # Errors
/// As [`json`].
pub fn json_list(items: &[impl Serialize]) -> Result<String, Failure> {
    json(&BTreeMap::from([("items", items)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portal_alone_is_a_url() {
        assert_eq!(url("[::1]:4000").unwrap().to_string(), "iscsi://[::1]:4000");
        assert_eq!(url("::1").unwrap().to_string(), "iscsi://[::1]:3260");
        assert_eq!(url("fe80::1%lo").unwrap().to_string(), "iscsi://[fe80::1%lo]:3260");
        assert_eq!(url("iscsi://moon").unwrap().to_string(), "iscsi://moon:3260");
        assert_eq!(url("moon/disk").unwrap_err().exit, Exit::Invalid);
        let name = url("iqn.2026-11.org.example:a").unwrap_err();
        assert_eq!(name.exit, Exit::Invalid);
        let hint = "add the portal of the target: iscsi://HOST/iqn.2026-11.org.example:a";
        assert_eq!(name.problems[0].hint.as_deref(), Some(hint));
    }

    #[test]
    fn person_waits_for_one_try_unless_asking_for_more() {
        let tries = |text| url(text).unwrap().options().unwrap().timeouts.login_tries;
        assert_eq!(tries("moon"), 1);
        assert_eq!(tries("iscsi://moon?login_tries=5"), 5);
    }

    const PATIENT: ClientArgs = ClientArgs { json: false, timeout: None };

    #[test]
    fn command_runs_to_its_end() {
        let work = || async {
            compio::time::sleep(Duration::from_millis(1)).await;
            Ok(7)
        };
        assert_eq!(run(PATIENT, work), Ok(7));
        let refused = || async { Err::<(), _>(Failure::new(Exit::Refused, "no", "ask again")) };
        assert_eq!(run(PATIENT, refused).unwrap_err().exit, Exit::Refused);
    }

    #[test]
    fn command_ends_when_its_time_is_over() {
        let common = ClientArgs { timeout: Some(Duration::from_secs(1)), ..PATIENT };
        let never = || std::future::pending::<Result<u8, Failure>>();
        assert_eq!(run(common, never).unwrap_err().exit, Exit::TimedOut);
    }
}
