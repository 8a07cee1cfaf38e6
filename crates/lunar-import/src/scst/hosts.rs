//! Patterns of initiator names: `*`, `?`, and `!` before a pattern that must not match.

/// Whether a name in lower case can be a pattern of Lunar.
pub(super) fn is_pattern(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | ':' | '_' | '*' | '?');
    !text.is_empty() && text.chars().all(fits) && !text.starts_with("0x")
}

/// Whether a name may match two patterns.
pub(super) fn overlap(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // row[j]: whether the first i characters of `a` and the first j of `b` can be the same text.
    let mut row: Vec<bool> = (0..=b.len()).map(|j| b[..j].iter().all(|c| *c == '*')).collect();
    for c in &a {
        let mut next = vec![row[0] && *c == '*'];
        for (j, d) in b.iter().enumerate() {
            let is_one = *c == '?' || *d == '?' || c == d;
            let both = match *c == '*' || *d == '*' {
                true => next[j] || row[j + 1],
                false => is_one && row[j],
            };
            next.push(both);
        }
        row = next;
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_symmetric_and_sees_wildcards() {
        for (a, b, expected) in [
            ("iqn.a", "iqn.a", true),
            ("iqn.a", "iqn.b", false),
            ("iqn.*", "iqn.a", true),
            ("iqn.*:x", "iqn.a:*", true),
            ("*", "", true),
            ("", "?", false),
            ("a?c", "ab*", true),
            ("a*c", "b*", false),
            ("esx-*", "esx-?-spare", true),
            ("*ab", "*ba", false),
            ("*a*", "*b*", true),
        ] {
            assert_eq!((overlap(a, b), overlap(b, a)), (expected, expected), "{a} {b}");
        }
    }
}
