//! The security keys of one text, whichever side reads it (RFC 7143 section 12.1).

/// The security keys of one text.
#[derive(Default)]
pub(crate) struct ChapKeys<'a> {
    pub method: Option<&'a str>,
    pub a: Option<&'a str>,
    pub i: Option<&'a str>,
    pub c: Option<&'a str>,
    pub n: Option<&'a str>,
    pub r: Option<&'a str>,
}

impl<'a> ChapKeys<'a> {
    /// Keeps a security key; the caller has refused repetitions.
    pub fn put(&mut self, key: &str, value: &'a str) {
        let place = match key {
            "AuthMethod" => &mut self.method,
            "CHAP_A" => &mut self.a,
            "CHAP_I" => &mut self.i,
            "CHAP_C" => &mut self.c,
            "CHAP_N" => &mut self.n,
            _ => &mut self.r,
        };
        *place = Some(value);
    }

    /// Which keys there are, in the order method, A, I, C, N, R.
    pub fn present(&self) -> [bool; 6] {
        [self.method, self.a, self.i, self.c, self.n, self.r].map(|k| k.is_some())
    }
}

/// Sets of keys as [`ChapKeys::present`] tells them: none, and those of each step.
pub(crate) const NOTHING: [bool; 6] = [false; 6];
pub(crate) const METHOD: [bool; 6] = [true, false, false, false, false, false];
pub(crate) const ALGORITHM: [bool; 6] = [false, true, false, false, false, false];
pub(crate) const CHALLENGE: [bool; 6] = [false, true, true, true, false, false];
pub(crate) const PROOF: [bool; 6] = [false, false, false, false, true, true];
