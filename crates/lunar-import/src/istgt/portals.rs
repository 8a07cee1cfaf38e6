//! Portal groups.

use super::IstgtImport;
use super::file::{IstgtKey, IstgtSection};
use crate::portals::PortalSets;
use crate::{NewPortal, NewTransport};
use std::collections::{BTreeMap, BTreeSet};

/// The tags of each portal group of the file.
pub(super) type PortalTags = BTreeMap<u16, BTreeSet<u16>>;

impl IstgtImport {
    /// Adds the portal groups.
    pub(super) fn portal_groups(&mut self, sections: &[IstgtSection]) -> PortalTags {
        let mut sets = PortalSets::default();
        let mut numbers = Vec::new();
        for section in sections {
            let Some(number) = section.number("PortalGroup") else { continue };
            if number == 0 {
                self.0.notes.lost(&section.place, "[PortalGroup0]: a tag is at least 1");
                continue;
            }
            numbers.push(number);
            let portals: Vec<NewPortal> = section.all("Portal").filter_map(|key| self.portal(key)).collect();
            sets.add(Some(number), portals);
        }
        let tags = self.0.portal_groups(&mut sets, "PortalGroup");
        numbers.into_iter().zip(tags).collect()
    }

    fn portal(&mut self, key: &IstgtKey) -> Option<NewPortal> {
        let address = key.word(1);
        let listen = listen(address);
        if listen.is_none() {
            self.0.notes.lost(&key.place, format!("the portal {address:?}, which is no address"));
        }
        listen.map(|listen| NewPortal { listen, transport: NewTransport::Tcp })
    }
}

/// An address with its port. A star stands for every address.
fn listen(text: &str) -> Option<String> {
    let text = if text.starts_with("*") { text.replacen('*', "0.0.0.0", 1) } else { text.to_owned() };
    let with_port = if text.ends_with(']') || !text.contains(':') { format!("{text}:3260") } else { text };
    with_port.parse::<std::net::SocketAddr>().ok().map(|address| address.to_string())
}
