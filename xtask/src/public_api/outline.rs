//! The public items of a crate, module by module.

use std::collections::BTreeSet;

use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{Attribute, File, Ident, Item, ItemImpl, ItemUse, Type, parse_quote};

use super::crate_source::{Module, attributes, is_hidden};
use super::resolve::{Import, Target, external_path, ident, imports, is_public, resolve};
use super::signature::{public_impl, public_part};

/// A definition: the path of its module, and its name.
type Definition = (Vec<String>, String);

/// An `impl`, and the module that has it.
type Implementation<'a> = (&'a Module, &'a ItemImpl);

/// The public part of a crate as one file.
pub fn of(root: &Module) -> File {
    let mut outline = Outline { root, impls: Vec::new(), shown: BTreeSet::new() };
    outline.collect(root);
    let mut items = outline.module(root);
    items.extend(outline.impls_for_others());
    File { shebang: None, attrs: Vec::new(), items }
}

struct Outline<'a> {
    root: &'a Module,
    impls: Vec<Implementation<'a>>,
    /// The definitions that are public
    shown: BTreeSet<Definition>,
}

impl<'a> Outline<'a> {
    fn collect(&mut self, module: &'a Module) {
        let impls = module
            .items
            .iter()
            .filter_map(|item| if let Item::Impl(item) = item { Some(item) } else { None });
        self.impls.extend(impls.map(|item| (module, item)));
        module.children.values().for_each(|child| self.collect(child));
    }

    /// The public items of a module, by kind and name, so that their order in the source does not matter.
    fn module(&mut self, module: &'a Module) -> Vec<Item> {
        let mut items = Vec::new();
        for item in module.items.iter().filter(|item| is_public(item) && !is_hidden(attributes(item))) {
            match item {
                Item::Use(item) => {
                    for import in imports(&item.tree) {
                        items.extend(self.import(module, item, &import));
                    }
                }
                Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    items.extend(module.children.get(&name).map(|child| self.inner(child, &inner.ident)));
                }
                item => items
                    .extend(ident(item).map(|name| self.item(module, item, name, &[])).into_iter().flatten()),
            }
        }
        items
    }

    fn inner(&mut self, module: &'a Module, name: &Ident) -> Item {
        let items = self.module(module);
        parse_quote!(pub mod #name { #(#items)* })
    }

    /// An item and its implementations.
    fn item(&mut self, module: &'a Module, item: &'a Item, name: &Ident, more: &[Attribute]) -> Vec<Item> {
        let own = ident(item).map(ToString::to_string).unwrap_or_default();
        let definition = (module.path.clone(), own);
        let mut public = public_part(item, name);
        for attribute in more {
            public = with_attribute(public, attribute);
        }
        let impls: Vec<Item> = self
            .impls
            .iter()
            .filter(|(from, item)| self.definition(from, &item.self_ty).as_ref() == Some(&definition))
            .filter(|(from, item)| self.is_shown_trait(from, item))
            .filter_map(|(_, item)| public_impl(item).map(Item::Impl))
            .collect();
        self.shown.insert(definition);
        std::iter::once(public).chain(impls).collect()
    }

    /// The items that a `pub use` exports: definitions of this crate, and only the names of items of other crates.
    fn import(&mut self, module: &'a Module, item: &ItemUse, import: &Import) -> Vec<Item> {
        let conditions: Vec<Attribute> = attributes(&Item::Use(item.clone()))
            .iter()
            .filter(|a| a.path().is_ident("cfg"))
            .cloned()
            .collect();
        match (resolve(self.root, module, &import.path), &import.name) {
            (Some(Target::Item(from, _)), Some(name)) if self.is_public_module(from, module) => {
                vec![external(&import.path, Some(name), &conditions)]
            }
            (Some(Target::Item(from, item)), Some(name)) => self.item(from, item, name, &conditions),
            (Some(Target::Module(from)), Some(name)) => vec![self.inner(from, name)],
            (Some(Target::Module(from)), None) => self.module(from),
            (_, name) => {
                let path = external_path(self.root, module, &import.path);
                vec![external(&path, name.as_ref(), &conditions)]
            }
        }
    }

    /// Whether users can name the items of `module` at its own path, and that is not `other`.
    fn is_public_module(&self, module: &Module, other: &Module) -> bool {
        let mut above = self.root;
        let is_public = module.path.iter().all(|name| {
            let declared = above.items.iter().find(|item| matches!(item, Item::Mod(m) if m.ident == *name));
            above = &above.children[name];
            declared.is_some_and(is_public)
        });
        is_public && module.path != other.path
    }

    /// The definition that a type names; None for one of another crate.
    fn definition(&self, from: &'a Module, of: &Type) -> Option<Definition> {
        let Type::Path(path) = of else { return None };
        self.defined(from, &path.path)
    }

    fn defined(&self, from: &'a Module, path: &syn::Path) -> Option<Definition> {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        match resolve(self.root, from, &names)? {
            Target::Item(module, item) => Some((module.path.clone(), ident(item)?.to_string())),
            Target::Module(_) => None,
        }
    }

    /// Whether an `impl` has no trait, or a trait that is not private to this crate.
    fn is_shown_trait(&self, from: &'a Module, item: &ItemImpl) -> bool {
        let Some((_, path, _)) = &item.trait_ else { return true };
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        match resolve(self.root, from, &names) {
            Some(Target::Item(_, item)) => is_public(item) && self.is_reachable(path, from),
            _ => true,
        }
    }

    fn is_reachable(&self, path: &syn::Path, from: &'a Module) -> bool {
        let Some(definition) = self.defined(from, path) else { return true };
        exports(self.root, self.root, &definition)
    }

    /// Implementations for types of other crates: of traits of this crate, and those that name its types.
    fn impls_for_others(&self) -> Vec<Item> {
        let foreign = self.impls.iter().filter(|(from, item)| {
            let local = self.definition(from, &item.self_ty);
            local.is_none()
                && item.trait_.is_some()
                && self.is_shown_trait(from, item)
                && self.names_shown(from, item)
        });
        foreign.filter_map(|(_, item)| public_impl(item).map(Item::Impl)).collect()
    }

    /// Whether the trait, or a type among its arguments, is public in this crate.
    fn names_shown(&self, from: &'a Module, item: &ItemImpl) -> bool {
        let Some((_, path, _)) = &item.trait_ else { return false };
        let arguments = path.segments.iter().filter_map(|segment| match &segment.arguments {
            syn::PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
            _ => None,
        });
        let types = arguments.flatten().filter_map(|argument| match argument {
            syn::GenericArgument::Type(argument) => self.definition(from, argument),
            _ => None,
        });
        types.chain(self.defined(from, path)).any(|definition| self.shown.contains(&definition))
    }
}

