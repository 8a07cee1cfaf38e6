//! The objects of a configuration as the API shows them: the keys of the files, and their places.

use super::api_folder;
use lunar_admin::{ConfigObject, Document, Keys, ObjectId, ObjectOrigin, ObjectSource};
use lunar_config::{ConfigFile, Diagnostics};
use serde_json::{Number, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Collects the objects of a configuration.
struct Collector<'p, 'a> {
    p: &'p Diagnostics<'a>,
    /// The place of each file.
    files: BTreeMap<&'a Path, (PathBuf, ObjectOrigin)>,
    document: Document,
}

/// The objects in the merged table of all files. `whole`: the absolute path of the first file.
pub(super) fn document<'a>(
    p: &Diagnostics<'a>,
    root: &DeTable<'_>,
    files: &'a [ConfigFile],
    whole: &Path,
) -> Document {
    let main = files.first().map_or(whole, |file| &file.path);
    let api = api_folder(main);
    let place = |file: &'a ConfigFile| {
        let origin = match file.path.starts_with(&api) {
            _ if file.is_transient => ObjectOrigin::Transient,
            true => ObjectOrigin::Api,
            false => ObjectOrigin::File,
        };
        (&*file.path, (absolute(&file.path, main, whole), origin))
    };
    let mut all = Collector { p, files: files.iter().map(place).collect(), document: Document::new() };
    for table in tables(root, "portal_group") {
        all.add(number(table.1, "tag").map(ObjectId::PortalGroup), table, &["tag"]);
    }
    for table in tables(root, "chap_user") {
        let id = text(table.1, "id").or_else(|| text(table.1, "name"));
        all.add(id.map(ObjectId::ChapUser), table, &["id"]);
    }
    for table in tables(root, "disk") {
        all.add(text(table.1, "name").map(ObjectId::Disk), table, &["name"]);
    }
    for table in tables(root, "target") {
        if let Some(name) = text(table.1, "name") {
            all.target(name, table);
        }
    }
    for table in tables(root, "subsystem") {
        if let Some(nqn) = text(table.1, "nqn") {
            all.subsystem(nqn, table);
        }
    }
    all.document
}

/// A path beside `main`, made absolute: `main` is the file at the absolute path `whole`.
pub(super) fn absolute(path: &Path, main: &Path, whole: &Path) -> PathBuf {
    let (folder, whole) = (main.parent().unwrap_or(Path::new("")), whole.parent().unwrap_or(Path::new("/")));
    path.strip_prefix(folder).map_or_else(|_| path.to_path_buf(), |path| whole.join(path))
}

/// A table with its first byte.
type Placed<'t, 'a> = (usize, &'t DeTable<'a>);

fn tables<'t, 'a>(root: &'t DeTable<'a>, key: &str) -> impl Iterator<Item = Placed<'t, 'a>> {
    let array = root.get(key).and_then(|value| value.get_ref().as_array());
    let table =
        |element: &'t Spanned<DeValue<'a>>| Some((element.span().start, element.get_ref().as_table()?));
    array.into_iter().flat_map(|array| array.iter()).filter_map(table)
}

impl Collector<'_, '_> {
    fn target(&mut self, name: String, table: Placed<'_, '_>) {
        self.add(Some(ObjectId::Target(name.clone())), table, &["name", "lun", "access"]);
        for lun in tables(table.1, "lun") {
            let id = number(lun.1, "lun").map(|number| ObjectId::Lun(name.clone(), number));
            self.add(id, lun, &["lun"]);
        }
        for (at, entry) in tables(table.1, "access").enumerate() {
            self.add(Some(ObjectId::Access(name.clone(), at)), entry, &[]);
        }
    }

    fn subsystem(&mut self, nqn: String, table: Placed<'_, '_>) {
        self.add(Some(ObjectId::Subsystem(nqn.clone())), table, &["nqn", "namespace", "host"]);
        for namespace in tables(table.1, "namespace") {
            let id = number(namespace.1, "nsid").map(|nsid| ObjectId::Namespace(nqn.clone(), nsid));
            self.add(id, namespace, &["nsid"]);
        }
        for host in tables(table.1, "host") {
            let id = text(host.1, "nqn").map(|host| ObjectId::Host(nqn.clone(), host));
            self.add(id, host, &["nqn"]);
        }
    }

