//! The result file of an experiment.

use lunar_bench::{Document, Error, ErrorKind};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Creates the folder and checks that it is writable, before hours of measuring.
///
/// # Errors
/// If it is not.
pub fn check(dir: &Path) -> Result<(), Error> {
    let probe = dir.join(format!(".lunar-{}", std::process::id()));
    let tried =
        fs::create_dir_all(dir).and_then(|()| create(&probe, b"")).and_then(|()| fs::remove_file(&probe));
    tried.map_err(|e| cannot(dir, &e))
}

/// Writes `EXPERIMENT-HOST-DATE.json`, and an HTML page next to it.
///
/// # Errors
/// If they cannot be written; existing files are unchanged.
pub fn write(dir: &Path, document: &Document) -> Result<PathBuf, Error> {
    let plain = |text: &str| {
        text.chars().filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect::<String>()
    };
    let seed = document.seed.as_deref().unwrap_or("bench");
    let name = format!("{seed}-{}-{}", plain(&document.host.name), plain(&document.begun));
    let file = dir.join(format!("{name}.json"));
    let json = serde_json::to_vec(document).map_err(|e| cannot(&file, &e.into()))?;
    whole(&file, &json)?;
    whole(&dir.join(format!("{name}.html")), lunar_bench::report::html(document).as_bytes())?;
    Ok(file)
}

/// Writes a file atomically.
fn whole(file: &Path, bytes: &[u8]) -> Result<(), Error> {
    let draft = file.with_extension(format!("draft-{}", std::process::id()));
    // A draft with our process id is from a killed process. If it is a link, the link is removed, not its
    // target.
    let _ = fs::remove_file(&draft);
    let written = create(&draft, bytes).and_then(|()| {
        fs::rename(&draft, file).inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })
    });
    written.map_err(|e| cannot(file, &e))
}

/// Creates a file without following links or replacing files.
fn create(file: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::File::options().write(true).create_new(true).open(file)?.write_all(bytes)
}

fn cannot(path: &Path, e: &io::Error) -> Error {
    let hint = "use --out with a writable folder";
    Error::new(ErrorKind::System, format!("cannot write {}: {e}", path.display()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::WorkDir;

    #[test]
    fn result_file_round_trips() {
        let dir = WorkDir::below(&std::env::temp_dir()).expect("a folder");
        let out = dir.join("a/b");
        check(&out).expect("the folder is created");
        let document = Document { seed: Some("x-2000".into()), ..Document::new("X") };
        let file = write(&out, &document).expect("written");
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(name.starts_with("x-2000-") && name.ends_with("Z.json"), "{name}");
        let read: Document = serde_json::from_slice(&fs::read(&file).expect("the file")).expect("a document");
        assert_eq!(read, document);
        assert!(file.with_extension("html").exists());
        assert_eq!(fs::read_dir(&out).expect("the folder").count(), 2, "no draft is left");
    }

    #[test]
    fn link_as_draft_is_not_followed() {
        let dir = WorkDir::below(&std::env::temp_dir()).expect("a folder");
        let (victim, file) = (dir.join("victim"), dir.join("a.json"));
        fs::write(&victim, "kept").expect("a file");
        let pid = std::process::id();
        for name in ["a.draft".to_owned(), format!("a.draft-{pid}"), format!(".lunar-{pid}")] {
            std::os::unix::fs::symlink(&victim, dir.join(name)).expect("a link");
        }
        whole(&file, b"new").expect("written");
        assert_eq!(fs::read(&file).expect("the file"), b"new");
        assert!(check(&dir).is_err(), "a file has this name");
        assert_eq!(fs::read(&victim).expect("the victim"), b"kept");
    }

    #[test]
    fn unwritable_folder_is_an_error() {
        let dir = WorkDir::below(&std::env::temp_dir()).expect("a folder");
        let file = dir.join("file");
        fs::write(&file, "").expect("a file");
        let e = check(&file.join("below")).expect_err("a file cannot contain a folder");
        assert!(e.kind == ErrorKind::System && e.what.contains("cannot write"), "{e}");
    }
}
