//! Connections of RDMA that are made by others: by devices, and by who measures or tests.

use crate::connect::{Attempt, Connected, Goal, Wire, io_text, log_in};
use crate::options::Transport;
use crate::{Error, Kind, Options, iser, srp};
use lunar_rdma::{Refused, Terms, Wait};

/// Makes an RDMA connection of private data and terms.
pub trait Make: FnOnce(&[u8], Terms) -> Wait<'static, Result<lunar_rdma::Connected, Refused>> {}

impl<F: FnOnce(&[u8], Terms) -> Wait<'static, Result<lunar_rdma::Connected, Refused>>> Make for F {}

/// Logs in on an RDMA connection that somebody else makes, once.
pub async fn made(goal: &Goal, options: &Options, make: impl Make) -> Result<Connected, Error> {
    let wire = match options.transport {
        Transport::Tcp => return Err(Error::new(Kind::Invalid, "TCP is no RDMA")),
        Transport::Iser => Wire::Iser(iser::Wire::made(options, make).await?),
        Transport::Srp => Wire::Srp(srp::Wire::made(goal, options, make).await?),
    };
    match log_in(wire, &goal.portal, goal, options, &mut ()).await? {
        Attempt::In(connected) => Ok(*connected),
        Attempt::Moved(there) => {
            Err(Error::new(Kind::Protocol, format!("the target sends us to {there}, where nobody connects")))
        }
    }
}

/// No RDMA device of this host leads there. What those who tried know of a remedy is the hint.
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
    fn what_a_provider_knows_of_a_remedy_is_the_hint() {
        let e = |text: &str| told(&std::io::Error::other(text.to_owned()));
        let told = e("cannot open it: No such device (os error 19)\nhint: load its module");
        assert_eq!(told.what, "cannot open it: No such device");
        assert_eq!(told.hint.as_deref(), Some("load its module"));
        assert_eq!(e("it is missing\nhint: get it").what, "it is missing");
        assert!(e("no device leads there").hint.as_deref().is_some_and(|hint| hint.contains("rdma list")));
    }
}
