//! The security stage on the initiator side (RFC 7143 sections 9.2 and 12.1).

use lunar_wire::iscsi::text::{binary, number, push, push_hex};

use super::login::{Credentials, LoginError};
use super::shown;
use crate::chap::keys::{ALGORITHM, CHALLENGE, ChapKeys, METHOD, NOTHING, PROOF};
use crate::chap::{Algorithm, BINARY_LEN, Challenge};

/// The state of the security stage.
#[derive(Debug)]
pub(super) enum Security {
    /// AuthMethod was sent.
    Offered,
    /// The target selected CHAP, and CHAP_A was sent.
    Chosen,
    /// CHAP_N and CHAP_R were sent, with a challenge if the target must authenticate itself.
    Proved(Algorithm, Option<Challenge>),
    /// Complete; the algorithm if CHAP was used.
    Over(Option<Algorithm>),
}

impl Security {
    /// The value of AuthMethod in the first request.
    pub fn methods(credentials: Option<&Credentials>) -> &'static str {
        match credentials {
            None => "None",
            Some(c) if c.or_none() => "CHAP,None",
            Some(_) => "CHAP",
        }
    }

    /// Whether this side has sent all its security keys.
    pub fn may_end(&self, credentials: Option<&Credentials>) -> bool {
        match self {
            Self::Offered => credentials.is_none_or(Credentials::or_none),
            Self::Chosen => false,
            Self::Proved(..) | Self::Over(_) => true,
        }
    }

    /// Whether both sides have sent all their security keys.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }

    /// The algorithm with which this side authenticated itself.
    pub fn proved(&self) -> Option<Algorithm> {
        match self {
            Self::Over(algorithm) => *algorithm,
            _ => None,
        }
    }

    /// Processes the security keys of one key text, and appends the answers. `moves`: the target ends the stage with this
    /// text.
    pub fn step(
        &mut self,
        keys: &ChapKeys,
        credentials: Option<&Credentials>,
        moves: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        *self = match (std::mem::replace(self, Self::Over(None)), keys.present(), credentials) {
            // LIO answers CHAP although it requires none, and proceeds without it.
            (Self::Offered, METHOD, Some(c)) if moves && c.or_none() && keys.method == Some("CHAP") => {
                Self::Over(None)
            }
            (Self::Offered, METHOD, _) => chosen(keys.method.unwrap_or_default(), credentials, out)?,
            (Self::Offered, NOTHING, None) => Self::Over(None),
            (Self::Offered, NOTHING, Some(_)) => {
                return failed("the target did not answer AuthMethod=CHAP".into());
            }
            (Self::Chosen, CHALLENGE, Some(c)) => prove(keys, c, out)?,
            (Self::Chosen, ALGORITHM, _) if keys.a == Some("Reject") => {
                return failed("the target rejected every offered CHAP algorithm (CHAP_A=Reject)".into());
            }
            (Self::Proved(algorithm, Some(challenge)), PROOF, Some(c)) => {
                verify(&challenge, keys, c)?;
                Self::Over(Some(algorithm))
            }
            (Self::Proved(_, Some(_)), NOTHING, _) => {
                return failed("mutual CHAP: the target sent neither CHAP_N nor CHAP_R".into());
            }
            (Self::Proved(algorithm, None), NOTHING, _) => Self::Over(Some(algorithm)),
            (over @ Self::Over(_), NOTHING, _) => over,
            (state, ..) => return Err(LoginError::Broke(state.unfit())),
        };
        Ok(())
    }

    /// The error for unexpected security keys. It names the expected keys.
    fn unfit(&self) -> String {
        let wanted = match self {
            Self::Offered => "only AuthMethod",
            Self::Chosen => "CHAP_A, CHAP_I and CHAP_C",
            Self::Proved(_, Some(_)) => "CHAP_N and CHAP_R",
            Self::Proved(_, None) | Self::Over(_) => "none",
        };
        format!("the target sent unexpected keys in this step of authentication; expected: {wanted}")
    }
}

