//! The initiator's state machines: login, text negotiation, SendTargets.

pub mod login;
mod negotiation;
mod params;
mod security;
pub mod targets;
mod text;

#[cfg(test)]
mod tests;

pub use text::{TextClient, TextStep};

/// A peer's value for messages: each control character becomes a question mark, and the value is cut at 255
/// characters.
fn shown(value: &str) -> String {
    const LEN: usize = 255;
    let plain: String = value.chars().take(LEN).map(|c| if c.is_control() { '?' } else { c }).collect();
    if plain.len() < value.len() { plain + ".." } else { plain }
}
