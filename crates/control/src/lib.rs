//! Configuration, state files and the admin socket.
#![forbid(unsafe_code)]

pub mod config;
mod problem;

pub use problem::{Position, Problem};

/// What the operating system says about an error, without its number.
pub(crate) fn io_text(e: &std::io::Error) -> String {
    let text = e.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}