/// Whether the definition is reachable through this public module.
fn exports(root: &Module, module: &Module, definition: &Definition) -> bool {
    module.items.iter().filter(|item| is_public(item)).any(|item| match item {
        Item::Mod(inner) => module
            .children
            .get(&inner.ident.to_string())
            .is_some_and(|child| exports(root, child, definition)),
        Item::Use(item) => {
            imports(&item.tree).iter().any(|import| match resolve(root, module, &import.path) {
                Some(Target::Item(from, item)) => {
                    (&from.path, ident(item).map(ToString::to_string))
                        == (&definition.0, Some(definition.1.clone()))
                }
                Some(Target::Module(from)) => exports(root, from, definition),
                None => false,
            })
        }
        item => module.path == definition.0 && ident(item).is_some_and(|name| *name == definition.1),
    })
}

/// A `pub use` of a name of another crate.
fn external(path: &[String], name: Option<&Ident>, conditions: &[Attribute]) -> Item {
    // `crate` and `super` are keywords, and names of a path.
    let ident = |name: &String| Ident::parse_any.parse_str(name).expect("a name of a path");
    let path: Vec<Ident> = path.iter().map(ident).collect();
    match name {
        None => parse_quote!(#(#conditions)* pub use #(#path)::*::*;),
        Some(name) if path.last() == Some(name) => parse_quote!(#(#conditions)* pub use #(#path)::*;),
        Some(name) => parse_quote!(#(#conditions)* pub use #(#path)::* as #name;),
    }
}

fn with_attribute(item: Item, attribute: &Attribute) -> Item {
    parse_quote!(#attribute #item)
}
