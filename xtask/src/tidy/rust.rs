//! Rules for Rust sources.

use super::TidyFinding;
use super::project::SourceFile;
use super::source::{functions, lines_with_word};

const MAX_FILE_LINES: usize = 800;
const MAX_FUNCTION_LINES: usize = 70;
/// rustfmt limits code to 110 columns; a string or a name that it cannot break may be longer.
const MAX_COLUMNS: usize = 135;
/// The maximum distance between an `unsafe` and the reason above it.
const SAFETY_REACH: usize = 6;

/// Macros and attributes that finished code does not contain.
const BANNED: [(&str, &str); 4] = [
    ("todo!", "write it"),
    ("unimplemented!", "write it, or answer with an error"),
    ("dbg!", "remove it, or log with tracing"),
    ("#[ignore", "fix the test, or let it print why it is skipped"),
];

/// Macros that panic if their stream is full or closed, and block while no process reads it.
const PRINTING: [&str; 2] = ["println!", "print!"];

/// Calls that compare text.
const WORD_MATCHES: [&str; 9] = [
    ".contains(",
    ".starts_with(",
    ".ends_with(",
    ".find(",
    ".split(",
    ".split_once(",
    ".strip_prefix(",
    ".strip_suffix(",
    ".replace(",
];

/// Expressions that hold messages. Their words may change; code must decide by `ErrorCode`, `Hint` and
/// `io::ErrorKind`.
const MESSAGES: [&str; 9] = [
    " e.to_string()",
    "(e.to_string()",
    "err.to_string()",
    "error.to_string()",
    "failure.to_string()",
    "missing.to_string()",
    "problem.to_string()",
    ".what",
    ".hint",
];

/// Text that occurs only in messages: the errno of `std`, and a hint after a message.
const MESSAGE_TEXT: [&str; 2] = [concat!("(os ", "error"), concat!("\\n", "hint:")];

/// The one place that removes the errno from a message.
const ERRNO_TEXT: &str = "crates/lunar-runtime/src/error.rs";

/// Checks one source file.
pub fn check(file: &SourceFile) -> Vec<TidyFinding> {
    let code = file.code();
    let mut findings = Vec::new();
    findings.extend(file_length(file, code));
    findings.extend(function_lengths(file, code));
    findings.extend(columns(file));
    findings.extend(banned(file, code));
    findings.extend(printing(file, code));
    findings.extend(unsafe_without_reason(file, code));
    findings.extend(words_of_errors(file, code));
    findings
}

