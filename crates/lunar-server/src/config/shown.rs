//! The configuration of all files as one TOML text, with the place of each object.

use super::Sources;
use super::document::{absolute, json};
use super::secrets::url;
use lunar_config::Diagnostics;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The sections in their order. Others follow.
const ORDER: [&str; 12] = [
    "server",
    "api",
    "limits",
    "session",
    "discovery",
    "portal_group",
    "chap_user",
    "disk",
    "access",
    "target",
    "subsystem",
    "router",
];

/// The keys that identify an object, and precede its other keys.
const IDENTITY: [&str; 7] = ["nqn", "nsid", "name", "id", "tag", "lun", "map"];

/// Lists of objects. The elements of other lists are values.
const OBJECTS: [&str; 9] =
    ["portal_group", "chap_user", "disk", "target", "lun", "access", "subsystem", "namespace", "host"];

/// The merged table of all files; None if one of them is no TOML.
pub(super) fn merged<'a>(p: &mut Diagnostics<'a>) -> Option<DeTable<'a>> {
    let tables = lunar_config::parse(p)?;
    Some(super::extend::whole(p, tables))
}

/// The configuration as TOML. A comment before each object has its file and line. Passwords of URLs are left out, and
/// secret files are named only.
pub fn shown(sources: &Sources) -> String {
    let mut problems = Diagnostics::of(&sources.files);
    let Some(root) = merged(&mut problems) else { return String::new() };
    let main = sources.files.first().map_or(&*sources.whole, |file| &*file.path);
    let file = |file: &lunar_config::ConfigFile| {
        let transient = if file.is_transient { " (transient)" } else { "" };
        (file.path.clone(), format!("{}{transient}", absolute(&file.path, main, &sources.whole).display()))
    };
    let files = sources.files.iter().map(file).collect();
    let mut text = ShownText { problems: &problems, files, text: String::new() };
    let rank = |key: &str| ORDER.iter().position(|name| *name == key).unwrap_or(ORDER.len());
    let mut sections: Vec<_> = root.iter().collect();
    sections.sort_by_key(|(key, _)| rank(key.get_ref()));
    for (key, value) in sections {
        text.section(&name(key.get_ref()), key.get_ref(), value);
    }
    text.text
}

/// The text so far.
struct ShownText<'p, 'a> {
    problems: &'p Diagnostics<'a>,
    /// The name of each file.
    files: BTreeMap<PathBuf, String>,
    text: String,
}

impl ShownText<'_, '_> {
    /// A table or a list of objects with this dotted `path`, whose last part is `key`.
    fn section(&mut self, path: &str, key: &str, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => {
                let has_values = table.iter().any(|(key, value)| !is_section(key.get_ref(), value, true));
                if has_values || table.is_empty() {
                    let keys = table.iter().filter(|(key, value)| !is_section(key.get_ref(), value, true));
                    let places = keys.map(|(key, _)| key.span().start);
                    self.head(&format!("[{path}]"), value.span().start, places);
                }
                self.content(path, table, true);
            }
            DeValue::Array(array) => {
                for element in array.iter() {
                    let Some(table) = element.get_ref().as_table() else { continue };
                    self.head(&format!("[[{path}]]"), element.span().start, std::iter::empty());
                    self.content(path, table, false);
                }
            }
            _ => _ = writeln!(self.text, "{} = {}", name(key), value_text(value.get_ref())),
        }
    }

    /// The keys of a table, then the tables and lists in it.
    fn content(&mut self, path: &str, table: &DeTable<'_>, is_table: bool) {
        let mut keys: Vec<_> = table.iter().collect();
        let rank = |key: &str| IDENTITY.iter().position(|name| *name == key).unwrap_or(IDENTITY.len());
        keys.sort_by_key(|(key, _)| rank(key.get_ref()));
        let (below, values): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|(key, value)| is_section(key.get_ref(), value, is_table));
        for (key, value) in values {
            let note = if has_hidden(value.get_ref()) { "  # without its secret" } else { "" };
            _ = writeln!(self.text, "{} = {}{note}", name(key.get_ref()), value_text(value.get_ref()));
        }
        for (key, value) in below {
            let key = key.get_ref();
            self.section(&format!("{path}.{}", name(key)), key, value);
        }
    }

    /// The places of a section, and its header. Several files may have keys of a table.
    fn head(&mut self, header: &str, first: usize, keys: impl Iterator<Item = usize>) {
        let mut places: BTreeMap<&Path, usize> = BTreeMap::new();
        let mut order = Vec::new();
        for at in std::iter::once(first).chain(keys) {
            let (file, position) = self.problems.place(at);
            places.entry(file).or_insert_with(|| {
                order.push(file);
                position.line
            });
        }
        let unknown = String::new();
        let shown = |file: &Path| {
            let name = self.files.get(file).unwrap_or(&unknown);
            format!("{name}:{}", places.get(file).copied().unwrap_or(1))
        };
        let places: Vec<String> = order.into_iter().map(shown).collect();
        let gap = if self.text.is_empty() { "" } else { "\n" };
        _ = write!(self.text, "{gap}# {}\n{header}\n", places.join(", "));
    }
}

