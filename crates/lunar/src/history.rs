//! `lunar history` and `lunar rollback`: the applied trees of a running server, and the return to one of them.

use crate::args::{AdminArgs, RollbackArgs};
use crate::client::json;
use crate::exit::Failure;
use crate::objects;
use crate::output;
use crate::router::whole_seconds;
use lunar_admin::{Difference, HistoryEntry, rows};
use lunar_api::client::{ChangeReport, Client, HistoryList, Method, RollbackOptions, Tagged};

/// The text to print.
pub fn history(args: &AdminArgs) -> Result<String, Failure> {
    let list: HistoryList = Client::new(&args.choice.one()?, args.timeout).get("/v1/config/history")?;
    match args.json {
        true => json(&list),
        false if list.items.is_empty() => Ok("no applied configurations\n".into()),
        false => Ok(table(&list.items)),
    }
}

fn table(entries: &[HistoryEntry]) -> String {
    let row = |entry: &HistoryEntry| {
        let asker = entry.asker.as_deref().map_or("-".into(), rows::shown);
        [entry.number.to_string(), rows::shown(&entry.time), entry.cause.name().to_owned(), asker]
    };
    rows::table([">NUMBER", "TIME", "CAUSE", "REQUESTED BY"], entries.iter().map(row))
}

/// Returns to an earlier tree, in the version of the moment, so that no change of another administrator is lost.
pub fn rollback(args: &RollbackArgs) -> Result<String, Failure> {
    let client = Client::new(&args.server.choice.one()?, args.server.timeout);
    let Tagged { version, value: _ } = client.get_tagged::<HistoryList>("/v1/config/history")?;
    let options = RollbackOptions {
        dry_run: args.dry_run,
        force: args.force,
        confirm_within_s: args.confirm_within.map(whole_seconds),
    };
    let path = format!("/v1/config/history/{}/rollback", args.to);
    let done: Tagged<ChangeReport> = client.send(Method::POST, &path, Some(&version), &options)?;
    objects::warn(&done.value);
    match args.server.json {
        true => json(&done.value),
        false => {
            let text = rolled_back(&done.value, args.to, options.confirm_within_s);
            Ok(if args.dry_run { text } else { output::success(text) })
        }
    }
}

/// The differences of a rollback, and what the user may do next.
fn rolled_back(report: &ChangeReport, to: u64, confirm_within_s: Option<u64>) -> String {
    let lines: String = report.changes.iter().map(|change| format!("{change}\n")).collect();
    let needs_restart = |change: &Difference| change.needs_restart;
    let end = match confirm_within_s {
        _ if report.dry_run => "dry run: nothing was changed".to_owned(),
        _ if report.changes.is_empty() => format!("the configuration is that of entry {to}"),
        Some(seconds) => {
            format!("rolled back; this is undone in {seconds} s unless you run lunar apply --confirm")
        }
        None if report.changes.iter().any(needs_restart) => {
            "rolled back; restart the server to apply the changes that need it".to_owned()
        }
        None => "rolled back".to_owned(),
    };
    format!("{lines}{end}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_admin::ApplyCause;

    #[test]
    fn numbers_are_right_aligned_and_the_start_has_no_asker() {
        let entry = |number, cause, asker: Option<&str>| HistoryEntry {
            number,
            time: "2026-11-28T10:00:00Z".into(),
            cause,
            asker: asker.map(str::to_owned),
            file: "/etc/lunar/lunar.toml".into(),
        };
        let asker = Some("user 0, process 7\u{1b}");
        let text = table(&[entry(10, ApplyCause::Rollback, asker), entry(9, ApplyCause::Start, None)]);
        assert_eq!(
            text,
            "NUMBER  TIME                  CAUSE     REQUESTED BY\n    10  2026-11-28T10:00:00Z  rollback  user 0, process \
             7\\u{1b}\n     9  2026-11-28T10:00:00Z  start     -\n"
        );
    }

    #[test]
    fn text_of_a_rollback_says_what_follows() {
        let text = |changes: Vec<Difference>, dry_run, within| {
            rolled_back(
                &ChangeReport { version: "1".into(), changes, warnings: Vec::new(), dry_run },
                3,
                within,
            )
        };
        let change = |needs_restart| {
            vec![Difference { place: vec!["a".into()], change: lunar_admin::Change::Removed, needs_restart }]
        };
        assert_eq!(text(change(false), false, None), "a: removed\nrolled back\n");
        assert_eq!(text(change(false), true, Some(5)), "a: removed\ndry run: nothing was changed\n");
        assert_eq!(text(Vec::new(), false, None), "the configuration is that of entry 3\n");
        let trial = "a: removed\nrolled back; this is undone in 5 s unless you run lunar apply --confirm\n";
        assert_eq!(text(change(false), false, Some(5)), trial);
        assert!(
            text(change(true), false, None)
                .ends_with("restart the server to apply the changes that need it\n")
        );
    }
}
