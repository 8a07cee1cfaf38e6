//! The files that a configuration refers to.

use std::io;
use std::path::Path;

/// A file or a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The text of a file.
    File(String),
    /// The names in a folder.
    Folder(Vec<String>),
}

/// Reads a file or a folder. A relative path is relative to the folder of the configuration.
pub type Reader<'a> = &'a dyn Fn(&Path) -> io::Result<Found>;

/// A reader for a configuration that must not refer to other files.
pub fn no_files(_: &Path) -> io::Result<Found> {
    Err(io::ErrorKind::NotFound.into())
}

/// Whether a name matches a shell pattern with `*`, `?` and `[...]`.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let hidden = name.starts_with('.') && !pattern.starts_with('.');
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    !hidden && matches_at(&pattern, &name)
}

/// Compares in a time that is at most the product of both lengths.
fn matches_at(pattern: &[char], name: &[char]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match one(&pattern[from..], name[at]) {
            _ if pattern.get(from) == Some(&'*') => {
                star = Some((from + 1, at));
                from += 1;
            }
            Some(taken) => (at, from) = (at + 1, from + taken),
            None => match &mut star {
                None => return false,
                Some((after, begin)) => {
                    *begin += 1;
                    (at, from) = (*begin, *after);
                }
            },
        }
    }
    pattern[from..].iter().all(|c| *c == '*')
}

/// The number of characters of the pattern that match this one.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' => {
            let Some(end) = pattern.iter().skip(2).position(|end| *end == ']') else {
                return (c == '[').then_some(1);
            };
            let set = &pattern[1..end + 2];
            let (negated, set) = match set.first() {
                Some('!' | '^') => (true, &set[1..]),
                _ => (false, set),
            };
            (contains(set, c) != negated).then_some(end + 3)
        }
        same => (*same == c).then_some(1),
    }
}

fn contains(set: &[char], c: char) -> bool {
    let is_range = |range: &[char]| range[1] == '-' && (range[0]..=range[2]).contains(&c);
    set.contains(&c) || set.windows(3).any(is_range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_names_of_files() {
        for (pattern, name) in [("*.conf", "a.conf"), ("a?[0-9]*", "ab7"), ("[!x]*", "y"), ("[x", "[x")] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.conf", ".conf"), ("*.conf", "a.conf~"), ("[!x]*", "x"), ("?", ""), ("[", "a")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
