//! Items without bodies, comments and private parts.

use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, Field, Fields, FnArg, Ident, ImplItem, Item, ItemImpl, Pat, Signature, TraitItem,
    Visibility, parse_quote,
};

use super::crate_source::is_hidden;

/// Attributes that are a part of the API.
const KEPT: [&str; 6] = ["cfg", "derive", "deprecated", "must_use", "non_exhaustive", "repr"];

/// The public part of an item, under this name.
pub fn public_part(item: &Item, name: &Ident) -> Item {
    let mut item = item.clone();
    match &mut item {
        Item::Const(item) => {
            (item.ident, *item.expr) = (name.clone(), unknown());
            keep(&mut item.attrs);
        }
        Item::Static(item) => {
            (item.ident, *item.expr) = (name.clone(), unknown());
            keep(&mut item.attrs);
        }
        Item::Enum(item) => {
            item.ident = name.clone();
            keep(&mut item.attrs);
            for variant in &mut item.variants {
                keep(&mut variant.attrs);
                variant.fields.iter_mut().for_each(|field| keep(&mut field.attrs));
            }
        }
        Item::Fn(item) => {
            item.sig.ident = name.clone();
            bare(&mut item.sig);
            *item.block = parse_quote!({});
            keep(&mut item.attrs);
        }
        Item::Struct(item) => {
            item.ident = name.clone();
            keep(&mut item.attrs);
            public_fields(&mut item.fields);
        }
        Item::Trait(item) => {
            item.ident = name.clone();
            keep(&mut item.attrs);
            item.items.iter_mut().for_each(trait_item);
        }
        Item::Type(item) => {
            item.ident = name.clone();
            keep(&mut item.attrs);
        }
        Item::Union(item) => {
            item.ident = name.clone();
            keep(&mut item.attrs);
        }
        _ => {}
    }
    item
}

/// The public part of an `impl`. None if it has no public part. An `impl` of a trait keeps its associated types.
pub fn public_impl(item: &ItemImpl) -> Option<ItemImpl> {
    let mut item = item.clone();
    keep(&mut item.attrs);
    let is_trait = item.trait_.is_some();
    item.items.retain(|inner| match inner {
        ImplItem::Type(_) => is_trait,
        ImplItem::Fn(inner) => {
            !is_trait && matches!(inner.vis, Visibility::Public(_)) && !is_hidden(&inner.attrs)
        }
        ImplItem::Const(inner) => !is_trait && matches!(inner.vis, Visibility::Public(_)),
        _ => false,
    });
    for inner in &mut item.items {
        match inner {
            ImplItem::Fn(inner) => {
                bare(&mut inner.sig);
                inner.block = parse_quote!({});
                keep(&mut inner.attrs);
            }
            ImplItem::Const(inner) => {
                inner.expr = unknown();
                keep(&mut inner.attrs);
            }
            ImplItem::Type(inner) => keep(&mut inner.attrs),
            _ => {}
        }
    }
    (is_trait || !item.items.is_empty()).then_some(item)
}

fn trait_item(item: &mut TraitItem) {
    match item {
        TraitItem::Fn(item) => {
            bare(&mut item.sig);
            keep(&mut item.attrs);
            if item.default.is_some() {
                item.default = Some(parse_quote!({}));
            }
        }
        TraitItem::Const(item) => keep(&mut item.attrs),
        TraitItem::Type(item) => keep(&mut item.attrs),
        _ => {}
    }
}

/// Replaces private fields by one named `_private`: their existence determines whether users can construct a value.
fn public_fields(fields: &mut Fields) {
    let is_public = |field: &Field| matches!(field.vis, Visibility::Public(_));
    match fields {
        Fields::Named(fields) => {
            let all = std::mem::take(&mut fields.named);
            let has_private = !all.iter().all(is_public);
            fields.named = all.into_iter().filter(is_public).collect();
            if has_private {
                let private: syn::FieldsNamed = parse_quote!({ _private: _ });
                fields.named.extend(private.named);
            }
        }
        Fields::Unnamed(fields) => {
            for field in fields.unnamed.iter_mut().filter(|field| !is_public(field)) {
                (field.vis, field.ty) = (Visibility::Inherited, parse_quote!(_));
            }
        }
        Fields::Unit => {}
    }
    fields.iter_mut().for_each(|field| keep(&mut field.attrs));
}

/// Removes `mut` from arguments, because it concerns only the body.
fn bare(signature: &mut Signature) {
    for input in &mut signature.inputs {
        match input {
            FnArg::Receiver(receiver) if receiver.reference.is_none() => receiver.mutability = None,
            FnArg::Receiver(_) => {}
            FnArg::Typed(argument) => match &mut *argument.pat {
                Pat::Ident(name) => name.mutability = None,
                Pat::Wild(_) => {}
                pattern => *pattern = parse_quote!(_),
            },
        }
    }
    signature.inputs = Punctuated::from_iter(std::mem::take(&mut signature.inputs));
}

fn unknown() -> Expr {
    parse_quote!(_)
}

fn keep(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| KEPT.iter().any(|kept| attribute.path().is_ident(kept)));
}
