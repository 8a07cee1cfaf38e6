//! Checks the texts of the program: each `lunar` command that a text names must exist, with the options that the text
//! gives.

use super::*;
use clap::{Command as Tool, CommandFactory};
use std::fs;
use std::path::Path;

/// Words after `lunar` that are no commands.
const PROSE: [&str; 4] = ["has", "read", "that", "to"];

/// The sources of the crates, without their tests.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("the sources").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && !matches!(&*name, "tests" | "examples" | "target") {
            sources(&path, found);
        } else if name.ends_with(".rs") && !matches!(&*name, "tests.rs" | "hints.rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
            found.push((path.display().to_string(), text));
        }
    }
}

/// The string literals of a source, with continued lines joined.
fn literals(source: &str) -> Vec<String> {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code
        .map(|line| line.strip_suffix('\\').map_or(format!("{line}\n"), |line| line.trim_start().to_owned()));
    code.collect::<String>().replace("\\\"", "'").split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A word without punctuation around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric() && c != '-')
}

/// The fault of a text that follows `lunar `, if it has one.
fn fault(lunar: &Tool, text: &str) -> Option<String> {
    // The command ends at punctuation or at the end of the line.
    let text = text.split([';', '\n', '`', '(', ',']).next().unwrap_or_default();
    let text = text.split("\\n").next().unwrap_or_default();
    let mut words = text.split_whitespace();
    let first = words.next()?;
    if first.starts_with(['-', '<', '{', 'C', '\'']) || PROSE.contains(&bare(first)) {
        return None;
    }
    let Some(mut tool) = lunar.find_subcommand(bare(first)) else {
        return Some(format!("no command {first}"));
    };
    for word in words {
        if let Some(nested) = tool.find_subcommand(bare(word)) {
            tool = nested;
        }
        let Some(option) = bare(word).strip_prefix("--") else { continue };
        let option = option.split('=').next().unwrap_or_default();
        let is_there = tool.get_arguments().any(|arg| {
            arg.get_long() == Some(option) || arg.get_all_aliases().is_some_and(|all| all.contains(&option))
        });
        if !is_there && !matches!(option, "help" | "version") {
            return Some(format!("no option --{option} of {}", tool.get_name()));
        }
    }
    None
}

#[test]
fn commands_that_texts_name_are_there() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut found, mut named, mut faults) = (Vec::new(), 0, Vec::new());
    sources(&crates, &mut found);
    let lunar = Cli::command();
    for (path, text) in found {
        for literal in literals(&text) {
            for (at, _) in literal.match_indices("lunar ") {
                if literal[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '_' | '-')) {
                    continue;
                }
                named += 1;
                let fault = fault(&lunar, &literal[at + "lunar ".len()..]);
                faults.extend(fault.map(|fault| format!("{path}: {fault}: {literal}")));
            }
        }
    }
    assert!(named > 50, "{named}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
