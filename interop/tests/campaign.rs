//! Runs one short round of each campaign of `cargo xtask campaign` in parallel. Each round must pass, and count its
//! checks.
#![forbid(unsafe_code)]

use interop::lunar_bin;
use interop::tool;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// A campaign, and the counters that a round must increase.
const CAMPAIGNS: [(&str, &[&str]); 6] = [
    ("kills", &["writes acknowledged", "blocks compared"]),
    ("late", &["newer writes acknowledged", "regions checked"]),
    ("linear", &["blocks read"]),
    ("logins", &["honest reads checked"]),
    ("logs", &["reads checked"]),
    ("stalls", &["newer writes acknowledged", "blocks compared"]),
];

#[test]
fn short_round_of_each_campaign_checks_and_passes() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campaign"));
    command.args(["--rounds", "1", "--short", "--seed", "0", "--json", "--lunar"]).arg(lunar_bin());
    let ran = tool::run(command.args(CAMPAIGNS.map(|(name, _)| name)), Duration::from_secs(300));
    assert!(ran.ok(), "{:?}: {}", ran.status, ran.said);
    let result: Value = serde_json::from_str(&ran.said).expect("JSON");
    for (name, counters) in CAMPAIGNS {
        let campaigns = result["campaigns"].as_array().expect("a list");
        let campaign = campaigns.iter().find(|c| c["name"] == name).expect("the campaign ran");
        for counter in counters {
            let count = campaign["counters"][counter].as_u64();
            assert!(count > Some(0), "{name} counted no {counter}: {campaign}");
        }
    }
}
