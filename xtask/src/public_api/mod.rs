//! The public API of each published crate as a file, so that a review shows each change of it. `cargo xtask public-api
//! --write` writes the files, and `cargo xtask tidy` compares them.
//!
//! A file is Rust without bodies, comments and private parts, with every feature on. It is derived from the source
//! alone. So re-exports of other crates appear as `pub use`, and types have the names that the source uses.

mod crate_source;
mod expand;
mod outline;
mod resolve;
mod signature;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result};

use crate::root::{self, StepResult};
use crate::tidy::{TidyFinding, project};

/// A crate that may be published, and the file with its API.
struct Library {
    name: String,
    source: String,
    api: String,
}

/// Options of `cargo xtask public-api`.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Replace the files by the present API
    #[arg(long)]
    write: bool,
}

/// Writes the files, or compares them.
pub fn run(options: &Options) -> Result<StepResult> {
    let files = project::read(&root::path())?;
    if options.write {
        for library in libraries(&files) {
            let text = render(&files, &library).with_context(|| library.source.clone())?;
            let path = root::path().join(&library.api);
            std::fs::write(path, text).with_context(|| format!("cannot write {}", library.api))?;
        }
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

/// For each published crate, the first line at which its file differs from the current API.
pub fn check(files: &[project::SourceFile]) -> Vec<TidyFinding> {
    libraries(files).iter().filter_map(|library| difference(files, library)).collect()
}

fn difference(files: &[project::SourceFile], library: &Library) -> Option<TidyFinding> {
    const REMEDY: &str = "run cargo xtask public-api --write, and review the difference";
    let now = match render(files, library) {
        Ok(now) => now,
        Err(e) => {
            let what = format!("no public API: {e:#}");
            return Some(TidyFinding::new(&library.source, 1, what, "mend the source"));
        }
    };
    let kept = files.iter().find(|file| file.path == library.api).map_or("", |file| &file.text);
    if kept == now {
        return None;
    }
    let same = kept.lines().zip(now.lines()).take_while(|(kept, now)| kept == now).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("the end").trim().to_owned();
    let what = format!("the public API has \"{}\" here, not \"{}\"", line(&now), line(kept));
    Some(TidyFinding::new(&library.api, same + 1, what, REMEDY))
}

fn libraries(files: &[project::SourceFile]) -> Vec<Library> {
    project::published(files).into_iter().map(library).collect()
}

fn library(name: String) -> Library {
    let folder = format!("crates/{name}");
    Library { name, source: format!("{folder}/src"), api: format!("{folder}/public-api.txt") }
}

fn render(files: &[project::SourceFile], library: &Library) -> Result<String> {
    let module = crate_source::read(files, &library.source)?;
    Ok(format!("{}{}", head(&library.name), prettyplease::unparse(&outline::of(&module))))
}

fn head(name: &str) -> String {
    format!(
        "// The public API of {name} with all features. `cargo xtask public-api --write` makes this file, and\n\
         // `cargo xtask tidy` compares it.\n\n"
    )
}
