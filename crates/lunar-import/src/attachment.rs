//! Saved attachments of `lunar attach`, which importers of initiators make.

use crate::Configuration;
use std::fmt::Write as _;

/// A disk of a target with its paths.
#[derive(Debug, PartialEq)]
pub struct NewAttachment {
    /// Its name, which is that of its file.
    pub name: String,
    /// Its paths, at least one.
    pub paths: Vec<NewPath>,
    /// The time in seconds that I/O waits while no path works; None: the default.
    pub recovery_timeout: Option<u64>,
}

/// A path: a portal of a target.
#[derive(Clone, Debug, PartialEq)]
pub struct NewPath {
    /// Whether it uses iSER.
    pub iser: bool,
    /// `HOST:PORT`.
    pub portal: String,
    /// The iSCSI name of the target.
    pub target: String,
    /// Id of the user as which the host logs in.
    pub user: Option<String>,
    /// Id of the user as which the target has to authenticate itself.
    pub target_user: Option<String>,
    /// Other keys of the URL, with their values.
    pub keys: Vec<(&'static str, String)>,
}

impl NewAttachment {
    /// The text of its file. Secrets are in the files `ID.secret` of the folder `secrets`, relative to the file.
    pub fn toml(&self, configuration: &Configuration, secrets: &str) -> String {
        let urls: Vec<String> = self.paths.iter().map(|path| path.url(configuration, secrets)).collect();
        let quoted = |url: &String| toml::Value::String(url.clone()).to_string();
        let mut text = String::new();
        if let Some((first, others)) = urls.split_first() {
            _ = writeln!(text, "url = {}", quoted(first));
            if !others.is_empty() {
                let others: Vec<String> = others.iter().map(quoted).collect();
                _ = writeln!(text, "paths = [{}]", others.join(", "));
            }
        }
        text += "ublk = true\n";
        if let Some(seconds) = self.recovery_timeout {
            _ = writeln!(text, "recovery_timeout = {seconds}");
        }
        text
    }
}

impl NewPath {
    fn url(&self, configuration: &Configuration, secrets: &str) -> String {
        let name = |id: &String| {
            let user = configuration.chap_users.iter().find(|user| user.id == *id);
            user.map(|user| user.name.clone()).unwrap_or_default()
        };
        let scheme = if self.iser { "iser" } else { "iscsi" };
        // A user that a URL cannot have comes from the environment.
        let user = self.user.as_ref().map(name).filter(|user| is_user(user));
        let user = user.map(|user| format!("{user}@")).unwrap_or_default();
        let file = |id: &String| format!("{secrets}/{id}.secret");
        let credentials = [
            ("password_file", self.user.as_ref().map(file)),
            ("target_user", self.target_user.as_ref().map(name)),
            ("target_password_file", self.target_user.as_ref().map(file)),
        ];
        let credentials = credentials.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let keys: Vec<String> = credentials
            .chain(self.keys.iter().cloned())
            .map(|(key, value)| format!("{key}={}", encoded(&value, "/:,")))
            .collect();
        let query = if keys.is_empty() { String::new() } else { format!("?{}", keys.join("&")) };
        format!("{scheme}://{user}{}/{}{query}", self.portal, encoded(&self.target, ":"))
    }
}

/// Whether a name can be the user of a URL, where it stands as it is.
pub(crate) fn is_user(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_control() || "@/?%:".contains(c))
}

/// A text in percent-encoding, except for letters, digits, and these characters.
fn encoded(text: &str, plain: &str) -> String {
    let mut all = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || plain.contains(c) {
            all.push(c);
        } else {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| _ = write!(all, "%{byte:02X}"));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_no_character_that_ends_a_part() {
        let mut configuration = Configuration::default();
        let [user, bad] = ["host a", "a@b"].map(|name| configuration.chap_user(name, None));
        let path = |user: String| NewPath {
            iser: true,
            portal: "[2001:db8::1]:3260".into(),
            target: "iqn.a:b/c".into(),
            user: Some(user),
            target_user: None,
            keys: vec![("header_digest", "crc32c,none".into())],
        };
        assert_eq!(
            path(user).url(&configuration, "s"),
            "iser://host a@[2001:db8::1]:3260/iqn.a:b%2Fc?password_file=s/host_a.secret&header_digest=crc32c,none"
        );
        assert!(path(bad).url(&configuration, "s").starts_with("iser://[2001:db8::1]:3260/"));
    }
}
