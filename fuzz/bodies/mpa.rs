//! How an iWARP connection begins. Input: a byte that is odd for a reply, then what follows its key; with a first
//! byte above 0x7f the key is part of the input.

use lunar_wire::iwarp::MpaFrame;
use lunar_wire::iwarp::mpa::{MAX_PRIVATE, REPLY_KEY, REQUEST_KEY, is_request};

pub fn run(input: &[u8]) {
    let Some((switches, rest)) = input.split_first() else { return };
    let key = if switches & 1 == 0 { REQUEST_KEY } else { REPLY_KEY };
    let bytes = if *switches < 0x80 { [&key[..], rest].concat() } else { rest.to_vec() };
    let whole = MpaFrame::decode(&key, &bytes);
    for cut in 0..bytes.len().min(64) {
        // Early bytes decide the same as all of them, or nothing yet.
        let part = MpaFrame::decode(&key, &bytes[..cut]);
        assert!(part == Ok(None) || part == whole, "{part:?} after {cut} bytes, {whole:?} after all");
    }
    let Ok(Some((frame, len))) = whole else { return };
    assert!(len <= bytes.len() && frame.private.len() <= MAX_PRIVATE);
    assert_eq!(is_request(&bytes), key == REQUEST_KEY);
    let again = frame.encode(&key);
    assert_eq!(MpaFrame::decode(&key, &again), Ok(Some((frame, len))));
}
