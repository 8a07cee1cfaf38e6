//! Login policy of the target: which initiators may log in, and how.

use lunar_wire::iscsi::status::LoginStatus;

use crate::chap::Authentication;

/// A target as a login sees it.
#[derive(Clone, Debug)]
pub struct TargetInfo {
    /// TargetAlias, sent to initiators.
    pub alias: Option<String>,
    /// How initiators authenticate.
    pub authentication: Authentication,
    /// Another address, without portal group tag, where the target is to be found, and whether for good.
    pub redirect: Option<(String, bool)>,
}

/// The decisions of the target. Every refusal is a status of class 2 or 3.
pub trait LoginPolicy {
    /// May discovery happen here, and how do initiators authenticate for it?
    fn discovery(&self) -> Result<Authentication, LoginStatus>;

    /// The target of this name, as this initiator may see it; else 02/03, 02/02 or 03/01.
    fn target(&self, name: &str, initiator: &str) -> Result<TargetInfo, LoginStatus>;

    /// After authentication: whether this initiator, with this CHAP user, may use the target (None: discovery).
    fn authorize(
        &self,
        target: Option<&str>,
        initiator: &str,
        chap_user: Option<&str>,
    ) -> Result<(), LoginStatus>;
}
