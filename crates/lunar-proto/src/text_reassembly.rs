//! Reassembly of key text that the C bit splits over several PDUs (RFC 7143 section 6.2).

/// Joins the data segments of one key text, up to a limit.
#[derive(Debug)]
pub(crate) struct TextReassembly {
    text: Vec<u8>,
    /// Remaining bytes of the limit.
    left: usize,
}

/// The key text exceeds the limit.
#[derive(Debug)]
pub(crate) struct TextTooLong;

impl TextReassembly {
    pub fn new(limit: usize) -> Self {
        TextReassembly { text: vec![], left: limit }
    }

    /// Adds a segment. Returns the complete text with the last segment, which has no C bit.
    pub fn take(&mut self, data: &[u8], continues: bool) -> Result<Option<Vec<u8>>, TextTooLong> {
        self.left = self.left.checked_sub(data.len()).ok_or(TextTooLong)?;
        self.text.extend_from_slice(data);
        Ok((!continues).then(|| std::mem::take(&mut self.text)))
    }
}

/// The length of the next data segment of a text, at most `max` bytes. It ends after a complete pair if one fits.
pub(crate) fn piece(text: &[u8], max: usize) -> usize {
    if text.len() <= max {
        return text.len();
    }
    text[..max].iter().rposition(|&b| b == 0).map_or(max, |nul| nul + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_covers_all_texts() {
        let mut g = TextReassembly::new(6);
        assert!(g.take(b"A=", true).unwrap().is_none());
        assert_eq!(g.take(b"1\0", false).unwrap().unwrap(), b"A=1\0");
        assert!(g.take(b"", true).unwrap().is_none());
        assert!(g.take(b"B=1", true).is_err());
    }

    #[test]
    fn segment_ends_after_a_pair_if_one_fits() {
        assert_eq!(piece(b"A=1\0B=2\0", 8), 8);
        assert_eq!(piece(b"A=1\0B=2\0", 7), 4);
        assert_eq!(piece(b"A=1\0B=2\0", 3), 3);
    }
}
