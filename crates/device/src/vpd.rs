//! Vital product data pages (SPC-5 section 7.7, SBC-4 section 6.6).

use crate::table::Cx;
use wire::be;

type Make = fn(&Cx<'_>) -> Vec<u8>;

/// Pages by code, in ascending order: page 00h lists them.
const PAGES: &[(u8, Make)] = &[(0x00, supported), (0x80, serial)];

/// A whole page, or None when there is no such page.
pub(crate) fn page(cx: &Cx<'_>, code: u8) -> Option<Vec<u8>> {
    let (_, make) = PAGES.iter().find(|(c, _)| *c == code)?;
    let body = make(cx);
    let mut page = vec![cx.lu.settings().kind.device_type(), code, 0, 0];
    be::put16(&mut page[2..], body.len() as u16);
    page.extend_from_slice(&body);
    Some(page)
}

fn supported(_: &Cx<'_>) -> Vec<u8> {
    PAGES.iter().map(|(code, _)| *code).collect()
}

fn serial(cx: &Cx<'_>) -> Vec<u8> {
    cx.lu.settings().identity.serial.as_bytes().to_vec()
}
