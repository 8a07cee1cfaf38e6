//! The listening socket of the metrics.

use lunar_config::{Diagnostic, ErrorCode, io_text};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// The listening socket of the metrics at this address.
///
/// # Errors
/// When the address cannot be bound.
pub fn metrics_listener(address: SocketAddr) -> Result<TcpListener, Diagnostic> {
    TcpListener::bind(address).map_err(|e| cannot_serve_metrics(address, &e))
}

/// The error of metrics that cannot be served.
pub fn cannot_serve_metrics(address: SocketAddr, e: &io::Error) -> Diagnostic {
    let hint = match e.kind() {
        io::ErrorKind::AddrInUse => {
            "set metrics of [server] to another port, or stop the program that uses it"
        }
        io::ErrorKind::AddrNotAvailable => {
            "set metrics of [server] to an address of this host: `ip address` lists all"
        }
        io::ErrorKind::PermissionDenied => "set metrics of [server] to a port from 1024 on",
        _ => "check the limits of the process with `ulimit -a`",
    };
    let what = format!("cannot serve metrics on {address}: {}", io_text(e));
    Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind()))
}
