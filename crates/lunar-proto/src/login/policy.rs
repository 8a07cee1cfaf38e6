//! Login policy of the target: which initiators may log in, and with which authentication.

use lunar_wire::iscsi::status::LoginStatus;

use crate::chap::Authentication;

/// The properties of a target that a login needs.
#[derive(Clone, Debug)]
pub struct TargetInfo {
    /// TargetAlias, sent to initiators.
    pub alias: Option<String>,
    /// The authentication that the target requires.
    pub authentication: Authentication,
    /// The address to which the target moved, without portal group tag, and whether the move is permanent.
    pub redirect: Option<(String, bool)>,
}

/// The decisions of the target. Every error is a login status of class 2 or 3.
pub trait LoginPolicy {
    /// The authentication that discovery requires. Fails if discovery is not allowed here.
    fn discovery(&self) -> Result<Authentication, LoginStatus>;

    /// The target of this name, as this initiator may see it. Fails with 02/03 (not found), 02/02 (not authorized) or
    /// 03/01 (out of service).
    fn target(&self, name: &str, initiator: &str) -> Result<TargetInfo, LoginStatus>;

    /// After authentication: whether this initiator, with this CHAP user, may use the target. `target` is `None` for
    /// discovery.
    fn authorize(
        &self,
        target: Option<&str>,
        initiator: &str,
        chap_user: Option<&str>,
    ) -> Result<(), LoginStatus>;
}
