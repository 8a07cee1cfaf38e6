//! The initiator's machines: login, Text Requests, the answer to SendTargets.

pub mod login;
mod negotiation;
mod params;
mod security;
pub mod targets;
mod text;

#[cfg(test)]
mod tests;

pub use text::{TextClient, TextStep};

/// What a peer said, fit to be shown: nothing in it may steer a terminal, and it stays short.
fn shown(value: &str) -> String {
    const LEN: usize = 255;
    let plain: String = value.chars().take(LEN).map(|c| if c.is_control() { '?' } else { c }).collect();
    if plain.len() < value.len() { plain + ".." } else { plain }
}
