//! `lunar config`: shows the configuration, and keeps it with its state in one file.

mod dump;
mod dump_file;
mod owner;
mod restore;

use crate::args::AdminArgs;
use crate::client::json;
use crate::exit::Failure;
use clap::Subcommand;
use dump::DumpArgs;
use lunar_api::client::{Client, ConfigText};
use lunar_server::{Diagnostic, config, folders};
use restore::RestoreArgs;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "Examples:
  lunar config show                                  # of the running server
  lunar config show lunar.toml                       # of files
  lunar config dump -o backup.json --secrets         # as root: configuration, secrets and state of the service
  lunar config restore backup.json --dry-run         # what a restore would write";

/// Subcommands of `lunar config`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum ConfigCommand {
    /// Show a configuration as one TOML text, with the file and line of each object
    Show {
        /// Configuration file, read with its drop-in files [default: the configuration of the running server]
        file: Option<PathBuf>,
        #[command(flatten)]
        server: AdminArgs,
    },
    /// Write configuration and state to one file
    Dump(DumpArgs),
    /// Write the configuration and state of a dump back
    Restore(RestoreArgs),
}

/// The text to print.
pub fn configuration(command: ConfigCommand) -> Result<String, Failure> {
    match command {
        ConfigCommand::Show { file, server } => show(file.as_deref(), &server),
        ConfigCommand::Dump(args) => dump::dump(&args),
        ConfigCommand::Restore(args) => restore::restore(&args),
    }
}

fn show(file: Option<&Path>, args: &AdminArgs) -> Result<String, Failure> {
    let text = match file {
        Some(file) => {
            let sources = config::load_without_secrets(file)?.sources;
            let file = Some(sources.whole.display().to_string());
            ConfigText { version: None, file, toml: config::shown(&sources) }
        }
        None => Client::new(&args.choice.one()?, args.timeout).get("/v1/config")?,
    };
    if args.json { Ok(json(&text)?) } else { Ok(text.toml) }
}

/// The configuration file of the option, or that in the folder of configuration.
///
/// # Errors
/// When there is no such folder.
pub fn file_or_default(file: Option<&Path>) -> Result<PathBuf, Diagnostic> {
    file.map_or_else(
        || folders::config().map(|folder| folder.join("lunar.toml")),
        |file| Ok(file.to_path_buf()),
    )
}
