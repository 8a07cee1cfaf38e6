//! Words to people: colours on terminals alone, problems on stderr.

use control::Problem;
use std::io::IsTerminal;

/// May this stream have colours?
pub fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// No more problems are printed at once.
const PRINTED: usize = 50;

/// Problems as they are printed.
pub fn problems(list: &[Problem], coloured: bool) -> String {
    let (red, cyan, end) = if coloured { ("\x1b[1;31m", "\x1b[36m", "\x1b[0m") } else { ("", "", "") };
    let mut text = String::new();
    for problem in list.iter().take(PRINTED) {
        let told = problem.to_string();
        let told = told.replacen("\n  hint:", &format!("\n  {cyan}hint:{end}"), 1);
        text += &format!("{red}error:{end} {told}\n");
    }
    if list.len() > PRINTED {
        text += &format!("and {}\n", count(list.len() - PRINTED, "more problem"));
    }
    text
}

/// A number and what it counts.
pub fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_have_colours_only_when_wanted() {
        let list = [Problem::new("no disk", "bring one")];
        assert_eq!(problems(&list, false), "error: no disk\n  hint: bring one\n");
        assert_eq!(
            problems(&list, true),
            "\x1b[1;31merror:\x1b[0m no disk\n  \x1b[36mhint:\x1b[0m bring one\n"
        );
    }

    #[test]
    fn more_problems_than_anybody_reads_are_counted() {
        let list = vec![Problem::new("no disk", "bring one"); PRINTED + 2];
        let text = problems(&list, false);
        assert_eq!(text.lines().count(), 2 * PRINTED + 1);
        assert!(text.ends_with("\nand 2 more problems\n"));
    }

    #[test]
    fn counts() {
        assert_eq!([count(0, "LUN"), count(1, "LUN"), count(2, "LUN")], ["0 LUNs", "1 LUN", "2 LUNs"]);
    }
}
