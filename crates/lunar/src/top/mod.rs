//! `lunar top`: shows what a running server does, by LUN, session and path.

mod activity;
mod app;
mod draw;
mod live;
mod meter;
mod row;
mod sample;
mod screen;
mod table;

use crate::args::ServerChoice;
use crate::client::json;
use crate::exit::{Exit, Failure};
use crate::output;
use app::App;
use clap::Args;
use lunar_api::client::{Client, ServerAddress};
use lunar_proto::duration::{self, NotationError};
use meter::{Meter, Snapshot};
use row::{Column, Row, View};
use sample::Sample;
use serde::Serialize;
use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;
use std::time::Duration;
use table::{Arrangement, Table};
use utoipa::ToSchema;

/// Examples of the help text.
const EXAMPLES: &str = "\
Keys:
  q quit   Tab next view   < > sort column   r reverse   / filter   p pause   arrows scroll

Examples:
  lunar top                                   LUNs by reads a second
  lunar top --view sessions --sort written    hosts that write the most
  lunar top --filter disks --interval 5s      LUNs of some targets, every 5 seconds
  lunar top --once --json                     two samples, and their rates as JSON";

/// A shorter interval would measure the display itself.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// Arguments of `lunar top`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Rows to begin with
    #[arg(long, value_enum, default_value_t)]
    pub view: View,

    /// Column that sorts the rows: measured values descend, names ascend
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t = Column::Reads)]
    pub sort: Column,

    /// Reverse the order
    #[arg(long)]
    pub reverse: bool,

    /// Only rows with these words in their names
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    pub filter: String,

    /// Time from one sample to the next, at least 100ms (5, 5s, 500ms)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,

    /// Print the rates of one interval, and end
    #[arg(long)]
    pub once: bool,

    /// Print JSON
    #[arg(long, requires = "once")]
    pub json: bool,

    #[command(flatten)]
    pub choice: ServerChoice,

    /// Time limit of each response of the server (5, 5s, 500ms); --once fails with exit status 8 after it
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::positive)]
    pub timeout: Duration,
}

/// The rates of one interval.
#[derive(Serialize, ToSchema)]
#[schema(as = TopInterval)]
pub struct OneInterval<'s> {
    server: String,
    time: &'s str,
    seconds: Option<f64>,
    #[schema(value_type = Vec<Row>)]
    items: Vec<&'s Row>,
}

/// Shows the server until the display ends, or prints one table.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let server = args.choice.one()?;
    let client = Client::new(&server, args.timeout);
    if args.once {
        return Ok(output::stdout(once(args, &server, &client)?)?);
    }
    if !io::stdout().is_terminal() {
        let hint = "run lunar top in a terminal, or print one table with lunar top --once";
        return Err(Failure::new(Exit::Invalid, "stdout is not a terminal", hint));
    }
    let first = Sample::take(&client)?;
    live::run(app(args, &server), client, &first, args.interval)
}

fn interval(text: &str) -> Result<Duration, NotationError> {
    duration::within(text, INTERVALS)
}

fn arrangement(args: &TopArgs) -> Arrangement {
    Arrangement { sort: args.sort, is_reversed: args.reverse, filter: args.filter.clone() }
}

fn app(args: &TopArgs, server: &ServerAddress) -> App {
    App {
        server: server.to_string(),
        view: args.view,
        arrangement: arrangement(args),
        filter_before: None,
        is_paused: false,
        offset: 0,
        snapshot: None,
        fault: None,
        has_colours: output::colours(&io::stdout()),
    }
}

/// The text of two samples.
fn once(args: &TopArgs, server: &ServerAddress, client: &Client) -> Result<String, Failure> {
    let mut meter = Meter::default();
    meter.measure(&Sample::take(client)?);
    std::thread::sleep(args.interval);
    let Snapshot { time, seconds, rows, .. } = meter.measure(&Sample::take(client)?);
    let items = arrangement(args).apply(args.view, &rows[args.view as usize]);
    match args.json {
        true => json(&OneInterval { server: server.to_string(), time: &time, seconds, items }),
        false => Ok(Table::new(args.view, &items, None).text()),
    }
}
