//! Unused parts of a configuration.

use super::{Config, RouterConfig};

/// One line for each access list that no target names, for each upstream that no mapping uses, and for each disk that
/// no target shows.
pub fn unused(config: &Config) -> Vec<String> {
    let granted: Vec<&String> = config
        .routers
        .iter()
        .flat_map(|router| &router.targets)
        .flat_map(|target| &target.access.names)
        .collect();
    let lists = config.access_lists.iter().filter(|name| !granted.contains(name));
    let lists = lists.map(|name| format!("[access.{name}] is used by no [[router.NAME.target]]"));
    lists.chain(disks(config)).chain(config.routers.iter().flat_map(upstreams)).collect()
}

fn disks(config: &Config) -> impl Iterator<Item = String> {
    let luns = config.targets.iter().flat_map(|target| target.luns.values());
    let shown: Vec<&String> = luns.filter_map(|lun| lun.disk.as_ref()).collect();
    let idle = config.disks.keys().filter(move |name| !shown.contains(name));
    idle.map(|idle| format!("the [[disk]] {idle} is shown by no target"))
}

fn upstreams(router: &RouterConfig) -> Vec<String> {
    let used: Vec<&str> = router.targets.iter().flat_map(|target| target.map.upstreams()).collect();
    let idle = router.upstreams.keys().filter(|name| !used.contains(&name.as_str()));
    let name = &router.name;
    idle.map(|idle| format!("[router.{name}.upstream.{idle}] is used by no [[router.{name}.target]]"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn unused_sections_are_reported() {
        let source = "[router.r1.upstream]\na.memory = \"1M\"\nb.memory = \"1M\"\n\
            [[router.r1.target]]\nmap = \"lun\"\nname = \"iqn.2026-11.org.example:c\"\naccess = [\"lab\"]\n\
            lun = [{ lun = 0, upstream = \"b\" }]\n[access]\nlab = {}\nops = {}\n\
            [[disk]]\nname = \"d\"\nbackend = \"null\"\nsize = 4096\n";
        let config = parse(source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap();
        assert_eq!(
            unused(&config),
            [
                "[access.ops] is used by no [[router.NAME.target]]",
                "the [[disk]] d is shown by no target",
                "[router.r1.upstream.a] is used by no [[router.r1.target]]"
            ]
        );
        let used = source.replace("upstream = \"b\" }", "upstream = \"b\" }, { lun = 1, upstream = \"a\" }");
        let used = used
            + "[[target]]\nname = \"iqn.2026-11.org.example:t\"\n[[target.lun]]\nlun = 0\ndisk = \"d\"\n";
        let config = parse(&used.replace("\"lab\"", "\"lab\", \"ops\""), "t.toml".as_ref());
        assert_eq!(unused(&config.map_err(|list| list[0].to_string()).unwrap()), [""; 0]);
    }
}
