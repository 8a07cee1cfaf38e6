//! The replies to a notification, in the encoding of Ceph.

/// The replies to a notification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotifyReplies {
    /// The payload of each acknowledgement.
    pub acks: Vec<Vec<u8>>,
    /// The number of watchers that did not acknowledge in time. A watch that has expired is not among them.
    pub missing: usize,
}

/// Bytes of a watcher: the identifier of its client, and that of the watch.
const WATCHER_BYTES: usize = 16;

/// Removes `len` bytes from the front.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// Removes a little-endian number from the front.
fn number(bytes: &mut &[u8]) -> Option<usize> {
    let (taken, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    usize::try_from(u32::from_le_bytes(*taken)).ok()
}

impl NotifyReplies {
    /// Decodes the replies: the number of acknowledgements, then the watcher, the length and the payload of each; then
    /// the number of missing watchers, and each watcher. None if the bytes end too early. Bytes after them are ignored.
    pub fn decode(mut bytes: &[u8]) -> Option<NotifyReplies> {
        let mut replies = NotifyReplies::default();
        for _ in 0..number(&mut bytes)? {
            take(&mut bytes, WATCHER_BYTES)?;
            let len = number(&mut bytes)?;
            replies.acks.push(take(&mut bytes, len)?.to_vec());
        }
        replies.missing = number(&mut bytes)?;
        take(&mut bytes, replies.missing.checked_mul(WATCHER_BYTES)?)?;
        Some(replies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledgements with these payloads, and missing watchers.
    fn encoded(acks: &[&[u8]], missing: u32) -> Vec<u8> {
        let mut bytes = (acks.len() as u32).to_le_bytes().to_vec();
        for payload in acks {
            bytes.extend([7; WATCHER_BYTES]);
            bytes.extend((payload.len() as u32).to_le_bytes());
            bytes.extend(*payload);
        }
        bytes.extend(missing.to_le_bytes());
        bytes.extend((0..missing).flat_map(|_| [8; WATCHER_BYTES]));
        bytes
    }

    #[test]
    fn replies_with_acks_and_missing_watchers_are_decoded() {
        let decoded = |acks: &[&[u8]], missing| NotifyReplies::decode(&encoded(acks, missing));
        assert_eq!(decoded(&[], 0), Some(NotifyReplies::default()));
        let acks = vec![b"one".to_vec(), vec![]];
        assert_eq!(decoded(&[b"one", b""], 3), Some(NotifyReplies { acks, missing: 3 }));
    }

    #[test]
    fn replies_that_end_too_early_are_refused() {
        let whole = encoded(&[b"one", b"two"], 2);
        for len in 0..whole.len() {
            assert_eq!(NotifyReplies::decode(&whole[..len]), None, "{len} bytes");
        }
        assert!(NotifyReplies::decode(&[whole.as_slice(), b"more"].concat()).is_some());
        assert_eq!(NotifyReplies::decode(&u32::MAX.to_le_bytes()), None);
        assert_eq!(NotifyReplies::decode(&[&[0; 4], u32::MAX.to_le_bytes().as_slice()].concat()), None);
    }
}
