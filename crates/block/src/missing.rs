//! A medium that is open while its path leads elsewhere.

use std::fmt;
use std::path::PathBuf;

/// How a medium is missing from the path that it was opened by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The path.
    pub path: PathBuf,
    /// The medium is a block device.
    pub is_device: bool,
    /// Something else is at the path now.
    pub is_replaced: bool,
    /// No name leads to the file any more: it ends with its last descriptor.
    pub is_unlinked: bool,
    /// The name that the file has now, as far as the system knows it.
    pub name_now: Option<PathBuf>,
    /// The descriptor of this process that holds it.
    pub descriptor: i32,
}

impl Missing {
    /// How to keep the data: a command where a copy is needed, otherwise what to do about the path.
    pub fn remedy(&self) -> String {
        let path = self.path.display();
        match &self.name_now {
            _ if self.is_device => {
                format!("attach the device again, or have another path served than {path}")
            }
            _ if self.is_unlinked => format!(
                "stop the hosts from writing, and before the server ends: cp --sparse=always /proc/{}/fd/{} {path}.saved",
                std::process::id(),
                self.descriptor
            ),
            Some(now) => format!("move it back: mv {} {path}", now.display()),
            None => format!("move it back to {path}"),
        }
    }
}

/// The fault, with its object.
impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match (self.is_unlinked, &self.name_now) {
            _ if self.is_device && self.is_replaced => write!(f, "{path} leads to another device"),
            _ if self.is_device => write!(f, "{path} does not exist any more"),
            (true, _) if self.is_replaced => write!(f, "{path} was replaced by another file"),
            (true, _) => write!(f, "{path} was deleted"),
            (false, Some(now)) if self.is_replaced => {
                write!(f, "{path} was moved to {} and replaced by another file", now.display())
            }
            (false, Some(now)) => write!(f, "{path} was moved to {}", now.display()),
            (false, None) => write!(f, "{path} leads to another file, or to none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_be_missing_names_object_and_remedy() {
        let gone = Missing {
            path: "/d/a.img".into(),
            is_device: false,
            is_replaced: false,
            is_unlinked: true,
            name_now: None,
            descriptor: 7,
        };
        let (replaced, now) = (true, Some("/d/b.img".into()));
        let copy = format!("cp --sparse=always /proc/{}/fd/7 /d/a.img.saved", std::process::id());
        let moved = Missing { is_unlinked: false, name_now: now, ..gone.clone() };
        let device = Missing { is_device: true, is_unlinked: false, ..gone.clone() };
        for (missing, what, remedy) in [
            (gone.clone(), "/d/a.img was deleted", copy.as_str()),
            (Missing { is_replaced: replaced, ..gone }, "/d/a.img was replaced by another file", &copy),
            (moved, "/d/a.img was moved to /d/b.img", "mv /d/b.img /d/a.img"),
            (device, "/d/a.img does not exist any more", "attach the device again"),
        ] {
            assert_eq!(missing.to_string(), what);
            assert!(missing.remedy().contains(remedy), "{}", missing.remedy());
        }
    }
}
