//! One report about several paths to a namespace.

use super::namespace_report::ExaminedPath;
use super::refer;
use super::report::{DoctorReport, Finding, Severity};
use crate::exit::Failure;
use lunar_initiator::multipath::PathState;
use lunar_initiator::nvme::NvmeUrl;
use lunar_initiator::{Error, ErrorCode};

/// The report about one path, and the failure if it cannot be used.
type Examined = (DoctorReport, Option<Failure>);

/// Makes one report of those about the paths of a URL, in its order. It describes the best path, and lists all of them. A
/// path that works is enough to use the URL, unless the paths lead to different namespaces.
pub fn merge(url: &NvmeUrl, examined: Vec<Examined>) -> Examined {
    let (reports, mut failures): (Vec<DoctorReport>, Vec<Option<Failure>>) = examined.into_iter().unzip();
    let portals = url.paths().into_iter().map(|path| path.portal.to_string());
    let paths: Vec<ExaminedPath> =
        portals.zip(&reports).map(|(portal, report)| ExaminedPath::of(portal, report)).collect();
    let mut findings = of_paths(&paths, &reports);
    let different = identity_fault(&paths);
    findings.extend(different.as_ref().map(broken));
    findings.extend(lone_path(&paths));
    let best = best(&reports);
    let mut failure = failures.swap_remove(best);
    if let Some(error) = different {
        failure = failure.or(Some(error.into()));
    }
    let mut report = reports.into_iter().nth(best).expect("a URL has a path");
    (report.url, report.paths, report.findings) = (url.to_string(), paths, findings);
    report.usable = failure.is_none();
    let failure = failure.map(|failure| refer(&report.url, failure));
    (report, failure)
}

/// The path in the best state; the first one if none can be used.
fn best(reports: &[DoctorReport]) -> usize {
    let access = |report: &DoctorReport| report.namespace.as_ref().map_or(PathState::Down, |one| one.access);
    let rank = |at: &usize| (!reports[*at].usable, access(&reports[*at]));
    (0..reports.len()).min_by_key(rank).expect("a URL has a path")
}

/// The findings about the paths. One that is the same on all usable paths concerns the namespace, and appears once. If some
/// path works, another one that does not is no more than a warning.
fn of_paths(paths: &[ExaminedPath], reports: &[DoctorReport]) -> Vec<Finding> {
    let usable = || reports.iter().filter(|report| report.usable);
    let is_common =
        |finding: &Finding| usable().count() > 1 && usable().all(|one| one.findings.contains(finding));
    let mut all: Vec<Finding> = Vec::new();
    for (path, report) in paths.iter().zip(reports) {
        for finding in &report.findings {
            let found = match is_common(finding) {
                true => finding.clone(),
                false => on_path(path, finding, usable().next().is_some()),
            };
            if !all.contains(&found) {
                all.push(found);
            }
        }
    }
    all
}

fn on_path(path: &ExaminedPath, finding: &Finding, others_work: bool) -> Finding {
    let weight = match finding.weight {
        // A path to the standby of a pair is as it should be.
        Severity::Broken if others_work && path.state == PathState::Standby.to_string() => Severity::Note,
        Severity::Broken if others_work => Severity::Warning,
        weight => weight,
    };
    Finding { weight, what: format!("path {}: {}", path.portal, finding.what), ..finding.clone() }
}

/// The fault of paths that do not show one namespace: an attachment, a copy and the like would refuse them.
fn identity_fault(paths: &[ExaminedPath]) -> Option<Error> {
    let found: Vec<&ExaminedPath> = paths.iter().filter(|path| path.namespace.is_some()).collect();
    let (first, others) = found.split_first()?;
    let other = others.iter().find(|other| other.identity != first.identity || other.identity.is_none())?;
    let shown = |path: &ExaminedPath| path.identity.clone().unwrap_or_else(|| "no identifier".into());
    let what = format!(
        "the paths do not lead to one namespace: {} has {}, and {} has {}",
        first.portal,
        shown(first),
        other.portal,
        shown(other)
    );
    let hint = match (&first.identity, &other.identity) {
        (Some(_), Some(_)) => "remove the portals of other namespaces from the URL",
        _ => {
            "use one path, or configure a UUID, NGUID or EUI64 on the target: without it, nothing shows that they are one"
        }
    };
    Some(Error::new(ErrorCode::IdentityMismatch, what).with_hint(hint))
}

