//! The secrets of a configuration: where they are, without their content.

use super::Sources;
use super::attachment::secret_files;
use super::shown::merged;
use lunar_config::Diagnostics;
use lunar_initiator::Url;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// A place of the configuration that has a secret or names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretUse {
    /// The file of the configuration, by its path in the list of files.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The absolute path of the file with the secret; None: a URL holds the secret itself.
    pub secret_file: Option<PathBuf>,
}

/// The keys of `[api]` whose files are secrets, and those whose files all may read.
const API_SECRETS: [&str; 2] = ["key_file", "token_file"];
/// The keys of subsystems and of their hosts whose files are secrets.
const HOST_SECRETS: [&str; 2] = ["secret_file", "tls_key_file"];
const API_CERTIFICATES: [&str; 2] = ["certificate_file", "client_ca_file"];

/// The files of certificates that `[api]` names, with absolute paths.
pub fn certificate_files(sources: &Sources) -> Vec<PathBuf> {
    let mut problems = Diagnostics::of(&sources.files);
    let Some(root) = merged(&mut problems) else { return Vec::new() };
    let base = sources.whole.parent().unwrap_or(Path::new(""));
    api_files(&root, API_CERTIFICATES).map(|(_, file)| base.join(file)).collect()
}

/// The files of these keys of `[api]`, each with its first byte.
fn api_files<'t>(root: &'t DeTable<'_>, keys: [&'static str; 2]) -> impl Iterator<Item = (usize, &'t str)> {
    let api = root.get("api").and_then(|api| api.get_ref().as_table());
    keys.into_iter().filter_map(move |key| {
        let value = api?.get(key)?;
        Some((value.span().start, value.get_ref().as_str()?))
    })
}

/// All uses of secrets: by CHAP users, by NVMe subsystems and their hosts, by `[api]`, and by URLs of routers.
pub fn secret_uses(sources: &Sources) -> Vec<SecretUse> {
    let mut problems = Diagnostics::of(&sources.files);
    let Some(root) = merged(&mut problems) else { return Vec::new() };
    let base = sources.whole.parent().unwrap_or(Path::new(""));
    let mut found: Vec<(usize, Option<PathBuf>)> =
        api_files(&root, API_SECRETS).map(|(at, file)| (at, Some(base.join(file)))).collect();
    for user in root.get("chap_user").and_then(|users| users.get_ref().as_array()).into_iter().flatten() {
        let file = user.get_ref().as_table().and_then(|user| user.get("secret_file"));
        if let Some((file, text)) = file.and_then(|file| Some((file, file.get_ref().as_str()?))) {
            found.push((file.span().start, Some(base.join(text))));
        }
    }
    let subsystems = root.get("subsystem").and_then(|all| all.get_ref().as_array());
    for subsystem in subsystems.into_iter().flatten().filter_map(|one| one.get_ref().as_table()) {
        let hosts = subsystem.get("host").and_then(|hosts| hosts.get_ref().as_array());
        let hosts = hosts.into_iter().flatten().filter_map(|host| host.get_ref().as_table());
        for file in [subsystem]
            .into_iter()
            .chain(hosts)
            .flat_map(|table| HOST_SECRETS.map(|key| table.get(key)))
            .flatten()
        {
            found.extend(file.get_ref().as_str().map(|text| (file.span().start, Some(base.join(text)))));
        }
    }
    texts_of_table(&root, &mut |at, text| {
        found.extend(url(text).filter(Url::holds_secret).map(|_| (at, None)));
        found.extend(secret_files(text).into_iter().map(|file| (at, Some(base.join(file)))));
    });
    let place = |(at, secret_file)| {
        let (file, position) = problems.place(at);
        SecretUse { file: file.to_path_buf(), line: position.line, secret_file }
    };
    found.into_iter().map(place).collect()
}

/// Calls `each` for every text in a table, with its first byte.
fn texts_of_table(table: &DeTable<'_>, each: &mut impl FnMut(usize, &str)) {
    table.iter().for_each(|(_, value)| texts(value.get_ref(), value.span().start, each));
}

fn texts(value: &DeValue<'_>, at: usize, each: &mut impl FnMut(usize, &str)) {
    match value {
        DeValue::String(text) => each(at, text),
        DeValue::Array(array) => {
            array.iter().for_each(|value| texts(value.get_ref(), value.span().start, each));
        }
        DeValue::Table(table) => texts_of_table(table, each),
        _ => {}
    }
}

/// The URL that a text of the configuration is.
pub(super) fn url(text: &str) -> Option<Url> {
    text.contains("://").then(|| Url::parse(text).ok()).flatten()
}
