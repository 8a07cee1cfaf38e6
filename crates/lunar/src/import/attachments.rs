//! Attachments of an import, one file each.

use super::{SECRETS, read_found, secrets, unwritable, write_new};
use crate::exit::Failure;
use lunar_import::{Configuration, Found};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// A file or folder at a path that is relative to the imported one. The empty path is the imported one itself.
pub(super) fn found(file: &Path, path: &Path) -> io::Result<Found> {
    match path.as_os_str().is_empty() {
        true => read_found(file),
        false => read_found(&file.join(path)),
    }
}

/// All files, each after a comment with its name.
pub(super) fn text(configuration: &Configuration) -> String {
    let one = |(name, text): (String, String)| format!("# {name}\n{text}");
    files(configuration).into_iter().map(one).collect::<Vec<_>>().join("\n")
}

/// Writes the files and their secrets to a folder. If a file exists already, nothing is written.
pub(super) fn write(folder: &Path, configuration: &Configuration) -> Result<(), Failure> {
    let files = files(configuration);
    let made = DirBuilder::new().mode(0o755).recursive(true).create(folder);
    made.map_err(|e| unwritable(folder, &e))?;
    for path in files.iter().map(|(name, _)| folder.join(name)) {
        if path.symlink_metadata().is_ok() {
            return Err(unwritable(&path, &io::ErrorKind::AlreadyExists.into()));
        }
    }
    for (name, text) in &files {
        write_new(&folder.join(name), text.as_bytes(), None)?;
    }
    // Root attaches.
    secrets::write(&folder.join(SECRETS), configuration, None)
}

/// The name and the text of each file.
fn files(configuration: &Configuration) -> Vec<(String, String)> {
    let one = |attachment: &lunar_import::NewAttachment| {
        (format!("{}.toml", attachment.name), attachment.toml(configuration, SECRETS))
    };
    configuration.attachments.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Exit, Format, Import, import};
    use super::*;
    use lunar_initiator::Url;
    use lunar_server::config::attachment;
    use std::fs;

    /// `lunar attach` accepts each attachment that an import writes, with its secrets.
    #[test]
    fn imported_attachments_are_valid() {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lunar-import/tests/samples/open-iscsi");
        let folder = std::env::temp_dir().join(format!("lunar-import-attach-{}", std::process::id()));
        _ = fs::remove_dir_all(&folder);
        let args = || Import {
            format: Format::OpenIscsi,
            file: samples.clone(),
            output: Some(folder.clone()),
            root: "/".into(),
            json: false,
        };
        assert_eq!(import(args()).err().map(|failure| failure.exit), Some(Exit::NotCarried));
        let mut paths = 0;
        for name in ["filer.vm", "storage.disk1"] {
            let path = folder.join(format!("{name}.toml"));
            attachment::check_name(name).expect("a name");
            let text = fs::read_to_string(&path).expect("a file");
            let read = attachment::parse(name, &text, &path);
            let read = read.map_err(|list| list.iter().map(|one| one.to_string()).collect::<String>());
            let urls = read.unwrap_or_else(|e| panic!("{name}: {e}")).urls;
            let urls: Vec<Url> = urls.iter().map(|url| Url::parse(url).expect("a URL")).collect();
            urls.iter().for_each(|url| url.check_beside(&urls[0]).expect("one initiator name"));
            for url in &urls {
                let options = url.options().unwrap_or_else(|e| panic!("{url}: {e}"));
                assert_eq!(options.credentials.is_some(), name == "filer.vm");
            }
            paths += urls.len();
        }
        assert_eq!(paths, 3);
        let again = import(args()).err().map(|failure| failure.exit);
        assert_eq!(again, Some(Exit::Exists), "nothing is replaced");
        fs::remove_dir_all(folder).expect("the folder");
    }
}
