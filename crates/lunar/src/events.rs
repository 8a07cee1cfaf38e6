//! `lunar events`: shows the events of a running server.

use crate::args::AdminArgs;
use crate::exit::Failure;
use crate::output;
use clap::Args;
use lunar_admin::{ServerEvent, rows};
use lunar_api::client::Client;
use serde_json::Value;
use std::ops::ControlFlow;

/// Examples of the help text.
pub const EVENTS_EXAMPLES: &str = "\
Examples:
  lunar events                  show the events that the server keeps: the last 4096
  lunar events --follow         show new ones too, until the server ends
  lunar events --since 1764338670123 --json   continue after the event with this number";

/// Arguments of `lunar events`.
#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Wait for new events, and show them as they occur
    #[arg(long, short)]
    pub follow: bool,

    /// Number of the last event seen: show those after it [default: show all that the server keeps]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub since: u64,

    #[command(flatten)]
    pub common: AdminArgs,
}

/// Prints each event on a line. `--json` prints the objects of the API, also one a line.
pub fn events(args: &EventsArgs) -> Result<(), Failure> {
    let client = Client::new(&args.common.choice.one()?, args.common.timeout);
    let text = if args.common.json { json_line } else { line };
    let mut printed = Ok(());
    client.events(args.since, args.follow, |event| match output::stdout_is_read(text(&event)) {
        Ok(true) => ControlFlow::Continue(()),
        Ok(false) => ControlFlow::Break(()),
        Err(problem) => {
            printed = Err(problem);
            ControlFlow::Break(())
        }
    })?;
    Ok(printed?)
}

fn json_line(event: &ServerEvent) -> String {
    serde_json::to_string(event).unwrap_or_default() + "\n"
}

/// Number, time, level, kind, message and details.
fn line(event: &ServerEvent) -> String {
    let ServerEvent { sequence, time, kind, level, message, fields } = event;
    let fields: String = fields.iter().map(|(name, value)| format!(" {name}={}", shown(value))).collect();
    let [time, kind, level, message] = [time, kind, level, message].map(|text| rows::shown(text));
    format!("{sequence} {time} {level:5} {kind} {message}{fields}\n")
}

/// A value without control characters, and in quotes if it has a space.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains([' ', '"']) => rows::shown(text),
        Value::String(text) => format!("\"{}\"", text.escape_debug()),
        other => rows::shown(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_admin::Keys;

    #[test]
    fn event_is_one_line_without_control_characters() {
        let [time, kind, level] = ["2026-11-28T00:00:00.000Z", "session.end", "info"].map(String::from);
        let mut fields = Keys::from_iter([("tsih".to_owned(), 7.into())]);
        fields.insert("initiator".into(), "iqn.a\u{1b}\n".into());
        fields.insert("reason".into(), "the \"end\"".into());
        let event = ServerEvent { sequence: 9, time, kind, level, message: "session\nended".into(), fields };
        let expected = "9 2026-11-28T00:00:00.000Z info  session.end session\\nended initiator=iqn.a\\u{1b}\\n \
            reason=\"the \\\"end\\\"\" tsih=7\n";
        assert_eq!(line(&event), expected);
        assert_eq!(json_line(&event).lines().count(), 1);
    }
}
