use super::*;
use clap::error::ErrorKind;
use clap::{Arg, Command as Tool, CommandFactory};

/// All commands, each with its words on the command line.
fn commands(tool: &Tool, path: &[String]) -> Vec<(Vec<String>, Tool)> {
    let mut all = vec![(path.to_vec(), tool.clone())];
    for one in tool.get_subcommands() {
        all.extend(commands(one, &[path, &[one.get_name().to_owned()]].concat()));
    }
    all
}

fn takes_time(arg: &&Arg) -> bool {
    arg.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "TIME"))
}

/// The option as on the command line.
fn option(arg: &Arg) -> String {
    let long = arg.get_long().map(|long| format!("--{long}"));
    long.unwrap_or_else(|| format!("-{}", arg.get_short().expect("only options take times")))
}

/// The error of the parser about this value. None if the value is valid, even if other arguments are missing.
fn refusal(path: &[String], option: &str, value: &str) -> Option<clap::Error> {
    let line = path.iter().map(String::as_str).chain([option, value]);
    Cli::try_parse_from(line).err().filter(|e| e.kind() == ErrorKind::ValueValidation)
}

#[test]
fn every_option_with_a_time_takes_the_same_forms() {
    let mut options = 0;
    for (path, tool) in commands(&Cli::command(), &["lunar".to_owned()]) {
        for arg in tool.get_arguments().filter(takes_time) {
            let option = option(arg);
            options += 1;
            for value in ["5", "5s", "500ms", "2m"] {
                let refused = refusal(&path, &option, value);
                assert!(refused.is_none(), "{path:?} {option} {value}: {}", refused.expect("an error"));
            }
            let refused = refusal(&path, &option, "5x").unwrap_or_else(|| panic!("{path:?} {option} 5x"));
            assert_eq!(refused.exit_code(), 2, "invalid command line");
            let said = refused.to_string();
            let reason = lunar_proto::duration::any("5x").expect_err("an invalid duration").to_string();
            assert!(said.contains(&reason), "{path:?} {option}: {said}");
        }
    }
    assert!(options >= 15, "{options} options");
}

/// The value of an option whose name suggests a time must be a duration, or have a unit in its value name.
#[test]
fn option_named_as_a_time_takes_one() {
    for (path, tool) in commands(&Cli::command(), &["lunar".to_owned()]) {
        for arg in tool.get_arguments().filter(|arg| arg.get_action().takes_values() && !takes_time(arg)) {
            let names = arg.get_value_names().unwrap_or_default();
            let is_named = ["timeout", "within", "runtime", "interval", "seconds"]
                .iter()
                .any(|word| arg.get_id().as_str().contains(word));
            assert!(!is_named && names.iter().all(|name| *name != "SECONDS"), "{path:?} {}", arg.get_id());
        }
    }
}
