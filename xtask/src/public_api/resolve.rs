//! Resolves paths in the source to the items that they name.

use syn::{Ident, Item, UseTree, Visibility};

use super::crate_source::Module;

/// The target of a path.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// A module of the crate
    Module(&'a Module),
    /// An item of a module of the crate
    Item(&'a Module, &'a Item),
}

/// One name that a `use` imports.
#[derive(Clone, Debug)]
pub struct Import {
    /// The path as written
    pub path: Vec<String>,
    /// The name in this module; None for all names
    pub name: Option<Ident>,
}

/// The names that a `use` imports.
pub fn imports(tree: &UseTree) -> Vec<Import> {
    let mut found = Vec::new();
    walk(tree, &mut Vec::new(), &mut found);
    found
}

fn walk(tree: &UseTree, path: &mut Vec<String>, found: &mut Vec<Import>) {
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            walk(&inner.tree, path, found);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| walk(tree, path, found)),
        UseTree::Glob(_) => found.push(Import { path: path.clone(), name: None }),
        UseTree::Name(name) => found.push(import(path, &name.ident, &name.ident)),
        UseTree::Rename(name) => found.push(import(path, &name.ident, &name.rename)),
    }
}

/// `use a::b::{self}` imports `b`.
fn import(path: &[String], last: &Ident, name: &Ident) -> Import {
    match path.last() {
        Some(own) if last == "self" => {
            Import { path: path.to_vec(), name: Some(Ident::new(own, last.span())) }
        }
        _ => {
            let path = path.iter().cloned().chain([last.to_string()]).collect();
            Import { path, name: Some(name.clone()) }
        }
    }
}

/// The maximum number of imports to follow, which also ends cycles of imports.
const DEPTH: usize = 16;

/// Resolves a path in a module. None if it leads out of the crate.
pub fn resolve<'a>(root: &'a Module, from: &'a Module, path: &[String]) -> Option<Target<'a>> {
    resolve_within(root, from, path, DEPTH)
}

fn resolve_within<'a>(
    root: &'a Module,
    from: &'a Module,
    path: &[String],
    depth: usize,
) -> Option<Target<'a>> {
    let (first, rest) = path.split_first()?;
    let mut target = match first.as_str() {
        "crate" => Target::Module(root),
        "self" => Target::Module(from),
        "super" => Target::Module(parent(root, from)?),
        name => lookup(root, from, name, rest.is_empty(), depth.checked_sub(1)?)?,
    };
    for (at, name) in rest.iter().enumerate() {
        let Target::Module(module) = target else { return None };
        target = match name.as_str() {
            "super" => Target::Module(parent(root, module)?),
            name => lookup(root, module, name, at + 1 == rest.len(), depth.checked_sub(1)?)?,
        };
    }
    Some(target)
}

fn parent<'a>(root: &'a Module, module: &Module) -> Option<&'a Module> {
    let (_, above) = module.path.split_last()?;
    above.iter().try_fold(root, |module, name| module.children.get(name))
}

/// A name of a module: an item, an inner module, or an import. If an item and a module have the same name, the last
/// segment of a path means the item.
fn lookup<'a>(
    root: &'a Module,
    module: &'a Module,
    name: &str,
    is_last: bool,
    depth: usize,
) -> Option<Target<'a>> {
    let has_item = module.items.iter().any(|item| ident(item).is_some_and(|ident| ident == name));
    if let Some(child) = module.children.get(name).filter(|_| !(is_last && has_item)) {
        return Some(Target::Module(child));
    }
    if let Some(item) = module.items.iter().find(|item| ident(item).is_some_and(|ident| ident == name)) {
        return Some(Target::Item(module, item));
    }
    let uses =
        module.items.iter().filter_map(|item| if let Item::Use(item) = item { Some(item) } else { None });
    let imports: Vec<Import> = uses.flat_map(|item| imports(&item.tree)).collect();
    let named = imports.iter().filter(|import| import.name.as_ref().is_some_and(|own| own == name));
    let all = imports.iter().filter(|import| import.name.is_none());
    let named = named.filter_map(|import| resolve_within(root, module, &import.path, depth)).next();
    named.or_else(|| {
        let inside = |import: &Import| [&import.path[..], &[name.to_owned()]].concat();
        all.filter_map(|import| resolve_within(root, module, &inside(import), depth)).next()
    })
}

/// The full path of a name of another crate, after the imports of this crate.
pub fn external_path(root: &Module, from: &Module, path: &[String]) -> Vec<String> {
    follow(root, from, path, DEPTH).unwrap_or_else(|| path.to_vec())
}

fn follow(root: &Module, from: &Module, path: &[String], depth: usize) -> Option<Vec<String>> {
    let (last, modules) = path.split_last()?;
    let Some(Target::Module(module)) = resolve(root, from, modules) else { return None };
    let uses =
        module.items.iter().filter_map(|item| if let Item::Use(item) = item { Some(item) } else { None });
    let import =
        uses.flat_map(|item| imports(&item.tree)).find(|i| i.name.as_ref().is_some_and(|own| own == last))?;
    let depth = depth.checked_sub(1)?;
    Some(follow(root, module, &import.path, depth).unwrap_or(import.path))
}

/// The name that an item defines.
pub fn ident(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

/// Whether an item is `pub` without a restriction.
pub fn is_public(item: &Item) -> bool {
    let visibility = match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Mod(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        Item::Use(item) => &item.vis,
        _ => return false,
    };
    matches!(visibility, Visibility::Public(_))
}
