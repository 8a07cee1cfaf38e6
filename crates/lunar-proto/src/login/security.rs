//! The security stage on the target side (RFC 7143 sections 6.3.2, 9.2 and 12.1).

use lunar_wire::iscsi::status::LoginStatus;
use lunar_wire::iscsi::text::{binary, number, push, push_hex};

use super::excerpt;
use crate::chap::keys::{ALGORITHM, ChapKeys, METHOD, NOTHING};
use crate::chap::{Algorithm, Authentication, BINARY_LEN, Challenge, Secret};
use crate::keys::first_of;

/// A failure of the security stage.
#[derive(Debug)]
pub(super) struct SecurityFailure {
    /// Sent to the initiator. All failures of authentication have the same status, so that it reveals no cause.
    pub status: LoginStatus,
    /// Logged by the target, never sent.
    pub reason: Option<String>,
}

impl From<LoginStatus> for SecurityFailure {
    fn from(status: LoginStatus) -> SecurityFailure {
        SecurityFailure { status, reason: None }
    }
}

/// A failure of authentication.
fn denied<T>(reason: impl Into<String>) -> Result<T, SecurityFailure> {
    Err(SecurityFailure { status: LoginStatus::AUTHENTICATION_FAILURE, reason: Some(reason.into()) })
}

/// The state of the security stage.
#[derive(Debug)]
pub(super) enum Security {
    /// No method was selected.
    Start,
    /// CHAP was selected; CHAP_A follows.
    Chosen,
    /// The challenge was sent; CHAP_N and CHAP_R follow.
    Challenged(Challenge),
    /// Complete; the user if CHAP was used.
    Done(Option<String>),
}

impl Security {
    /// Processes the security keys of one key text, and appends the answers.
    pub fn step(
        &mut self,
        keys: &ChapKeys,
        demand: &Authentication,
        out: &mut Vec<u8>,
    ) -> Result<(), SecurityFailure> {
        *self = match (std::mem::replace(self, Self::Start), keys.present()) {
            (Self::Start, METHOD) => choose(keys.method.unwrap_or_default(), demand, out)?,
            (Self::Chosen, ALGORITHM) => challenge(keys.a.unwrap_or_default(), demand, out)?,
            (Self::Challenged(challenge), present) => {
                Self::Done(Some(verify(&challenge, keys, present, demand, out)?))
            }
            (Self::Chosen, NOTHING) => return Err(LoginStatus::MISSING_PARAMETER.into()),
            (state, NOTHING) => state,
            _ => return Err(LoginStatus::INITIATOR_ERROR.into()),
        };
        Ok(())
    }

    /// Whether the stage may end; false during CHAP. An error if required authentication was skipped.
    pub fn may_end(&self, demand: &Authentication) -> Result<bool, SecurityFailure> {
        match self {
            Self::Start if demand.required => {
                denied("CHAP is required, but the initiator offers no AuthMethod")
            }
            Self::Start | Self::Done(_) => Ok(true),
            _ => Ok(false),
        }
    }

    /// The CHAP user that authenticated.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Done(user) => user.as_deref(),
            _ => None,
        }
    }
}

fn choose(list: &str, demand: &Authentication, out: &mut Vec<u8>) -> Result<Security, SecurityFailure> {
    let good = |m: &str| (m == "CHAP" && !demand.users.is_empty()) || (m == "None" && !demand.required);
    let Ok(method) = first_of(list, good) else {
        let offered = excerpt(list);
        return match (demand.required, demand.users.is_empty()) {
            (true, true) => denied("CHAP is required, but the access entry admits no CHAP user"),
            (true, false) => {
                denied(format!("CHAP is required, but the initiator offers AuthMethod={offered}"))
            }
            (false, true) => denied(format!(
                "the initiator offers AuthMethod={offered} without None, but the target has no CHAP users"
            )),
            (false, false) => {
                denied(format!("the initiator offers AuthMethod={offered} with neither CHAP nor None"))
            }
        };
    };
    push(out, "AuthMethod", method);
    Ok(if method == "CHAP" { Security::Chosen } else { Security::Done(None) })
}

