//! The test programs of a selection of packages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::root;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// The package, and the test target unless it is the library: `lunar-block/contract`
    pub name: String,
    kind: ProgramKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ProgramKind {
    /// The program, and the folder of its package, in which cargo runs it
    File(PathBuf, PathBuf),
    /// The documentation tests of these packages
    Doc(Vec<String>),
    /// A script instead of a program
    #[cfg(test)]
    Shell(PathBuf),
}

impl TestProgram {
    /// The command that runs it with these arguments.
    pub fn command(&self, arguments: &[String]) -> Command {
        let mut command = match &self.kind {
            ProgramKind::File(file, folder) => {
                let mut command = root::command(&file.display().to_string());
                command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
                command
            }
            #[cfg(test)]
            ProgramKind::Shell(file) => {
                let mut command = root::command("sh");
                command.arg(file);
                command
            }
            ProgramKind::Doc(selection) => {
                let mut command = root::command("cargo");
                command.args(["test", "--doc", "--no-fail-fast"]).args(selection).arg("--");
                command
            }
        };
        command.args(arguments);
        command
    }
}

#[cfg(test)]
impl TestProgram {
    /// A shell script as a program.
    pub fn of_shell(script: &str) -> TestProgram {
        let folder = root::target_dir().join("scripts");
        std::fs::create_dir_all(&folder).expect("a folder");
        let id = script.bytes().fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let file = folder.join(format!("{}-{id:x}.sh", std::process::id()));
        std::fs::write(&file, script).expect("a script");
        TestProgram { name: script.to_owned(), kind: ProgramKind::Shell(file) }
    }
}

/// Builds and lists the programs of `cargo test SELECTION`; None if the build fails.
pub fn build(selection: &[&str]) -> Result<Option<Vec<TestProgram>>> {
    let mut command = root::command("cargo");
    command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(selection);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        return Ok(None);
    }
    let messages = String::from_utf8(output.stdout).context("cargo")?;
    let mut programs: Vec<TestProgram> = messages.lines().filter_map(program).collect();
    if selection.contains(&"--workspace") {
        let selection = selection.iter().map(|word| word.to_string()).collect();
        programs.push(TestProgram { name: "documentation".into(), kind: ProgramKind::Doc(selection) });
    }
    Ok(Some(programs))
}

/// The test program in a message of cargo.
fn program(message: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = folder.file_name()?.to_str()?.to_owned();
    let target = &message["target"];
    let is_library = target["kind"].as_array()?.iter().any(|kind| kind == "lib");
    let name = if is_library { package } else { format!("{package}/{}", target["name"].as_str()?) };
    Some(TestProgram { name, kind: ProgramKind::File(file, folder) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_program_is_read_from_cargo_message() {
        let message = |kind: &str, is_test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/lunar-block/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"contract"}},"profile":{{"test":{is_test}}},
                "executable":"/w/target/debug/deps/contract-1"}}"#
            )
        };
        let name = |kind| program(&message(kind, true)).map(|program| program.name);
        assert_eq!(name("test").as_deref(), Some("lunar-block/contract"));
        assert_eq!(name("lib").as_deref(), Some("lunar-block"));
        assert_eq!(program(&message("example", false)), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
