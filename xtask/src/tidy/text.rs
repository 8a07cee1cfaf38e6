//! Rules for all text files, and the links of Markdown files.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::TidyFinding;
use super::project::SourceFile;

/// Concatenated, so that this file does not contain them.
const BANNED: [(&str, &str); 6] = [
    (concat!("FIX", "ME"), "fix it, or open an issue"),
    (concat!("/wo", "rk/"), "use a path relative to the project"),
    (concat!("/ho", "me/"), "use a path relative to the project"),
    (concat!("/ro", "ot/.cargo"), "use a path relative to the project"),
    (concat!("sparse", "+http"), "name no registry: cargo's own setting decides"),
    (concat!("replace", "-with"), "name no registry: cargo's own setting decides"),
];
const LOCK_SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

/// Checks a file of any kind.
pub fn check(file: &SourceFile) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (n, line) in file.text.lines().enumerate() {
        for (what, remedy) in BANNED.iter().filter(|(what, _)| line.contains(what)) {
            findings.push(TidyFinding::new(&file.path, n + 1, format!("`{what}`"), remedy));
        }
        if file.path.ends_with("Cargo.lock") && line.starts_with("source = ") && line != LOCK_SOURCE {
            findings.push(TidyFinding::new(
                &file.path,
                n + 1,
                line,
                "take the crate from the public registry",
            ));
        }
    }
    findings
}

/// Checks that each relative link leads to a file or folder of the project.
pub fn links(file: &SourceFile, files: &[SourceFile]) -> Vec<TidyFinding> {
    let known = places(files);
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for (line, link) in relative_links(&file.text) {
        let there = normal(&folder.join(link)).is_some_and(|path| known.contains(&path));
        if !there {
            let what = format!("broken link to {link}");
            findings.push(TidyFinding::new(&file.path, line, what, "fix or remove it"));
        }
    }
    findings
}

/// Every file and folder, from the project's root.
fn places(files: &[SourceFile]) -> BTreeSet<PathBuf> {
    files.iter().flat_map(|file| Path::new(&file.path).ancestors()).map(Path::to_path_buf).collect()
}

/// The path without `.` and `..`; None if it leaves the project.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !out.pop() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    Some(out)
}

/// The line and path of each `](path)` outside fenced code that is neither a URL nor an anchor of the same
/// page.
fn relative_links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut fenced = false;
    for (n, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        for part in line.split("](").skip(1) {
            let target = part.split([')', ' ']).next().unwrap_or("");
            let path = target.split('#').next().unwrap_or("");
            if !path.is_empty() && !target.contains(':') {
                links.push((n + 1, path));
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    #[test]
    fn local_paths_and_todo_marks_are_reported() {
        let text = format!("fine\nsee {}x\n// {} later\n", BANNED[1].0, BANNED[0].0);
        let lines: Vec<usize> = check(&file("notes.txt", &text)).iter().map(|f| f.line).collect();
        assert_eq!(lines, [2, 3]);
    }

    #[test]
    fn lock_file_with_other_registry_is_reported() {
        assert_eq!(check(&file("Cargo.lock", LOCK_SOURCE)), []);
        assert_eq!(check(&file("Cargo.lock", "source = \"registry+https://mirror.example/index\"")).len(), 1);
    }

    #[test]
    fn broken_link_is_reported() {
        let page = "[a](../README.md) [b](https://x.example/) [c](#here) [d](sub) [e](gone.md#x)\n\
            ```\n[f](no)\n```\n";
        let files = [file("docs/page.md", page), file("README.md", ""), file("docs/sub/x.md", "")];
        let found = links(&files[0], &files);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "broken link to gone.md");
        let outside = [file("page.md", "[up](../other.md)")];
        assert_eq!(links(&outside[0], &outside).len(), 1);
    }
}
