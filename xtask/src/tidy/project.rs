//! The project's text files.

use std::cell::OnceCell;
use std::path::Path;

use anyhow::{Result, ensure};

use super::source::code_only;

/// A text file.
#[derive(Debug)]
pub struct SourceFile {
    /// Path from the project's root
    pub path: String,
    /// Its content
    pub text: String,
    /// See [`SourceFile::code`]
    code: OnceCell<String>,
}

impl SourceFile {
    /// A file with this content.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> SourceFile {
        SourceFile { path: path.into(), text: text.into(), code: OnceCell::new() }
    }

    /// The text with blanks instead of comments, strings and character literals. Several rules read it.
    pub fn code(&self) -> &str {
        self.code.get_or_init(|| code_only(&self.text))
    }
}

/// Reads every text file that git tracks or would add.
pub fn read(root: &Path) -> Result<Vec<SourceFile>> {
    let listing = std::process::Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    ensure!(listing.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&listing.stderr));
    let paths = String::from_utf8(listing.stdout)?;
    let mut paths: Vec<&str> = paths.split_terminator('\0').collect();
    paths.sort_unstable();
    paths.dedup();
    let read = |path: &str| Some(SourceFile::new(path, std::fs::read_to_string(root.join(path)).ok()?));
    Ok(paths.into_iter().filter_map(read).collect())
}

/// The names of the crates that may be published, by name.
pub fn published(files: &[SourceFile]) -> Vec<String> {
    let name = |file: &SourceFile| {
        let name = file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        let manifest: toml::Table = file.text.parse().ok()?;
        (!manifest.get("package")?.as_table()?.contains_key("publish")).then(|| name.to_owned())
    };
    files.iter().filter_map(name).collect()
}

#[cfg(test)]
pub fn file(path: &str, text: &str) -> SourceFile {
    SourceFile::new(path, text)
}