/// Whether a value has a header of its own. Tables of an element of a list are values.
fn is_section(key: &str, value: &Spanned<DeValue<'_>>, in_table: bool) -> bool {
    match value.get_ref() {
        DeValue::Table(_) => in_table,
        DeValue::Array(array) => {
            let is_table = |element: &Spanned<DeValue<'_>>| element.get_ref().is_table();
            OBJECTS.contains(&key) && !array.is_empty() && array.iter().all(is_table)
        }
        _ => false,
    }
}

/// A key, with quotation marks where TOML requires them.
fn name(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !key.is_empty() && key.chars().all(is_bare) {
        true => key.to_owned(),
        false => toml::Value::from(key).to_string(),
    }
}

/// A value on one line, without secrets.
fn value_text(value: &DeValue<'_>) -> String {
    toml::Value::try_from(without_secrets(json(value)))
        .map_or_else(|_| "\"\"".into(), |value| value.to_string())
}

/// A value whose URLs have no passwords.
pub(super) fn without_secrets(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => match url(&text).filter(lunar_initiator::Url::holds_secret) {
            Some(url) => url.to_string().into(),
            None => text.into(),
        },
        Value::Array(list) => list.into_iter().map(without_secrets).collect(),
        Value::Object(keys) => keys
            .into_iter()
            .map(|(key, value)| (key, without_secrets(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other,
    }
}

fn has_hidden(value: &DeValue<'_>) -> bool {
    let plain = json(value);
    without_secrets(plain.clone()) != plain
}

#[cfg(test)]
mod tests {
    use crate::config::tests::Folder;
    use crate::config::{load, parse, secret_uses};
    use std::path::Path;

    const ROUTER: &str = "[router.\"r.1\".upstream]\na.urls = [\"iscsi://bob%hidden@192.0.2.1/iqn.x:t\"]\n\
        b.urls = [\"iscsi://bob@192.0.2.2/iqn.x:t?password_file=bob.secret\"]\nc.memory = \"1M\"\n\
        d.urls = [\"nvme://192.0.2.3/nqn.2026-11.org.example:t?secret_file=d.key\"]\n\
        [[router.\"r.1\".target]]\nmap = \"lun\"\nname = \"iqn.2026-11.org.example:c\"\naccess = \"lab\"\n\
        lun = [{ lun = 0, upstream = \"b\", from = 3 }, { lun = 7, upstream = \"c\" }]\n[access.lab]\nread_only = true\n";

    const SUBSYSTEM: &str = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n\
        namespace = [{ lun = 1, target = \"iqn.2026-11.org.example:a\", nsid = 3 }]\n";

    fn folder() -> (Folder, std::path::PathBuf) {
        let folder = Folder::new("shown");
        std::fs::create_dir_all(folder.0.join("lunar.d/api")).unwrap();
        folder.file("ann.secret", "twelve bytes", 0o600);
        let main = format!(
            "# comment\n[server]\ncores = 1\n[[chap_user]]\nname = \"ann\"\nsecret_file = \"ann.secret\"\n\
             [[target]]\nname = \"iqn.2026-11.org.example:a\"\nlun = [{{ lun = 0x10, backend = \"null\", size = 4096 }}]\n\
             [[target.access]]\nluns = {{ 0 = 16 }}\nchap = [\"ann\"]\n{ROUTER}{SUBSYSTEM}"
        );
        let path = folder.file("lunar.toml", main, 0o600);
        folder.file("lunar.d/more.toml", "\n[server]\nstate_dir = \"state\"\n", 0o644);
        let lun = "[[lun]]\ntarget = \"iqn.2026-11.org.example:a\"\nlun = 1\nbackend = \"null\"\nsize = \"1M\"\n\
            filters = [{ kind = \"error\", rate = 0.5, op = \"read\" }]\n";
        folder.file("lunar.d/api/lun.toml", lun, 0o644);
        (folder, path)
    }

    #[test]
    fn shown_text_names_places_and_hides_passwords() {
        let (folder, path) = folder();
        let config = load(&path).map_err(|list| list[0].to_string()).unwrap();
        let text = super::shown(&config.sources).replace(&format!("{}/", folder.0.display()), "");
        for part in [
            "# lunar.toml:2, lunar.d/more.toml:3\n[server]\ncores = 1\nstate_dir = \"state\"\n",
            "\n# lunar.toml:4\n[[chap_user]]\nname = \"ann\"\nsecret_file = \"ann.secret\"\n",
            "\n# lunar.toml:7\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n",
            "\n# lunar.toml:9\n[[target.lun]]\nlun = 16\nbackend = \"null\"\nsize = 4096\n",
            "\n# lunar.d/api/lun.toml:1\n[[target.lun]]\nlun = 1\nbackend = \"null\"\nfilters = [{ kind = \"error\",",
            "\n[[target.access]]\nchap = [\"ann\"]\nluns = { 0 = 16 }\n",
            "\n[router.\"r.1\".upstream.a]\nurls = [\"iscsi://bob@192.0.2.1:3260/iqn.x:t\"]  # without its secret\n",
            "\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n",
            "\n[[subsystem.namespace]]\nnsid = 3\nlun = 1\ntarget = \"iqn.2026-11.org.example:a\"\n",
            "\n[[router.\"r.1\".target.lun]]\nlun = 0\nfrom = 3\nupstream = \"b\"\n",
        ] {
            assert!(text.contains(part), "{part}\n---\n{text}");
        }
        assert!(!text.contains("hidden") && !text.contains("twelve"), "{text}");
    }

    #[test]
    fn shown_text_is_the_same_configuration() {
        let (folder, path) = folder();
        let config = load(&path).map_err(|list| list[0].to_string()).unwrap();
        let text = super::shown(&config.sources);
        let text = text.replace("iscsi://bob@192.0.2.1:3260", "iscsi://bob%hidden@192.0.2.1");
        let again = parse(&text, &folder.0.canonicalize().unwrap().join("whole.toml"));
        let again = again.map_err(|list| format!("{}\n{text}", list[0])).unwrap();
        assert_eq!(crate::diff(&config, &again), []);
        let keys = |config: &crate::config::Config| {
            config.sources.document.iter().map(|(id, one)| (id.clone(), one.keys.clone())).collect::<Vec<_>>()
        };
        assert_eq!(keys(&config), keys(&again));
    }

    #[test]
    fn uses_of_secrets_have_places_and_files() {
        let (folder, path) = folder();
        let config = load(&path).map_err(|list| list[0].to_string()).unwrap();
        let base = folder.0.canonicalize().unwrap();
        let found: Vec<_> = secret_uses(&config.sources)
            .into_iter()
            .map(|one| {
                (one.line, one.secret_file.map(|file| file.strip_prefix(&base).unwrap().to_path_buf()))
            })
            .collect();
        let of = |file: &str| Some(Path::new(file).to_path_buf());
        assert_eq!(found, [(6, of("ann.secret")), (14, None), (15, of("bob.secret")), (17, of("d.key"))]);
    }
}