fn file_length(file: &SourceFile, code: &str) -> Option<TidyFinding> {
    let lines = lines_without_tests(&file.path, code);
    (lines > MAX_FILE_LINES).then(|| {
        let what = format!("{lines} lines without tests, more than {MAX_FILE_LINES}");
        TidyFinding::new(&file.path, 1, what, "split it by what changes together")
    })
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// Lines before the module of tests; 0 for a file of tests.
pub fn lines_without_tests(path: &str, code: &str) -> usize {
    if is_test(path) {
        return 0;
    }
    let lines: Vec<&str> = code.lines().collect();
    let is_test_module = |pair: &[&str]| {
        pair[0].starts_with("#[cfg(test)]") && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    lines.windows(2).position(is_test_module).unwrap_or(lines.len())
}

/// Functions that are too long. In tests, tables of cases may have any length.
fn function_lengths(file: &SourceFile, code: &str) -> Vec<TidyFinding> {
    if is_test(&file.path) {
        return Vec::new();
    }
    let long = functions(code).into_iter().filter(|function| function.lines > MAX_FUNCTION_LINES);
    long.map(|f| {
        let what = format!("function {} has {} lines, more than {MAX_FUNCTION_LINES}", f.name, f.lines);
        TidyFinding::new(&file.path, f.line, what, "give its parts names")
    })
    .collect()
}

/// Lines that are too long. In tests, tables of cases may have any width.
fn columns(file: &SourceFile) -> Vec<TidyFinding> {
    if is_test(&file.path) {
        return Vec::new();
    }
    let long = file.text.lines().enumerate().filter(|(_, line)| line.chars().count() > MAX_COLUMNS);
    long.map(|(n, line)| {
        let what = format!("{} columns, more than {MAX_COLUMNS}", line.chars().count());
        TidyFinding::new(&file.path, n + 1, what, "break the line")
    })
    .collect()
}

fn banned(file: &SourceFile, code: &str) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (n, line) in code.lines().enumerate() {
        for (what, remedy) in BANNED.iter().filter(|(what, _)| line.contains(what)) {
            findings.push(TidyFinding::new(&file.path, n + 1, format!("`{what}`"), remedy));
        }
    }
    findings
}

/// Whether a file is code of the product and not a test.
pub fn is_product(path: &str) -> bool {
    let is_source = path.starts_with("crates/") && path.contains("/src/");
    is_source && !is_test(path) && !path.ends_with("tests.rs") && !path.ends_with("testing.rs")
}

/// The command prints in one module. Tests and examples may print anywhere.
fn printing(file: &SourceFile, code: &str) -> Vec<TidyFinding> {
    if !is_product(&file.path) {
        return Vec::new();
    }
    let lines = code.lines().take(lines_without_tests(&file.path, code)).enumerate();
    let bad = lines.filter(|(_, line)| PRINTING.iter().any(|what| line.contains(what)));
    let remedy = "use crates/lunar/src/output.rs, log with tracing, or return the text";
    bad.map(|(n, _)| TidyFinding::new(&file.path, n + 1, "a printing macro".to_string(), remedy)).collect()
}

/// Behaviour must not depend on the words of an error. Tests may read them.
fn words_of_errors(file: &SourceFile, code: &str) -> Vec<TidyFinding> {
    if !is_product(&file.path) || file.path == ERRNO_TEXT {
        return Vec::new();
    }
    let is_match = |line: &str| {
        MESSAGES
            .iter()
            .any(|message| WORD_MATCHES.iter().any(|call| line.contains(&format!("{message}{call}"))))
    };
    let has_text =
        |line: &str| MESSAGE_TEXT.iter().any(|text| line.contains(text)) && !line.starts_with("#[error(");
    let lines = code.lines().zip(file.text.lines()).take(lines_without_tests(&file.path, code)).enumerate();
    let bad = lines.filter(|(_, (code, text))| is_match(code) || has_text(text.trim_start()));
    let remedy = "give the error an ErrorCode or a Hint where it is made, and decide by that";
    bad.map(|(n, _)| {
        TidyFinding::new(&file.path, n + 1, "match on the words of an error".to_string(), remedy)
    })
    .collect()
}

fn unsafe_without_reason(file: &SourceFile, code: &str) -> Vec<TidyFinding> {
    let lines: Vec<&str> = file.text.lines().collect();
    let has_reason = |line: &usize| {
        let above = lines[line.saturating_sub(SAFETY_REACH + 1)..*line].iter().rev();
        above.take_while(|l| !l.trim().is_empty()).any(|l| l.contains("SAFETY") || l.contains("# Safety"))
    };
    let bare = lines_with_word(code, "unsafe").into_iter().filter(|line| !has_reason(line));
    bare.map(|line| {
        TidyFinding::new(&file.path, line, "unsafe without a SAFETY line", "say above it why it is sound")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    fn whats(text: &str) -> Vec<(usize, String)> {
        check(&file("crates/x/src/lib.rs", text)).into_iter().map(|f| (f.line, f.what)).collect()
    }

    #[test]
    fn long_file_is_reported_without_counting_tests() {
        let long = "const A: u8 = 1;\n".repeat(801);
        assert_eq!(whats(&long), [(1, "801 lines without tests, more than 800".to_string())]);
        let with_tests = format!("const A: u8 = 1;\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(whats(&with_tests), []);
    }

    #[test]
    fn long_function_is_reported() {
        let text = |lines: usize| format!("\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines));
        assert_eq!(whats(&text(68)), []);
        assert_eq!(whats(&text(69)), [(2, "function f has 71 lines, more than 70".to_string())]);
    }

    #[test]
    fn long_line_is_reported() {
        assert_eq!(whats(&format!("//{}", "x".repeat(133))), []);
        assert_eq!(
            whats(&format!("\n//{}", "x".repeat(134))),
            [(2, "136 columns, more than 135".to_string())]
        );
    }

    #[test]
    fn unfinished_code_is_reported_but_not_its_mention() {
        assert_eq!(whats("// todo!\nconst A: &str = \"dbg!\";\n"), []);
        assert_eq!(whats("fn f() {\n    todo!()\n}\n"), [(2, "`todo!`".to_string())]);
        assert_eq!(whats("#[ignore]\nfn f() {}\n"), [(1, "`#[ignore`".to_string())]);
    }

    #[test]
    fn printing_outside_tests_is_reported() {
        assert_eq!(whats("fn f() {\n    eprintln!(\"x\");\n}\n"), [(2, "a printing macro".to_string())]);
        assert_eq!(whats("#[cfg(test)]\nmod tests {\n    fn f() {\n        println!();\n    }\n}\n"), []);
        assert_eq!(check(&file("crates/x/examples/x.rs", "fn f() {\n    println!();\n}\n")).len(), 0);
    }

    #[test]
    fn match_on_error_words_is_found_outside_tests() {
        let matches = |line: &str| {
            let text = format!("fn f() {{\n    {line}\n}}\n");
            check(&file("crates/x/src/x.rs", &text)).iter().any(|found| found.what.starts_with("match on"))
        };
        assert!(matches("if e.to_string().contains(\"late\") {}"));
        assert!(matches("let is_late = problem.what.ends_with(\"late\");"));
        assert!(matches("let parts = text.split_once(\"\\nhint: \");"));
        assert!(matches("let text = text.split(\" (os error\").next();"));
        assert!(!matches("let is_url = what.contains(\"://\");"));
        assert!(!matches("let shown = e.to_string().to_lowercase();"));
        let test =
            "#[cfg(test)]\nmod tests {\n    fn f() {\n        e.to_string().contains(\"x\");\n    }\n}\n";
        assert_eq!(check(&file("crates/x/src/x.rs", test)), []);
    }

    #[test]
    fn unsafe_without_reason_is_reported() {
        let bare = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(whats(bare), [(2, "unsafe without a SAFETY line".to_string())]);
        assert_eq!(whats("fn f() {\n    // SAFETY: g has no demands\n    unsafe { g() }\n}\n"), []);
        assert_eq!(whats("// SAFETY: far away\n\nfn f() {\n    unsafe { g() }\n}\n").len(), 1);
    }
}
