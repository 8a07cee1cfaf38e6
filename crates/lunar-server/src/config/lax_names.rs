//! Target names that Lunar serves although RFC 3722 prohibits a character of them.

use super::Config;

/// One line for each target with an underscore in its name. Other targets accept it, and hosts know such a name, so it
/// must not change when Lunar replaces them.
pub fn lax_names(config: &Config) -> Vec<String> {
    let names = config.targets.iter().map(|target| &target.name).filter(|name| name.contains('_'));
    let line = |name: &String| {
        format!(
            "the target name {name} contains '_', which RFC 3722 prohibits: some initiators refuse it; hint: keep it \
             only if hosts know the name already"
        )
    };
    names.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn name_with_an_underscore_is_served_and_reported() {
        let source = ["disk_1", "disk-1"]
            .map(|name| format!("[[target]]\nname = \"iqn.2026-11.org.example:{name}\"\n"))
            .concat();
        let config = parse(&source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap();
        let [line] = &lax_names(&config)[..] else { panic!("one line") };
        assert!(line.starts_with("the target name iqn.2026-11.org.example:disk_1 contains '_'"), "{line}");
    }
}
