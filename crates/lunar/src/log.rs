//! The log: its level, its form, and its lines for journald.

use crate::args::Verbosity;
use crate::event_layer::{self, EventLayer};
use crate::{output, stderr};
use clap::ValueEnum;
use lunar_server::Diagnostic;
use std::fmt;
use std::io::{self, Write};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text; with priorities and without the time if stderr is the journal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts the log on stderr. The options `-q` and `-v` say which lines it has, or else LUNAR_LOG, or this level. With
/// `records_events`, the lines are also the events of the API, whatever the level is.
///
/// # Errors
/// When LUNAR_LOG is invalid.
pub fn start(
    level: &str,
    verbosity: Verbosity,
    format: LogFormat,
    records_events: bool,
) -> Result<(), Diagnostic> {
    let filter = match (wanted(level, verbosity), std::env::var("LUNAR_LOG")) {
        (Some(level), _) => EnvFilter::new(level),
        (None, Ok(text)) if !text.is_empty() => filter(&text)?,
        (None, _) => EnvFilter::new(level),
    };
    let has_priorities = format == LogFormat::Text && is_journal();
    let log =
        tracing_subscriber::fmt::layer().log_internal_errors(false).with_writer(LogWriter { has_priorities });
    let log = match format {
        LogFormat::Json => log.event_format(JsonLine).boxed(),
        // journald has the time of each line.
        LogFormat::Text if has_priorities => log.with_ansi(false).without_time().boxed(),
        LogFormat::Text => log.with_ansi(output::colours(&io::stderr())).boxed(),
    };
    let events = records_events.then_some(EventLayer.with_filter(LevelFilter::INFO));
    tracing_subscriber::registry().with(log.with_filter(filter)).with(events).init();
    Ok(())
}

/// The level that the options select; None without them.
fn wanted(level: &str, verbosity: Verbosity) -> Option<&'static str> {
    const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
    let usual = LEVELS.iter().position(|name| *name == level).unwrap_or(1).max(1);
    match verbosity {
        Verbosity { quiet: true, .. } => Some("error"),
        Verbosity { verbose: 0, .. } => None,
        Verbosity { verbose, .. } => LEVELS.get(usual + usize::from(verbose)).or(LEVELS.last()).copied(),
    }
}

/// Whether stderr is the stream of journald that the service manager made: a child may have another stderr.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(rustix::stdio::stderr())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Makes the writer of each event.
struct LogWriter {
    has_priorities: bool,
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = PrefixedLine;

    fn make_writer(&'a self) -> PrefixedLine {
        PrefixedLine("")
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> PrefixedLine {
        PrefixedLine(if self.has_priorities { priority(*of.level()) } else { "" })
    }
}

/// Formats an event as a JSON object.
struct JsonLine;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N>
    for JsonLine
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        writeln!(to, "{}", event_layer::json_line(event))
    }
}

/// The priority prefix of a line (sd-daemon(3)).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Writes one event with its priority.
struct PrefixedLine(&'static str);

impl Write for PrefixedLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        stderr::put([self.0.as_bytes(), bytes].concat());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The level names of LUNAR_LOG.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter of LUNAR_LOG: a level, and levels of modules. The library would take any other word for the name of a
/// module, and log nothing at all.
fn filter(text: &str) -> Result<EnvFilter, Diagnostic> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let unknown = text.split(',').map(str::trim).find(|part| !part.contains('=') && !is_level(part));
    if let Some(word) = unknown {
        let what = format!("invalid LUNAR_LOG: unknown level \"{}\"", word.escape_debug());
        let hint =
            "set it to error, warn, info, debug or trace; levels of modules follow: warn,lunar_target=debug";
        return Err(Diagnostic::new(what, hint));
    }
    EnvFilter::try_new(text).map_err(|e| {
        Diagnostic::new(format!("invalid LUNAR_LOG: {e}"), "set it to error, warn, info, debug or trace")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_select_a_level_from_that_of_the_command() {
        let level = |level, verbose| wanted(level, Verbosity { quiet: false, verbose });
        assert_eq!([level("off", 0), level("info", 0)], [None, None]);
        assert_eq!(
            [level("off", 1), level("warn", 1), level("info", 1)],
            [Some("info"), Some("info"), Some("debug")]
        );
        assert_eq!([level("warn", 2), level("warn", 9)], [Some("debug"), Some("trace")]);
        assert_eq!(wanted("info", Verbosity { quiet: true, verbose: 0 }), Some("error"));
    }

    #[test]
    fn priorities_are_those_of_syslog() {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(levels.map(priority), ["<3>", "<4>", "<6>", "<7>", "<7>"]);
    }

    #[test]
    fn unknown_level_is_rejected() {
        assert!(filter("warn,lunar_target=debug").is_ok());
        let problem = filter("verbose").unwrap_err();
        assert_eq!(problem.what, "invalid LUNAR_LOG: unknown level \"verbose\"");
    }
}
