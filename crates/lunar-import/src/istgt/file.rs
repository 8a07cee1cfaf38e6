//! The grammar of `istgt.conf` and `auth.conf`: sections in brackets, with keys and words. A text in quotation marks is
//! one word. `#` begins a comment at the begin of a line, and a backslash continues a line.

/// A key and its words.
#[derive(Debug, PartialEq)]
pub(super) struct IstgtKey {
    pub(super) key: String,
    pub(super) words: Vec<String>,
    pub(super) place: String,
}

impl IstgtKey {
    /// A word after the key.
    pub(super) fn word(&self, n: usize) -> &str {
        self.words.get(n).map(String::as_str).unwrap_or_default()
    }

    /// The key and its words, without secrets.
    pub(super) fn shown(&self) -> String {
        let words = if self.key.eq_ignore_ascii_case("Auth") { 1 } else { usize::MAX };
        let words: Vec<&str> = self.words.iter().take(words).map(String::as_str).collect();
        format!("{} {}", self.key, words.join(" ")).trim_end().into()
    }
}

/// A section. A name consists of a word and a number.
#[derive(Debug, Default, PartialEq)]
pub(super) struct IstgtSection {
    pub(super) name: String,
    pub(super) place: String,
    pub(super) keys: Vec<IstgtKey>,
}

impl IstgtSection {
    /// The number after this word.
    pub(super) fn number(&self, word: &str) -> Option<u16> {
        number_after(&self.name, word)
    }

    /// The keys with this name.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a IstgtKey> {
        self.keys.iter().filter(move |one| one.key.eq_ignore_ascii_case(key))
    }

    /// A word of the first key with this name.
    pub(super) fn word(&self, key: &str, n: usize) -> Option<&str> {
        self.keys.iter().find(|one| one.key.eq_ignore_ascii_case(key))?.words.get(n).map(String::as_str)
    }

    /// Whether a flag is set.
    pub(super) fn is_yes(&self, key: &str) -> Option<bool> {
        self.word(key, 0).map(|word| word.eq_ignore_ascii_case("yes"))
    }
}

/// The number after a word.
pub(super) fn number_after(name: &str, word: &str) -> Option<u16> {
    let begin = name.get(..word.len()).filter(|begin| begin.eq_ignore_ascii_case(word))?;
    name[begin.len()..].parse().ok()
}

/// The sections of a file. `name` is the name of the file, if it is not the first one.
pub(super) fn parse(text: &str, name: &str) -> Vec<IstgtSection> {
    let mut sections = Vec::<IstgtSection>::new();
    for (n, line) in lines(text) {
        let place = if name.is_empty() { format!("line {n}") } else { format!("{name}:{n}") };
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            sections.push(IstgtSection { name: section.0.trim().into(), place, keys: Vec::new() });
            continue;
        }
        let mut words = words(&line);
        if let Some(section) = sections.last_mut()
            && !words.is_empty()
        {
            section.keys.push(IstgtKey { key: words.remove(0), words, place });
        }
    }
    sections
}

/// The lines with their numbers.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut rest = text.lines().enumerate();
    while let Some((n, line)) = rest.next() {
        let mut line = line.trim().to_owned();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        while line.ends_with('\\')
            && let Some((_, next)) = rest.next()
        {
            line.pop();
            line = format!("{} {}", line.trim_end(), next.trim());
        }
        all.push((n + 1, line));
    }
    all
}

fn words(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        all.push(word.to_owned());
        rest = after.trim_start();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_has_keys_and_words() {
        let sections = parse("x 1\n[A1] # one\n  # c\n k \"a b\" c \\\n  \"\" d\nl \"open\n[B]\n", "f");
        let [a, b] = &sections[..] else { panic!("{sections:?}") };
        assert_eq!((a.name.as_str(), b.name.as_str(), a.number("a")), ("A1", "B", Some(1)));
        let shown: Vec<_> =
            a.keys.iter().map(|key| (key.key.as_str(), key.words.join("|"), key.place.as_str())).collect();
        assert_eq!(shown, [("k", "a b|c||d".to_owned(), "f:4"), ("l", "open".to_owned(), "f:6")]);
    }
}
