//! The output of an NVMe/TCP connection.

use std::io::IoSlice;

use crate::outgoing_pdu::zeros;

/// PDUs to send. Data of zeros need no buffer.
#[derive(Debug, Default)]
pub struct NvmeAnswers {
    /// Everything else
    pub bytes: Vec<u8>,
    /// Numbers of zeros, each with the length of `bytes` before them
    zeros: Vec<(usize, usize)>,
}

impl NvmeAnswers {
    /// Appends zeros, and returns them.
    pub fn push_zeros(&mut self, len: usize) -> &'static [u8] {
        self.zeros.push((self.bytes.len(), len));
        zeros(len)
    }

    /// All output, in order, without empty slices: data follow a header.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let (mut slices, mut at) = (Vec::with_capacity(2 * self.zeros.len() + 1), 0);
        for (end, len) in &self.zeros {
            slices.extend([&self.bytes[at..*end], zeros(*len)].map(IoSlice::new));
            at = *end;
        }
        slices.extend(self.bytes.get(at..).filter(|rest| !rest.is_empty()).map(IoSlice::new));
        slices
    }

    /// Removes what was sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.zeros.clear();
    }
}
