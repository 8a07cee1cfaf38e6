//! The grammar of `ctl.conf`: a key, its words, and for some keys a block in braces. Line breaks have no meaning, so the
//! number of words of each key is fixed. A text in quotation marks is one word. `#` begins a comment.

use super::ucl;
use crate::ImportError;

/// The deepest block: a LUN in a target, with room for keys that this version does not know.
const MAX_DEPTH: usize = 8;

/// A key with its words and its block.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CtldKey {
    pub(super) key: String,
    pub(super) words: Vec<String>,
    pub(super) block: Vec<CtldKey>,
    pub(super) line: usize,
}

impl CtldKey {
    /// A word after the key.
    pub(super) fn word(&self, n: usize) -> &str {
        self.words.get(n).map(String::as_str).unwrap_or_default()
    }

    /// The line for the report.
    pub(super) fn place(&self) -> String {
        format!("line {}", self.line)
    }

    /// The key and its words, without secrets.
    pub(super) fn shown(&self) -> String {
        let words = if self.key.starts_with("chap") { 1 } else { usize::MAX };
        let words: Vec<&str> = self.words.iter().take(words).map(String::as_str).collect();
        format!("{} {}", self.key, words.join(" ")).trim_end().into()
    }
}

/// The keys with this name.
pub(super) fn all<'a>(keys: &'a [CtldKey], name: &'a str) -> impl Iterator<Item = &'a CtldKey> {
    keys.iter().filter(move |key| key.key == name)
}

/// The first word of the first key with this name.
pub(super) fn value<'a>(keys: &'a [CtldKey], name: &str) -> Option<&'a str> {
    keys.iter().find(|key| key.key == name).map(|key| key.word(0))
}

/// The option of a block with this name.
pub(super) fn option<'a>(keys: &'a [CtldKey], name: &'a str) -> Option<&'a CtldKey> {
    all(keys, "option").find(|option| option.word(0) == name)
}

/// The number of words after a key, and whether another one may follow.
fn words_of(key: &str) -> Option<(usize, bool)> {
    Some(match key {
        "foreign" => (0, false),
        "lun" | "portal-group" => (1, true),
        "chap" | "option" => (2, false),
        "chap-mutual" => (4, false),
        "alias"
        | "auth-group"
        | "auth-type"
        | "backend"
        | "blocksize"
        | "ctl-lun"
        | "debug"
        | "device-id"
        | "device-type"
        | "discovery-auth-group"
        | "discovery-filter"
        | "dscp"
        | "initiator-name"
        | "initiator-portal"
        | "isns-period"
        | "isns-server"
        | "isns-timeout"
        | "listen"
        | "listen-iser"
        | "maxproc"
        | "offload"
        | "path"
        | "pcp"
        | "pidfile"
        | "port"
        | "redirect"
        | "serial"
        | "size"
        | "tag"
        | "target"
        | "timeout" => (1, false),
        _ => return None,
    })
}

/// Parses a file in its own grammar, or in that of UCL.
pub(super) fn parse(text: &str) -> Result<Vec<CtldKey>, ImportError> {
    let tokens = tokens(text);
    if is_ucl(&tokens) {
        return ucl::parse(text);
    }
    let mut parser = CtldParser { tokens, at: 0 };
    parser.block(0)
}

#[derive(Clone, Debug, PartialEq)]
enum CtldToken {
    /// A word, which may be a key.
    Word(String),
    /// A text in quotation marks.
    Quoted(String),
    Open,
    Close,
    Semicolon,
}

fn tokens(text: &str) -> Vec<(CtldToken, usize)> {
    let mut all = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(c) = rest.chars().next() {
        let one = |token| Some((token, c.len_utf8()));
        let found = match c {
            '{' => one(CtldToken::Open),
            '}' => one(CtldToken::Close),
            ';' => one(CtldToken::Semicolon),
            '#' => {
                rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
                continue;
            }
            '"' => {
                let end = rest[1..].find('"').map_or(rest.len(), |end| end + 1);
                Some((CtldToken::Quoted(rest[1..end].into()), (end + 1).min(rest.len())))
            }
            _ if c.is_whitespace() => None,
            _ => {
                let ends = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ';' | '#' | '"');
                let end = rest.find(ends).unwrap_or(rest.len());
                Some((CtldToken::Word(rest[..end].into()), end))
            }
        };
        let len = found.as_ref().map_or(c.len_utf8(), |(_, len)| *len);
        all.extend(found.map(|(token, _)| (token, line)));
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    all
}

/// Whether a file is in UCL: it has an equals sign, a key that ends with a colon, or a section without a name.
fn is_ucl(tokens: &[(CtldToken, usize)]) -> bool {
    const SECTIONS: [&str; 4] = ["auth-group", "portal-group", "lun", "target"];
    let of_ucl = |(token, _): &(CtldToken, usize)| match token {
        CtldToken::Word(word) => word.contains('=') || (word.ends_with(':') && !word.contains('[')),
        _ => false,
    };
    let unnamed = |two: &[(CtldToken, usize)]| match (&two[0].0, &two[1].0) {
        (CtldToken::Word(word), CtldToken::Open) => SECTIONS.contains(&word.as_str()),
        _ => false,
    };
    let is_object = tokens.first().is_some_and(|(token, _)| *token == CtldToken::Open);
    is_object || tokens.iter().any(of_ucl) || tokens.windows(2).any(unnamed)
}

