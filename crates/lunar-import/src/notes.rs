//! The report of an import: what was carried over, what was changed, and what was lost.

use std::fmt;

/// The outcome of one setting or object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It has the same effect.
    Carried,
    /// It has another effect, which hosts may notice.
    Changed,
    /// It has no effect any more.
    Lost,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Carried => "carried",
            Outcome::Changed => "changed",
            Outcome::Lost => "lost",
        })
    }
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The outcome.
    pub outcome: Outcome,
    /// The place in the imported file: a line, or the path of a key.
    pub place: String,
    /// The object, and the reason if it was not carried over.
    pub text: String,
}

/// The lines of a report, in the order of the file.
#[derive(Debug, Default)]
pub struct Notes(Vec<Note>);

impl Notes {
    /// Adds a line.
    pub fn add(&mut self, outcome: Outcome, place: impl fmt::Display, text: impl Into<String>) {
        self.0.push(Note { outcome, place: place.to_string(), text: text.into() });
    }

    /// Adds something that was carried over.
    pub fn carried(&mut self, place: impl fmt::Display, text: impl Into<String>) {
        self.add(Outcome::Carried, place, text);
    }

    /// Adds something that has another effect now.
    pub fn changed(&mut self, place: impl fmt::Display, text: impl Into<String>) {
        self.add(Outcome::Changed, place, text);
    }

    /// Adds something that is lost.
    pub fn lost(&mut self, place: impl fmt::Display, text: impl Into<String>) {
        self.add(Outcome::Lost, place, text);
    }

    /// All lines.
    pub fn list(&self) -> &[Note] {
        &self.0
    }

    /// Whether something is lost.
    pub fn has_lost(&self) -> bool {
        self.0.iter().any(|note| note.outcome == Outcome::Lost)
    }
}
