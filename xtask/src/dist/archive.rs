//! Archives that depend on nothing but their files: owner root, one time, files in order.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use tar::{Builder, EntryType, Header};

use super::Release;
use super::layout::{PackagedFile, gzip};

/// A compressed archive with all files below one folder.
pub fn tarball(files: &[PackagedFile], folder: &str, to: &Path, release: &Release) -> Result<()> {
    let bytes = archive(files, &format!("{folder}/"), release.time)?;
    Ok(fs::write(to, gzip(&bytes, release.compression())?)?)
}

/// An archive with all files and their folders.
pub fn archive(files: &[PackagedFile], prefix: &str, time: u64) -> Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    let mut folders = BTreeSet::new();
    for file in files {
        let path = format!("{prefix}{}", file.path);
        for (at, _) in path.match_indices('/').filter(|(at, _)| at + 1 < path.len()) {
            if folders.insert(path[..at].to_owned()) {
                let folder =
                    PackagedFile { mode: 0o755, owner: 0, path: path[..=at].into(), bytes: Vec::new() };
                append(&mut builder, &folder, &folder.path, time)?;
            }
        }
        append(&mut builder, file, &path, time)?;
    }
    Ok(builder.into_inner()?)
}

fn append(to: &mut Builder<impl Write>, file: &PackagedFile, path: &str, time: u64) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(if path.ends_with('/') { EntryType::Directory } else { EntryType::Regular });
    header.set_mode(file.mode);
    header.set_mtime(time);
    header.set_uid(file.owner.into());
    header.set_gid(file.owner.into());
    header.set_size(file.bytes.len() as u64);
    Ok(to.append_data(&mut header, path, file.bytes.as_slice())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<PackagedFile> {
        [("usr/bin/lunar", 0o755), ("usr/share/doc/lunar/README.md", 0o644)]
            .map(|(path, mode)| PackagedFile {
                path: path.into(),
                mode,
                owner: 0,
                bytes: b"content".to_vec(),
            })
            .to_vec()
    }

    #[test]
    fn archive_has_modes_owners_and_folders() {
        let bytes = archive(&files(), "lunar-1/", 7).expect("an archive");
        let mut archive = tar::Archive::new(bytes.as_slice());
        let found: Vec<_> = archive
            .entries()
            .expect("entries")
            .map(|entry| {
                let entry = entry.expect("an entry");
                let header = entry.header();
                let path = entry.path().expect("a path").display().to_string();
                assert_eq!(
                    (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()),
                    (0, 0, 7)
                );
                (path, header.mode().unwrap())
            })
            .collect();
        let paths: Vec<_> = found.iter().map(|(path, mode)| (path.as_str(), *mode)).collect();
        assert_eq!(paths[..3], [("lunar-1/", 0o755), ("lunar-1/usr/", 0o755), ("lunar-1/usr/bin/", 0o755)]);
        assert_eq!(paths[3], ("lunar-1/usr/bin/lunar", 0o755));
        assert_eq!(paths.last(), Some(&("lunar-1/usr/share/doc/lunar/README.md", 0o644)));
    }

    #[test]
    fn archive_of_the_same_files_has_the_same_bytes() {
        assert_eq!(archive(&files(), "", 7).unwrap(), archive(&files(), "", 7).unwrap());
        assert_ne!(archive(&files(), "", 7).unwrap(), archive(&files(), "", 8).unwrap());
    }
}
