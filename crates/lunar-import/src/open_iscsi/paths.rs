//! Paths: a record is one portal of a target.

use super::OpenIscsiImport;
use super::record::IscsiFile;
use super::settings::keys;
use crate::NewPath;
use crate::attachment::is_user;
use crate::common::is_initiator;
use std::net::Ipv6Addr;

/// CHAP algorithms of records, and of URLs.
const ALGORITHMS: [(&str, &str); 4] =
    [("md5", "md5"), ("sha1", "sha1"), ("sha256", "sha-256"), ("sha3-256", "sha3-256")];

impl OpenIscsiImport {
    /// The path of a record. None: it is lost.
    pub(super) fn path(&mut self, record: &IscsiFile) -> Option<NewPath> {
        let target = record.value("node.name").unwrap_or_default().to_lowercase();
        let lost = if !is_initiator(&target) {
            Some(("node.name", format!("{target:?}, which is no iSCSI name")))
        } else if record.value("node.conn[0].address").is_none() {
            Some(("node.conn[0].address", format!("{target}: the record has no address")))
        } else {
            None
        };
        let iser = match record.value("iface.transport_name").unwrap_or("tcp") {
            "tcp" => Some(false),
            "iser" => Some(true),
            other => {
                let what = format!("{target}: the transport {other}, which only open-iscsi has");
                self.0.notes.lost(record.place("iface.transport_name"), what);
                None
            }
        };
        if let Some((key, what)) = lost {
            self.0.notes.lost(record.place(key), what);
            return None;
        }
        let (iser, portal) = (iser?, self.portal(record)?);
        let (user, target_user) = self.users(record);
        let mut path = NewPath { iser, portal, target, user, target_user, keys: Vec::new() };
        if iser {
            path.keys.push(("provider", "verbs".into()));
        }
        path.keys.extend(self.algorithms(record).filter(|_| path.user.is_some()));
        path.keys.extend(keys(record, iser, &mut self.0.notes));
        Some(path)
    }

    fn portal(&mut self, record: &IscsiFile) -> Option<String> {
        let address = record.value("node.conn[0].address").unwrap_or_default();
        let bare = address.trim_start_matches('[').trim_end_matches(']');
        let port = record.value("node.conn[0].port").map_or(Ok(3260), str::parse::<u16>);
        let is_name =
            !bare.is_empty() && bare.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'));
        let zone = bare.split_once('%').map_or(bare, |(address, _)| address);
        let is_zone = |c: char| c.is_ascii_alphanumeric() || matches!(c, '%' | ':' | '.' | '-' | '_');
        let is_v6 = zone.parse::<Ipv6Addr>().is_ok() && bare.chars().all(is_zone) && !bare.ends_with('%');
        let host = if is_v6 { Some(format!("[{bare}]")) } else { Some(bare.to_owned()).filter(|_| is_name) };
        match (host, port) {
            (Some(host), Ok(port)) if port > 0 => Some(format!("{host}:{port}")),
            _ => {
                let what = format!("the portal {address:?}, which is no address and port");
                self.0.notes.lost(record.place("node.conn[0].address"), what);
                None
            }
        }
    }

    /// The ids of the host's user and of the target's. The host has to use the secrets that the target has, so short
    /// ones are kept.
    fn users(&mut self, record: &IscsiFile) -> (Option<String>, Option<String>) {
        const AUTH: &str = "node.session.auth";
        let [name, secret, name_in, secret_in] = ["username", "password", "username_in", "password_in"]
            .map(|key| record.value(&format!("{AUTH}.{key}")).map(str::to_owned));
        let place = |key: &str| record.place(&format!("{AUTH}.{key}"));
        let is_mutual = name_in.is_some() || secret_in.is_some();
        if name.is_none() && secret.is_none() && !is_mutual {
            return (None, None);
        }
        if record.value("node.session.auth.authmethod") == Some("None") {
            let what =
                "a CHAP user with the authmethod None: the host logs in with it if the target demands CHAP";
            self.0.notes.changed(place("authmethod"), what);
        }
        let user = name.unwrap_or_else(|| "unknown".into());
        if !is_user(&user) {
            let what = format!("the CHAP user {user:?}, which a URL cannot have: set LUNAR_CHAP_USER");
            self.0.notes.lost(place("username"), what);
        }
        let chap = self.user(&user, secret.as_deref(), place("password"));
        if !is_mutual {
            return (Some(chap), None);
        }
        let user_in = name_in.unwrap_or_else(|| "unknown".into());
        // Both directions need secrets of their own (RFC 7143 section 9.2.1).
        let own_in = secret_in.filter(|own| Some(own) != secret.as_ref());
        let mutual = self.user(&user_in, own_in.as_deref(), place("password_in"));
        (Some(chap), Some(mutual))
    }

    /// The id of a user. iscsiadm shows asterisks in place of a secret.
    fn user(&mut self, name: &str, secret: Option<&str>, place: String) -> String {
        let secret = secret.filter(|secret| !secret.bytes().all(|byte| byte == b'*'));
        if secret.is_none() || name == "unknown" {
            self.0.notes.lost(place, format!("the CHAP user {name:?}, whose name or secret is not usable"));
        }
        self.0.configuration.chap_user(name, secret)
    }

    fn algorithms(&mut self, record: &IscsiFile) -> Option<(&'static str, String)> {
        const KEY: &str = "node.session.auth.chap_algs";
        let listed = record.value(KEY)?;
        let mut all = Vec::new();
        for name in listed.split(',').map(|name| name.trim().to_ascii_lowercase()) {
            match ALGORITHMS.iter().find(|(own, _)| *own == name) {
                Some((_, name)) => all.push(*name),
                None => self.0.notes.lost(record.place(KEY), format!("the CHAP algorithm {name:?}")),
            }
        }
        (!all.is_empty()).then(|| ("auth", all.join(",")))
    }
}
