//! The user as which `lunar check --media` opens media: root may open what the service may not.

use super::unit::{self, UNIT};
use lunar_server::{Diagnostic, ErrorCode};
use nix::unistd::{Group, User, getgrouplist};
use rustix::process::{Gid, Uid};
use std::ffi::CString;
use std::path::Path;

/// A user with its groups.
#[derive(Debug)]
pub(super) struct MediaUser {
    pub(super) name: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// The user to examine media as. None: the caller. Beside it, the reason that it is not the user of the service.
///
/// # Errors
/// `--user` names a user that does not exist, or the caller is not root.
pub(super) fn chosen(wanted: Option<&str>) -> Result<(Option<MediaUser>, Option<String>), Diagnostic> {
    let is_root = rustix::process::geteuid().is_root();
    match wanted {
        Some(name) => of_option(name, is_root).map(|user| (user, None)),
        None if is_root => Ok(of_service()),
        None => Ok((None, None)),
    }
}

/// The user of the option.
fn of_option(name: &str, is_root: bool) -> Result<Option<MediaUser>, Diagnostic> {
    let user = MediaUser::find(name, None, &of_unit(name)).ok_or_else(|| {
        let what = format!("--user: the user {} does not exist on this host", name.escape_debug());
        Diagnostic::new(what, "`getent passwd` lists the users").with_code(ErrorCode::NotFound)
    })?;
    let is_caller = rustix::process::geteuid().as_raw() == user.uid;
    match is_root || is_caller {
        true => Ok(Some(user).filter(|_| !is_caller)),
        false => {
            let what = format!("--user: only root can check as the user {name}");
            Err(Diagnostic::new(what, "run it as root").with_code(ErrorCode::PermissionDenied))
        }
    }
}

/// The groups that the unit adds, if it runs as this user.
fn of_unit(name: &str) -> Vec<String> {
    let unit = unit::installed(Path::new("/")).filter(|unit| unit.user.as_deref() == Some(name));
    unit.map(|unit| unit.groups).unwrap_or_default()
}

/// The user of the installed service.
fn of_service() -> (Option<MediaUser>, Option<String>) {
    let Some(unit) = unit::installed(Path::new("/")) else { return (None, None) };
    let Some(name) = unit.user.filter(|name| name != "root") else { return (None, None) };
    match MediaUser::find(&name, unit.group.as_deref(), &unit.groups) {
        Some(user) => (Some(user), None),
        None => {
            let note = format!(
                "media were checked as root: the user {name} of {UNIT} does not exist, or one of its groups; hint: \
                 systemd-sysusers creates them"
            );
            (None, Some(note))
        }
    }
}

impl MediaUser {
    /// The user of this name, with its groups and some more. `group`: in place of its own group. None: this host lacks
    /// the user or a group.
    fn find(name: &str, group: Option<&str>, more: &[String]) -> Option<MediaUser> {
        let user = User::from_name(name).ok()??;
        let gid = |name: &str| Some(Group::from_name(name).ok()??.gid);
        let own = group.map_or(Some(user.gid), gid)?;
        let mut groups = getgrouplist(&CString::new(name).ok()?, own).ok()?;
        for name in more {
            groups.push(gid(name)?);
        }
        let groups = groups.into_iter().map(|gid| gid.as_raw()).collect();
        Some(MediaUser { name: name.into(), uid: user.uid.as_raw(), gid: own.as_raw(), groups })
    }

    /// Runs a function with the rights of the user. It runs in a thread of its own, because the kernel has credentials
    /// for each thread.
    ///
    /// # Errors
    /// The kernel refuses the change.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Diagnostic> {
        let cannot = |e: rustix::io::Errno| {
            let e = std::io::Error::from(e);
            Diagnostic::new(format!("cannot check as the user {}: {e}", self.name), "run it as root")
                .with_code(ErrorCode::from(e.kind()))
        };
        let run = || self.enter().map(|()| work());
        let ended = std::thread::scope(|scope| scope.spawn(run).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(cannot)
    }

    /// Gives the rights of the user to this thread for good.
    fn enter(&self) -> Result<(), rustix::io::Errno> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    }

    /// Adds to a problem that this user has it.
    pub(super) fn problem(&self, problem: Diagnostic) -> Diagnostic {
        let what = format!("{}, for the user {}", problem.what, self.name);
        let hint = "the service runs as this user: see docs/install.md; --user root checks as root";
        Diagnostic { what, hint: Some(hint.into()), ..problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn thread_has_the_rights_of_the_user_and_no_other_thread() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let path = std::env::temp_dir().join(format!("lunar-media-user-{}", std::process::id()));
        std::fs::write(&path, "x").unwrap();
        let open = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let user = MediaUser::find("daemon", None, &["root".into()]).expect("each host has it");
            user.run(|| std::fs::File::open(&path).is_ok()).unwrap()
        };
        assert_eq!([0o600, 0o640].map(open), [false, true], "the group root is one of its groups");
        assert!(rustix::process::geteuid().is_root() && std::fs::remove_file(&path).is_ok());
    }

    #[test]
    fn user_that_does_not_exist_is_an_error() {
        let problem = chosen(Some("no-such-user")).expect_err("no user");
        assert_eq!(problem.what, "--user: the user no-such-user does not exist on this host");
    }
}