    /// Adds an object without the keys `left_out`. A configuration with invalid objects is rejected as a whole.
    fn add(&mut self, id: Option<ObjectId>, (at, table): Placed<'_, '_>, left_out: &[&str]) {
        let Some(id) = id else { return };
        let (file, position) = self.p.place(at);
        let Some((file, origin)) = self.files.get(file).cloned() else { return };
        let keys = table.iter().filter(|(key, _)| !left_out.contains(&&**key.get_ref()));
        let keys: Keys =
            keys.map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect();
        let source = ObjectSource { origin, file, line: position.line };
        self.document.insert(id, ConfigObject { keys, source });
    }
}

fn text(table: &DeTable<'_>, key: &str) -> Option<String> {
    table.get(key)?.get_ref().as_str().map(str::to_owned)
}

fn number(table: &DeTable<'_>, key: &str) -> Option<u16> {
    let integer = table.get(key)?.get_ref().as_integer()?;
    u16::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// A value of the file as JSON.
pub(super) fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => text.to_string().into(),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).map_or_else(|_| Value::Null, Value::from)
        }
        DeValue::Float(number) => {
            let number = number.as_str().parse().ok().and_then(Number::from_f64);
            number.map_or(Value::Null, Value::Number)
        }
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Datetime(time) => time.to_string().into(),
        DeValue::Array(array) => array.iter().map(|value| json(value.get_ref())).collect(),
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::Folder;
    use lunar_admin::{ObjectId, ObjectOrigin};

    #[test]
    fn objects_have_keys_and_places() {
        let folder = Folder::new("document");
        std::fs::create_dir_all(folder.0.join("lunar.d/api")).unwrap();
        let nvme = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nserial = \"s\"\n\
            [[subsystem.namespace]]\nnsid = 0x3\ntarget = \"iqn.2026-11.org.example:a\"\nlun = 16\n";
        let main = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\nalias = \"A\"\n\
            [[target.lun]]\nlun = 0x10\nbackend = \"null\"\nsize = \"1M\"\n\
            filters = [{ kind = \"error\", rate = 0.5, op = \"read\" }]\n[[target.access]]\naen = true\n";
        let path = folder.file("lunar.toml", format!("{main}{nvme}"), 0o644);
        let namespace = "[[namespace]]\nsubsystem = \"nqn.2026-11.org.example:a\"\nnsid = 4\nbackend = \"null\"\nsize = 4096\n";
        folder.file("lunar.d/api/namespace.toml", namespace, 0o644);
        let lun = "# a comment\n[[lun]]\ntarget = \"iqn.2026-11.org.example:a\"\nlun = 1\nbackend = \"null\"\nsize = 4096\n";
        folder.file("lunar.d/api/lun.toml", lun, 0o644);
        let document = crate::config::load(&path).unwrap().sources.document;
        let name = || "iqn.2026-11.org.example:a".to_owned();
        let shown = |id: ObjectId| {
            let object = &document[&id];
            let file = object.source.file.strip_prefix(&folder.0).unwrap().display().to_string();
            let keys = serde_json::to_string(&object.keys).unwrap();
            (keys, file, object.source.line, object.source.origin)
        };
        let main = |keys: &str, line| (keys.to_owned(), "lunar.toml".to_owned(), line, ObjectOrigin::File);
        assert_eq!(shown(ObjectId::Target(name())), main("{\"alias\":\"A\"}", 1));
        let filters = "{\"backend\":\"null\",\"filters\":[{\"kind\":\"error\",\"op\":\"read\",\"rate\":0.5}],\"size\":\"1M\"}";
        assert_eq!(shown(ObjectId::Lun(name(), 16)), main(filters, 4));
        assert_eq!(shown(ObjectId::Access(name(), 0)), main("{\"aen\":true}", 9));
        let of_api = (
            "{\"backend\":\"null\",\"size\":4096}".into(),
            "lunar.d/api/lun.toml".into(),
            2,
            ObjectOrigin::Api,
        );
        assert_eq!(shown(ObjectId::Lun(name(), 1)), of_api);
        let nqn = || "nqn.2026-11.org.example:a".to_owned();
        assert_eq!(shown(ObjectId::Subsystem(nqn())), main("{\"serial\":\"s\"}", 11));
        let shared = "{\"lun\":16,\"target\":\"iqn.2026-11.org.example:a\"}";
        assert_eq!(shown(ObjectId::Namespace(nqn(), 3)), main(shared, 14));
        assert_eq!(shown(ObjectId::Namespace(nqn(), 4)).1, "lunar.d/api/namespace.toml");
        assert_eq!(document.len(), 7);
    }
}
