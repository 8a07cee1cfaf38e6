//! The grammar of records, interfaces and configuration files: `key = value` in each line. `#` begins a comment at the
//! begin of a line, and `<empty>` is no value.

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IscsiKey {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) line: usize,
}

/// A file with its keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct IscsiFile {
    /// Its path; empty if only one file is read.
    pub(super) path: String,
    pub(super) keys: Vec<IscsiKey>,
}

impl IscsiFile {
    /// Parses a file. A line without `=` is not a key.
    pub(super) fn parse(path: &str, text: &str) -> IscsiFile {
        let key = |(n, line): (usize, &str)| {
            let line = line.trim();
            let (key, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
            let value = Some(value.trim()).filter(|value| *value != "<empty>").unwrap_or_default();
            Some(IscsiKey { key: key.trim().into(), value: value.into(), line: n + 1 })
        };
        IscsiFile { path: path.into(), keys: text.lines().enumerate().filter_map(key).collect() }
    }

    /// The last value of a key, if it is not empty.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        let found = self.keys.iter().rfind(|one| one.key == key)?;
        Some(found.value.as_str()).filter(|value| !value.is_empty())
    }

    /// The place of a key, or of the file.
    pub(super) fn place(&self, key: &str) -> String {
        match self.keys.iter().rfind(|one| one.key == key) {
            Some(key) => self.place_of(key),
            None if self.path.is_empty() => "the record".into(),
            None => self.path.clone(),
        }
    }

    /// The place of a line.
    pub(super) fn place_of(&self, key: &IscsiKey) -> String {
        match self.path.is_empty() {
            true => format!("line {}", key.line),
            false => format!("{}:{}", self.path, key.line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_keys_comments_or_nothing() {
        let file = IscsiFile::parse("a", "# x = 1\nk = v = w\n l=<empty>\nm\nk=last\r\n");
        assert_eq!((file.value("k"), file.value("l"), file.value("# x")), (Some("last"), None, None));
        assert_eq!([file.place("k"), file.place("l"), file.place("m")], ["a:5", "a:3", "a"]);
        assert_eq!(IscsiFile::parse("", "k = v").place("k"), "line 1");
    }
}
