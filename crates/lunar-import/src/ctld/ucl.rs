//! UCL, the other grammar of `ctl.conf`, for `ctld -u`: objects in braces, lists in brackets, and `=` or `:` after keys,
//! which may be absent.

use super::file::{CtldKey, too_deep};
use super::ucl_sections::sections;
use crate::ImportError;

/// The deepest object.
const MAX_DEPTH: usize = 16;

/// A value with its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ucl {
    pub(super) value: UclValue,
    pub(super) line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum UclValue {
    Text(String),
    List(Vec<Ucl>),
    /// Keys may repeat.
    Object(Vec<(String, Ucl)>),
}

/// Parses a file to the keys of the other grammar.
pub(super) fn parse(text: &str) -> Result<Vec<CtldKey>, ImportError> {
    let mut parser = UclParser { rest: text, line: 1 };
    parser.skip("");
    let is_object = parser.takes('{');
    let top = parser.object(if is_object { 1 } else { 0 })?;
    Ok(sections(&top))
}

struct UclParser<'a> {
    rest: &'a str,
    line: usize,
}

impl UclParser<'_> {
    fn error<T>(&self, what: &str) -> Result<T, ImportError> {
        Err(ImportError::new(format!("line {}: {what}", self.line), "check the file with ctld -u -t"))
    }

    fn advance(&mut self, len: usize) -> &str {
        let (taken, rest) = self.rest.split_at(len);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn takes(&mut self, c: char) -> bool {
        let found = self.rest.starts_with(c);
        if found {
            self.advance(c.len_utf8());
        }
        found
    }

    /// Skips white space, comments and these characters.
    fn skip(&mut self, also: &str) {
        while let Some(c) = self.rest.chars().next() {
            let len = match c {
                '#' => self.rest.find('\n').unwrap_or(self.rest.len()),
                '/' if self.rest.starts_with("/*") => comment_len(self.rest),
                _ if c.is_whitespace() || also.contains(c) => c.len_utf8(),
                _ => return,
            };
            self.advance(len);
        }
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    /// Reads keys until the closing brace, or at depth 0 until the end of the file.
    fn object(&mut self, depth: usize) -> Result<Vec<(String, Ucl)>, ImportError> {
        let mut all = Vec::new();
        loop {
            self.skip(",;");
            match self.rest.chars().next() {
                None if depth == 0 => return Ok(all),
                None => return self.error("the file ends in an object"),
                Some('}') if depth > 0 => {
                    self.advance(1);
                    return Ok(all);
                }
                Some('.') => return self.error("macros such as .include are not read"),
                Some('{' | '}' | '[' | ']' | '=' | ':') => return self.error("a bracket in place of a key"),
                Some(_) => all.push(self.pair(depth)?),
            }
        }
    }

    fn pair(&mut self, depth: usize) -> Result<(String, Ucl), ImportError> {
        let line = self.line;
        let key = match self.quoted()? {
            Some(key) => key,
            None => self.bare(|c| c.is_whitespace() || "=:{}[],;#".contains(c)),
        };
        self.skip_blanks();
        let has_sign = self.takes('=') || self.takes(':');
        if has_sign {
            self.skip("");
        }
        let value = self.value(depth)?;
        self.skip_blanks();
        // `key name { ... }` is `key { name { ... } }`.
        if let UclValue::Text(name) = &value
            && !has_sign
            && self.rest.starts_with('{')
        {
            let named = self.value(depth)?;
            let object = vec![(name.clone(), Ucl { value: named, line })];
            return Ok((key, Ucl { value: UclValue::Object(object), line }));
        }
        Ok((key, Ucl { value, line }))
    }

    fn value(&mut self, depth: usize) -> Result<UclValue, ImportError> {
        if depth >= MAX_DEPTH {
            return Err(too_deep(self.line));
        }
        if self.takes('{') {
            return Ok(UclValue::Object(self.object(depth + 1)?));
        }
        if self.takes('[') {
            return Ok(UclValue::List(self.list(depth + 1)?));
        }
        if let Some(text) = self.quoted()? {
            return Ok(UclValue::Text(text));
        }
        let text = self.bare(|c| "\r\n,;]}{#".contains(c));
        let text = text.trim();
        Ok(UclValue::Text(number(text).unwrap_or_else(|| text.to_owned())))
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Ucl>, ImportError> {
        let mut all = Vec::new();
        loop {
            self.skip(",;");
            match self.rest.chars().next() {
                None => return self.error("the file ends in a list"),
                Some(']') => {
                    self.advance(1);
                    return Ok(all);
                }
                Some('}') => return self.error("a brace in a list"),
                Some(_) => {
                    let line = self.line;
                    all.push(Ucl { value: self.value(depth)?, line });
                }
            }
        }
    }

    fn bare(&mut self, ends: impl Fn(char) -> bool) -> String {
        let len = self.rest.find(ends).unwrap_or(self.rest.len());
        self.advance(len).to_owned()
    }

    /// A text in quotation marks. None: there is none.
    fn quoted(&mut self) -> Result<Option<String>, ImportError> {
        let Some(mark) = self.rest.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
            return Ok(None);
        };
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == mark => {
                    self.advance(at + 1);
                    return Ok(Some(text));
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) if mark == '"' => text.push('\n'),
                    Some((_, 't')) if mark == '"' => text.push('\t'),
                    Some((_, c)) => text.push(c),
                    None => {}
                },
                _ => text.push(c),
            }
        }
        self.error("a text without its closing quotation mark")
    }
}

