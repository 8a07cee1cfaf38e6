//! The controller's side of the exchange.

use super::group::DhKey;
use super::messages::{choose_group, choose_hash};
use super::{
    AuthFailure, AuthMessage, AuthNames, AuthSecrets, DhChapHash, MismatchedSecret, Response, are_equal,
    random, sequence,
};

/// A challenge that waits for a reply.
struct Challenged {
    hash: DhChapHash,
    key: DhKey,
    sequence: u32,
    challenge: Vec<u8>,
}

enum Step {
    /// The host negotiates.
    Negotiate,
    /// A challenge is ready, or was sent.
    Challenge {
        message: AuthMessage,
        challenged: Challenged,
        is_sent: bool,
    },
    /// The result is ready. `then`: the host confirms it.
    Result {
        message: AuthMessage,
        then: bool,
    },
    /// The host confirms the response of the controller.
    Confirm,
    /// The host is authenticated.
    Done,
    Failed(AuthFailure),
}

/// The exchange of one queue.
pub struct ControllerAuth {
    names: AuthNames,
    secrets: AuthSecrets,
    transaction: u16,
    step: Step,
    mismatch: Option<MismatchedSecret>,
}

impl ControllerAuth {
    /// An exchange that begins with the next Authentication Send.
    pub fn new(names: AuthNames, secrets: AuthSecrets) -> ControllerAuth {
        ControllerAuth { names, secrets, transaction: 0, step: Step::Negotiate, mismatch: None }
    }

    /// Whether the host is authenticated.
    pub fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }

    /// The reason of a failure, after which the connection ends.
    pub fn failure(&self) -> Option<AuthFailure> {
        match self.step {
            Step::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// The secret that the sides do not share, if that is the reason.
    pub fn mismatch(&self) -> Option<MismatchedSecret> {
        self.mismatch
    }

    /// Takes the data of Authentication Send. A failure is reported by the next Authentication Receive.
    pub fn receive(&mut self, bytes: &[u8]) {
        let next = self.next(AuthMessage::decode(bytes));
        self.step = next
            .unwrap_or_else(|failure| Step::Result { message: AuthMessage::Failure1(failure), then: false });
    }

    fn next(&mut self, message: Option<(u16, AuthMessage)>) -> Result<Step, AuthFailure> {
        let (transaction, message) = message.ok_or(AuthFailure::INVALID_PAYLOAD)?;
        if let AuthMessage::Negotiate { concatenates, hashes, groups } = message {
            // A host may begin again.
            self.transaction = transaction;
            self.mismatch = None;
            return self.challenge(concatenates, &hashes, &groups);
        }
        if transaction != self.transaction {
            return Err(AuthFailure::INVALID_PAYLOAD);
        }
        match (std::mem::replace(&mut self.step, Step::Negotiate), message) {
            (
                Step::Challenge { challenged, is_sent: true, .. },
                AuthMessage::Reply { sequence, response, challenge, public },
            ) => {
                let shared = challenged.key.shared(&public)?;
                let shared = shared.as_ref().map(|shared| &shared[..]);
                self.check(&challenged, shared, &response)?;
                self.result(&challenged, shared, sequence, challenge)
            }
            (Step::Confirm, AuthMessage::Success2) => Ok(Step::Done),
            (Step::Confirm, AuthMessage::Failure2(failure)) => {
                self.mismatch = (failure == AuthFailure::FAILED).then_some(MismatchedSecret::Subsystem);
                Ok(Step::Failed(failure))
            }
            (_, AuthMessage::Failure2(failure)) => Ok(Step::Failed(failure)),
            _ => Err(AuthFailure::INVALID_MESSAGE),
        }
    }

    fn challenge(&self, concatenates: bool, hashes: &[u8], groups: &[u8]) -> Result<Step, AuthFailure> {
        if concatenates {
            return Err(AuthFailure::CONCATENATION);
        }
        if hashes.is_empty() {
            return Err(AuthFailure::PROTOCOL);
        }
        let hash = choose_hash(hashes, &self.secrets.hashes).ok_or(AuthFailure::HASH)?;
        let group = choose_group(groups, &self.secrets.groups).ok_or(AuthFailure::GROUP)?;
        let (key, sequence, challenge) = (DhKey::generate(group)?, sequence()?, random(hash.digest_len())?);
        let message = AuthMessage::Challenge {
            hash: hash as u8,
            group: group as u8,
            sequence,
            challenge: challenge.clone(),
            public: key.public.clone(),
        };
        let challenged = Challenged { hash, key, sequence, challenge };
        Ok(Step::Challenge { message, challenged, is_sent: false })
    }

    fn check(&mut self, of: &Challenged, shared: Option<&[u8]>, response: &[u8]) -> Result<(), AuthFailure> {
        let key = self.secrets.host.key_of(&self.names.host);
        let (transaction, challenge) = (self.transaction, &of.challenge[..]);
        let expected =
            Response { hash: of.hash, key: &key, challenge, shared, sequence: of.sequence, transaction };
        if are_equal(&expected.of_host(&self.names), response) {
            return Ok(());
        }
        self.mismatch = Some(MismatchedSecret::Host);
        Err(AuthFailure::FAILED)
    }

    /// The response to the challenge of the host, if it has one.
    fn result(
        &mut self,
        of: &Challenged,
        shared: Option<&[u8]>,
        sequence: u32,
        challenge: Option<Vec<u8>>,
    ) -> Result<Step, AuthFailure> {
        let digest_len = of.hash.digest_len() as u8;
        let Some(challenge) = challenge else {
            let message = AuthMessage::Success1 { digest_len, response: None };
            return Ok(Step::Result { message, then: false });
        };
        let Some(secret) = &self.secrets.subsystem else {
            self.mismatch = Some(MismatchedSecret::NoSubsystem);
            return Err(AuthFailure::FAILED);
        };
        // A host that sends the challenge back would learn the response that it must give.
        if challenge == of.challenge {
            return Err(AuthFailure::FAILED);
        }
        let (key, transaction) = (secret.key_of(&self.names.subsystem), self.transaction);
        let response =
            Response { hash: of.hash, key: &key, challenge: &challenge, shared, sequence, transaction };
        let response = Some(response.of_controller(&self.names).to_vec());
        Ok(Step::Result { message: AuthMessage::Success1 { digest_len, response }, then: true })
    }

    /// The data of Authentication Receive. `None`: the host must send first.
    pub fn message(&mut self) -> Option<Vec<u8>> {
        let (bytes, next) = match &mut self.step {
            Step::Challenge { message, is_sent, .. } => {
                *is_sent = true;
                return Some(message.encode(self.transaction));
            }
            Step::Result { message, then } => {
                let next = match message {
                    AuthMessage::Failure1(failure) => Step::Failed(*failure),
                    _ if *then => Step::Confirm,
                    _ => Step::Done,
                };
                (message.encode(self.transaction), next)
            }
            Step::Negotiate | Step::Confirm | Step::Done | Step::Failed(_) => return None,
        };
        self.step = next;
        Some(bytes)
    }
}
