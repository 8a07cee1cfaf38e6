//! Files with secrets that the URLs of upstreams name. A server reads them when it connects, so it starts without them.

use super::attachment::secret_files;
use super::chap::{SecretSource, secret_text};
use super::router::{RemoteUrl, UpstreamSource};
use super::{Config, server_owner, subsystem};
use lunar_config::InvalidValue;
use std::path::PathBuf;

/// One line for each file of an upstream that cannot be read or holds no secret.
pub fn upstream_secrets(config: &Config) -> Vec<String> {
    let source =
        SecretSource { given: None, owner: server_owner(&config.sources.whole).map(|(user, _)| user) };
    let upstreams = config.routers.iter().flat_map(|router| {
        router.upstreams.iter().map(move |(name, upstream)| (&router.name, name, &upstream.source))
    });
    let mut lines = Vec::new();
    for (router, name, at) in upstreams {
        let UpstreamSource::Remote { urls } = at else { continue };
        for fault in urls.iter().flat_map(|url| faults(url, source)) {
            let InvalidValue { what, hint, .. } = fault;
            let line = format!("the upstream {name} of router {router}: {what}; hint: {hint}");
            // The paths of an upstream have the same secret.
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

fn faults(url: &RemoteUrl, source: SecretSource<'_>) -> Vec<InvalidValue> {
    let read = |file: PathBuf| match url.is_nvme() {
        true => subsystem::secret(&file, source).err(),
        false => secret_text(&file, source).err(),
    };
    secret_files(url.secret_text()).into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::Folder;

    #[test]
    fn unusable_secret_of_an_upstream_is_reported() {
        let folder = Folder::new("upstream-secrets");
        folder.file("bad.key", "DHHC-1:00:AAAA:", 0o600);
        folder.file("open.secret", "twelve bytes", 0o644);
        let lines = |url: &str| {
            let text = format!(
                "[router.r1.upstream.u]\nurls = [\"{url}\"]\n[[router.r1.target]]\nmap = \"target\"\n\
                 name = \"iqn.2026-11.org.example:b\"\nupstream = \"u\"\naccess = \"all\"\n"
            );
            let path = folder.file("lunar.toml", text, 0o600);
            upstream_secrets(&crate::config::load(&path).map_err(|list| list[0].to_string()).unwrap())
        };
        let nvme = "nvme://192.0.2.1/nqn.2026-11.org.example:far";
        let iscsi = "iscsi://ann@192.0.2.1/iqn.x:t";
        for (url, expected) in [
            (format!("{nvme}?secret_file=bad.key"), "bad.key: "),
            (format!("{nvme}?secret_file=none.key"), "cannot read the secret "),
            (format!("{iscsi}?password_file=open.secret"), "open.secret has mode 0644"),
        ] {
            let [line] = &lines(&url)[..] else { panic!("{url}: one line") };
            assert!(line.starts_with("the upstream u of router r1: ") && line.contains(expected), "{line}");
        }
        folder.file("open.secret", "twelve bytes", 0o600);
        assert_eq!(lines(&format!("{iscsi}?password_file=open.secret")), [""; 0]);
        assert_eq!(lines(nvme), [""; 0]);
    }
}