struct CtldParser {
    tokens: Vec<(CtldToken, usize)>,
    at: usize,
}

impl CtldParser {
    /// Reads keys until the end of the block, or of the file.
    fn block(&mut self, depth: usize) -> Result<Vec<CtldKey>, ImportError> {
        let mut keys = Vec::new();
        while let Some((token, line)) = self.tokens.get(self.at).cloned() {
            self.at += 1;
            match token {
                CtldToken::Semicolon => {}
                CtldToken::Close if depth > 0 => return Ok(keys),
                CtldToken::Word(key) => keys.push(self.key(key, line, depth)?),
                other => return Err(unexpected(line, &other)),
            }
        }
        match keys.last().map_or(1, |key| key.line) {
            _ if depth == 0 => Ok(keys),
            line => Err(ImportError::new(
                format!("the file ends in a block, after line {line}"),
                "add the missing closing brace",
            )),
        }
    }

    fn key(&mut self, key: String, line: usize, depth: usize) -> Result<CtldKey, ImportError> {
        let mut words = Vec::new();
        match words_of(&key) {
            Some((count, has_optional)) => {
                // The types of auth-type are keys too.
                let is_value = |word: &str| words_of(word).is_none() || key == "auth-type";
                for _ in 0..count {
                    words.push(self.word(is_value).ok_or_else(|| no_value(&key, line))?);
                }
                if has_optional && self.is_on(line) {
                    words.extend(self.word(is_value));
                }
            }
            // The words of an unknown key end with the line.
            None => {
                while self.is_on(line)
                    && let Some(word) = self.word(|_| true)
                {
                    words.push(word);
                }
            }
        }
        let mut block = Vec::new();
        if matches!(self.tokens.get(self.at), Some((CtldToken::Open, _))) {
            self.at += 1;
            if depth == MAX_DEPTH {
                return Err(too_deep(line));
            }
            block = self.block(depth + 1)?;
        }
        Ok(CtldKey { key, words, block, line })
    }

    /// Whether the next token is on this line.
    fn is_on(&self, line: usize) -> bool {
        self.tokens.get(self.at).is_some_and(|(_, at)| *at == line)
    }

    /// The next token if it is a value. A key needs quotation marks to be one.
    fn word(&mut self, is_value: impl Fn(&str) -> bool) -> Option<String> {
        let word = match &self.tokens.get(self.at)?.0 {
            CtldToken::Quoted(text) => text.clone(),
            CtldToken::Word(word) if is_value(word) => word.clone(),
            _ => return None,
        };
        self.at += 1;
        Some(word)
    }
}

pub(super) fn too_deep(line: usize) -> ImportError {
    ImportError::new(format!("line {line}: the block is too deep"), "give /etc/ctl.conf")
}

fn no_value(key: &str, line: usize) -> ImportError {
    ImportError::new(format!("line {line}: {key} has too few values"), "check the file with ctld -t")
}

fn unexpected(line: usize, token: &CtldToken) -> ImportError {
    let found = match token {
        // It could be a secret.
        CtldToken::Word(_) | CtldToken::Quoted(_) => "a text",
        CtldToken::Open => "\"{\"",
        CtldToken::Close => "\"}\"",
        CtldToken::Semicolon => "\";\"",
    };
    ImportError::new(format!("line {line}: {found} in place of a key"), "check the file with ctld -t")
}

/// A size with a binary unit, as `expand_number` reads it.
pub(super) fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let power = match unit.strip_suffix('b').filter(|unit| !unit.is_empty()).unwrap_or(&unit) {
        "" | "b" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        fn one(key: &CtldKey) -> String {
            let block: String = key.block.iter().map(one).collect();
            format!(
                "{}:{}({block})",
                key.line,
                [std::slice::from_ref(&key.key), &key.words].concat().join("|")
            )
        }
        parse(text).unwrap_or_else(|e| panic!("{e}")).iter().map(one).collect()
    }

    #[test]
    fn keys_have_words_and_blocks() {
        let text = "debug 1 # {\ntarget a { alias \"b c\" lun 0\n{ path /d size 4G } lun 1 x; portal-group p\nauth-group \
                    \"default\" }";
        let expected = "1:debug|1()2:target|a(2:alias|b c()2:lun|0(3:path|/d()3:size|4G())3:lun|1|x()3:portal-group|p()\
                        4:auth-group|default())";
        assert_eq!(shown(text), expected);
        assert_eq!(shown("new a b\nfoo { bar c }"), "1:new|a|b()2:foo(2:bar|c())");
    }

    #[test]
    fn invalid_files_name_the_line() {
        for (text, what) in [
            ("\ntarget a {", "the file ends in a block"),
            ("target a {}\n}", "line 2: \"}\" in place of a key"),
            ("target", "line 1: target has too few values"),
            ("portal-group p { listen\n tag 1 }", "line 1: listen has too few values"),
            ("\"a\" b", "line 1: a text in place of a key"),
        ] {
            let e = parse(text).expect_err(text);
            assert!(e.what.starts_with(what), "{text}: {e}");
        }
        assert!(parse(&"a{".repeat(100_000)).is_err());
    }

    #[test]
    fn sizes_have_binary_units() {
        let all = ["512", "4K", "4kb", "1G", "2b", "", "x", "1X", "99999999P"].map(size);
        let [kib4, gib] = [Some(4096), Some(1 << 30)];
        assert_eq!(all, [Some(512), kib4, kib4, gib, Some(2), None, None, None, None]);
    }
}
