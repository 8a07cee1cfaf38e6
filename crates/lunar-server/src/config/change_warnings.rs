//! Warnings about a change: the faults of the new configuration that the old one does not have.

use super::access_shadow::{EntryFault, shadowed};
use super::exposed::{SUBSYSTEM_HINT, admits_all, is_for_this_host_alone};
use super::{Config, access_lint, exposed, lax_names, subsystem_lint};

/// One line for each fault that a change makes, and that does not prevent it.
pub fn change_warnings(before: &Config, after: &Config) -> Vec<String> {
    let entries =
        new(shadowed(before), shadowed(after)).chain(new(open_entries(before), open_entries(after)));
    let known = faults(before);
    entries.chain(faults(after).into_iter().filter(|line| !known.contains(line))).collect()
}

fn faults(config: &Config) -> Vec<String> {
    let faults = access_lint(config).into_iter().chain(exposed(config)).chain(lax_names(config));
    faults.chain(subsystem_lint(config)).collect()
}

/// The faults of entries that are new. An entry with the same fault may have had another index before.
fn new<'c>(
    before: impl Iterator<Item = EntryFault<'c>>,
    after: impl Iterator<Item = EntryFault<'c>>,
) -> impl Iterator<Item = String> {
    let known: Vec<_> = before.map(|fault| (fault.target, fault.entry)).collect();
    after.filter(move |fault| !known.contains(&(fault.target, fault.entry))).map(|fault| fault.line)
}

/// The entries that admit every host of a target that only this host reaches. [`exposed`] has the others.
fn open_entries(config: &Config) -> impl Iterator<Item = EntryFault<'_>> {
    let targets = config.targets.iter().filter(|target| is_for_this_host_alone(config, target));
    targets.flat_map(|target| {
        let entries = target.access.iter().enumerate().filter(|(_, entry)| admits_all(entry));
        entries.map(|(at, entry)| {
            let name = &*target.name;
            let line = match target.subsystem {
                Some(_) => format!("{name} admits every host; hint: {SUBSYSTEM_HINT}"),
                None => format!(
                    "access entry {at} of {name} admits every host that no entry before it matches; hint: give it \
                     initiators, networks or chap"
                ),
            };
            EntryFault { target: name, entry, line }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    /// The warnings about a change of the access entries of a target.
    fn lines(portal: &str, before: &[&str], after: &[&str]) -> Vec<String> {
        let config = |entries: &[&str]| {
            let list: String = entries.iter().map(|entry| format!("[[target.access]]\n{entry}\n")).collect();
            let source = format!(
                "[[portal_group]]\ntag = 1\nportals = [\"{portal}:3260\"]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n{list}"
            );
            parse(&source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap()
        };
        change_warnings(&config(before), &config(after))
    }

    #[test]
    fn change_is_blamed_for_new_faults_only() {
        let (some, all) = ("initiators = [\"iqn.x\"]", "initiators = [\"*\"]");
        assert_eq!(lines("127.0.0.1", &[all], &[all]), [""; 0]);
        assert_eq!(
            lines("127.0.0.1", &[some, some, all], &["initiators = [\"iqn.y\"]", some, some, all]),
            [""; 0]
        );
        let [line] = &lines("127.0.0.1", &[some], &[some, all])[..] else { panic!("one") };
        assert!(line.starts_with("access entry 1 of iqn.2026-11.org.example:a admits every host"), "{line}");
        let [line] = &lines("0.0.0.0", &[some], &[some, all])[..] else { panic!("one") };
        let exposed =
            "every host that reaches a portal can use iqn.2026-11.org.example:a: access entry 1 admits all";
        assert!(line.starts_with(exposed), "{line}");
        let moved = lines("127.0.0.1", &[some], &["deny = true", some]);
        assert!(
            moved.len() == 1 && moved[0].starts_with("access entry 1 of iqn.2026-11.org.example:a never"),
            "{moved:?}"
        );
        assert_eq!(lines("0.0.0.0", &[some], &["networks = [\"192.0.2.0/24\"]", some]), [""; 0]);
    }

    #[test]
    fn open_subsystem_is_reported_in_its_own_words() {
        let config = |keys: &str| {
            let source = format!("[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n{keys}");
            parse(&source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap()
        };
        let some = "allowed_hosts = [\"nqn.2026-11.org.example:h\"]\n";
        let [line] = &change_warnings(&config(some), &config("read_only = true\n"))[..] else {
            panic!("one")
        };
        let hint = "add allowed_hosts, networks or [[subsystem.host]]";
        assert_eq!(*line, format!("nqn.2026-11.org.example:a admits every host; hint: {hint}"));
    }
}
