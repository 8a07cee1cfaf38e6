//! Errors of sockets as errors of this crate.

use crate::{Error, Kind};

/// What the operating system says of an error, without its number.
pub(crate) fn io_text(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// There is no connection. Where this process has no file descriptor left, the target is not to blame.
pub(crate) fn no_connection(e: &std::io::Error) -> Error {
    const FEW: &str = "no file descriptor is left: raise the limit of this process, ulimit -n";
    let error = Error::new(Kind::Unreachable, io_text(e));
    if lunar_runtime::descriptors::is_exhausted(e) { error.with_hint(FEW) } else { error }
}

pub(crate) fn lost(e: std::io::Error) -> Error {
    Error::new(Kind::Lost, io_text(&e))
}
