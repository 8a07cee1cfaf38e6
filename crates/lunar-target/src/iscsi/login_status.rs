//! The status of a refused login (RFC 7143 section 11.13.5), and the target as the login machine of iSCSI sees it.

use crate::LoginError;
use crate::access::LoginContext;
use lunar_proto::chap::Authentication;
use lunar_proto::login::{LoginPolicy, TargetInfo};
use lunar_wire::iscsi::status::LoginStatus;

const ERRORS: [LoginError; 8] = [
    LoginError::TargetNotFound,
    LoginError::NotAllowed,
    LoginError::AuthenticationFailed,
    LoginError::NotServing,
    LoginError::DiscoveryDisabled,
    LoginError::TooManyConnections,
    LoginError::NoSuchSession,
    LoginError::OutOfResources,
];

/// The error with this status. None: the refusal is a redirect, or a fault of the initiator's PDUs.
pub fn error_of(status: LoginStatus) -> Option<LoginError> {
    ERRORS.into_iter().find(|error| LoginStatus::from(*error) == status)
}

/// Each error has a status of its own, because [`error_of`] inverts this.
impl From<LoginError> for LoginStatus {
    fn from(error: LoginError) -> LoginStatus {
        match error {
            LoginError::TargetNotFound => LoginStatus::NOT_FOUND,
            LoginError::NotAllowed => LoginStatus::AUTHORIZATION_FAILURE,
            LoginError::AuthenticationFailed => LoginStatus::AUTHENTICATION_FAILURE,
            LoginError::NotServing => LoginStatus::SERVICE_UNAVAILABLE,
            LoginError::DiscoveryDisabled => LoginStatus::SESSION_TYPE_UNSUPPORTED,
            LoginError::TooManyConnections => LoginStatus::TOO_MANY_CONNECTIONS,
            LoginError::NoSuchSession => LoginStatus::NO_SUCH_SESSION,
            LoginError::OutOfResources => LoginStatus::OUT_OF_RESOURCES,
        }
    }
}

/// The decisions of the target, with their errors as statuses.
pub struct IscsiPolicy<'a>(pub &'a LoginContext);

impl LoginPolicy for IscsiPolicy<'_> {
    fn discovery(&self) -> Result<Authentication, LoginStatus> {
        Ok(self.0.discovery()?)
    }

    fn target(&self, name: &str, initiator: &str) -> Result<TargetInfo, LoginStatus> {
        Ok(self.0.target(name, initiator)?)
    }

    fn authorize(
        &self,
        target: Option<&str>,
        initiator: &str,
        user: Option<&str>,
    ) -> Result<(), LoginStatus> {
        Ok(self.0.authorize(target, initiator, user)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_error_status_inverts() {
        for error in ERRORS {
            assert_eq!(error_of(error.into()), Some(error));
        }
        for status in [LoginStatus::SUCCESS, LoginStatus::MOVED_TEMPORARILY, LoginStatus::INITIATOR_ERROR] {
            assert_eq!(error_of(status), None);
        }
    }

    #[test]
    fn login_errors_have_statuses_of_the_standard() {
        let codes = ERRORS.map(LoginStatus::from).map(|LoginStatus(class, detail)| (class, detail));
        assert_eq!(codes, [(2, 3), (2, 2), (2, 1), (3, 1), (2, 9), (2, 6), (2, 10), (3, 2)]);
    }
}
