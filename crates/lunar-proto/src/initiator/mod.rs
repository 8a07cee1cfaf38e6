//! The initiator's state machines: login, text negotiation, the response to SendTargets.

pub mod login;
mod negotiation;
mod params;
mod security;
pub mod targets;
mod text;

#[cfg(test)]
mod tests;

pub use text::{TextClient, TextStep};

/// A value of the peer for messages: control characters are replaced, and it is cut at 255 characters.
fn shown(value: &str) -> String {
    const LEN: usize = 255;
    let plain: String = value.chars().take(LEN).map(|c| if c.is_control() { '?' } else { c }).collect();
    if plain.len() < value.len() { plain + ".." } else { plain }
}
