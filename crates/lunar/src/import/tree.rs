//! The tree of nvmet in configfs.

use lunar_import::{MAX_ATTRIBUTE, MAX_TREE_ENTRIES, TreeEntry};
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// An entry of the tree. Links of the tree are not followed: anything could be behind them.
pub(super) fn found(tree: &Path, path: &Path) -> io::Result<TreeEntry> {
    let is_tree = path.as_os_str().is_empty();
    let path = tree.join(path);
    let kind = if is_tree { fs::metadata(&path)? } else { fs::symlink_metadata(&path)? }.file_type();
    if kind.is_symlink() {
        return Ok(TreeEntry::Link(fs::read_link(path)?.to_string_lossy().into_owned()));
    }
    if kind.is_dir() {
        let entries = fs::read_dir(path)?.take(MAX_TREE_ENTRIES + 1);
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        return Ok(TreeEntry::Folder(names.collect::<io::Result<_>>()?));
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    // The importer rejects longer ones.
    fs::File::open(path)?.take(MAX_ATTRIBUTE as u64 + 1).read_to_string(&mut text)?;
    Ok(TreeEntry::File(text))
}

#[cfg(test)]
mod tests {
    use super::super::{Exit, Format, Import, import};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::{Path, PathBuf};

    /// The tree of configfs, from a list of its files, links and empty folders.
    fn tree(folder: &Path) -> PathBuf {
        let tree = folder.join("nvmet");
        let list = include_str!("../../../lunar-import/tests/samples/nvmet/tree.txt");
        for line in list.lines() {
            let path = tree.join(line.split(['=', ' ']).next().expect("a path"));
            fs::create_dir_all(if line.ends_with('/') { &path } else { path.parent().expect("a parent") })
                .expect("a folder");
            if let Some((_, target)) = line.split_once(" -> ") {
                symlink(target, path).expect("a link");
            } else if let Some((_, text)) = line.split_once('=') {
                fs::write(path, format!("{text}\n")).expect("written");
            }
        }
        tree
    }

    fn args(tree: &Path, output: &Path) -> Import {
        let (file, output) = (tree.to_owned(), Some(output.to_owned()));
        Import { format: Format::Nvmet, file, output, root: "/".into(), json: false }
    }

    #[test]
    fn nvmet_tree_is_imported_with_its_secrets() {
        let folder = interop::Folder::fresh();
        let output = folder.join("lunar.toml");
        let exit = import(args(&tree(&folder.join("a")), &output)).err().map(|failure| failure.exit);
        assert_eq!(exit, Some(Exit::NotCarried));
        let written = lunar_server::config::load(&output);
        let config = written.unwrap_or_else(|list| panic!("{}", list[0]));
        let locked = config.targets.iter().find(|one| one.name.ends_with(":locked")).expect("a subsystem");
        let own = locked.subsystem.as_ref().expect("an NVMe subsystem");
        assert!(own.secret.is_some() && own.hosts.contains_key("nqn.2026-11.org.example:ann"));
        let secret = fs::metadata(folder.join("secrets/ann.key")).expect("a file");
        assert_eq!(secret.mode() & 0o777, 0o600);
    }

    #[test]
    fn links_and_long_files_in_a_tree_are_not_read() {
        let folder = interop::Folder::fresh();
        let tree = tree(&folder.join("a"));
        let fault = || {
            let failure = import(args(&tree, &folder.join("lunar.toml"))).expect_err("it is no tree");
            failure.problems[0].what.clone()
        };
        // Each of them would lead to all the others, for as many steps as the kernel follows.
        for n in 0..37 {
            symlink(".", tree.join("hosts").join(format!("loop-{n}"))).expect("a link");
        }
        assert!(fault().ends_with("hosts/loop-0 is no folder"), "{}", fault());
        for n in 0..37 {
            fs::rename(tree.join(format!("hosts/loop-{n}")), tree.join(format!("loop-{n}")))
                .expect("renamed");
        }
        let secret = tree.join("hosts/nqn.2026-11.org.example:bob/dhchap_key");
        fs::File::create(&secret).and_then(|file| file.set_len(60 << 20)).expect("a sparse file");
        assert!(fault().ends_with("dhchap_key has more than 4096 bytes"), "{}", fault());
        fs::write(&secret, "\n").expect("written");
        let exit = import(args(&tree, &folder.join("lunar.toml"))).err().map(|failure| failure.exit);
        assert_eq!(exit, Some(Exit::NotCarried), "links with unknown names do no harm");
    }
}
