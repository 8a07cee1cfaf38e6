//! RDMA connections that devices, measurements and tests make.

use crate::io_error::io_text;
use crate::{Error, Kind};
use lunar_rdma::{ConnParam, Refused, Wait};

/// Makes an RDMA connection of private data and terms.
pub trait RdmaConnector:
    FnOnce(&[u8], ConnParam) -> Wait<'static, Result<lunar_rdma::Connected, Refused>>
{
}

impl<F: FnOnce(&[u8], ConnParam) -> Wait<'static, Result<lunar_rdma::Connected, Refused>>> RdmaConnector
    for F
{
}

/// No RDMA device of this host leads there. The hint is that of the provider.
pub fn no_device(e: &std::io::Error) -> Error {
    told(&lunar_rdma::explained(e))
}

fn told(e: &std::io::Error) -> Error {
    const DEVICES: &str =
        "lunar rdma list shows the devices; without provider=verbs iWARP is done in software";
    let (what, text) = (io_text(e), e.to_string());
    let hint = text.split_once("\nhint: ").map_or(DEVICES, |(_, hint)| hint);
    Error::new(Kind::Unreachable, what.split("\nhint: ").next().unwrap_or_default()).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_of_a_provider_is_kept() {
        let e = |text: &str| told(&std::io::Error::other(text.to_owned()));
        let told = e("cannot open it: No such device (os error 19)\nhint: load its module");
        assert_eq!(told.what, "cannot open it: No such device");
        assert_eq!(told.hint.as_deref(), Some("load its module"));
        assert_eq!(e("it is missing\nhint: get it").what, "it is missing");
        assert!(e("no device leads there").hint.as_deref().is_some_and(|hint| hint.contains("rdma list")));
    }
}
