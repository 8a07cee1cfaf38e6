//! The grammar of `ietd.conf`: a key and its value on each line. Everything before the first `Target` is global. Keys
//! may have any case. `#` begins a comment only at the begin of a line, and a backslash continues a line.

/// A key and its value.
#[derive(Debug, PartialEq)]
pub(super) struct IetKey {
    /// The key in lower case.
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: String,
}

/// A target: its name, its place and its keys.
#[derive(Debug, Default, PartialEq)]
pub(super) struct IetTarget {
    pub(super) name: String,
    pub(super) place: String,
    pub(super) keys: Vec<IetKey>,
}

/// The global keys, and the targets.
pub(super) fn parse(text: &str) -> (Vec<IetKey>, Vec<IetTarget>) {
    let (mut globals, mut targets) = (Vec::new(), Vec::<IetTarget>::new());
    for (n, line) in lines(text) {
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
        let (key, value, place) = (key.to_ascii_lowercase(), value.trim().to_owned(), format!("line {n}"));
        if key == "target" {
            targets.push(IetTarget { name: value, place, keys: Vec::new() });
            continue;
        }
        let keys = targets.last_mut().map_or(&mut globals, |target| &mut target.keys);
        keys.push(IetKey { key, value, place });
    }
    (globals, targets)
}

/// The lines with their numbers.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut rest = text.lines().enumerate();
    while let Some((n, line)) = rest.next() {
        if line.trim_start().starts_with('#') {
            continue;
        }
        let mut line = line.trim().to_owned();
        while line.ends_with('\\')
            && let Some((_, next)) = rest.next()
        {
            line.pop();
            line += next.trim();
        }
        if !line.is_empty() {
            all.push((n + 1, line));
        }
    }
    all
}

/// The first line of a list that names the target or ALL: its number and the items. The server ignores a line that
/// does not end.
pub(super) fn first_line<'a>(text: &'a str, target: &str) -> Option<(usize, Vec<&'a str>)> {
    let line = |(n, line): (usize, &'a str)| {
        let line = line.strip_suffix('\n')?.trim();
        let (name, items) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let items = items.split(',').map(str::trim).filter(|item| !item.is_empty());
        (name == target || name == "ALL").then(|| (n + 1, items.collect()))
    };
    text.split_inclusive('\n').enumerate().find_map(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_of_a_target_counts() {
        let text = "# a\niqn.a 192.0.2.1, iqn.*\nALL ALL\niqn.a never\niqn.b x";
        assert_eq!(first_line(text, "iqn.a"), Some((2, vec!["192.0.2.1", "iqn.*"])));
        assert_eq!(first_line(text, "iqn.b"), Some((3, vec!["ALL"])));
        assert_eq!(first_line("iqn.b x", "iqn.b"), None, "the line has no end");
    }
}
