//! Programs of other packages that rows need.

use crate::root;

/// A program, or the absolute path of a file, and its Debian package.
pub type Tool = (&'static str, &'static str);

/// Whether the tools are installed. If not, prints that `rows` are skipped.
pub fn have(tools: &[Tool], rows: &str) -> bool {
    let skipped = skipped(tools, rows);
    skipped.iter().for_each(|line| eprintln!("bench: {line}"));
    skipped.is_none()
}

fn skipped(tools: &[Tool], rows: &str) -> Option<String> {
    let missing = tools.iter().filter(|(program, _)| !root::is_installed(program));
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    let packages = packages.join(" ");
    (!packages.is_empty()).then(|| format!("{rows}: skipped: needs {packages} (apt-get install {packages})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_their_tools_are_skipped_with_the_package() {
        let file = ("/no/such/bs_rbd.so", "tgt-rbd");
        let said = skipped(&[("sh", "dash"), ("/dev/null", "base"), file], "Ceph RBD");
        assert_eq!(said.as_deref(), Some("Ceph RBD: skipped: needs tgt-rbd (apt-get install tgt-rbd)"));
        assert_eq!(skipped(&[("sh", "dash"), ("/dev/null", "base")], "Ceph RBD"), None);
        assert!(!have(&[("no-such-program", "none")], "rows"));
    }
}
