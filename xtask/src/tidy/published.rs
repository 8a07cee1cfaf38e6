//! Rules for the crates that may be published.

use syn::punctuated::Punctuated;
use syn::{AttrStyle, Attribute, Meta, Token};

use super::TidyFinding;
use super::project::{SourceFile, published};

/// The lint with which rustc rejects a public item without documentation.
const LINT: &str = "missing_docs";

/// Published crates that do not deny public items without documentation.
pub fn check(files: &[SourceFile]) -> Vec<TidyFinding> {
    published(files).iter().filter_map(|name| undocumented(files, name)).collect()
}

fn undocumented(files: &[SourceFile], name: &str) -> Option<TidyFinding> {
    let path = format!("crates/{name}/src/lib.rs");
    let file = files.iter().find(|file| file.path == path)?;
    let attributes = syn::parse_file(&file.text).map(|source| source.attrs).unwrap_or_default();
    (!attributes.iter().any(denies)).then(|| {
        let what = format!("{name} may be published, and does not deny {LINT}");
        TidyFinding::new(&path, 1, what, "add #![deny(missing_docs)]")
    })
}

fn denies(attribute: &Attribute) -> bool {
    let is_level = attribute.path().is_ident("deny") || attribute.path().is_ident("forbid");
    let lints = attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    matches!(attribute.style, AttrStyle::Inner(_))
        && is_level
        && lints.is_ok_and(|lints| lints.iter().any(|lint| lint.path().is_ident(LINT)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    /// The number of findings for a crate with this line in its manifest and this source.
    fn count(manifest: &str, source: &str) -> usize {
        let manifest = format!("[package]\nname = \"x\"\n{manifest}");
        check(&[file("crates/x/Cargo.toml", &manifest), file("crates/x/src/lib.rs", source)]).len()
    }

    #[test]
    fn published_crate_that_allows_missing_docs_is_reported() {
        assert_eq!(count("", "//! A crate.\n"), 1);
        assert_eq!(count("", "// #![deny(missing_docs)]\n"), 1);
        assert_eq!(count("", "#![warn(missing_docs)]\n"), 1);
        assert_eq!(count("", "#![deny(unsafe_code, missing_docs)]\n"), 0);
        assert_eq!(count("publish.workspace = true\n", "//! A crate.\n"), 0);
    }
}
