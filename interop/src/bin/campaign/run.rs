//! Runs rounds until the time limit.

use crate::Campaign;
use crate::tally::{Counters, Tally};
use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

/// Failed rounds of a campaign whose files are kept, so that they do not fill the disk.
const KEPT: usize = 5;

/// Options that all campaigns share.
#[derive(Debug)]
pub struct CampaignOptions {
    /// Seed of the first round
    pub seed: u64,
    /// No round begins later
    pub end: Instant,
    /// Rounds of each campaign at most
    pub rounds: u64,
    pub is_short: bool,
    /// The folder of all files
    pub folder: PathBuf,
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct CampaignResult {
    pub name: &'static str,
    pub rounds: u64,
    pub counters: Counters,
    pub failures: Vec<Failure>,
}

/// A round that failed.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub reason: String,
    /// Its files, if they are kept
    pub folder: Option<PathBuf>,
}

/// Runs each campaign in its own thread.
pub fn at_once(campaigns: &[Campaign], plan: &CampaignOptions) -> Vec<CampaignResult> {
    let outcomes = thread::scope(|scope| {
        let threads: Vec<_> =
            campaigns.iter().map(|c| scope.spawn(|| in_turns(std::slice::from_ref(c), plan))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a campaign catches panics")).collect()
    });
    let _ = fs::remove_dir(&plan.folder); // fails if files of a failed round are kept
    outcomes
}

/// Runs one round of each campaign, then the next round of each.
pub fn in_turns(campaigns: &[Campaign], plan: &CampaignOptions) -> Vec<CampaignResult> {
    let mut outcomes: Vec<CampaignResult> =
        campaigns.iter().map(|c| CampaignResult { name: c.0, ..CampaignResult::default() }).collect();
    for number in 0..plan.rounds {
        for (campaign, outcome) in campaigns.iter().zip(&mut outcomes) {
            if number > 0 && Instant::now() >= plan.end {
                return outcomes;
            }
            outcome.add(campaign, plan, plan.seed.wrapping_add(number));
        }
    }
    let _ = fs::remove_dir(&plan.folder);
    outcomes
}

impl CampaignResult {
    /// Runs a round.
    fn add(&mut self, campaign: &Campaign, plan: &CampaignOptions, seed: u64) {
        let folder = plan.folder.join(format!("{}-{seed}", self.name));
        let mut tally = Tally::new(folder.clone(), plan.is_short);
        let round = AssertUnwindSafe(|| campaign.2(seed, &mut tally));
        let ended = catch_unwind(round).unwrap_or_else(|panic| Err(words(&*panic)));
        self.rounds += 1;
        for (counter, n) in tally.counters() {
            *self.counters.entry(counter).or_default() += n;
        }
        let is_kept = ended.is_err() && self.failures.len() < KEPT;
        if !is_kept {
            let _ = fs::remove_dir_all(&folder);
        }
        if let Err(reason) = ended {
            let failure = Failure { seed, reason, folder: is_kept.then_some(folder) };
            eprintln!("{}", failure.text(self.name));
            self.failures.push(failure);
        }
    }
}

impl Failure {
    /// The reason, the folder of its files, and the command that repeats it.
    pub fn text(&self, name: &str) -> String {
        let Failure { seed, reason, folder } = self;
        let files = folder.as_ref().map(|f| format!("\n  files: {}", f.display())).unwrap_or_default();
        format!("{name}: {reason}{files}\n  again: cargo xtask campaign {name} --seed {seed} --rounds 1")
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|t| t.to_string())).unwrap_or_else(|| "a panic".into())
}
