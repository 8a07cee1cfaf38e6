//! The PSKs that a host offers in its ClientHello (RFC 8446, sections 4.1.2 and 4.2.11).

/// The type of the extension `pre_shared_key`.
const PRE_SHARED_KEY: [u8; 2] = 41u16.to_be_bytes();
/// Bytes of the version and of the random number, with which the message begins.
const HEAD: usize = 2 + 32;
/// Bytes of the age behind each identity.
const AGE: usize = 4;
/// The most identities that are looked up. A host has a few, and each lookup takes time before any proof.
const MAX_IDENTITIES: usize = 8;

/// The handshake header of ClientHello: its type, and the length of the message in three bytes.
const CLIENT_HELLO: u32 = 1 << 24;

/// The PSKs that a host offers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OfferedPsks<'m> {
    /// The first identities with their binders, the preferred one first.
    pub psks: Vec<(&'m [u8], &'m [u8])>,
    /// The message with its header, up to the binders: the bytes that a binder covers.
    pub bound: Vec<u8>,
}

/// The offered PSKs; none without a whole extension. The message has no handshake header.
pub fn offered_psks(message: &[u8]) -> OfferedPsks<'_> {
    read(message).unwrap_or_default()
}

fn read(message: &[u8]) -> Option<OfferedPsks<'_>> {
    let mut extension = extension(message)?;
    let mut identities = Vectors(&mut extension).of(2)?;
    let (len, binders_len) = (message.len(), extension.len());
    let mut binders = Vectors(&mut extension).of(2)?;
    let mut psks = Vec::new();
    while let Some(identity) = Vectors(&mut identities).of(2).filter(|_| psks.len() < MAX_IDENTITIES) {
        identities.split_off(..AGE)?;
        psks.push((identity, Vectors(&mut binders).of(1)?));
    }
    // The extension is the last one.
    let header = CLIENT_HELLO | u32::try_from(len).ok()?;
    let bound = [&header.to_be_bytes()[..], &message[..len - binders_len]].concat();
    Some(OfferedPsks { psks, bound })
}

/// The content of the extension.
fn extension(mut message: &[u8]) -> Option<&[u8]> {
    message.split_off(..HEAD)?;
    let mut vectors = Vectors(&mut message);
    // Session identifier, cipher suites, and compression methods.
    for len in [1, 2, 1] {
        vectors.of(len)?;
    }
    let mut extensions = vectors.of(2)?;
    while let Some(kind) = extensions.split_off(..2) {
        let content = Vectors(&mut extensions).of(2)?;
        if kind == PRE_SHARED_KEY {
            return Some(content);
        }
    }
    None
}

/// Takes vectors from the front of a message.
struct Vectors<'a, 'm>(&'a mut &'m [u8]);

impl<'m> Vectors<'_, 'm> {
    /// The content of a vector, whose length has this number of bytes.
    fn of(&mut self, len_bytes: usize) -> Option<&'m [u8]> {
        let len = self.0.split_off(..len_bytes)?.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        self.0.split_off(..len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(len_bytes: usize, content: &[u8]) -> Vec<u8> {
        [&content.len().to_be_bytes()[8 - len_bytes..], content].concat()
    }

    /// A message with these identities behind another extension.
    fn hello(identities: &[&str]) -> Vec<u8> {
        let one = |identity: &&str| [vector(2, identity.as_bytes()), vec![0; AGE]].concat();
        let list = vector(2, &identities.iter().flat_map(one).collect::<Vec<_>>());
        let binders = vector(2, &vector(1, &[7; 32]).repeat(identities.len()));
        let extensions = [
            [&[0, 43][..], &vector(2, &[2, 3, 4])].concat(),
            [&PRE_SHARED_KEY[..], &vector(2, &[list, binders].concat())].concat(),
        ];
        let parts =
            [vector(1, &[1; 32]), vector(2, &[0x13, 1]), vector(1, &[0]), vector(2, &extensions.concat())];
        [vec![3; HEAD], parts.concat()].concat()
    }

    #[test]
    fn offered_psks_keep_their_order() {
        let message = hello(&["a", "bc"]);
        let OfferedPsks { psks, bound } = offered_psks(&message);
        assert_eq!(psks, [(&b"a"[..], &[7; 32][..]), (b"bc", &[7; 32])]);
        let binders = 2 + 2 * 33;
        assert_eq!(bound, [&[1, 0, 0, message.len() as u8], &message[..message.len() - binders]].concat());
        assert_eq!(offered_psks(&hello(&[])).psks, []);
        assert_eq!(offered_psks(&hello(&["a"; 9])).psks.len(), MAX_IDENTITIES);
    }

    #[test]
    fn cut_hello_offers_nothing() {
        let whole = hello(&["a", "bc"]);
        for len in 0..whole.len() {
            assert_eq!(offered_psks(&whole[..len]), OfferedPsks::default(), "{len}");
        }
    }
}
