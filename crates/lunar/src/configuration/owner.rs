//! Owners of files, by name: on another host, users have other numbers.

use crate::staged_files::FileOwner;
use lunar_server::{Diagnostic, ErrorCode};
use nix::unistd::{Gid, Group, Uid, User};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The names of user and group of a file; numbers without a name stay numbers.
pub(super) fn names(of: &Metadata) -> [String; 2] {
    let user = User::from_uid(Uid::from_raw(of.uid())).ok().flatten().map(|user| user.name);
    let group = Group::from_gid(Gid::from_raw(of.gid())).ok().flatten().map(|group| group.name);
    [user.unwrap_or_else(|| of.uid().to_string()), group.unwrap_or_else(|| of.gid().to_string())]
}

/// The owner with these names.
///
/// # Errors
/// When this host has no such user or group.
pub(super) fn of_names([user, group]: &[String; 2]) -> Result<FileOwner, Diagnostic> {
    let uid = User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
    let gid = Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw());
    let uid = uid.or_else(|| user.parse().ok()).ok_or_else(|| absent("user", user))?;
    Ok((uid, gid.or_else(|| group.parse().ok()).ok_or_else(|| absent("group", group))?))
}

fn absent(kind: &str, name: &str) -> Diagnostic {
    let what = format!("the {kind} {} does not exist on this host", name.escape_debug());
    Diagnostic::new(what, format!("create the {kind} first, for example by the package of Lunar"))
        .with_code(ErrorCode::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_the_same_by_its_names() {
        let metadata = std::fs::metadata(std::env::temp_dir()).unwrap();
        assert_eq!(of_names(&names(&metadata)), Ok((metadata.uid(), metadata.gid())));
        assert_eq!(of_names(&["12345".into(), "54321".into()]), Ok((12345, 54321)));
        let absent = of_names(&["no such user".into(), "0".into()]).unwrap_err();
        assert_eq!(absent.what, "the user no such user does not exist on this host");
    }
}
