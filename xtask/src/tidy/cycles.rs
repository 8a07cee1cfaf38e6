//! Finds import cycles between the files of a crate: files that import each other have no layers, and cannot be
//! read alone. Method calls are not imports: a file may extend a type of a lower file.

use std::collections::{BTreeMap, BTreeSet};

use super::TidyFinding;
use super::project::SourceFile;

/// Crates, and the maximum number of files in a cycle.
const LIMITS: [(&str, usize); 2] = [("lunar-initiator", 2), ("lunar-target", 2)];
/// Test modules import the code that they test.
const TESTS: [&str; 2] = ["tests", "testing"];
/// The maximum number of re-exports of a name.
const MAX_HOPS: usize = 8;

/// A module, or a name in one, as segments from the root of the crate.
type ModulePath = Vec<String>;

/// The imports of one file.
#[derive(Default)]
struct ModuleImports {
    file: String,
    /// Names in scope, and their paths.
    names: BTreeMap<String, ModulePath>,
    /// Paths that the file uses, relative to it.
    uses: Vec<ModulePath>,
}

type CrateModules = BTreeMap<ModulePath, ModuleImports>;

/// Cycles longer than the limit of their crate.
pub fn check(files: &[SourceFile]) -> Vec<TidyFinding> {
    LIMITS.iter().flat_map(|(name, max)| check_crate(files, name, *max)).collect()
}

fn check_crate(files: &[SourceFile], name: &str, max: usize) -> Vec<TidyFinding> {
    let modules = modules(files, &format!("crates/{name}/src/"));
    let imports = imports(&modules);
    let remedy = "move what they share to a file below them";
    let finding = |cycle: &Vec<&ModulePath>| {
        let files: Vec<&str> = cycle.iter().map(|module| modules[*module].file.as_str()).collect();
        let what = format!("{} files import each other: {}", files.len(), files.join(", "));
        TidyFinding::new(files[0], 1, what, remedy)
    };
    cycles(&imports).iter().filter(|cycle| cycle.len() > max).map(finding).collect()
}

fn modules(files: &[SourceFile], root: &str) -> CrateModules {
    let sources = files.iter().filter_map(|file| {
        let path = module_of(file.path.strip_prefix(root)?.strip_suffix(".rs")?);
        let is_test = path.iter().any(|segment| TESTS.contains(&segment.as_str()));
        (!is_test).then(|| (path, file.path.clone(), without_tests(file.code())))
    });
    let sources: Vec<_> = sources.collect();
    let known: BTreeSet<ModulePath> = sources.iter().map(|(path, ..)| path.clone()).collect();
    let module = |(path, file, code): (ModulePath, String, String)| {
        let module = read(file, &path, &code, &known);
        (path, module)
    };
    sources.into_iter().map(module).collect()
}

fn module_of(path: &str) -> ModulePath {
    let mut segments: ModulePath = path.split('/').map(str::to_owned).collect();
    if matches!(segments.last().map(String::as_str), Some("mod" | "lib")) {
        segments.pop();
    }
    segments
}

/// Tests are at the end of a file.
fn without_tests(code: &str) -> String {
    let test = code.match_indices("#[cfg(test)]").find(|(at, attribute)| {
        let rest = code[at + attribute.len()..].trim_start();
        rest.starts_with("mod ") && rest.find('{').is_some_and(|open| !rest[..open].contains(';'))
    });
    test.map_or(code, |(at, _)| &code[..at]).to_owned()
}

fn read(file: String, path: &ModulePath, code: &str, known: &BTreeSet<ModulePath>) -> ModuleImports {
    let mut module = ModuleImports { file, ..ModuleImports::default() };
    let mut rest = String::new();
    for statement in code.split_inclusive(';') {
        let Some((before, tree)) = use_tree(statement) else {
            rest.push_str(statement);
            continue;
        };
        let is_reexport = before.trim_end().ends_with(')') || before.trim_end().ends_with("pub");
        for used in expand(&tree) {
            let Some(target) = absolute(path, &used, known) else { continue };
            let name = used.iter().rev().find(|segment| *segment != "self");
            module.names.extend(name.map(|name| (name.clone(), target.clone())));
            module.uses.extend((!is_reexport).then_some(target));
        }
        rest.push_str(before);
    }
    let inline = inline_paths(&rest);
    let in_scope = |used: ModulePath| match module.names.get(&used[0]) {
        Some(target) => Some([&target[..], &used[1..]].concat()),
        None => absolute(path, &used, known),
    };
    let inline: Vec<ModulePath> = inline.into_iter().filter_map(in_scope).collect();
    module.uses.extend(inline);
    module
}

