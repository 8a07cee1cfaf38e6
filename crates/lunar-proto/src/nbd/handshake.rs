//! Fixed newstyle negotiation on the server side ("Handshake", "Option types").

use super::{ExportOffer, NegotiatedExport, NegotiatedOptions};
use lunar_wire::be;
use lunar_wire::nbd::{
    BlockSizes, CLIENT_FLAGS_LEN, EXPORT_ZEROS, GREETING_LEN, MAX_STRING, OPTION_LEN, OptionHeader,
    OptionReply, greeting, handshake_flag, info, option, reply, transmission_flag,
};

/// Maximum length of the data of an option, in bytes. Longer data are skipped, and the option is refused.
pub const MAX_OPTION: usize = 64 << 10;
/// Maximum number of options of a client; one more ends the connection.
const MAX_OPTIONS: u32 = 1000;

/// The only metadata context, and its ID.
const ALLOCATION: &[u8] = b"base:allocation";
const ALLOCATION_ID: u32 = 1;
/// The query for all contexts of the namespace.
const WILDCARD: &[u8] = b"base:";

/// The result of [`Handshake::feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// One message was processed, or more bytes are needed.
    More,
    /// The transmission phase begins.
    Agreed(NegotiatedExport),
    /// The session ends after the pending output is sent; the reason, for the log.
    End(&'static str),
}

/// The negotiation with one client.
pub struct Handshake {
    offers: Vec<ExportOffer>,
    /// The client's flags, once received.
    flags: Option<u16>,
    structured: bool,
    /// The export for which `base:allocation` was selected.
    selected: Option<usize>,
    /// The export whose block sizes the client requested. For any other export, requests of any alignment are
    /// accepted.
    sized: Option<usize>,
    options: u32,
    /// An option that is too long, and the number of its bytes that are still to be skipped.
    skipping: Option<(u32, u32)>,
}

