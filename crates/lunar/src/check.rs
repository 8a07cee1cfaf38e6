//! `lunar check`: checks a configuration, and lists its content.

mod unit;
mod user;

use crate::args::CheckArgs;
use crate::client::json;
use crate::output::{self, count};
use crate::serve::{cannot_serve, warnings};
use lunar_admin::rows;
use lunar_server::config::router::{From, Map, RouterConfig, RouterTarget};
use lunar_server::config::{self, Config, Target};
use lunar_server::{Diagnostic, ErrorCode, Examined, folders};
use nix::unistd::User;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

/// A configuration without faults.
#[derive(Serialize, ToSchema)]
pub struct CheckReport {
    /// The file.
    #[schema(value_type = String)]
    file: PathBuf,
    targets: usize,
    luns: usize,
    /// NVMe subsystems, which do not count as targets.
    subsystems: usize,
    /// Namespaces of all subsystems, also those that are LUNs of targets.
    namespaces: usize,
    portals: usize,
    /// Access entries of targets.
    access_entries: usize,
    routers: usize,
    /// The user for whom media were checked; null if they were not.
    user: Option<String>,
    /// Faults that do not prevent the service.
    warnings: Vec<String>,
}

/// Checks a configuration file and summarizes it. Warnings of the text form go to stderr.
pub fn check(args: &CheckArgs) -> Result<String, Vec<Diagnostic>> {
    let (file, as_json) = (args.file.as_path(), args.json);
    let config = config::load(file)?;
    let found = config::unused(&config).into_iter().chain(config::access_lint(&config));
    let found = found.chain(config::access_shadow(&config)).chain(config::lax_names(&config));
    let found = found.chain(config::upstream_secrets(&config));
    let mut found: Vec<String> = found.chain(warnings(&config)).collect();
    let examined = args.media.then(|| examine_as(&config, file, args.user.as_deref())).transpose()?;
    let (user, problems) = match examined {
        Some((examined, user)) => {
            found.extend(examined.notes);
            (Some(user), examined.problems)
        }
        None => (None, Vec::new()),
    };
    if !as_json {
        found.iter().for_each(|note| output::stderr_line(format_args!("warning: {note}")));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let report = CheckReport { user, ..CheckReport::new(&config, file, found) };
    match as_json {
        true => json(&report).map_err(|failure| failure.problems),
        false => {
            let user =
                report.user.as_ref().map_or(String::new(), |user| format!("; checked for the user {user}"));
            let counts = report.counts();
            let text = format!("{} is fine: {counts}{user}\n{}", file.display(), routes(&config.routers));
            Ok(output::success(text))
        }
    }
}

/// Examines the media for a user: as the caller, and then with the rights of that user. Returns its name too.
fn examine_as(
    config: &Config,
    file: &Path,
    wanted: Option<&str>,
) -> Result<(Examined, String), Vec<Diagnostic>> {
    let one = |problem| vec![problem];
    let (user, note) = user::chosen(wanted).map_err(one)?;
    let mut found = examine_media(config, file)?;
    found.notes.extend(note);
    let Some(user) = user else { return Ok((found, own_name())) };
    let (denied, unread) = user.run(|| (examine_media(config, file), unreadable(file))).map_err(one)?;
    found.notes.extend(unread.into_iter().map(|file| format!("the user {} cannot read {file}", user.name)));
    // The caller sees more of the other problems: who uses a medium, for example.
    let denied = denied?.problems.into_iter().filter(|problem| problem.code == ErrorCode::PermissionDenied);
    let known: Vec<String> = found.problems.iter().map(|problem| problem.what.clone()).collect();
    let denied = denied.filter(|problem| !known.contains(&problem.what));
    found.problems.extend(denied.map(|problem| user.problem(problem)));
    Ok((found, user.name))
}

/// The files of a configuration that this thread may not read.
fn unreadable(file: &Path) -> Vec<String> {
    let drop_ins = config::drop_in_files(file).unwrap_or_default();
    let files = std::iter::once(file.to_path_buf()).chain(drop_ins);
    let denied =
        |file: &PathBuf| File::open(file).is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
    files.filter(denied).map(|file| file.display().to_string()).collect()
}

/// The name of the caller.
fn own_name() -> String {
    let uid = nix::unistd::geteuid();
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Examines the media that a configuration would open.
fn examine_media(config: &Config, file: &Path) -> Result<Examined, Vec<Diagnostic>> {
    let state_dir = config.server.state_dir.clone().map_or_else(folders::state, Ok);
    let mut found = lunar_server::examine(config, &state_dir.map_err(|problem| vec![problem])?, file);
    found.problems.extend(config.server.cores.usable().err().map(Diagnostic::from));
    for (portal, e) in lunar_target::cannot_bind(&config.portal_groups) {
        let problem = cannot_serve(&e);
        match problem.code {
            ErrorCode::InUse => found.portal_in_use(portal, problem),
            _ => found.problems.push(problem),
        }
    }
    Ok(found)
}

impl CheckReport {
    fn new(config: &Config, file: &Path, warnings: Vec<String>) -> CheckReport {
        let Config { targets, portal_groups, routers, .. } = config;
        let (subsystems, targets): (Vec<&Target>, Vec<&Target>) =
            targets.iter().partition(|target| target.subsystem.is_some());
        CheckReport {
            file: file.into(),
            targets: targets.len(),
            luns: targets.iter().map(|target| target.disks()).sum(),
            subsystems: subsystems.len(),
            namespaces: subsystems.iter().map(|subsystem| subsystem.disks()).sum(),
            portals: portal_groups.iter().map(|group| group.portals.len()).sum(),
            access_entries: targets.iter().map(|target| target.access.len()).sum(),
            routers: routers.len(),
            user: None,
            warnings,
        }
    }

    fn counts(&self) -> String {
        let entries = self.access_entries;
        let access = if entries == 1 { "1 access entry".into() } else { format!("{entries} access entries") };
        let mut parts = vec![count(self.targets, "target"), count(self.luns, "LUN")];
        if self.subsystems > 0 {
            parts.extend([count(self.subsystems, "subsystem"), count(self.namespaces, "namespace")]);
        }
        parts.extend([count(self.portals, "portal"), access]);
        if self.routers > 0 {
            parts.push(count(self.routers, "router"));
        }
        parts.join(", ")
    }
}

/// The targets of routers as a table; empty without routers.
fn routes(routers: &[RouterConfig]) -> String {
    let rows: Vec<[String; 5]> =
        routers.iter().flat_map(|router| router.targets.iter().map(|target| row(router, target))).collect();
    if rows.is_empty() {
        return String::new();
    }
    "\n".to_owned() + &rows::table(["ROUTER", "MAP", "NAME", "UPSTREAM", "ACCESS"], rows.into_iter())
}

fn row(router: &RouterConfig, target: &RouterTarget) -> [String; 5] {
    let upstream = match &target.map {
        Map::Transparent { upstream } | Map::Target { upstream, .. } => placed(router, upstream),
        Map::Lun { luns, .. } => behind(luns),
    };
    let name = target.map.name().unwrap_or("as upstream");
    let map = target.map.kind();
    [router.name.clone(), map.into(), name.into(), upstream, target.access.names.join(", ")]
}

/// An upstream with its location.
fn placed(router: &RouterConfig, name: &str) -> String {
    router.upstreams.get(name).map_or(name.into(), |upstream| format!("{name}: {}", upstream.location()))
}

/// Limit of listed LUNs per target.
const LISTED: usize = 8;

/// The sources of the LUNs of a target.
fn behind(luns: &BTreeMap<u16, From>) -> String {
    let one = |(number, from): (&u16, &From)| match from.lun {
        Some(lun) => format!("{number} = {}/{lun}", from.upstream),
        None => format!("{number} = {}", from.upstream),
    };
    let mut list: Vec<String> = luns.iter().take(LISTED).map(one).collect();
    if luns.len() > LISTED {
        list.push(format!("and {} more", luns.len() - LISTED));
    }
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(source: &str) -> String {
        let config = config::parse(source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap();
        routes(&config.routers)
    }

    #[test]
    fn check_lists_router_mappings_and_access() {
        let source = "[router.r1.upstream]\na.urls = [\"iscsi://192.0.2.1\"]\n\
            b.urls = [\"iscsi://bob%hidden@192.0.2.1/iqn.x:t\"]\nc.memory = \"1M\"\n\
            [[router.r1.target]]\nmap = \"transparent\"\nupstream = \"a\"\naccess = \"all\"\n\
            [[router.r1.target]]\nmap = \"target\"\nname = \"iqn.2026-11.org.example:b\"\nupstream = \"b\"\n\
            access = [\"lab\", \"ops\"]\n\
            [[router.r1.target]]\nmap = \"lun\"\nname = \"iqn.2026-11.org.example:c\"\naccess = \"none\"\n\
            lun = [{ lun = 0, upstream = \"b\", from = 3 }, { lun = 7, upstream = \"c\" }]\n[access]\nlab = {}\nops = {}\n";
        let wanted = "
ROUTER  MAP          NAME                       UPSTREAM                           ACCESS
r1      transparent  as upstream                a: iscsi://192.0.2.1:3260          all
r1      target       iqn.2026-11.org.example:b  b: iscsi://192.0.2.1:3260/iqn.x:t  lab, ops
r1      lun          iqn.2026-11.org.example:c  0 = b/3, 7 = c                     none
";
        assert_eq!(table(source), wanted);
        assert_eq!(table("[[target]]\nname = \"iqn.2026-11.org.example:t\"\n"), "");
    }

    #[test]
    fn subsystems_are_no_targets() {
        let target = "[[target]]\nname = \"iqn.2026-11.org.example:t\"\n\
            [[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1G\"\n";
        let subsystem = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:s\"\nread_only = true\n\
            [[subsystem.namespace]]\nnsid = 1\ntarget = \"iqn.2026-11.org.example:t\"\nlun = 0\n\
            [[subsystem.namespace]]\nnsid = 2\nbackend = \"null\"\nsize = \"1G\"\n";
        let counts = |source: &str| {
            let config =
                config::parse(source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap();
            CheckReport::new(&config, "t.toml".as_ref(), Vec::new()).counts()
        };
        assert_eq!(counts(target), "1 target, 1 LUN, 1 portal, 0 access entries");
        let both = "1 target, 1 LUN, 1 subsystem, 2 namespaces, 1 portal, 0 access entries";
        assert_eq!(counts(&format!("{target}{subsystem}")), both);
    }

    #[test]
    fn many_luns_are_counted() {
        let from = From { upstream: "a".into(), lun: None };
        let luns: BTreeMap<u16, From> = (0..10).map(|number| (number, from.clone())).collect();
        assert!(behind(&luns).ends_with("7 = a, and 2 more"), "{}", behind(&luns));
    }
}
