//! The effects of a change on nexuses of other servers, and their encoding: a number of bytes for each of them. Integers
//! are big-endian.

use super::InstalledEffects;
use crate::reservation::Registrant;
use crate::state::State;
use crate::{InvalidDefinition, NexusPorts};
use lunar_wire::scsi::Sense;

/// Nexuses that get a unit attention.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Audience {
    Only(Registrant),
    AllBut(Registrant),
    All,
}

/// The effects of one change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    attentions: Vec<(Audience, Sense)>,
    victims: Vec<Registrant>,
    reset: bool,
    /// The tasks of all nexuses end. A reset has this effect too.
    aborts_all: bool,
}

const ATTENTION_ONLY: u8 = 1;
const ATTENTION_ALL_BUT: u8 = 2;
const ATTENTION_ALL: u8 = 3;
const VICTIM: u8 = 4;
const RESET: u8 = 5;
const ABORT_ALL: u8 = 6;
/// Bytes of a sense: key, additional code, qualifier.
const SENSE: usize = 3;

impl Effects {
    pub(crate) fn raise(&mut self, on: Registrant, sense: Sense) {
        self.attentions.push((Audience::Only(on), sense));
    }

    pub(crate) fn raise_on_others(&mut self, but: Registrant, sense: Sense) {
        self.attentions.push((Audience::AllBut(but), sense));
    }

    pub(crate) fn raise_on_all(&mut self, sense: Sense) {
        self.attentions.push((Audience::All, sense));
    }

    pub(crate) fn abort(&mut self, victim: Registrant) {
        self.victims.push(victim);
    }

    pub(crate) fn reset(&mut self) {
        (self.reset, self.aborts_all) = (true, true);
    }

    pub(crate) fn abort_all(&mut self) {
        self.aborts_all = true;
    }

    /// Queues the unit attentions, and adds the nexuses whose tasks end.
    pub(crate) fn apply(&self, state: &mut State, installed: &mut InstalledEffects) {
        if self.reset {
            state.reset_unshared();
        }
        installed.aborts_all |= self.aborts_all;
        for (audience, sense) in &self.attentions {
            state.raise(*sense, |_, port| audience.has(port));
        }
        let ports = state.nexuses.iter().map(|(id, peer)| (*id, Registrant::from(&*peer.port)));
        installed.victims.extend(ports.filter(|(_, port)| self.victims.contains(port)).map(|(id, _)| id));
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (audience, sense) in &self.attentions {
            let (kind, who) = match audience {
                Audience::Only(who) => (ATTENTION_ONLY, who.encode()),
                Audience::AllBut(who) => (ATTENTION_ALL_BUT, who.encode()),
                Audience::All => (ATTENTION_ALL, Vec::new()),
            };
            put(&mut out, kind, &[&[sense.key, sense.asc, sense.ascq], &who[..]].concat());
        }
        self.victims.iter().for_each(|who| put(&mut out, VICTIM, &who.encode()));
        for (kind, is_set) in [(RESET, self.reset), (ABORT_ALL, self.aborts_all && !self.reset)] {
            if is_set {
                put(&mut out, kind, &[]);
            }
        }
        out
    }

    pub(super) fn decode(mut rest: &[u8]) -> Result<Effects, InvalidDefinition> {
        let invalid = InvalidDefinition::new("an effect of another server is invalid");
        let mut effects = Effects::default();
        while !rest.is_empty() {
            let (kind, body, tail) = take(rest).ok_or(invalid.clone())?;
            rest = tail;
            match (kind, body.split_first_chunk::<SENSE>()) {
                (VICTIM, _) => effects.victims.push(Registrant::decode(body)?),
                (RESET, _) if body.is_empty() => effects.reset(),
                (ABORT_ALL, _) if body.is_empty() => effects.abort_all(),
                (ATTENTION_ONLY..=ATTENTION_ALL, Some((&[key, asc, ascq], who))) => {
                    let audience = match kind {
                        ATTENTION_ONLY => Audience::Only(Registrant::decode(who)?),
                        ATTENTION_ALL_BUT => Audience::AllBut(Registrant::decode(who)?),
                        _ => Audience::All,
                    };
                    effects.attentions.push((audience, Sense::new(key, asc, ascq)));
                }
                _ => return Err(invalid),
            }
        }
        Ok(effects)
    }
}

impl Audience {
    fn has(&self, port: &NexusPorts) -> bool {
        match self {
            Audience::Only(who) => *who == port.into(),
            Audience::AllBut(who) => *who != port.into(),
            Audience::All => true,
        }
    }
}

fn put(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&(body.len() as u16).to_be_bytes());
    out.extend_from_slice(body);
}

fn take(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    let (&len, rest) = rest.split_first_chunk()?;
    let (body, rest) = rest.split_at_checked(u16::from_be_bytes(len) as usize)?;
    Some((kind, body, rest))
}
