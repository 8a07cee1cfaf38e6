//! The MPA startup of an iWARP connection. Input: a byte of flags (odd: a reply; from 0x80: the key is part of the
//! input), then the bytes after the key.

use lunar_wire::iwarp::MpaFrame;
use lunar_wire::iwarp::mpa::{MAX_PRIVATE, REPLY_KEY, REQUEST_KEY, is_request};

pub fn run(input: &[u8]) {
    let Some((switches, rest)) = input.split_first() else { return };
    let key = if switches & 1 == 0 { REQUEST_KEY } else { REPLY_KEY };
    let bytes = if *switches < 0x80 { [&key[..], rest].concat() } else { rest.to_vec() };
    let whole = MpaFrame::decode(&key, &bytes);
    for cut in 0..bytes.len().min(64) {
        // A prefix gives the same result as all bytes, or None.
        let part = MpaFrame::decode(&key, &bytes[..cut]);
        assert!(part == Ok(None) || part == whole, "{part:?} after {cut} bytes, {whole:?} after all");
    }
    let Ok(Some((frame, len))) = whole else { return };
    assert!(len <= bytes.len() && frame.private.len() <= MAX_PRIVATE);
    assert_eq!(is_request(&bytes), key == REQUEST_KEY);
    let again = frame.encode(&key);
    assert_eq!(MpaFrame::decode(&key, &again), Ok(Some((frame, len))));
}
