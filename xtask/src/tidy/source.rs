//! Blanks everything in Rust source that is not code: comments, strings and character literals become spaces. A
//! rule then matches neither its own text nor a brace in a string. Lines and columns are unchanged. For rules of
//! comments, everything else can be blanked.

/// Blanks everything that is not code.
pub fn code_only(source: &str) -> String {
    blank(source, |literal| literal.is_empty())
}

/// Blanks everything that is not a comment.
pub fn comments_only(source: &str) -> String {
    blank(source, |literal| matches!(literal, ['/', ..]))
}

/// Blanks the code and the literals that `is_kept` does not accept. Code is an empty literal.
fn blank(source: &str, is_kept: impl Fn(&[char]) -> bool) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let literal = &chars[at..end_of_literal(&chars, at).unwrap_or(at)];
        let text = if literal.is_empty() { &chars[at..at + 1] } else { literal };
        let is_kept = is_kept(literal);
        out.extend(text.iter().map(|c| if is_kept || *c == '\n' { *c } else { ' ' }));
        at += text.len();
    }
    out
}

/// The end of the comment, string or character literal that starts at `at`; None if there is none.
fn end_of_literal(chars: &[char], at: usize) -> Option<usize> {
    let rest = &chars[at..];
    let word_before = at > 0 && is_word(chars[at - 1]);
    match rest {
        ['/', '/', ..] => Some(at + rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())),
        ['/', '*', ..] => Some(at + block_comment(rest)),
        ['"', ..] => Some(at + quoted(rest)),
        ['r', '"' | '#', ..] if !word_before => raw_string(rest, 1).map(|len| at + len),
        ['b', 'r', '"' | '#', ..] if !word_before => raw_string(rest, 2).map(|len| at + len),
        ['\'', '\\', ..] => Some(at + 3 + rest[3..].iter().position(|c| *c == '\'').map_or(0, |n| n + 1)),
        ['\'', c, '\'', ..] if *c != '\'' => Some(at + 3),
        _ => None,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at + 1 < rest.len() {
        match (rest[at], rest[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a raw string whose hashes start at `from`; None for a raw identifier.
fn raw_string(rest: &[char], from: usize) -> Option<usize> {
    let hashes = rest[from..].iter().take_while(|c| **c == '#').count();
    let open = from + hashes;
    if rest.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    Some((open + 1..rest.len()).find(closes).map_or(rest.len(), |at| at + 1 + hashes))
}

/// A function found in blanked code.
#[derive(Debug, PartialEq, Eq)]
pub struct FunctionSpan {
    /// Its name
    pub name: String,
    /// Line of its `fn`, from 1
    pub line: usize,
    /// Lines from there to the closing brace
    pub lines: usize,
}

/// All functions with a body.
pub fn functions(code: &str) -> Vec<FunctionSpan> {
    let starts = code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(is_word));
    starts.filter_map(|(at, _)| function(code, at)).collect()
}

fn function(code: &str, at: usize) -> Option<FunctionSpan> {
    let name: String = code[at + 3..].chars().take_while(|c| is_word(*c)).collect();
    if name.is_empty() {
        return None; // a function pointer type
    }
    let (mut round, mut curly) = (0, 0);
    for (offset, c) in code[at..].char_indices() {
        match c {
            '(' | '[' => round += 1,
            ')' | ']' => round -= 1,
            ';' if round == 0 && curly == 0 => return None,
            '{' => curly += 1,
            '}' => curly -= 1,
            _ => continue,
        }
        if c == '}' && curly == 0 {
            let lines = code[at..at + offset].matches('\n').count() + 1;
            return Some(FunctionSpan { name, line: line_of(code, at), lines });
        }
    }
    None
}

/// The line, from 1, of a byte offset.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The lines, from 1, that contain `word` as a separate word.
pub fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let alone = |at: usize| {
        let after = code[at + word.len()..].chars().next();
        !code[..at].ends_with(is_word) && !after.is_some_and(is_word)
    };
    code.match_indices(word).filter(|(at, _)| alone(*at)).map(|(at, _)| line_of(code, at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_blanked() {
        let source = "a // {\nb /* { /* } */ { */ c \"{ \\\" {\" '{' '\\'' '\\u{7b}' br#\"{\"{\"# d<'x>";
        let code = code_only(source);
        assert_eq!(code.chars().count(), source.chars().count());
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c", "d<'x>"]);
    }

    #[test]
    fn code_and_strings_are_blanked_around_comments() {
        let source = "a(); // one \"{\"\nlet b = \"// no\"; /* two\n three */ c '/'";
        let comments = comments_only(source);
        assert_eq!(comments.chars().count(), source.chars().count());
        let words: Vec<&str> = comments.split_whitespace().collect();
        assert_eq!(words, ["//", "one", "\"{\"", "/*", "two", "three", "*/"]);
        assert_eq!(comments.lines().count(), 3);
    }

    #[test]
    fn function_length_is_from_fn_to_brace() {
        let code =
            "type F = fn (u8);\nfn a(x: [u8; 2]) -> [u8; 2] {\n  {\n  }\n}\ntrait T { fn b(); }\nfn c() {}\n";
        let found = functions(code);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], FunctionSpan { name: "a".into(), line: 2, lines: 4 });
        assert_eq!(found[1], FunctionSpan { name: "c".into(), line: 7, lines: 1 });
    }

    #[test]
    fn word_does_not_match_inside_another_word() {
        assert_eq!(lines_with_word("unsafe_code\nx unsafe {", "unsafe"), [2]);
    }
}
