//! The host's side of the exchange.

use super::group::DhKey;
use super::messages::{choose_group, choose_hash};
use super::{
    AuthFailure, AuthMessage, AuthNames, AuthSecrets, DhChapHash, DhGroup, MismatchedSecret, Response,
    are_equal, random, sequence,
};
use zeroize::Zeroizing;

enum Step {
    /// The controller challenges.
    Challenge,
    /// It reports its result; the response that it must give, if it must prove itself.
    Result {
        expected: Option<Zeroizing<Vec<u8>>>,
    },
    Done,
}

/// The exchange of one queue. The host sends the first message, and each that [`HostAuth::receive`] returns.
pub struct HostAuth {
    names: AuthNames,
    secrets: AuthSecrets,
    transaction: u16,
    step: Step,
    mismatch: Option<MismatchedSecret>,
    /// The controller has reported a failure, which ends the exchange.
    is_refused: bool,
}

impl HostAuth {
    /// An exchange with this transaction, and its first message.
    pub fn new(names: AuthNames, secrets: AuthSecrets, transaction: u16) -> (HostAuth, Vec<u8>) {
        let negotiate = AuthMessage::Negotiate {
            concatenates: false,
            hashes: secrets.hashes.iter().map(|hash| *hash as u8).collect(),
            groups: secrets.groups.iter().map(|group| *group as u8).collect(),
        };
        let (step, mismatch, is_refused) = (Step::Challenge, None, false);
        let auth = HostAuth { names, secrets, transaction, step, mismatch, is_refused };
        (auth, negotiate.encode(transaction))
    }

    /// Whether the exchange has succeeded.
    pub fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }

    /// The secret that the sides do not share, if that is the reason of a failure.
    pub fn mismatch(&self) -> Option<MismatchedSecret> {
        self.mismatch
    }

    /// Takes the data of Authentication Receive. Returns the data of the next Authentication Send, if there is one.
    ///
    /// # Errors
    /// The exchange has failed. [`HostAuth::report`] has the last message.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, AuthFailure> {
        let (transaction, message) = AuthMessage::decode(bytes).ok_or(AuthFailure::INVALID_PAYLOAD)?;
        if transaction != self.transaction {
            return Err(AuthFailure::INVALID_PAYLOAD);
        }
        self.is_refused = matches!(message, AuthMessage::Failure1(_));
        match (std::mem::replace(&mut self.step, Step::Challenge), message) {
            (Step::Challenge, AuthMessage::Challenge { hash, group, sequence, challenge, public }) => {
                let hash = choose_hash(&[hash], &self.secrets.hashes).ok_or(AuthFailure::HASH)?;
                let group = choose_group(&[group], &self.secrets.groups).ok_or(AuthFailure::GROUP)?;
                if challenge.len() != hash.digest_len() {
                    return Err(AuthFailure::INVALID_PAYLOAD);
                }
                self.reply(hash, group, sequence, &challenge, &public).map(Some)
            }
            (Step::Result { expected }, AuthMessage::Success1 { response, .. }) => {
                let Some(expected) = expected else {
                    self.step = Step::Done;
                    return Ok(None);
                };
                if !are_equal(&expected, &response.unwrap_or_default()) {
                    self.mismatch = Some(MismatchedSecret::Subsystem);
                    return Err(AuthFailure::FAILED);
                }
                self.step = Step::Done;
                Ok(Some(AuthMessage::Success2.encode(self.transaction)))
            }
            (Step::Result { expected }, AuthMessage::Failure1(AuthFailure::FAILED)) => {
                let asked = expected.is_some();
                self.mismatch = Some(if asked { MismatchedSecret::Either } else { MismatchedSecret::Host });
                Err(AuthFailure::FAILED)
            }
            (_, AuthMessage::Failure1(failure)) => Err(failure),
            _ => Err(AuthFailure::INVALID_MESSAGE),
        }
    }

    fn reply(
        &mut self,
        hash: DhChapHash,
        group: DhGroup,
        sequence_of: u32,
        challenge: &[u8],
        public: &[u8],
    ) -> Result<Vec<u8>, AuthFailure> {
        // The powers take time: not for a key that is invalid.
        group.check_public(public)?;
        let (dh, transaction) = (DhKey::generate(group)?, self.transaction);
        let shared = dh.shared(public)?;
        let shared = shared.as_ref().map(|shared| &shared[..]);
        let key = self.secrets.host.key_of(&self.names.host);
        let response = Response { hash, key: &key, challenge, shared, sequence: sequence_of, transaction };
        let response = response.of_host(&self.names).to_vec();
        let own = self.secrets.subsystem.is_some().then(|| random(hash.digest_len())).transpose()?;
        let sequence = if own.is_some() { sequence()? } else { 0 };
        let expected = self.secrets.subsystem.as_ref().zip(own.as_ref()).map(|(secret, challenge)| {
            let key = secret.key_of(&self.names.subsystem);
            Response { hash, key: &key, challenge, shared, sequence, transaction }.of_controller(&self.names)
        });
        self.step = Step::Result { expected };
        let reply = AuthMessage::Reply { sequence, response, challenge: own, public: dh.public };
        Ok(reply.encode(self.transaction))
    }

    /// The message that reports a failure to the controller. None: the controller itself has reported it.
    pub fn report(&self, failure: AuthFailure) -> Option<Vec<u8>> {
        (!self.is_refused).then(|| AuthMessage::Failure2(failure).encode(self.transaction))
    }
}
