//! Expands the macros of a module that it defines itself with `macro_rules!` and one rule: tables that make types,
//! constants and functions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseStream, Parser};
use syn::{Item, ItemMacro};

/// The tokens of a metavariable, once or for each repetition.
#[derive(Clone)]
enum Binding {
    Once(TokenStream),
    Repeated(Vec<Binding>),
}

type Bindings = BTreeMap<String, Binding>;

/// A part of a macro's rule.
enum Part<'a> {
    /// `$name`; in a pattern, `:kind` follows
    Variable(String),
    /// `$( … ) separator *`
    Repetition { inner: Vec<TokenTree>, separator: Option<TokenTree>, is_option: bool },
    /// Tokens between delimiters
    Group(&'a Group),
    /// Any other token
    Token(&'a TokenTree),
}

/// The items with the expansion of each call in place of the call.
pub fn expand(items: Vec<Item>) -> Result<Vec<Item>> {
    let rules: BTreeMap<String, TokenStream> = items
        .iter()
        .filter_map(|item| match item {
            Item::Macro(ItemMacro { ident: Some(name), mac, .. }) => {
                Some((name.to_string(), mac.tokens.clone()))
            }
            _ => None,
        })
        .collect();
    let mut expanded = Vec::new();
    for item in items {
        let rule = match &item {
            Item::Macro(call) if call.ident.is_none() => call.mac.path.get_ident().map(ToString::to_string),
            _ => None,
        };
        match (rule.and_then(|name| Some((rules.get(&name)?, name))), &item) {
            (Some((rule, name)), Item::Macro(call)) => {
                let made = expansion(rule, &call.mac.tokens).with_context(|| format!("macro {name}"))?;
                expanded.extend(made);
            }
            _ => expanded.push(item),
        }
    }
    Ok(expanded)
}

fn expansion(rule: &TokenStream, call: &TokenStream) -> Result<Vec<Item>> {
    let groups: Vec<Group> = rule
        .clone()
        .into_iter()
        .filter_map(|token| if let TokenTree::Group(group) = token { Some(group) } else { None })
        .collect();
    ensure!(groups.len() == 2, "it has more than one rule");
    let pattern = tokens(&groups[0]);
    let bindings = (|input: ParseStream| matches(&pattern, input)).parse2(call.clone())?;
    Ok(syn::parse2::<syn::File>(transcribe(&tokens(&groups[1]), &bindings))?.items)
}

fn tokens(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

/// The part at the beginning of a rule, and the number of its tokens.
fn part(rule: &[TokenTree]) -> (Part<'_>, usize) {
    match rule {
        [TokenTree::Punct(dollar), TokenTree::Ident(name), ..] if dollar.as_char() == '$' => {
            (Part::Variable(name.to_string()), 2)
        }
        [TokenTree::Punct(dollar), TokenTree::Group(group), first, rest @ ..] if dollar.as_char() == '$' => {
            let is_operator = |token: &TokenTree| ["*", "+", "?"].contains(&token.to_string().as_str());
            let (separator, operator, count) = match rest.first() {
                Some(second) if !is_operator(first) => (Some(first.clone()), second, 4),
                _ => (None, first, 3),
            };
            let is_option = operator.to_string() == "?";
            (Part::Repetition { inner: tokens(group), separator, is_option }, count)
        }
        [TokenTree::Group(group), ..] => (Part::Group(group), 1),
        _ => (Part::Token(&rule[0]), 1),
    }
}

fn matches(mut pattern: &[TokenTree], input: ParseStream) -> syn::Result<Bindings> {
    let mut bindings = Bindings::new();
    while !pattern.is_empty() {
        let (part, count) = part(pattern);
        pattern = &pattern[count..];
        match part {
            Part::Variable(name) => {
                let [_colon, kind, rest @ ..] = pattern else { return Err(input.error("no kind")) };
                bindings.insert(name, Binding::Once(fragment(&kind.to_string(), input)?));
                pattern = rest;
            }
            Part::Repetition { inner, separator, is_option } => {
                bindings.extend(repetition(&inner, separator.as_ref(), is_option, input)?);
            }
            Part::Group(group) => {
                let TokenTree::Group(found) = input.parse()? else { return Err(input.error("no group")) };
                let inner = tokens(group);
                bindings.extend((|input: ParseStream| matches(&inner, input)).parse2(found.stream())?);
            }
            Part::Token(token) => {
                let found: TokenTree = input.parse()?;
                if found.to_string() != token.to_string() {
                    return Err(input.error(format!("not {token}")));
                }
            }
        }
    }
    Ok(bindings)
}

fn repetition(
    inner: &[TokenTree],
    separator: Option<&TokenTree>,
    is_option: bool,
    input: ParseStream,
) -> syn::Result<Bindings> {
    let mut all: BTreeMap<String, Vec<Binding>> =
        variables(inner).into_iter().map(|name| (name, Vec::new())).collect();
    while !input.is_empty() {
        let ahead = input.fork();
        let Ok(bindings) = matches(inner, &ahead) else { break };
        input.advance_to(&ahead);
        for (name, binding) in bindings {
            all.entry(name).or_default().push(binding);
        }
        if is_option {
            break;
        }
        if separator.is_some() && !input.is_empty() {
            input.parse::<TokenTree>()?;
        }
    }
    Ok(all.into_iter().map(|(name, bindings)| (name, Binding::Repeated(bindings))).collect())
}

fn fragment(kind: &str, input: ParseStream) -> syn::Result<TokenStream> {
    Ok(match kind {
        "ty" => input.parse::<syn::Type>()?.into_token_stream(),
        "expr" => input.parse::<syn::Expr>()?.into_token_stream(),
        "meta" => input.parse::<syn::Meta>()?.into_token_stream(),
        "path" => input.parse::<syn::Path>()?.into_token_stream(),
        "literal" => input.parse::<syn::Lit>()?.into_token_stream(),
        _ => input.parse::<TokenTree>()?.into_token_stream(),
    })
}

/// The metavariables of a rule, at any depth.
fn variables(mut rule: &[TokenTree]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    while !rule.is_empty() {
        let (part, count) = part(rule);
        match part {
            Part::Variable(name) => drop(names.insert(name)),
            Part::Repetition { inner, .. } => names.extend(variables(&inner)),
            Part::Group(group) => names.extend(variables(&tokens(group))),
            Part::Token(_) => {}
        }
        rule = &rule[count..];
    }
    names
}

fn transcribe(mut rule: &[TokenTree], bindings: &Bindings) -> TokenStream {
    let mut made = TokenStream::new();
    while !rule.is_empty() {
        let (part, count) = part(rule);
        match part {
            Part::Variable(name) => match bindings.get(&name) {
                Some(Binding::Once(bound)) => made.extend(bound.clone()),
                _ => made.extend(rule[..count].iter().cloned()),
            },
            Part::Repetition { inner, separator, .. } => made.extend(repeat(&inner, separator, bindings)),
            Part::Group(group) => {
                made.extend([grouped(group.delimiter(), transcribe(&tokens(group), bindings))]);
            }
            Part::Token(token) => made.extend([token.clone()]),
        }
        rule = &rule[count..];
    }
    made
}

fn grouped(delimiter: Delimiter, stream: TokenStream) -> TokenTree {
    TokenTree::Group(Group::new(delimiter, stream))
}

fn repeat(inner: &[TokenTree], separator: Option<TokenTree>, bindings: &Bindings) -> TokenStream {
    let repeated: Vec<(String, &Vec<Binding>)> = variables(inner)
        .into_iter()
        .filter_map(|name| match bindings.get(&name)? {
            Binding::Repeated(all) => Some((name, all)),
            Binding::Once(_) => None,
        })
        .collect();
    let count = repeated.iter().map(|(_, all)| all.len()).min().unwrap_or(0);
    let mut made = TokenStream::new();
    for n in 0..count {
        let mut own = bindings.clone();
        own.extend(repeated.iter().map(|(name, all)| (name.clone(), all[n].clone())));
        if n > 0 {
            made.extend(separator.clone());
        }
        made.extend(transcribe(inner, &own));
    }
    made
}