fn challenge(list: &str, demand: &Authentication, out: &mut Vec<u8>) -> Result<Security, SecurityFailure> {
    let Some(algorithm) = Algorithm::first_of(list, &demand.algorithms) else {
        let allowed: Vec<_> = demand.algorithms.iter().map(|algorithm| algorithm.name()).collect();
        let (offered, allowed) = (excerpt(list), allowed.join(", "));
        return denied(format!(
            "the initiator offers CHAP_A={offered} without an allowed algorithm ({allowed})"
        ));
    };
    let challenge = Challenge::new(algorithm).ok_or(LoginStatus::TARGET_ERROR)?;
    push(out, "CHAP_A", &(algorithm as u8).to_string());
    push(out, "CHAP_I", &challenge.id.to_string());
    push_hex(out, "CHAP_C", &challenge.bytes);
    Ok(Security::Challenged(challenge))
}

/// The last step: checks the CHAP response, and answers the challenge of mutual CHAP. Returns the user's name.
fn verify(
    challenge: &Challenge,
    keys: &ChapKeys,
    present: [bool; 6],
    demand: &Authentication,
    out: &mut Vec<u8>,
) -> Result<String, SecurityFailure> {
    if present[0] || present[1] {
        return Err(LoginStatus::INITIATOR_ERROR.into());
    }
    let (name, response) = keys.n.zip(keys.r).ok_or(LoginStatus::MISSING_PARAMETER)?;
    let mut buf = [0; BINARY_LEN];
    let response = binary(response, &mut buf).ok_or(LoginStatus::INITIATOR_ERROR)?;
    // A digest is computed for an unknown user too, so that the response time does not reveal which users exist.
    let (secret, nobody) = (demand.secret(name), Secret::new(&[]));
    let is_answered = challenge.is_answered(response, secret.unwrap_or(&nobody));
    match secret {
        None => return denied(format!("the CHAP user {} is not allowed", excerpt(name))),
        Some(_) if !is_answered => {
            return denied(format!("the initiator sent a wrong secret for the CHAP user {}", excerpt(name)));
        }
        Some(_) => {}
    }
    match (keys.i, keys.c) {
        (None, None) => Ok(name.to_owned()),
        (Some(id), Some(theirs)) => prove(challenge, name, id, theirs, demand, out).map(|()| name.to_owned()),
        _ => Err(LoginStatus::MISSING_PARAMETER.into()),
    }
}

/// Answers the initiator's challenge, but never a reflected one, and never with the initiator's own secret (RFC 7143
/// section 9.2.1). The initiator has authenticated itself before, so an unauthenticated peer cannot obtain responses.
fn prove(
    ours: &Challenge,
    user: &str,
    id: &str,
    theirs: &str,
    demand: &Authentication,
    out: &mut Vec<u8>,
) -> Result<(), SecurityFailure> {
    let id = number(id).and_then(|n| u8::try_from(n).ok()).ok_or(LoginStatus::INITIATOR_ERROR)?;
    let mut buf = [0; BINARY_LEN];
    let theirs = binary(theirs, &mut buf).filter(|c| !c.is_empty()).ok_or(LoginStatus::INITIATOR_ERROR)?;
    let Some(mutual) = &demand.mutual else {
        return denied("the initiator requests mutual CHAP, but the key `mutual` names no CHAP user");
    };
    if ours.is_reflected(theirs) {
        return denied("the initiator sends the target's own challenge back (RFC 7143 section 9.2.1)");
    }
    if demand.secret(user) == Some(&mutual.secret) {
        let (user, target) = (excerpt(user), &mutual.name);
        return denied(format!("the CHAP users {user} and {target} (`mutual`) have the same secret"));
    }
    push(out, "CHAP_N", &mutual.name);
    push_hex(out, "CHAP_R", &ours.algorithm.response(id, &mutual.secret, theirs));
    Ok(())
}
