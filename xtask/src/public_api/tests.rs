use super::*;
use crate::tidy::project::file;

fn api(sources: &[(&str, &str)]) -> String {
    let files: Vec<_> = sources.iter().map(|(path, text)| file(&format!("{SOURCE}/{path}"), text)).collect();
    render(&files).expect("an API").trim_start_matches(HEAD).to_owned()
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
fn changed_api_is_reported_at_its_line() {
    let mut files = vec![file(&format!("{SOURCE}/lib.rs"), "pub fn a() {}\npub fn b() {}\n")];
    files.push(file(API, &render(&files).expect("an API")));
    assert_eq!(check(&files), []);
    files[0].text = "pub fn a() {}\npub fn b(n: u8) {}\n".into();
    let found = check(&files);
    assert_eq!((found.len(), found[0].file.as_str(), found[0].line), (1, API, 5), "{found:?}");
}
