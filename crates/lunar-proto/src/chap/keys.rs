//! The security keys of one key text, for both roles (RFC 7143 section 12.1).

/// The values of the security keys; `None` if the text does not contain the key.
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
    /// Stores a security key. The caller has rejected repetitions.
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

    /// The keys that are present, in the order AuthMethod, CHAP_A, CHAP_I, CHAP_C, CHAP_N, CHAP_R.
    pub fn present(&self) -> [bool; 6] {
        [self.method, self.a, self.i, self.c, self.n, self.r].map(|k| k.is_some())
    }
}

/// Expected results of [`ChapKeys::present`]: no key, and the keys of each step.
pub(crate) const NOTHING: [bool; 6] = [false; 6];
pub(crate) const METHOD: [bool; 6] = [true, false, false, false, false, false];
pub(crate) const ALGORITHM: [bool; 6] = [false, true, false, false, false, false];
pub(crate) const CHALLENGE: [bool; 6] = [false, true, true, true, false, false];
pub(crate) const PROOF: [bool; 6] = [false, false, false, false, true, true];
