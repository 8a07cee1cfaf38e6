//! The JSON Schemas of the output of all commands with `--json`, made from the types that the commands print.
//! `docs/schema.json` has them, and `docs/json.md` lists the commands.

use crate::adopt::AdoptReport;
use crate::args::Cli;
use crate::attach::detach::DetachReport;
use crate::check::CheckReport;
use crate::copy::report::Summary;
use crate::discover;
use crate::doctor::report::DoctorReport;
use crate::gateway::GatewayOutcome;
use crate::import::ImportReport;
use crate::ls;
use crate::objects::{
    chap::UserSecret,
    server::ListedServer,
    subsystem::SubsystemDetails,
    target::{TargetDetails, TargetOutcome},
};
use crate::output::ErrorReport;
use crate::rdma::RdmaInventory;
use crate::router::RouterOutcome;
use crate::scsi::ScsiReport;
use crate::session::ServerSession;
use crate::top::OneInterval;
use clap::{Command, CommandFactory};
use lunar_admin::{
    AttachmentReport, Difference, GatewayReport, HistoryEntry, RouterReport, ServerEvent, SessionReport,
    SharedUnitReport,
};
use lunar_api::client::{
    AccessView, ChangeReport, ChapUserView, ConfigText, DiskView, HostView, LunView, NamespaceItem, Outcome,
    PortalGroupView, SubsystemView, TargetView,
};
use lunar_server::attached::Record;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

/// The definitions of types, by name.
type Definitions = BTreeMap<String, Value>;
/// Adds the definitions of an output, and returns its schema.
type Output = fn(&mut Definitions) -> Value;