/// Processes the authentication method that the target selected.
fn chosen(method: &str, ours: Option<&Credentials>, out: &mut Vec<u8>) -> Result<Security, LoginError> {
    match (method, ours) {
        ("CHAP", Some(c)) => {
            let list: Vec<_> = c.algorithms.iter().map(|a| (*a as u8).to_string()).collect();
            push(out, "CHAP_A", &list.join(","));
            Ok(Security::Chosen)
        }
        ("None", None) => Ok(Security::Over(None)),
        ("None", Some(c)) if c.or_none() => Ok(Security::Over(None)),
        ("None", Some(_)) => failed("CHAP is required, but the target selected AuthMethod=None".into()),
        ("CHAP" | "Reject", None) => {
            failed("the target requires CHAP, but no user and password are set".into())
        }
        ("Reject", Some(_)) => failed("the target does not support CHAP (AuthMethod=Reject)".into()),
        _ => Err(LoginError::Broke(format!(
            "the target sent AuthMethod={}, which was not offered",
            shown(method)
        ))),
    }
}

/// Answers the target's challenge, and sends one if the target must authenticate itself. The two secrets must differ:
/// with equal secrets, the target could obtain its response from us on another connection (RFC 7143 section 9.2.1).
fn prove(keys: &ChapKeys, ours: &Credentials, out: &mut Vec<u8>) -> Result<Security, LoginError> {
    if ours.mutual.as_ref().is_some_and(|m| m.1 == ours.secret) {
        return failed("the CHAP secrets of initiator and target are the same".into());
    }
    let (a, i) = (keys.a.unwrap_or_default(), keys.i.unwrap_or_default());
    let algorithm = Algorithm::numbered(a).filter(|a| ours.algorithms.contains(a));
    let algorithm = algorithm.ok_or_else(|| unfit("CHAP_A", a, "the algorithm was not offered"))?;
    let id = number(i).and_then(|n| u8::try_from(n).ok());
    let id = id.ok_or_else(|| unfit("CHAP_I", i, "the value is not a number from 0 to 255"))?;
    let mut buf = [0; BINARY_LEN];
    let challenge = binary(keys.c.unwrap_or_default(), &mut buf).filter(|c| !c.is_empty());
    let challenge = challenge.ok_or_else(|| {
        LoginError::Broke(
            "the target sent a CHAP_C that does not encode 1 to 1024 bytes in hexadecimal or base64".into(),
        )
    })?;
    push(out, "CHAP_N", &ours.name);
    push_hex(out, "CHAP_R", &algorithm.response(id, &ours.secret, challenge));
    if ours.mutual.is_none() {
        return Ok(Security::Proved(algorithm, None));
    }
    let mine = Challenge::new(algorithm).ok_or_else(|| {
        LoginError::Authentication(
            "the operating system provided no random bytes for the CHAP challenge".into(),
        )
    })?;
    push(out, "CHAP_I", &mine.id.to_string());
    push_hex(out, "CHAP_C", &mine.bytes);
    Ok(Security::Proved(algorithm, Some(mine)))
}

/// Checks the target's response to our challenge.
fn verify(challenge: &Challenge, keys: &ChapKeys, ours: &Credentials) -> Result<(), LoginError> {
    let Some((name, secret)) = &ours.mutual else {
        return failed("mutual CHAP: the target user is not set".into());
    };
    let said = keys.n.unwrap_or_default();
    if said != name {
        return failed(format!(
            "mutual CHAP: the target authenticates as user {} (CHAP_N), expected {name}",
            shown(said)
        ));
    }
    let mut buf = [0; BINARY_LEN];
    let response = binary(keys.r.unwrap_or_default(), &mut buf).ok_or_else(|| {
        LoginError::Broke(
            "the CHAP_R of the target is longer than 1024 bytes, or is not valid hexadecimal or base64"
                .into(),
        )
    })?;
    if challenge.is_answered(response, secret) {
        Ok(())
    } else {
        failed("mutual CHAP: wrong CHAP response of the target (CHAP_R)".into())
    }
}

fn unfit(key: &str, value: &str, why: &str) -> LoginError {
    LoginError::Broke(format!("the target sent {key}={}: {why}", shown(value)))
}

fn failed<T>(why: String) -> Result<T, LoginError> {
    Err(LoginError::Authentication(why))
}
