//! The modules of a crate, as its source has them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use syn::{Attribute, Item, Meta};

use super::expand::expand;
use crate::tidy::project::SourceFile;

/// One module.
pub struct Module {
    /// Its path from the root of the crate
    pub path: Vec<String>,
    /// Its items; of inner modules, only the declaration
    pub items: Vec<Item>,
    /// Its inner modules by name
    pub children: BTreeMap<String, Module>,
}

/// Reads the crate whose `lib.rs` lies in this folder.
pub fn read(files: &[SourceFile], folder: &str) -> Result<Module> {
    let items = items_of(files, &format!("{folder}/lib.rs"))?;
    module(files, folder, Vec::new(), items)
}

fn items_of(files: &[SourceFile], path: &str) -> Result<Vec<Item>> {
    let file = files.iter().find(|file| file.path == path).with_context(|| format!("no file {path}"))?;
    Ok(syn::parse_file(&file.text).with_context(|| path.to_owned())?.items)
}

/// A module, with its files below `folder`.
fn module(files: &[SourceFile], folder: &str, path: Vec<String>, items: Vec<Item>) -> Result<Module> {
    let mut items = expand(items).with_context(|| folder.to_owned())?;
    items.retain(|item| is_built(attributes(item)));
    let mut children = BTreeMap::new();
    for inner in items.iter().filter_map(|item| if let Item::Mod(inner) = item { Some(inner) } else { None })
    {
        let name = inner.ident.to_string();
        let inside = format!("{folder}/{name}");
        let items = match &inner.content {
            Some((_, items)) => items.clone(),
            None => items_of(files, &format!("{inside}.rs"))
                .or_else(|_| items_of(files, &format!("{inside}/mod.rs")))?,
        };
        let path = path.iter().cloned().chain([name.clone()]).collect();
        children.insert(name, module(files, &inside, path, items)?);
    }
    Ok(Module { path, items, children })
}

/// Whether an item exists with all features, outside of tests and of documentation.
fn is_built(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .all(|attribute| attribute.parse_args::<Meta>().is_ok_and(|condition| is_true(&condition)))
}

fn is_true(condition: &Meta) -> bool {
    match condition {
        Meta::Path(_) => false,
        Meta::NameValue(value) => value.path.is_ident("feature") || value.path.is_ident("target_os"),
        Meta::List(list) => {
            type Conditions = syn::punctuated::Punctuated<Meta, syn::Token![,]>;
            let Ok(inner) = list.parse_args_with(Conditions::parse_terminated) else { return false };
            match list.path.get_ident().map(ToString::to_string).as_deref() {
                Some("not") => !inner.iter().all(is_true),
                Some("any") => inner.iter().any(is_true),
                _ => inner.iter().all(is_true),
            }
        }
    }
}

/// The attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Is it left out of the documentation? Then it is no promise to users.
pub fn is_hidden(attributes: &[Attribute]) -> bool {
    let hides = |list: &syn::MetaList| list.path.is_ident("doc") && list.tokens.to_string() == "hidden";
    attributes.iter().any(|attribute| matches!(&attribute.meta, Meta::List(list) if hides(list)))
}
