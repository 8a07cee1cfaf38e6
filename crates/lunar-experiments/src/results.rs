//! The file that is kept of an experiment.

use lunar_bench::{Document, Error, ErrorKind};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Makes the folder, and sees that files can be written there, before hours go into an experiment.
///
/// # Errors
/// When they cannot.
pub fn check(dir: &Path) -> Result<(), Error> {
    let probe = dir.join(format!(".lunar-{}", std::process::id()));
    let tried =
        fs::create_dir_all(dir).and_then(|()| create(&probe, b"")).and_then(|()| fs::remove_file(&probe));
    tried.map_err(|e| cannot(dir, &e))
}

/// Writes `SEED-HOST-DATE.json`, and the same as a page beside it.
///
/// # Errors
/// When they cannot be written; what is there stays as it was.
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

/// Writes a file that is whole from the moment it is there.
fn whole(file: &Path, bytes: &[u8]) -> Result<(), Error> {
    let draft = file.with_extension(format!("draft-{}", std::process::id()));
    // A draft of this process number is of one that was killed; if a link is there, it goes, and not its aim.
    let _ = fs::remove_file(&draft);
    let written = create(&draft, bytes).and_then(|()| {
        fs::rename(&draft, file).inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })
    });
    written.map_err(|e| cannot(file, &e))
}

/// Writes a new file. It follows no link, and replaces nothing.
fn create(file: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::File::options().write(true).create_new(true).open(file)?.write_all(bytes)
}

fn cannot(path: &Path, e: &io::Error) -> Error {
    let hint = "--out names a folder where results can be written";
    Error::new(ErrorKind::System, format!("cannot write {}: {e}", path.display()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::WorkDir;

    #[test]
    fn a_document_comes_back_from_its_file() {
        let dir = WorkDir::below(&std::env::temp_dir()).expect("a folder");
        let out = dir.join("a/b");
        check(&out).expect("it can be made");
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
    fn a_link_beside_a_result_is_not_followed() {
        let dir = WorkDir::below(&std::env::temp_dir()).expect("a folder");
        let (victim, file) = (dir.join("victim"), dir.join("a.json"));
        fs::write(&victim, "kept").expect("a file");
        let pid = std::process::id();
        for name in ["a.draft".to_owned(), format!("a.draft-{pid}"), format!(".lunar-{pid}")] {
            std::os::unix::fs::symlink(&victim, dir.join(name)).expect("a link");
        }
        whole(&file, b"new").expect("written");
        assert_eq!(fs::read(&file).expect("the file"), b"new");
        assert!(check(&dir).is_err(), "the name is taken");
        assert_eq!(fs::read(&victim).expect("the victim"), b"kept");
    }

    #[test]
    fn where_nothing_can_be_written_it_says_so() {
        let dir = WorkDir::below(&std::env::temp_dir()).expect("a folder");
        let file = dir.join("file");
        fs::write(&file, "").expect("a file");
        let e = check(&file.join("below")).expect_err("below a file is no folder");
        assert!(e.kind == ErrorKind::System && e.what.contains("cannot write"), "{e}");
    }
}
