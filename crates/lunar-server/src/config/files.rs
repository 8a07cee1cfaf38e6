//! The files of a configuration: `NAME.toml`, then `NAME.d/*.toml`, then `NAME.d/api/*.toml`, which the server writes.
//! Files of a folder follow each other by name. Relative paths in all of them start at the folder of `NAME.toml`.

use super::Adopting;
use lunar_config::{ConfigFile, Diagnostic, ErrorCode, io_text, read};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum total size of the files.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// Reads all files of the configuration at `path`.
///
/// # Errors
/// When a file or a folder cannot be read, or all together are too large.
pub fn read_files(path: &Path) -> Result<Vec<ConfigFile>, Vec<Diagnostic>> {
    let mut problems = Vec::new();
    let drop_ins = drop_in_files(path).unwrap_or_else(|more| {
        problems.extend(more);
        Vec::new()
    });
    let files = std::iter::once(path.to_path_buf()).chain(drop_ins);
    // Before the files: those of an adoption that ends meanwhile count.
    let adopting = Adopting::read(path).unwrap_or_else(|problem| {
        problems.push(problem);
        None
    });
    let mut list = Vec::new();
    let mut left = MAX_TOTAL_BYTES;
    for path in files {
        match read(&path).and_then(|text| within(&mut left, path, text)) {
            Ok(file) => list.push(file),
            Err(problem) => problems.push(problem),
        }
    }
    adopting.iter().for_each(|adopting| adopting.leave_out(path, &mut list));
    if problems.is_empty() { Ok(list) } else { Err(problems) }
}

/// The drop-in files of the configuration at `path`, in their order.
///
/// # Errors
/// When a folder cannot be read.
pub fn drop_in_files(path: &Path) -> Result<Vec<PathBuf>, Vec<Diagnostic>> {
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for folder in [drop_in_folder(path), api_folder(path)] {
        match in_folder(&folder) {
            Ok(more) => files.extend(more),
            Err(e) => problems.push(unreadable(&folder, &e)),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(problems) }
}

/// Whether the configuration at `path` reads this file as a drop-in file.
pub fn is_drop_in_of(path: &Path, file: &Path) -> bool {
    let is_in = |folder: PathBuf| file.parent() == Some(&folder);
    is_drop_in(file) && (is_in(drop_in_folder(path)) || is_in(api_folder(path)))
}

/// The file, if it fits in the bytes that are `left`.
fn within(left: &mut usize, path: PathBuf, text: String) -> Result<ConfigFile, Diagnostic> {
    match left.checked_sub(text.len()) {
        Some(rest) => *left = rest,
        None => {
            let what = "the files of the configuration are larger than 64 MiB together";
            let problem = Diagnostic::new(what, "remove drop-in files that do not belong to this server");
            return Err(Diagnostic { file: Some(path), ..problem });
        }
    }
    Ok(ConfigFile { path, text, is_transient: false })
}

/// The folder of the drop-in files: `/etc/lunar/lunar.d` for `/etc/lunar/lunar.toml`.
pub fn drop_in_folder(path: &Path) -> PathBuf {
    path.with_extension("d")
}

/// The folder of the drop-in files that the API writes.
pub fn api_folder(path: &Path) -> PathBuf {
    drop_in_folder(path).join("api")
}

/// The user and group of the server of the configuration at `path`: the owner of the folder of the API, or of its nearest
/// parent. This user can change the configuration, so root may trust its files.
pub fn server_owner(path: &Path) -> Option<(u32, u32)> {
    let api = std::path::absolute(api_folder(path)).ok()?;
    let found = api.ancestors().find_map(|folder| folder.metadata().ok())?;
    Some((found.uid(), found.gid()))
}

/// The `.toml` files of a folder by name, without hidden ones. None are there if the folder is missing.
fn in_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(e),
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|path| is_drop_in(path));
    files.sort_unstable();
    Ok(files)
}

fn is_drop_in(path: &Path) -> bool {
    let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    path.extension().is_some_and(|extension| extension == "toml") && !is_hidden
}

fn unreadable(folder: &Path, e: &io::Error) -> Diagnostic {
    let what = format!("cannot read the folder {}: {}", folder.display(), io_text(e));
    Diagnostic::new(what, "check its permissions").with_code(ErrorCode::from(e.kind()))
}

#[cfg(test)]
mod tests;
