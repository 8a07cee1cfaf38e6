//! Keys of TLS 1.3 for NVMe/TCP (NVMe TCP Transport Specification, section 3.6.1): the configured key in its text form, the key
//! that a host retains, and the PSK of the handshake with its identity.
//!
//! Each step is HKDF (RFC 5869) with HKDF-Expand-Label of TLS 1.3 (RFC 8446, section 7.1).

mod binder;
mod hkdf;
mod key;
#[cfg(test)]
mod tests;

pub use hkdf::TlsKeyLabels;
pub use key::{TlsKey, TlsKeyHash, TlsPsk, TlsPskVersion};