/// The text before `use` in a statement, and the tree after it.
fn use_tree(statement: &str) -> Option<(&str, String)> {
    let at = statement.rfind("use ").filter(|at| {
        let before = statement[..*at].trim_end_matches([' ', '\t']);
        before.is_empty() || before.ends_with(['\n', ')']) || before.ends_with("pub")
    })?;
    let tree = statement[at + 4..].trim_end_matches(';');
    let is_path = tree.chars().all(|c| c.is_alphanumeric() || c.is_whitespace() || "_:{},*".contains(c));
    is_path.then(|| (&statement[..at], tree.split_whitespace().collect::<Vec<_>>().join(" ")))
}

/// The paths of a use tree.
fn expand(tree: &str) -> Vec<ModulePath> {
    let tree = tree.trim();
    let Some((head, body)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![segments(path)];
    };
    let body = body.strip_suffix('}').unwrap_or(body);
    let under = |one: &str| expand(one).into_iter().map(|path| [segments(head), path].concat());
    split_list(body).into_iter().flat_map(under).collect()
}

fn segments(path: &str) -> ModulePath {
    path.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// The items of a list, some of which have nested lists.
fn split_list(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[start..]);
    items.retain(|item| !item.trim().is_empty());
    items
}

/// Paths of more than one segment outside of `use`.
fn inline_paths(code: &str) -> Vec<ModulePath> {
    let words = code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    words.map(segments).filter(|path| path.len() > 1).collect()
}

/// The path of a module from the root; None for other crates.
fn absolute(module: &[String], path: &[String], known: &BTreeSet<ModulePath>) -> Option<ModulePath> {
    let supers = path.iter().take_while(|segment| *segment == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => Some([&module[..module.len().checked_sub(supers)?], &path[supers..]].concat()),
        first => {
            let child = [module, &[first.to_owned()]].concat();
            known.contains(&child).then(|| [module, path].concat())
        }
    }
}

/// The modules that each module imports.
fn imports(modules: &CrateModules) -> BTreeMap<&ModulePath, BTreeSet<&ModulePath>> {
    let of = |(path, module): (_, &ModuleImports)| {
        let targets = module.uses.iter().filter_map(|used| home(modules, used, MAX_HOPS));
        (path, targets.filter(|target| *target != path).collect())
    };
    modules.iter().map(of).collect()
}

/// The module that defines a name, after its re-exports.
fn home<'a>(modules: &'a CrateModules, path: &[String], hops: usize) -> Option<&'a ModulePath> {
    let len = (0..=path.len()).rev().find(|len| modules.contains_key(&path[..*len]))?;
    let (module, entry) = modules.get_key_value(&path[..len])?;
    let exported = path.get(len).and_then(|name| entry.names.get(name)).filter(|target| **target != path);
    match exported {
        Some(target) if hops > 0 => home(modules, &[target, &path[len + 1..]].concat(), hops - 1),
        _ => Some(module),
    }
}

/// Sets of at least two modules that reach each other.
fn cycles<'a>(imports: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>) -> Vec<Vec<&'a ModulePath>> {
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
        imports.keys().map(|module| (*module, reach(imports, module))).collect();
    let mut cycles: Vec<Vec<&ModulePath>> = Vec::new();
    for module in imports.keys() {
        let is_in =
            |other: &&&ModulePath| reached[module].contains(**other) && reached[**other].contains(module);
        let cycle: Vec<&ModulePath> = imports.keys().filter(is_in).copied().collect();
        // Each cycle is found once for each of its files.
        if cycle.len() > 1 && cycle[0] == *module {
            cycles.push(cycle);
        }
    }
    cycles
}

fn reach<'a>(
    imports: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
    from: &ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for next in imports.get(module).into_iter().flatten() {
            if reached.insert(*next) {
                open.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], max: usize) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| {
            crate::tidy::project::file(&format!("crates/lunar-initiator/src/{path}"), text)
        };
        let files: Vec<SourceFile> = files.iter().map(file).collect();
        check_crate(&files, "lunar-initiator", max).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn cycle_through_reexport_and_inline_path_is_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use b::B;"),
            ("a.rs", "use crate::{\n    B,\n};"),
            ("b/mod.rs", "pub(crate) mod c;\nfn f() { c::g() }\npub struct B;"),
            ("b/c.rs", "fn g() -> crate::a::A { todo!() }"),
        ];
        let names = ["a.rs", "b/mod.rs", "b/c.rs"].map(|name| format!("crates/lunar-initiator/src/{name}"));
        assert_eq!(found(&files, 2), [format!("3 files import each other: {}", names.join(", "))]);
        assert!(found(&files, 3).is_empty());
    }

    #[test]
    fn tests_comments_and_other_crates_make_no_cycle() {
        let files = [
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "// use crate::b::B;\nuse std::b::B;\n#[cfg(test)]\nmod tests {\n use crate::b::B;\n}"),
            ("b.rs", "use super::a::A;"),
            ("tests.rs", "use crate::a::A;"),
        ];
        assert!(found(&files, 1).is_empty());
    }
}
