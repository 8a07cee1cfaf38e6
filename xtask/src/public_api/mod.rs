//! The public API of the library as a file, so that a review shows each change of it. `cargo xtask public-api
//! --write` writes the file, and `cargo xtask tidy` compares it.
//!
//! The file is Rust without bodies, comments and private parts, with every feature on. It is derived from the source
//! alone. So re-exports of other crates appear as `pub use`, and types have the names that the source uses.

mod crate_source;
mod outline;
mod resolve;
mod signature;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result};

use crate::root::{self, StepResult};
use crate::tidy::{TidyFinding, project};

/// The library, and the file with its API.
const SOURCE: &str = "crates/lunar-initiator/src";
const API: &str = "crates/lunar-initiator/public-api.txt";
const HEAD: &str = "\
// The public API of lunar-initiator with all features. `cargo xtask public-api --write` makes this file, and
// `cargo xtask tidy` compares it.

";

/// Options of `cargo xtask public-api`.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Replace the file by the present API
    #[arg(long)]
    write: bool,
}

/// Writes the file, or compares it.
pub fn run(options: &Options) -> Result<StepResult> {
    let files = project::read(&root::path())?;
    if options.write {
        std::fs::write(root::path().join(API), render(&files)?)
            .with_context(|| format!("cannot write {API}"))?;
        return Ok(StepResult::Ok);
    }
    let findings = check(&files);
    findings.iter().for_each(|finding| println!("{finding}"));
    Ok(if findings.is_empty() {
        StepResult::Ok
    } else {
        StepResult::Failed("the public API has changed".into())
    })
}

/// The first line at which the file differs from the current API.
pub fn check(files: &[project::SourceFile]) -> Vec<TidyFinding> {
    const REMEDY: &str = "run cargo xtask public-api --write, and review the difference";
    let now = match render(files) {
        Ok(now) => now,
        Err(e) => {
            return vec![TidyFinding::new(SOURCE, 1, format!("no public API: {e:#}"), "mend the source")];
        }
    };
    let kept = files.iter().find(|file| file.path == API).map_or("", |file| &file.text);
    if kept == now {
        return Vec::new();
    }
    let same = kept.lines().zip(now.lines()).take_while(|(kept, now)| kept == now).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("the end").trim().to_owned();
    let what = format!("the public API has \"{}\" here, not \"{}\"", line(&now), line(kept));
    vec![TidyFinding::new(API, same + 1, what, REMEDY)]
}

fn render(files: &[project::SourceFile]) -> Result<String> {
    let module = crate_source::read(files, SOURCE)?;
    Ok(format!("{HEAD}{}", prettyplease::unparse(&outline::of(&module))))
}
