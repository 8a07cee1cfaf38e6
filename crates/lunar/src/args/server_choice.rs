//! Options that choose the server of a command.

use crate::session::{one, servers};
use clap::Args;
use lunar_api::client::{ClientCredentials, ServerAddress};
use lunar_server::Diagnostic;
use std::path::PathBuf;

/// The server of a command: an admin socket of this host, or an HTTPS URL.
#[derive(Args, Clone, Debug, Default)]
pub struct ServerChoice {
    /// Admin socket of the server [default: lunar.sock in your runtime folder; for root, in /run/lunar]
    #[arg(long, value_name = "PATH", conflicts_with = "server")]
    pub socket: Option<PathBuf>,

    /// Server of another host: https://HOST:PORT [default: $LUNAR_SERVER]
    #[arg(long, value_name = "URL", help_heading = REMOTE)]
    pub server: Option<String>,

    /// File with the token for --server, mode 0600 [default: $LUNAR_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = REMOTE)]
    pub token_file: Option<PathBuf>,

    /// Authorities of the certificate of --server, PEM [default: $LUNAR_CA_FILE, or those of the system]
    #[arg(long, value_name = "FILE", help_heading = REMOTE)]
    pub ca: Option<PathBuf>,

    /// Client certificate for --server, PEM [default: $LUNAR_CERT_FILE]
    #[arg(long, value_name = "FILE", help_heading = REMOTE)]
    pub cert: Option<PathBuf>,

    /// Private key of --cert [default: $LUNAR_KEY_FILE, or the file of --cert]
    #[arg(long, value_name = "FILE", help_heading = REMOTE)]
    pub key: Option<PathBuf>,
}

const REMOTE: &str = "Remote server";

impl ServerChoice {
    /// The server of the options or of the environment. None: the servers of this host.
    ///
    /// # Errors
    /// The fault of the URL or of a file.
    pub fn remote(&self) -> Result<Option<ServerAddress>, Diagnostic> {
        self.remote_with(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn remote_with(
        &self,
        env: impl Fn(&str) -> Option<std::ffi::OsString>,
    ) -> Result<Option<ServerAddress>, Diagnostic> {
        if self.socket.is_some() {
            return Ok(None);
        }
        let of_env = || env("LUNAR_SERVER").map(|url| url.to_string_lossy().into_owned());
        let Some(url) = self.server.clone().or_else(of_env) else { return Ok(None) };
        let file =
            |option: &Option<PathBuf>, name: &str| option.clone().or_else(|| env(name).map(PathBuf::from));
        let credentials = ClientCredentials {
            token: file(&self.token_file, "LUNAR_TOKEN_FILE"),
            ca: file(&self.ca, "LUNAR_CA_FILE"),
            certificate: file(&self.cert, "LUNAR_CERT_FILE"),
            key: file(&self.key, "LUNAR_KEY_FILE"),
        };
        ServerAddress::https(&url, &credentials).map(Some)
    }

    /// The only server.
    ///
    /// # Errors
    /// When several run on this host.
    pub fn one(&self) -> Result<ServerAddress, Diagnostic> {
        one(servers(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_takes_precedence_over_the_environment() {
        let env = |name: &str| (name == "LUNAR_SERVER").then(|| "https://moon:1".into());
        let chosen = |choice: ServerChoice| {
            choice.remote_with(env).map_err(|problem| problem.what).unwrap().map(|server| server.to_string())
        };
        assert_eq!(chosen(ServerChoice::default()), Some("https://moon:1".into()));
        let server = Some("https://sun:2".into());
        assert_eq!(chosen(ServerChoice { server, ..Default::default() }), Some("https://sun:2".into()));
        assert_eq!(chosen(ServerChoice { socket: Some("/s".into()), ..Default::default() }), None);
    }

    #[test]
    fn unreadable_token_of_a_remote_server_is_reported() {
        let choice = ServerChoice {
            server: Some("https://moon".into()),
            token_file: Some("/nonexistent/token".into()),
            ..Default::default()
        };
        let problem = choice.remote_with(|_| None).unwrap_err();
        assert!(problem.what.starts_with("cannot read the secret /nonexistent/token: "), "{problem}");
    }
}
