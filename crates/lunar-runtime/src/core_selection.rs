//! The CPU cores that a process runs its event loops on, as `--cores` and the key `cores` name them.

use std::fmt;
use std::io;

/// A selection of CPU cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreSelection {
    /// All cores that the process may use.
    All,
    /// The first cores that the process may use, this many.
    Count(usize),
    /// The cores with these numbers.
    List(Vec<usize>),
}

/// The reason why a selection is malformed, or the process cannot use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSelectionError {
    /// The fault, with the value.
    pub what: String,
    /// The fix.
    pub hint: String,
    /// `InvalidInput`, unless the operating system failed.
    pub kind: io::ErrorKind,
}

impl fmt::Display for CoreSelectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  hint: {}", self.what, self.hint)
    }
}

impl std::error::Error for CoreSelectionError {}

fn invalid(what: String, hint: impl Into<String>) -> CoreSelectionError {
    CoreSelectionError { what, hint: hint.into(), kind: io::ErrorKind::InvalidInput }
}

/// The notation, for hints.
const FORMS: &str = "write \"all\", a number of cores such as 2, or a list such as \"0,2-3\"; \"0\" is core 0, and \"3,\" core 3";

impl CoreSelection {
    /// More cores than any machine has; the bound keeps a wrong list short.
    pub const MAX_CORES: usize = 4096;

    /// Selects this many cores. 0 selects core 0, because a selection of no cores is invalid.
    pub fn from_number(number: usize) -> Option<CoreSelection> {
        match number {
            0 => Some(CoreSelection::List(vec![0])),
            1..=CoreSelection::MAX_CORES => Some(CoreSelection::Count(number)),
            _ => None,
        }
    }

    /// Parses `all`, a number of cores, or a list such as `0,2-3`. A list of one core is written `3,` or `3-3`; `0` is
    /// core 0.
    ///
    /// # Errors
    /// When the text is none of these, or names a core above [`CoreSelection::MAX_CORES`].
    pub fn parse(text: &str) -> Result<CoreSelection, CoreSelectionError> {
        let selection = match (text, text.parse::<usize>()) {
            ("all", _) => Some(CoreSelection::All),
            (_, Ok(count)) => CoreSelection::from_number(count),
            _ => list(text).map(CoreSelection::List),
        };
        selection.ok_or_else(|| invalid(format!("invalid core selection \"{}\"", text.escape_debug()), FORMS))
    }

    /// The numbers of the selected cores, out of those that the process may use.
    ///
    /// # Errors
    /// When the process may not use a selected core, or may use fewer.
    pub fn usable(&self) -> Result<Vec<usize>, CoreSelectionError> {
        let set = rustix::thread::sched_getaffinity(None).map_err(|e| CoreSelectionError {
            what: format!("cannot read the CPU affinity of this process: {e}"),
            hint: "name the cores with --cores".into(),
            kind: e.kind(),
        })?;
        let all = 0..rustix::thread::CpuSet::MAX_CPU;
        self.resolve(&all.filter(|core| set.is_set(*core)).collect::<Vec<_>>())
    }

    fn resolve(&self, usable: &[usize]) -> Result<Vec<usize>, CoreSelectionError> {
        match self {
            CoreSelection::All => Ok(usable.to_vec()),
            CoreSelection::Count(count) if *count <= usable.len() => Ok(usable[..*count].to_vec()),
            CoreSelection::Count(count) => Err(invalid(
                format!("{count} cores selected, but this process may use only {}", usable.len()),
                format!("select {} or fewer cores, or \"all\"", usable.len()),
            )),
            CoreSelection::List(list) => match list.iter().find(|core| !usable.contains(core)) {
                None => Ok(list.clone()),
                Some(core) => {
                    let numbers = usable.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                    let what = format!("core {core} is not available to this process");
                    Err(invalid(what, format!("select from the available cores: {numbers}")))
                }
            },
        }
    }
}

/// The cores of a list such as `0,2-3` or `3,`, in order.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut list = Vec::new();
    for part in text.strip_suffix(',').unwrap_or(text).split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        if first > last || last >= CoreSelection::MAX_CORES {
            return None;
        }
        list.extend(first..=last);
    }
    list.sort_unstable();
    list.dedup();
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::CoreSelection::{self, All, Count, List};

    #[test]
    fn core_selection_parses_each_notation() {
        let good = [
            ("all", All),
            ("2", Count(2)),
            ("0,2-3,2", List(vec![0, 2, 3])),
            ("3,", List(vec![3])),
            ("0", List(vec![0])),
        ];
        good.into_iter()
            .for_each(|(text, cores)| assert_eq!(CoreSelection::parse(text), Ok(cores), "{text}"));
    }

    #[test]
    fn core_selection_that_is_malformed_is_rejected() {
        for text in ["", ",", "a", "4097", "3-1", "0-99999999", "1,,2"] {
            assert!(CoreSelection::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn core_selection_resolves_among_usable_cores() {
        let what = |cores: CoreSelection| cores.resolve(&[1, 5]).unwrap_err().what;
        assert_eq!(All.resolve(&[1, 5]), Ok(vec![1, 5]));
        assert_eq!(Count(1).resolve(&[1, 5]), Ok(vec![1]));
        assert_eq!(List(vec![5]).resolve(&[1, 5]), Ok(vec![5]));
        assert_eq!(what(List(vec![0])), "core 0 is not available to this process");
        assert_eq!(what(Count(3)), "3 cores selected, but this process may use only 2");
        assert!(!All.usable().unwrap().is_empty());
    }
}
