//! Log lines about LUNs of upstreams that block mode cannot serve.

use lunar_server::config::{Config, Source};
use lunar_server::routes::{Found, Missing, missing};
use std::collections::BTreeMap;

/// The logged lines, each with whether it is only for information. Each discovery finds the same LUNs again.
#[derive(Default)]
pub struct UnservedLog(BTreeMap<String, bool>);

impl UnservedLog {
    /// Logs the LUNs that are new. `whole`: `config` with the targets of routers.
    pub fn log(&mut self, config: &Config, whole: &Config, found: &Found) {
        let all = config.routers.iter().flat_map(|router| missing(router, whole, found));
        for (line, is_info) in self.new_lines(all) {
            if is_info { tracing::info!("{line}") } else { tracing::warn!("{line}") }
        }
    }

    fn new_lines(&mut self, all: impl Iterator<Item = Missing>) -> BTreeMap<String, bool> {
        let now: BTreeMap<String, bool> = all.filter_map(line).collect();
        let before = std::mem::replace(&mut self.0, now.clone());
        now.into_iter().filter(|(line, _)| !before.contains_key(line)).collect()
    }
}

fn line(missing: Missing) -> Option<(String, bool)> {
    let refusal = missing.refusal?;
    let source = Source::Routed(missing.address);
    let line =
        format!("{source} is not served: {}; hint: set mode = \"passthrough\" to route the LUN", refusal.why);
    Some((line, refusal.is_controller))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_admin::router::LunHealth;
    use lunar_router::routes::LuAddress;
    use lunar_server::routes::BlockModeRefusal;

    fn refused(lun: u16, is_controller: bool) -> Missing {
        let address = LuAddress {
            router: "r1".into(),
            upstream: "a".into(),
            target: "iqn.2026-11.org.example:d".into(),
            lun,
        };
        let refusal = Some(BlockModeRefusal { why: "the LUN is no disk".into(), is_controller });
        Missing {
            target: "iqn.2026-11.org.example:t".into(),
            lun,
            address,
            why: LunHealth::NotServed,
            refusal,
        }
    }

    #[test]
    fn refused_lun_is_logged_once_until_it_changes() {
        let mut log = UnservedLog::default();
        let mut new = |all: &[Missing]| log.new_lines(all.iter().cloned()).into_values().collect::<Vec<_>>();
        let (controller, tape) = (refused(0, true), refused(1, false));
        assert_eq!(new(&[controller.clone(), controller.clone()]), [true], "two mappings of one LUN");
        assert_eq!(new(&[controller.clone(), tape.clone()]), [false]);
        assert!(new(&[controller.clone(), tape]).is_empty());
        assert!(new(&[]).is_empty());
        assert_eq!(new(&[controller]), [true]);
    }
}