fn broken(error: &Error) -> Finding {
    let hint = error.hint.as_ref().map(lunar_server::hints::words).unwrap_or_default().to_owned();
    Finding { weight: Severity::Broken, code: Some(error.code), what: error.what.clone(), hint }
}

/// The finding that no other path can take over.
fn lone_path(paths: &[ExaminedPath]) -> Option<Finding> {
    let mut found = paths.iter().filter(|path| path.namespace.is_some());
    let (Some(only), None) = (found.next(), found.next()) else { return None };
    Some(Finding {
        weight: Severity::Warning,
        code: None,
        what: format!("only the path {} leads to the namespace: when it fails, commands fail", only.portal),
        hint: "restore the other paths; lunar attach and lunar copy take them up again without a restart"
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examined(what: &[&str], usable: bool) -> Examined {
        let weight = if usable { Severity::Note } else { Severity::Broken };
        let finding = |what: &&str| Finding { weight, code: None, what: (*what).into(), hint: "x".into() };
        let findings = what.iter().map(finding).collect();
        let report = DoctorReport { usable, findings, is_nvme: true, ..DoctorReport::default() };
        let failure = (!usable).then(|| Failure::from(Error::new(ErrorCode::Unreachable, "down")));
        (report, failure)
    }

    fn merged(examined: [Examined; 2]) -> (Vec<(Severity, String)>, bool) {
        let url: NvmeUrl = "nvme://a/nqn.2026-11.org.example:x/1?paths=b".parse().expect("a URL");
        let (report, failure) = merge(&url, examined.into());
        assert_eq!((report.paths.len(), report.url), (2, url.to_string()));
        let findings = report.findings.into_iter().map(|finding| (finding.weight, finding.what)).collect();
        (findings, failure.is_none())
    }

    #[test]
    fn finding_of_all_paths_is_listed_once() {
        let both = merged([examined(&["slow", "full"], true), examined(&["full"], true)]);
        let note = |what: &str| (Severity::Note, what.to_owned());
        assert_eq!(both, (vec![note("path a:4420: slow"), note("full")], true));
    }

    #[test]
    fn unusable_path_is_a_warning_while_another_one_works() {
        let one = merged([examined(&["down"], false), examined(&["full"], true)]);
        let expected = [
            (Severity::Warning, "path a:4420: down".to_owned()),
            (Severity::Note, "path b:4420: full".to_owned()),
        ];
        assert_eq!(one, (expected.into(), true));
        let (found, is_usable) = merged([examined(&["down"], false), examined(&["down"], false)]);
        let broken = ["a", "b"].map(|host| (Severity::Broken, format!("path {host}:4420: down")));
        assert_eq!((found, is_usable), (broken.into(), false));
    }

    #[test]
    fn paths_to_different_namespaces_cannot_be_used() {
        let path = |portal: &str, identity: Option<&str>| ExaminedPath {
            portal: portal.into(),
            namespace: Some(1),
            identity: identity.map(Into::into),
            ..ExaminedPath::of(String::new(), &DoctorReport::default())
        };
        let fault = |one, other| identity_fault(&[path("a", one), path("b", other)]);
        assert!(fault(Some("uuid.1"), Some("uuid.1")).is_none());
        assert!(fault(Some("uuid.1"), None).is_some() && fault(None, None).is_some());
        let fault = fault(Some("uuid.1"), Some("uuid.2")).expect("two namespaces");
        assert_eq!(fault.code, ErrorCode::IdentityMismatch);
        assert!(fault.what.ends_with("a has uuid.1, and b has uuid.2"), "{}", fault.what);
    }
}
