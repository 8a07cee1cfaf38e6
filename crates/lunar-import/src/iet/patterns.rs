//! Regular expressions of initiator names as patterns with `*` and `?`. An expression matches the whole name.

use crate::common::is_of_name;

/// Limit of patterns for one expression.
const MAX: usize = 64;

/// The patterns that together match the same names; None if there are none.
pub(super) fn patterns(expression: &str) -> Option<Vec<String>> {
    let mut all = vec![String::new()];
    let expression = expression.strip_prefix('^').unwrap_or(expression);
    let mut rest = expression.strip_suffix('$').unwrap_or(expression).chars().peekable();
    while let Some(c) = rest.next() {
        let next = match c {
            '.' if rest.next_if_eq(&'*').is_some() => vec!['*'],
            '.' => vec!['?'],
            '\\' => vec![rest.next().filter(char::is_ascii_punctuation)?],
            '[' => set(&mut rest)?,
            '*' | '+' | '?' | '(' | ')' | '{' | '}' | '|' | '^' | '$' | ']' => return None,
            plain => vec![plain],
        };
        let is_wild = c == '.';
        let has_foreign = !is_wild && !next.iter().all(|c| is_of_name(*c));
        if has_foreign || all.len() * next.len() > MAX || rest.peek() == Some(&'*') {
            return None;
        }
        all = all.iter().flat_map(|begin| next.iter().map(move |c| format!("{begin}{c}"))).collect();
    }
    let is_port = |pattern: &String| pattern.is_empty() || pattern.starts_with("0x");
    Some(all).filter(|all| !all.iter().any(is_port))
}

/// The characters of a set such as `[1-4x]`.
fn set(rest: &mut impl Iterator<Item = char>) -> Option<Vec<char>> {
    let mut all: Vec<char> = Vec::new();
    let mut is_closed = false;
    let text: Vec<char> = rest
        .by_ref()
        .take_while(|c| {
            is_closed = *c == ']';
            !is_closed
        })
        .collect();
    let mut at = 0;
    while let Some(first) = text.get(at).filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':'))
    {
        match (text.get(at + 1), text.get(at + 2)) {
            (Some('-'), Some(last)) if last.is_ascii_alphanumeric() => {
                all.extend(*first..=*last);
                at += 3;
            }
            _ => {
                all.push(*first);
                at += 1;
            }
        }
    }
    Some(all).filter(|all| is_closed && at == text.len() && !all.is_empty() && all.len() <= MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_becomes_patterns() {
        for (expression, all) in [
            ("iqn\\.1994-05\\.com\\.redhat:client1", &["iqn.1994-05.com.redhat:client1"][..]),
            (
                ".*:mscs1-[1-3]\\.example\\.org",
                &["*:mscs1-1.example.org", "*:mscs1-2.example.org", "*:mscs1-3.example.org"],
            ),
            ("^iqn.*$", &["iqn*"]),
            ("a.[xy]", &["a?x", "a?y"]),
        ] {
            assert_eq!(
                patterns(expression).as_deref(),
                Some(all.iter().map(|p| p.to_string()).collect::<Vec<_>>()).as_deref()
            );
        }
        for expression in
            ["", "a+", "(a|b)", "a*", "[^a]b", "[a", "[1-9]*", "a\\", "\\d", "\\*", "[a-\u{10ffff}]"]
        {
            assert_eq!(patterns(expression), None, "{expression}");
        }
    }
}
