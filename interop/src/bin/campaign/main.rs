//! Long test campaigns against the running program: `cargo xtask campaign --help`, docs/testing.md.
//!
//! A campaign is one file of this folder and one row of [`CAMPAIGNS`]. Its function is a [`Round`]. A round repeats as
//! long as there is time; a failure does not end the campaign.
#![forbid(unsafe_code)]

mod attach;
mod attacks;
mod gate;
mod history;
mod keys;
mod kills;
mod late;
mod late_paths;
mod left;
mod linear;
mod logins;
mod logs;
mod report;
mod run;
mod site;
mod slots;
mod stalls;
mod stamps;
mod streams;
mod tally;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};
use tally::Tally;

/// One round of a campaign, of some 5 to 60 s: `pub fn round(seed: u64, tally: &mut Tally) -> Result<(), String>`.
///
/// - It starts its own servers in folders of [`Tally::folder`], on free ports, and ends them.
/// - It makes each choice with `Random::new(seed)`, so that the seed repeats the round as far as thread scheduling
///   allows.
/// - It counts its actions and checks with [`Tally::add`].
/// - With [`Tally::is_short`] it ends after about 2 s.
/// - No check depends on speed. But a server that does not answer within [`NO_ANSWER`] is a failure: "no answer".
/// - An error or a panic of its thread fails the round. It joins its threads, and resumes their panics
///   ([`tally::joined`]). The error contains all that is needed to understand the failure.
type Round = fn(u64, &mut Tally) -> Result<(), String>;

/// Name, purpose, function.
type Campaign = (&'static str, &'static str, Round);

const CAMPAIGNS: [Campaign; 6] = [
    ("kills", "kill -9 under writers: no acknowledged write is lost, none is torn", kills::round),
    ("stalls", "a core that stalls: no old write overwrites a newer one", stalls::round),
    ("linear", "blocks are atomic registers, and atomic writes are whole", linear::round),
    ("late", "bytes of sessions that were replaced, reset or closed land on no newer data", late::round),
    ("logins", "under hostile logins an honest host gets in, and nothing grows without bound", logins::round),
    ("logs", "logs that cannot be written hold nothing up", logs::round),
];

/// Time limit for a response of the server. It is long, because the machine may be shared and campaigns slow it down.
const NO_ANSWER: Duration = Duration::from_secs(60);

/// Runs long test campaigns against `lunar`: those that are named, or all in parallel.
#[derive(Debug, Parser)]
#[command(name = "campaign")]
struct Arguments {
    /// Only these
    #[arg(value_parser = PossibleValuesParser::new(CAMPAIGNS.map(|c| c.0)))]
    names: Vec<String>,
    /// No round begins after this time
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// At most this many rounds of each
    #[arg(long)]
    rounds: Option<u64>,
    /// Seed of the first round; the next ones count up. By default it is the time
    #[arg(long)]
    seed: Option<u64>,
    /// The program under test; otherwise $LUNAR_BIN, or the release build
    #[arg(long)]
    lunar: Option<PathBuf>,
    /// Run one campaign after the other, not all at the same time
    #[arg(long)]
    in_turns: bool,
    /// Rounds of about 2 s
    #[arg(long)]
    short: bool,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.lunar {
        interop::server::choose_lunar(std::path::absolute(path).expect("a current folder"));
    }
    interop::raw::choose_patience(NO_ANSWER);
    let plan = plan(&arguments);
    let results = match arguments.in_turns {
        true => run::in_turns(&chosen(&arguments), &plan),
        false => run::at_once(&chosen(&arguments), &plan),
    };
    println!("{}", if arguments.json { report::json(&results) } else { report::text(&results) });
    let is_good = results.iter().all(|result| result.failures.is_empty());
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plan(arguments: &Arguments) -> run::CampaignOptions {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    run::CampaignOptions {
        seed: arguments.seed.unwrap_or_else(now),
        end: Instant::now() + Duration::from_secs(arguments.minutes * 60),
        rounds: arguments.rounds.unwrap_or(u64::MAX),
        is_short: arguments.short,
        folder: std::env::temp_dir().join(format!("lunar-campaign-{}", std::process::id())),
    }
}

fn chosen(arguments: &Arguments) -> Vec<Campaign> {
    let is_chosen = |c: &Campaign| arguments.names.is_empty() || arguments.names.iter().any(|n| n == c.0);
    CAMPAIGNS.into_iter().filter(is_chosen).collect()
}
