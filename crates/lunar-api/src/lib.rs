//! The control API of a server: HTTP with JSON on the admin socket, and over HTTPS where it is configured.
//!
//! All resources are below `/v1`. Later versions of Lunar only add to them. [`openapi`] describes them; the document is
//! `docs/openapi.json`. Errors have the form of RFC 9457. The version of the configuration is the entity tag of each
//! object of the configuration: a change of an object names the version that it is meant for.
//!
//! Each server runs on a thread of its own with its own runtime, so that no request delays I/O, and no TLS handshake
//! delays the admin socket. The main thread of the program executes changes ([`ServerControl::ask`](lunar_admin::ServerControl::ask)).
#![forbid(unsafe_code)]

mod accept;
mod bridge;
mod caller;
pub mod client;
mod exchange;
mod handlers;
pub mod https;
mod metrics;
mod openapi;
mod peers;
mod problem;
mod remote;
mod schema;
mod server;
mod sizes;

#[cfg(test)]
mod tests;

pub use bridge::PageBridge;
pub use metrics::MetricsServer;
pub use openapi::openapi;
pub use problem::{Problem, ProblemDetail};
pub use server::ApiServer;
