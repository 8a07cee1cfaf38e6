//! Portals that speak something else than what they are asked in: one kind of failure, whoever finds it out.

use crate::options::Transport;
use crate::{Error, Kind};
use std::fmt;

/// It seems to speak that, for this happened.
pub fn instead(happened: impl fmt::Display, spoken: Transport) -> Error {
    let (what, hint) = match spoken {
        Transport::Tcp => ("iSCSI over TCP", "use iscsi://HOST[:PORT]/IQN there"),
        Transport::Iser => ("iSER", "use iser://HOST[:PORT]/IQN there"),
        Transport::Srp => (
            "SRP",
            "use srp://HOST[:PORT]/ID_EXT[:IOC_GUID] there, as the target tells its id_ext and ioc_guid",
        ),
    };
    Error::new(Kind::Unreachable, format!("{happened}: it seems to be a portal of {what}")).with_hint(hint)
}
