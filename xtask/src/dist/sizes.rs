//! Sizes and checksums of the results.

use std::fs;
use std::path::Path;

use anyhow::Result;
use sha2::{Digest, Sha256};

use super::read;

/// The results in the order of their names.
pub struct Checksums {
    /// A file for `sha256sum --check`.
    pub text: String,
    rows: Vec<(String, usize)>,
}

/// The checksum of these bytes in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checksums of the files in a folder.
pub fn checksums(folder: &Path) -> Result<Checksums> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let (mut text, mut rows) = (String::new(), Vec::new());
    for name in names {
        let bytes = read(&folder.join(&name))?;
        text += &format!("{}  {name}\n", sha256(&bytes));
        rows.push((name, bytes.len()));
    }
    Ok(Checksums { text, rows })
}

impl Checksums {
    /// Names and sizes, aligned.
    pub fn table(&self) -> String {
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let rows = self.rows.iter().map(|(name, size)| format!("{name:width$}  {:>8.1} MiB", mib(*size)));
        rows.collect::<Vec<_>>().join("\n")
    }

    /// Names and sizes in bytes.
    pub fn json(&self) -> Result<String> {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|(name, bytes)| serde_json::json!({ "name": name, "size_bytes": bytes }))
            .collect();
        Ok(serde_json::to_string_pretty(&rows)?)
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_in_the_form_of_sha256sum() {
        let folder = std::env::temp_dir().join(format!("lunar-sums-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("b"), "").expect("a file");
        fs::write(folder.join("a"), "abc").expect("a file");
        let sums = checksums(&folder).expect("checksums");
        fs::remove_dir_all(&folder).expect("removed");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(sums.text.starts_with(&format!("{abc}  a\n")), "{}", sums.text);
        assert_eq!(sums.table(), "a       0.0 MiB\nb       0.0 MiB");
        assert!(sums.json().expect("JSON").contains("\"size_bytes\": 3"));
    }
}
