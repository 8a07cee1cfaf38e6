//! The result: one row for each campaign.

use crate::run::{CampaignResult, Failure};
use serde_json::{Value, json};

/// A table, and the failures below it.
pub fn text(outcomes: &[CampaignResult]) -> String {
    let rows = outcomes.iter().map(|o| {
        let counters: Vec<String> = o.counters.iter().map(|(name, n)| format!("{n} {name}")).collect();
        format!("{:<8}  {:>6}  {:>8}  {}", o.name, o.rounds, o.failures.len(), counters.join(", "))
    });
    let failures = outcomes.iter().flat_map(|o| o.failures.iter().map(|f| f.text(o.name)));
    let head = format!("{:<8}  {:>6}  {:>8}  counters", "campaign", "rounds", "failures");
    [head].into_iter().chain(rows).chain(failures).collect::<Vec<_>>().join("\n")
}

/// The same as JSON.
pub fn json(outcomes: &[CampaignResult]) -> String {
    let failure = |f: &Failure| {
        let folder = f.folder.as_ref().map(|folder| folder.display().to_string());
        json!({ "seed": f.seed, "reason": f.reason, "folder": folder })
    };
    let campaign = |o: &CampaignResult| {
        let failures: Vec<Value> = o.failures.iter().map(failure).collect();
        json!({ "name": o.name, "rounds": o.rounds, "counters": o.counters, "failures": failures })
    };
    let campaigns: Vec<Value> = outcomes.iter().map(campaign).collect();
    serde_json::to_string_pretty(&json!({ "campaigns": campaigns })).expect("plain values")
}
