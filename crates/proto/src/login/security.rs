//! The security stage as the target plays it (RFC 7143 sections 6.3.2, 9.2 and 12.1).

use wire::iscsi::status::LoginStatus;
use wire::iscsi::text::{binary, number, push, push_hex};

use crate::chap::keys::{ALGORITHM, Keys, METHOD, NOTHING};
use crate::chap::{Algorithm, Authentication, BINARY_LEN, Challenge};
use crate::keys::first_of;

/// Where the stage stands.
#[derive(Debug)]
pub(super) enum Security {
    /// No method is chosen.
    Start,
    /// CHAP is chosen; CHAP_A comes next.
    Chosen,
    /// The challenge is out; CHAP_N and CHAP_R come next.
    Challenged(Challenge),
    /// Over, with the user that CHAP proved.
    Done(Option<String>),
}

impl Security {
    /// Takes one text's keys and appends the answers.
    pub fn step(
        &mut self,
        keys: &Keys,
        demand: &Authentication,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        *self = match (std::mem::replace(self, Self::Start), keys.present()) {
            (Self::Start, METHOD) => choose(keys.method.unwrap_or_default(), demand, out)?,
            (Self::Chosen, ALGORITHM) => challenge(keys.a.unwrap_or_default(), demand, out)?,
            (Self::Challenged(challenge), present) => {
                Self::Done(Some(verify(&challenge, keys, present, demand, out)?))
            }
            (Self::Chosen, NOTHING) => return Err(LoginStatus::MISSING_PARAMETER),
            (state, NOTHING) => state,
            _ => return Err(LoginStatus::INITIATOR_ERROR),
        };
        Ok(())
    }

    /// May the stage end? An error if authentication was left out, false if it is under way.
    pub fn may_end(&self, demand: &Authentication) -> Result<bool, LoginStatus> {
        match self {
            Self::Start if demand.required => Err(LoginStatus::AUTHENTICATION_FAILURE),
            Self::Start | Self::Done(_) => Ok(true),
            _ => Ok(false),
        }
    }

    /// The user that CHAP proved.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Done(user) => user.as_deref(),
            _ => None,
        }
    }
}

fn choose(list: &str, demand: &Authentication, out: &mut Vec<u8>) -> Result<Security, LoginStatus> {
    let good = |m: &str| (m == "CHAP" && !demand.users.is_empty()) || (m == "None" && !demand.required);
    let method = first_of(list, good).map_err(|_| LoginStatus::AUTHENTICATION_FAILURE)?;
    push(out, "AuthMethod", method);
    Ok(if method == "CHAP" { Security::Chosen } else { Security::Done(None) })
}

fn challenge(list: &str, demand: &Authentication, out: &mut Vec<u8>) -> Result<Security, LoginStatus> {
    let algorithm = Algorithm::first_of(list, &demand.algorithms);
    let algorithm = algorithm.ok_or(LoginStatus::AUTHENTICATION_FAILURE)?;
    let challenge = Challenge::new(algorithm).ok_or(LoginStatus::TARGET_ERROR)?;
    push(out, "CHAP_A", &(algorithm as u8).to_string());
    push(out, "CHAP_I", &challenge.id.to_string());
    push_hex(out, "CHAP_C", &challenge.bytes);
    Ok(Security::Challenged(challenge))
}

/// The last step: is the user who they say, and do they want proof of us? Gives the user's name.
fn verify(
    challenge: &Challenge,
    keys: &Keys,
    present: [bool; 6],
    demand: &Authentication,
    out: &mut Vec<u8>,
) -> Result<String, LoginStatus> {
    if present[0] || present[1] {
        return Err(LoginStatus::INITIATOR_ERROR);
    }
    let (name, response) = keys.n.zip(keys.r).ok_or(LoginStatus::MISSING_PARAMETER)?;
    let mut buf = [0; BINARY_LEN];
    let response = binary(response, &mut buf).ok_or(LoginStatus::INITIATOR_ERROR)?;
    let secret = demand.secret(name).ok_or(LoginStatus::AUTHENTICATION_FAILURE)?;
    if !challenge.is_answered(response, secret) {
        return Err(LoginStatus::AUTHENTICATION_FAILURE);
    }
    match (keys.i, keys.c) {
        (None, None) => Ok(name.to_owned()),
        (Some(id), Some(theirs)) => prove(challenge, name, id, theirs, demand, out).map(|()| name.to_owned()),
        _ => Err(LoginStatus::MISSING_PARAMETER),
    }
}

/// Answers the initiator's challenge, but never its reflection and never with the initiator's own secret
/// (RFC 7143 section 9.2.1). Only an initiator that has proved itself gets here, so no other login is an
/// oracle.
fn prove(
    ours: &Challenge,
    user: &str,
    id: &str,
    theirs: &str,
    demand: &Authentication,
    out: &mut Vec<u8>,
) -> Result<(), LoginStatus> {
    let id = number(id).and_then(|n| u8::try_from(n).ok()).ok_or(LoginStatus::INITIATOR_ERROR)?;
    let mut buf = [0; BINARY_LEN];
    let theirs = binary(theirs, &mut buf).filter(|c| !c.is_empty()).ok_or(LoginStatus::INITIATOR_ERROR)?;
    let mutual = demand.mutual.as_ref().ok_or(LoginStatus::AUTHENTICATION_FAILURE)?;
    if ours.is_reflected(theirs) || demand.secret(user) == Some(&mutual.secret) {
        return Err(LoginStatus::AUTHENTICATION_FAILURE);
    }
    push(out, "CHAP_N", &mutual.name);
    push_hex(out, "CHAP_R", &ours.algorithm.response(id, &mutual.secret, theirs));
    Ok(())
}
