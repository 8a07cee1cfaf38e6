use super::*;
use crate::tidy::project::file;

/// The API of a crate `x` with these sources.
fn api(sources: &[(&str, &str)]) -> String {
    let files: Vec<_> =
        sources.iter().map(|(path, text)| file(&format!("crates/x/src/{path}"), text)).collect();
    render(&files, &library("x".into())).expect("an API").trim_start_matches(&head("x")).to_owned()
}

#[test]
fn private_parts_and_bodies_are_left_out() {
    let source = "
        /// Public.
        #[derive(Clone)]
        pub struct A { /// A number.
            pub n: u8, secret: u16 }
        impl A {
            pub fn get(mut self, mut n: u8) -> u8 { n += self.n; n }
            pub(crate) fn inner(&self) {}
            #[doc(hidden)] pub fn plumbing(&self) {}
        }
        impl Hidden for A { fn f() {} }
        impl From<u8> for A { fn from(n: u8) -> A { todo() } }
        trait Hidden { fn f(); }
        pub(crate) struct B;
        fn private() {}
        #[doc(hidden)] pub mod plumbing { pub struct C; }
        #[cfg(test)] pub mod tests;
        pub const LIMIT: u8 = 3 + 4;
    ";
    let expected = "\
#[derive(Clone)]
pub struct A {
    pub n: u8,
    _private: _,
}
impl A {
    pub fn get(self, n: u8) -> u8 {}
}
impl From<u8> for A {}
pub const LIMIT: u8 = _;
";
    assert_eq!(api(&[("lib.rs", source)]), expected);
}

#[test]
fn reexported_items_of_private_modules_are_shown() {
    let lib = "mod a; mod b; #[cfg(feature = \"x\")] pub use a::{One, inner::Two as Other}; pub use core::fmt::Debug;";
    let a = "pub use super::b::One; pub mod inner; pub struct NotExported;";
    let inner = "pub enum Two { A(u8), B { c: u16 } } impl Two { pub fn new() -> Two { Two::A(1) } }";
    let b = "pub struct One(u8, pub u16); impl std::fmt::Display for crate::a::One { fn fmt() {} }";
    let expected = "\
#[cfg(feature = \"x\")]
pub struct One(_, pub u16);
impl std::fmt::Display for crate::a::One {}
#[cfg(feature = \"x\")]
pub enum Other {
    A(u8),
    B { c: u16 },
}
impl Two {
    pub fn new() -> Two {}
}
pub use core::fmt::Debug;
";
    assert_eq!(api(&[("lib.rs", lib), ("a/mod.rs", a), ("a/inner.rs", inner), ("b.rs", b)]), expected);
}

#[test]
fn names_of_other_modules_are_resolved() {
    let lib = "mod a; pub mod b; pub use a::{Code, f}; pub use b::B;";
    let a = "mod f; pub use other::errors::Code; pub fn f() {}";
    let expected = "\
pub mod b {
    pub struct B;
}
pub use other::errors::Code;
pub fn f() {}
pub use b::B;
";
    assert_eq!(api(&[("lib.rs", lib), ("a.rs", a), ("a/f.rs", ""), ("b.rs", "pub struct B;")]), expected);
}

#[test]
fn impls_for_types_of_other_crates_are_shown() {
    let lib = "
        pub trait T { fn a(&self); fn b(&self) { self.a() } }
        pub struct E;
        impl<F: Fn()> T for F { fn a(&self) {} }
        impl From<E> for std::io::Error { fn from(_: E) -> Self { todo() } }
        impl Clone for std::io::Error { fn clone(&self) -> Self { todo() } }
    ";
    let expected = "\
pub trait T {
    fn a(&self);
    fn b(&self) {}
}
pub struct E;
impl<F: Fn()> T for F {}
impl From<E> for std::io::Error {}
";
    assert_eq!(api(&[("lib.rs", lib)]), expected);
}

#[test]
fn items_of_local_macros_are_shown() {
    let lib = "
        mod a; pub use a::Code;
        pub mod b {
            macro_rules! numbers { ($($name:ident = $value:expr $(, $text:literal)?;)*) => {
                $(pub const $name: u8 = $value;)*
                pub fn name(n: u8) -> u8 { match n { $($value)|* => 1 } }
                pub fn texts() -> [&str; 2] { [$($($text)?),*] }
            } }
            numbers! { ONE = 1, \"one\"; TWO = 2; }
        }
    ";
    let a = "
        codes! { /// Any other error.
            #[default] Other = \"other\", NotFound(u8) = \"not-found\", }
        macro_rules! codes {
            ($($(#[$doc:meta])* $code:ident $(($t:ty))? = $name:literal,)*) => {
                #[derive(Default)] pub enum Code { $($(#[$doc])* $code $(($t))?,)* }
                impl Code { pub const ALL: &[Code] = &[$(Code::$code),*]; fn all() {} }
            };
        }
    ";
    let expected = "\
#[derive(Default)]
pub enum Code {
    Other,
    NotFound(u8),
}
impl Code {
    pub const ALL: &[Code] = _;
}
pub mod b {
    pub const ONE: u8 = _;
    pub const TWO: u8 = _;
    pub fn name(n: u8) -> u8 {}
    pub fn texts() -> [&str; 2] {}
}
";
    assert_eq!(api(&[("lib.rs", lib), ("a.rs", a)]), expected);
}

/// The manifest of a crate that may be published, or not.
fn manifest(name: &str, more: &str) -> project::SourceFile {
    file(&format!("crates/{name}/Cargo.toml"), &format!("[package]\nname = \"{name}\"\n{more}"))
}

#[test]
fn changed_api_of_any_published_crate_is_reported_at_its_line() {
    let source = |name: &str, text: &str| file(&format!("crates/{name}/src/lib.rs"), text);
    let mut files = vec![manifest("x", ""), manifest("y", ""), manifest("z", "publish.workspace = true\n")];
    files.extend(["x", "y", "z"].map(|name| source(name, "pub fn a() {}\npub fn b() {}\n")));
    for name in ["x", "y"] {
        let library = library(name.into());
        files.push(file(&library.api, &render(&files, &library).expect("an API")));
    }
    assert_eq!(check(&files), []);
    for (changed, api) in [(3, "crates/x/public-api.txt"), (4, "crates/y/public-api.txt")] {
        let kept = std::mem::replace(&mut files[changed].text, "pub fn a() {}\npub fn b(n: u8) {}\n".into());
        let found = check(&files);
        assert_eq!((found.len(), found[0].file.as_str(), found[0].line), (1, api, 5), "{found:?}");
        files[changed].text = kept;
    }
    files[5].text.clear();
    assert_eq!(check(&files), []);
}