/// The commands and their output. A command with an argument in capitals has another output with this argument.
const OUTPUTS: &[(&str, Output)] = &[
    ("access add", one::<ChangeReport>),
    ("access list", list::<AccessView>),
    ("access remove", one::<ChangeReport>),
    ("access set", one::<ChangeReport>),
    ("access show", one::<AccessView>),
    ("adopt", one::<AdoptReport>),
    ("apply", one::<ChangeReport>),
    ("apply --confirm", one::<Outcome>),
    ("apply --rollback", one::<Outcome>),
    ("attach", one::<Record>),
    ("attach list", list::<AttachmentReport>),
    ("attach list NAME", one::<AttachmentReport>),
    ("bench", bench),
    ("bench compare", object),
    ("bench reproduce", bench),
    ("chap add", one::<UserSecret<'static>>),
    ("chap list", list::<ChapUserView>),
    ("chap remove", one::<ChangeReport>),
    ("chap set", one::<UserSecret<'static>>),
    ("chap show", one::<ChapUserView>),
    ("check", one::<CheckReport>),
    ("config show", one::<ConfigText>),
    ("copy", one::<Summary>),
    ("detach", one::<DetachReport>),
    ("diff", list::<Difference>),
    ("disk add", one::<ChangeReport>),
    ("disk list", list::<DiskView>),
    ("disk remove", one::<ChangeReport>),
    ("disk show", one::<DiskView>),
    ("discover", list::<discover::TargetEntry>),
    ("doctor", one::<DoctorReport>),
    ("events", one::<ServerEvent>),
    ("gateway drain", one::<GatewayOutcome>),
    ("gateway failover", one::<GatewayOutcome>),
    ("gateway list", list::<GatewayReport>),
    ("gateway resume", one::<GatewayOutcome>),
    ("gateway show", list::<SharedUnitReport>),
    ("history", list::<HistoryEntry>),
    ("host add", one::<UserSecret<'static>>),
    ("host list", list::<HostView>),
    ("host remove", one::<ChangeReport>),
    ("host set", one::<UserSecret<'static>>),
    ("host show", one::<HostView>),
    ("import", one::<ImportReport>),
    ("info", object),
    ("ls", list::<ls::TargetEntry>),
    ("lun add", one::<ChangeReport>),
    ("lun list", list::<LunView>),
    ("lun move", one::<ChangeReport>),
    ("lun remove", one::<ChangeReport>),
    ("lun resize", one::<ChangeReport>),
    ("lun set", one::<ChangeReport>),
    ("lun show", one::<LunView>),
    ("namespace add", one::<ChangeReport>),
    ("namespace list", list::<NamespaceItem>),
    ("namespace remove", one::<ChangeReport>),
    ("namespace resize", one::<ChangeReport>),
    ("namespace set", one::<ChangeReport>),
    ("namespace show", one::<NamespaceItem>),
    ("portal add", one::<ChangeReport>),
    ("portal list", list::<PortalGroupView>),
    ("portal remove", one::<ChangeReport>),
    ("portal show", one::<PortalGroupView>),
    ("pr", object),
    ("rdma list", one::<RdmaInventory>),
    ("reload", one::<ChangeReport>),
    ("rollback", one::<ChangeReport>),
    ("router drain", one::<RouterOutcome>),
    ("router eligible", one::<RouterOutcome>),
    ("router failover", one::<RouterOutcome>),
    ("router list", list::<RouterReport>),
    ("router paths", list::<RouterReport>),
    ("router resume", one::<RouterOutcome>),
    ("router sessions", list::<SessionReport>),
    ("router show", list::<RouterReport>),
    ("router stats", list::<RouterReport>),
    ("scsi", one::<ScsiReport>),
    ("session end", one::<Outcome>),
    ("session list", list::<ServerSession>),
    ("session show", list::<SessionReport>),
    ("session show ID", one::<SessionReport>),
    ("status", list::<ListedServer>),
    ("stop", one::<Outcome>),
    ("subsystem add", one::<ChangeReport>),
    ("subsystem list", list::<SubsystemView>),
    ("subsystem remove", one::<ChangeReport>),
    ("subsystem set", one::<ChangeReport>),
    ("subsystem show", one::<SubsystemDetails>),
    ("target add", one::<ChangeReport>),
    ("target demote", one::<TargetOutcome>),
    ("target list", list::<TargetView>),
    ("target promote", one::<TargetOutcome>),
    ("target remove", one::<ChangeReport>),
    ("target set", one::<ChangeReport>),
    ("target show", one::<TargetDetails>),
    ("top --once", one::<OneInterval<'static>>),
];

/// Commands of other tools that `lunar bench` imitates: their output is that of `lunar bench`.
const IMITATIONS: [&str; 5] =
    ["bench blockdev-perftest", "bench db-mix", "bench dd", "bench disktest", "bench sgp_dd"];

fn one<T: ToSchema>(definitions: &mut Definitions) -> Value {
    let mut used: Vec<(String, RefOr<Schema>)> = vec![(T::name().into(), T::schema())];
    T::schemas(&mut used);
    for (name, schema) in used {
        let text = serde_json::to_string(&schema).unwrap().replace("#/components/schemas/", "#/$defs/");
        let schema: Value = serde_json::from_str(&text).unwrap();
        let before = definitions.insert(name.clone(), schema.clone());
        assert!(before.is_none_or(|before| before == schema), "two types are named {name}");
    }
    json!({ "$ref": format!("#/$defs/{}", T::name()) })
}

fn list<T: ToSchema>(definitions: &mut Definitions) -> Value {
    let items = json!({ "type": "array", "items": one::<T>(definitions) });
    json!({ "type": "object", "required": ["items"], "properties": { "items": items } })
}

/// An object whose keys depend on the logical unit or the files.
fn object(_: &mut Definitions) -> Value {
    json!({ "type": "object" })
}

/// A document of the benchmark, which names its own version.
fn bench(_: &mut Definitions) -> Value {
    let schema = json!({ "const": lunar_bench::document::SCHEMA });
    json!({ "type": "object", "required": ["schema"], "properties": { "schema": schema } })
}

/// The document with all schemas.
fn document() -> Value {
    let mut definitions = Definitions::new();
    let error = one::<ErrorReport>(&mut definitions);
    let output = |(command, output): &(&str, Output)| ((*command).to_owned(), output(&mut definitions));
    let commands: Map<String, Value> = OUTPUTS.iter().map(output).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of all commands with --json, and their errors on stderr",
        "commands": commands,
        "error": error,
        "$defs": definitions,
    })
}

/// The subcommands with `--json`, as words.
fn with_json(command: &Command, words: &str, found: &mut BTreeSet<String>) {
    if command.get_arguments().any(|arg| arg.get_id() == "json") && !words.is_empty() {
        found.insert(words.to_owned());
    }
    for sub in command.get_subcommands() {
        with_json(sub, format!("{words} {}", sub.get_name()).trim_start(), found);
    }
}

fn docs(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn each_command_with_json_has_a_schema() {
    let mut found = BTreeSet::new();
    let mut cli = Cli::command();
    cli.build();
    with_json(&cli, "", &mut found);
    let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
    let command = |text: &str| text.split(' ').take_while(is_word).collect::<Vec<_>>().join(" ");
    let known: BTreeSet<String> = OUTPUTS.iter().map(|(text, _)| command(text)).collect();
    found.retain(|words| !IMITATIONS.contains(&&**words));
    assert_eq!(found, known);
}

#[test]
fn committed_schemas_are_current() {
    let current = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("LUNAR_WRITE").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema.json");
        std::fs::write(path, &current).unwrap();
    }
    assert!(docs("schema.json") == current, "run this test with LUNAR_WRITE=1");
}

#[test]
fn page_lists_each_command_with_its_output() {
    let page = docs("json.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `lunar "));
    let commands = rows.filter_map(|row| row.split(" | ").next());
    let listed: BTreeSet<&str> =
        commands.flat_map(|cell| cell.trim_end_matches('`').split("`, `lunar ")).collect();
    assert_eq!(listed, OUTPUTS.iter().map(|(command, _)| *command).collect());
}
