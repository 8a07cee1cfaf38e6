//! The errors of a stopped server that could not flush all data.

use lunar_config::io_text;
use lunar_server::Diagnostic;
use lunar_server::config::{Config, Source};
use lunar_target::FlushFailure;

/// One error for each medium that could not be flushed. `whole`: the configuration with the targets of routers.
pub fn diagnostics(failures: &[FlushFailure], whole: &Config) -> Vec<Diagnostic> {
    failures.iter().map(|failure| diagnostic(failure, whole)).collect()
}

fn diagnostic(failure: &FlushFailure, whole: &Config) -> Diagnostic {
    let Some((target, lun)) = &failure.lun else {
        return Diagnostic::new(
            format!("cannot flush all data: {}", io_text(&failure.error)),
            "unflushed writes may be lost: read the log",
        );
    };
    let source = source(whole, target, *lun);
    let place = source.map_or_else(String::new, |source| format!(" ({source})"));
    Diagnostic::new(
        format!("LUN {lun} of {target}{place}: cannot flush all data: {}", io_text(&failure.error)),
        hint(source),
    )
}

fn source<'c>(whole: &'c Config, target: &str, lun: u16) -> Option<&'c Source> {
    let target = whole.targets.iter().find(|one| one.name == target)?;
    Some(&target.luns.get(&lun)?.source)
}

fn hint(source: Option<&Source>) -> String {
    match source.and_then(Source::lu_address) {
        Some(address) => format!(
            "unflushed writes may be lost: check the path to the storage of upstream {}, and the storage itself",
            address.upstream
        ),
        None => "unflushed writes may be lost: read the system log, and check the disk".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_router::routes::LuAddress;
    use lunar_server::config;
    use std::io;
    use std::sync::Arc;

    const TARGET: &str = "iqn.2026-11.org.example:a";

    /// The error of LUN 0 of a target that serves `source`.
    fn error_of(source: Option<Source>) -> String {
        let text = format!(
            "[[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1G\"\n"
        );
        let mut whole = config::parse(&text, std::path::Path::new("lunar.toml")).unwrap();
        if let Some(source) = source {
            Arc::make_mut(&mut whole.targets[0].luns).get_mut(&0).unwrap().source = source;
        }
        let lun = Some((TARGET.to_owned(), 0));
        let failure = FlushFailure { lun, error: io::Error::other("Device error: not ready") };
        diagnostics(&[failure], &whole)[0].to_string()
    }

    #[test]
    fn unflushed_routed_lun_names_router_and_upstream() {
        let address = LuAddress {
            router: "r1".into(),
            upstream: "a".into(),
            target: "iqn.2026-11.org.example:disks".into(),
            lun: 3,
        };
        let error = error_of(Some(Source::Routed(address)));
        for part in [
            "LUN 0 of iqn.2026-11.org.example:a (router r1, upstream a, LUN 3 of iqn.2026-11.org.example:disks)",
            ": cannot flush all data: device error: not ready",
            "check the path to the storage of upstream a",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("check the disk"), "{error}");
    }

    #[test]
    fn unflushed_disk_names_lun_and_disk() {
        let error = error_of(None);
        for part in ["LUN 0 of iqn.2026-11.org.example:a (null, 1", "check the disk"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