/// An error reply: its type and message.
type OptionError = (u32, &'static str);

const NO_DATA: OptionError = (reply::ERR_INVALID, "the option must have no data");
const BROKEN: OptionError =
    (reply::ERR_INVALID, "the lengths in the option data do not match the length of the option");
const UNKNOWN: OptionError = (reply::ERR_UNKNOWN, "no such export");

impl Handshake {
    /// A server that offers these exports.
    pub fn new(offers: Vec<ExportOffer>) -> Handshake {
        Handshake {
            offers,
            flags: None,
            structured: false,
            selected: None,
            sized: None,
            options: 0,
            skipping: None,
        }
    }

    /// The greeting of the server.
    pub fn greeting() -> [u8; GREETING_LEN] {
        greeting(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES)
    }

    /// Processes at most one message at the start of `bytes`, and appends output to `out`. Returns the number of
    /// bytes that it consumed, and the result. It consumes nothing if it needs more bytes.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        match (self.flags, self.skipping) {
            (None, _) => self.client_flags(bytes),
            (_, Some((option, rest))) => self.skip(option, rest, bytes, out),
            (Some(flags), None) => self.next_option(flags, bytes, out),
        }
    }

    fn client_flags(&mut self, bytes: &[u8]) -> (usize, HandshakeStep) {
        let Some(bytes) = bytes.first_chunk::<CLIENT_FLAGS_LEN>() else { return (0, HandshakeStep::More) };
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        match u16::try_from(be::get32(bytes)) {
            Ok(flags) if flags & !known == 0 => self.flags = Some(flags),
            _ => return (CLIENT_FLAGS_LEN, HandshakeStep::End("the client sent unknown client flags")),
        }
        (CLIENT_FLAGS_LEN, HandshakeStep::More)
    }

    fn skip(&mut self, option: u32, rest: u32, bytes: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        let used = bytes.len().min(rest as usize);
        let rest = rest - used as u32;
        self.skipping = (rest > 0).then_some((option, rest));
        if rest == 0 {
            answer(out, option, reply::ERR_TOO_BIG, &[b"the option is too long"]);
        }
        (used, HandshakeStep::More)
    }

    fn next_option(&mut self, flags: u16, bytes: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        let Some(header) = bytes.first_chunk::<OPTION_LEN>() else { return (0, HandshakeStep::More) };
        let Some(OptionHeader { option, len }) = OptionHeader::decode(header) else {
            return (OPTION_LEN, HandshakeStep::End("the client sent an option with a wrong magic number"));
        };
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 && option != option::EXPORT_NAME {
            return (
                OPTION_LEN,
                HandshakeStep::End(
                    "the client sent an option other than NBD_OPT_EXPORT_NAME without the fixed newstyle flag",
                ),
            );
        }
        if len as usize > MAX_OPTION {
            self.options += 1;
            self.skipping = Some((option, len));
            return (OPTION_LEN, self.bounded());
        }
        let whole = OPTION_LEN + len as usize;
        let Some(data) = bytes.get(OPTION_LEN..whole) else { return (0, HandshakeStep::More) };
        self.options += 1;
        let step = match option {
            option::EXPORT_NAME => self.export_name(data, flags, out),
            option::ABORT => {
                answer(out, option, reply::ACK, &[]);
                HandshakeStep::End("the client aborted the negotiation")
            }
            _ => self.fixed(option, data, out),
        };
        (whole, if step == HandshakeStep::More { self.bounded() } else { step })
    }

    fn bounded(&self) -> HandshakeStep {
        if self.options < MAX_OPTIONS {
            HandshakeStep::More
        } else {
            HandshakeStep::End("the client sent too many options")
        }
    }

    fn export_name(&self, name: &[u8], flags: u16, out: &mut Vec<u8>) -> HandshakeStep {
        let Some(export) = self.find(name) else {
            return HandshakeStep::End("the client requested an unknown export");
        };
        let agreed = self.agree(export);
        out.extend(agreed.reply().encode());
        if flags & handshake_flag::NO_ZEROES == 0 {
            out.extend([0; EXPORT_ZEROS]);
        }
        HandshakeStep::Agreed(agreed)
    }

    /// Processes an option that is answered with replies.
    fn fixed(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        let begun = out.len();
        let done = match option {
            option::LIST => self.list(data, out),
            option::INFO | option::GO => self.info(option, data, out),
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data, out),
            option::STARTTLS if !data.is_empty() => Err(NO_DATA),
            option::STARTTLS => Err((reply::ERR_POLICY, "TLS is not supported")),
            _ => Err((reply::ERR_UNSUP, "the option is unknown")),
        };
        match done {
            Ok(agreed) => {
                answer(out, option, reply::ACK, &[]);
                agreed.map_or(HandshakeStep::More, HandshakeStep::Agreed)
            }
            Err((error, why)) => {
                out.truncate(begun);
                answer(out, option, error, &[why.as_bytes()]);
                HandshakeStep::More
            }
        }
    }

    fn list(&self, data: &[u8], out: &mut Vec<u8>) -> Result<Option<NegotiatedExport>, OptionError> {
        if !data.is_empty() {
            return Err(NO_DATA);
        }
        for offer in &self.offers {
            let len = (offer.name.len() as u32).to_be_bytes();
            let parts: [&[u8]; 3] = [&len, offer.name.as_bytes(), offer.description.as_bytes()];
            answer(out, option::LIST, reply::SERVER, &parts);
        }
        Ok(None)
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<Option<NegotiatedExport>, OptionError> {
        if !data.is_empty() {
            return Err(NO_DATA);
        }
        self.structured = true;
        Ok(None)
    }

    fn info(
        &mut self,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<NegotiatedExport>, OptionError> {
        let mut rest = data;
        let name = string(&mut rest).ok_or(BROKEN)?;
        let count = take(&mut rest, 2).map(be::get16).ok_or(BROKEN)?;
        if rest.len() != usize::from(count) * 2 {
            return Err(BROKEN);
        }
        let wanted = |kind: u16| rest.chunks(2).any(|asked| be::get16(asked) == kind);
        let export = self.find(name).ok_or(UNKNOWN)?;
        if wanted(info::BLOCK_SIZE) {
            self.sized = Some(export);
        }
        let (offer, agreed) = (&self.offers[export], self.agree(export));
        let mut push_info = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            answer(out, option, reply::INFO, &[&[&kind[..]], parts].concat());
        };
        push_info(info::EXPORT, &[&agreed.reply().encode()]);
        if wanted(info::NAME) {
            push_info(info::NAME, &[offer.name.as_bytes()]);
        }
        if wanted(info::DESCRIPTION) && !offer.description.is_empty() {
            push_info(info::DESCRIPTION, &[offer.description.as_bytes()]);
        }
        if wanted(info::BLOCK_SIZE) {
            let (min, preferred, max_payload) = (offer.block_size, offer.preferred, offer.max_payload);
            push_info(info::BLOCK_SIZE, &[&BlockSizes { min, preferred, max_payload }.encode()]);
        }
        Ok((option == option::GO).then_some(agreed))
    }

    /// Processes LIST_META_CONTEXT and SET_META_CONTEXT ("Metadata querying").
    fn meta_context(
        &mut self,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<NegotiatedExport>, OptionError> {
        let setting = option == option::SET_META_CONTEXT;
        if setting {
            self.selected = None;
            if !self.structured {
                return Err((reply::ERR_INVALID, "NBD_OPT_STRUCTURED_REPLY must precede this option"));
            }
        }
        let mut rest = data;
        let name = string(&mut rest).ok_or(BROKEN)?;
        let count = take(&mut rest, 4).map(be::get32).ok_or(BROKEN)?;
        let mut found = count == 0 && !setting;
        // A count that is too high for the data fails at the end of the data.
        for _ in 0..count {
            let query = string(&mut rest).ok_or(BROKEN)?;
            found |= query == ALLOCATION || (query == WILDCARD && !setting);
        }
        if !rest.is_empty() {
            return Err(BROKEN);
        }
        let export = self.find(name).ok_or(UNKNOWN)?;
        if found {
            let id = if setting { ALLOCATION_ID } else { 0 };
            answer(out, option, reply::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION]);
        }
        if setting && found {
            self.selected = Some(export);
        }
        Ok(None)
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let named = self.offers.iter().position(|offer| offer.name.as_bytes() == name);
        named.or((name.is_empty() && !self.offers.is_empty()).then_some(0))
    }

    fn agree(&self, export: usize) -> NegotiatedExport {
        let offer = &self.offers[export];
        let df = if self.structured { transmission_flag::SEND_DF } else { 0 };
        let terms = NegotiatedOptions {
            size: offer.size,
            block_size: if self.sized == Some(export) { offer.block_size } else { 1 },
            max_payload: offer.max_payload,
            flags: offer.flags | df,
            structured: self.structured,
            allocation: self.selected == Some(export),
        };
        NegotiatedExport { export, terms }
    }
}

impl NegotiatedOptions {
    /// The metadata context ID of `base:allocation`.
    pub const ALLOCATION_ID: u32 = ALLOCATION_ID;
}

/// Consumes the first `len` bytes of `rest`.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

/// Consumes a string with its length in front.
fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take(rest, 4).map(be::get32)? as usize;
    if len > MAX_STRING {
        return None;
    }
    take(rest, len)
}

fn answer(out: &mut Vec<u8>, option: u32, reply: u32, parts: &[&[u8]]) {
    let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    out.extend(OptionReply { option, reply, len }.encode());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests;