/// The length of a comment, which may have others in it. A comment without an end has the rest of the file.
fn comment_len(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while let Some(next) = text[at..].find(['/', '*']).map(|next| at + next) {
        at = next + 1;
        let begin = text[next..].starts_with("/*");
        if !begin && !text[next..].starts_with("*/") {
            continue;
        }
        at += 1;
        depth = if begin { depth + 1 } else { depth - 1 };
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// A number with a unit, in digits. A single letter is a decimal unit, and `b` after it makes it a binary one.
fn number(text: &str) -> Option<String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match text[digits.len()..].chars().next()?.to_ascii_lowercase() {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        't' => 4,
        _ => return None,
    };
    let base: u64 = match &text[digits.len() + 1..] {
        "" => 1000,
        "b" | "B" => 1024,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(base.pow(power)).map(|number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        fn one(value: &UclValue) -> String {
            match value {
                UclValue::Text(text) => text.clone(),
                UclValue::List(all) => {
                    format!("[{}]", all.iter().map(|one_of| one(&one_of.value)).collect::<Vec<_>>().join(","))
                }
                UclValue::Object(all) => {
                    let pairs = all.iter().map(|(key, value)| format!("{key}={}", one(&value.value)));
                    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
                }
            }
        }
        let mut parser = UclParser { rest: text, line: 1 };
        one(&UclValue::Object(parser.object(0).unwrap_or_else(|e| panic!("{e}"))))
    }

    #[test]
    fn objects_lists_and_texts_are_read() {
        assert_eq!(shown("a = 1; b: \"c\\\"d\"\ne /x y # z\nf { g 4kb }"), "{a=1,b=c\"d,e=/x y,f={g=4096}}");
        assert_eq!(shown("a \"b:c\" { d = 1 }"), "{a={b:c={d=1}}}");
        assert_eq!(shown("a = [1, 'x', {b = 2k}] /* c /* d */ */ e = f"), "{a=[1,x,{b=2000}],e=f}");
        assert_eq!(shown("\"a\": {\"b\": [],}, c=40gB"), "{a={b=[]},c=42949672960}");
    }

    #[test]
    fn invalid_files_name_the_line() {
        for (text, what) in [
            ("a {", "line 1: the file ends in an object"),
            ("\na = [", "line 2: the file ends in a list"),
            ("a = [}", "line 1: a brace in a list"),
            ("}", "line 1: a bracket in place of a key"),
            ("a = \"b", "line 1: a text without"),
            (".include x", "line 1: macros"),
        ] {
            let e = UclParser { rest: text, line: 1 }.object(0).expect_err(text);
            assert!(e.what.starts_with(what), "{text}: {e}");
        }
        for deep in ["a{", "a=["] {
            assert!(parse(&deep.repeat(100_000)).is_err());
        }
        assert!(parse("/* open").is_ok_and(|keys| keys.is_empty()));
    }
}
