//! The client's state machines against the server's, and against scripted servers.

use super::*;
use crate::nbd::{ExportOffer, Handshake, HandshakeStep};
use lunar_wire::be;
use lunar_wire::nbd::{
    ChunkHeader, Errno, OptionReply, SimpleReply, chunk, greeting, handshake_flag, info, option, reply, state,
};

fn offer(name: &str) -> ExportOffer {
    ExportOffer {
        name: name.into(),
        description: String::new(),
        size: 1 << 20,
        flags: flag::HAS_FLAGS | flag::SEND_FLUSH,
        block_size: 512,
        preferred: 4096,
        max_payload: 1 << 20,
    }
}

/// Moves bytes between both machines, `step` at a time, until the client's negotiation ends.
fn negotiate(name: &str, offers: Vec<ExportOffer>, step: usize) -> NegotiationStep {
    let (mut client, mut server) = (ClientNegotiation::new(name), Handshake::new(offers));
    let (mut to_client, mut to_server) = (Handshake::greeting().to_vec(), Vec::new());
    let mut seen = 0;
    loop {
        seen = (seen + step).min(to_client.len());
        let (used, end) = client.feed(&to_client[..seen], &mut to_server);
        to_client.drain(..used);
        seen -= used;
        if end != NegotiationStep::More {
            return end;
        }
        loop {
            let mut said = Vec::new();
            let (used, next) = server.feed(&to_server, &mut said);
            to_server.drain(..used);
            to_client.extend(said);
            assert!(!matches!(next, HandshakeStep::End(_)));
            if used == 0 {
                break;
            }
        }
    }
}

#[test]
fn export_is_negotiated_with_any_segmentation() {
    let expected = ExportInfo {
        size: 1 << 20,
        flags: flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_DF,
        structured: true,
        allocation: Some(1),
        block_size: 512,
        max_payload: 1 << 20,
    };
    for step in 1..100 {
        assert_eq!(negotiate("b", vec![offer("a"), offer("b")], step), NegotiationStep::Agreed(expected));
    }
    assert_eq!(negotiate("", vec![offer("a")], 7), NegotiationStep::Agreed(expected));
}

#[test]
fn unknown_export_error_lists_the_exports() {
    let NegotiationStep::Failed(NegotiationFailure::Refused { why, exports, tls: false, .. }) =
        negotiate("c", vec![offer("a"), offer("b\u{1b}[2J")], 9)
    else {
        panic!("not refused")
    };
    assert_eq!((why, exports), ("no such export", vec!["a".into(), "b [2J".into()]));
}

/// A reply to an option.
fn answer(option: u32, reply: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionReply { option, reply, len: data.len() as u32 };
    [&header.encode()[..], data].concat()
}

/// Negotiates with a server that sends `parts` after its greeting. Returns the result and the client's output.
fn client_end(parts: &[Vec<u8>]) -> (NegotiationStep, Vec<u8>) {
    let (mut client, mut out) = (ClientNegotiation::new("disk"), Vec::new());
    let mut bytes = [greeting(handshake_flag::FIXED_NEWSTYLE).to_vec(), parts.concat()].concat();
    loop {
        let (used, step) = client.feed(&bytes, &mut out);
        bytes.drain(..used);
        if step != NegotiationStep::More || used == 0 {
            return (step, out);
        }
    }
}

fn sizes(min: u32, max: u32) -> Vec<u8> {
    let [min, preferred, max] = [min, 4096, max].map(u32::to_be_bytes);
    answer(option::GO, reply::INFO, &[&info::BLOCK_SIZE.to_be_bytes()[..], &min, &preferred, &max].concat())
}

fn size(size: u64, flags: u16) -> Vec<u8> {
    let parts = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()];
    answer(option::GO, reply::INFO, &parts.concat())
}

fn no_chunks() -> Vec<u8> {
    answer(option::STRUCTURED_REPLY, reply::ERR_UNSUP, b"")
}

#[test]
fn server_without_structured_replies_is_accepted() {
    let old = answer(option::GO, reply::ERR_UNSUP, b"no");
    let export = [&1000u64.to_be_bytes()[..], &3u16.to_be_bytes(), &[0; 124]].concat();
    let (step, said) = client_end(&[no_chunks(), old, export]);
    let NegotiationStep::Agreed(export) = step else { panic!("{step:?}") };
    assert_eq!((export.size, export.block_size, export.max_payload), (1000, 1, MAX_PAYLOAD));
    assert!(export.is_read_only() && !export.structured && export.allocation.is_none());
    assert!(said.ends_with(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk"));
}

#[test]
fn server_properties_are_limited() {
    let ack = answer(option::GO, reply::ACK, b"");
    let (step, _) = client_end(&[no_chunks(), size(10_000, 1), sizes(4096, u32::MAX), ack]);
    let NegotiationStep::Agreed(export) = step else { panic!("{step:?}") };
    assert_eq!((export.size, export.block_size, export.max_payload), (8192, 4096, MAX_PAYLOAD));
}

#[test]
fn protocol_error_of_the_server_ends_the_connection() {
    let ack = answer(option::GO, reply::ACK, b"");
    for parts in [
        vec![answer(option::GO, reply::ACK, b"")],
        vec![answer(option::STRUCTURED_REPLY, reply::SERVER, b"")],
        vec![no_chunks(), ack.clone()],
        vec![no_chunks(), size(u64::MAX, 1), ack.clone()],
        vec![no_chunks(), size(512, 1), sizes(0, 512), ack.clone()],
        vec![no_chunks(), size(512, 1), sizes(3, 512), ack.clone()],
        vec![no_chunks(), size(512, 1), sizes(1 << 17, 1 << 20), ack.clone()],
        vec![no_chunks(), size(512, 1), sizes(512, 511), ack.clone()],
        vec![no_chunks(), answer(option::GO, reply::INFO, b"\0")],
        vec![no_chunks(), answer(option::GO, reply::INFO, b"\0\x03\0\0")],
        vec![no_chunks(), answer(option::GO, reply::SERVER, b"")],
        vec![vec![0; 20]],
        vec![
            OptionReply { option: option::STRUCTURED_REPLY, reply: reply::ACK, len: 1 << 20 }.encode().into(),
        ],
        vec![no_chunks(), size(512, 1).repeat(5000)],
    ] {
        let (step, _) = client_end(&parts);
        assert!(matches!(step, NegotiationStep::Failed(NegotiationFailure::Broken(_))), "{step:?}");
    }
    for bytes in [&b"SSH-2.0"[..], b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0", b"NBDMAGICIHAVEOPT\0\0"] {
        let (_, step) = ClientNegotiation::new("").feed(bytes, &mut Vec::new());
        assert!(
            matches!(step, NegotiationStep::Failed(NegotiationFailure::Broken(_))),
            "{bytes:?}: {step:?}"
        );
    }
}

#[test]
fn server_refusal_text_is_reported() {
    let (step, said) = client_end(&[no_chunks(), answer(option::GO, reply::ERR_TLS_REQD, b"use TLS\n")]);
    let NegotiationStep::Failed(NegotiationFailure::Refused { tls: true, said: words, .. }) = step else {
        panic!("{step:?}")
    };
    assert_eq!(words, "use TLS");
    assert!(said.ends_with(b"IHAVEOPT\0\0\0\x02\0\0\0\0"), "it takes its leave");
}

const EXPORT: ExportInfo = ExportInfo {
    size: 1 << 30,
    flags: 0xffff,
    structured: true,
    allocation: Some(7),
    block_size: 512,
    max_payload: 1 << 20,
};
const COOKIE: u64 = 5;

fn read() -> PendingCommand {
    PendingCommand::new(NbdCommand::Read { whole: false }, COOKIE, 4096, 4096)
}

fn status() -> PendingCommand {
    PendingCommand::new(NbdCommand::BlockStatus { one: true }, COOKIE, 4096, 4096)
}

fn part(kind: u16, done: bool, body: &[u8]) -> Vec<u8> {
    let header = ChunkHeader { flags: done.into(), kind, cookie: COOKIE, len: body.len() as u32 };
    [&header.encode()[..], body].concat()
}

fn data(offset: u64, len: usize, done: bool) -> Vec<u8> {
    part(chunk::OFFSET_DATA, done, &[&offset.to_be_bytes()[..], &vec![9; len]].concat())
}

fn hole(offset: u64, len: u32, done: bool) -> Vec<u8> {
    part(chunk::OFFSET_HOLE, done, &[&offset.to_be_bytes()[..], &len.to_be_bytes()].concat())
}

/// Processes messages with their payloads until the request is done or the bytes end.
fn answered(
    mut bytes: &[u8],
    request: &mut PendingCommand,
    export: &ExportInfo,
) -> Result<Option<Vec<u8>>, ProtocolViolation> {
    let mut buffer = vec![1; 4096];
    loop {
        let asked = &mut *request;
        let Some(taken) = next_message(bytes, export, move |cookie| (cookie == COOKIE).then_some(asked))?
        else {
            return Ok(None);
        };
        bytes = &bytes[taken.used..];
        match taken.fill {
            BufferFill::Nothing => {}
            BufferFill::Zeros(place) => buffer[place].fill(0),
            BufferFill::Payload(place) => {
                let len = place.len();
                buffer[place].copy_from_slice(&bytes[..len]);
                bytes = &bytes[len..];
            }
        }
        if taken.done {
            assert!(bytes.is_empty());
            return Ok(Some(buffer));
        }
    }
}

#[test]
fn read_completes_in_any_order_of_chunks() {
    let chunks = [hole(6144, 2048, false), data(4096, 1024, false), data(5120, 1024, true)].concat();
    let buffer = answered(&chunks, &mut read(), &EXPORT).expect("in order").expect("whole");
    assert!(buffer[..2048].iter().all(|b| *b == 9) && buffer[2048..].iter().all(|b| *b == 0));
    let ended = [data(4096, 4096, false), part(chunk::NONE, true, b"")].concat();
    assert!(answered(&ended, &mut read(), &EXPORT).expect("in order").is_some());
    let simple = SimpleReply { error: 0, cookie: COOKIE }.encode();
    let plain = ExportInfo { structured: false, ..EXPORT };
    let bytes = [&simple[..], &[9; 4096]].concat();
    assert!(answered(&bytes, &mut read(), &plain).expect("in order").is_some());
}

#[test]
fn unrequested_reply_is_rejected() {
    let mut other = data(4096, 512, true);
    other[15] ^= 1;
    let simple = SimpleReply { error: 0, cookie: COOKIE }.encode().to_vec();
    let error = |body: &[u8]| part(chunk::ERROR, true, body);
    for bytes in [
        other,
        vec![0; 20],
        simple.clone(),
        data(0, 512, true),
        data(4096 + 4096, 512, true),
        data(4096 + 2048, 4096, true),
        data(u64::MAX, 512, true),
        data(4096, 0, true),
        data(4096, 512, true),
        part(chunk::NONE, true, b""),
        part(chunk::NONE, false, b""),
        part(chunk::NONE, true, b"x"),
        hole(4096, 0, true),
        hole(4096, u32::MAX, true),
        [data(4096, 1024, false), data(4608, 1024, true)].concat(),
        [data(4096, 1024, false), hole(4096, 4096, true)].concat(),
        part(3, true, b""),
        part(chunk::BLOCK_STATUS, true, &[0; 12]),
        error(b"\0\0\0\0\0\0"),
        error(b"\0\0\0\x05\0\x09abc"),
        error(b"\0\0\0\x05"),
        error(&[1; 9000]),
    ] {
        assert!(answered(&bytes, &mut read(), &EXPORT).is_err(), "{:?}", &bytes[..bytes.len().min(40)]);
    }
    let plain = ExportInfo { structured: false, ..EXPORT };
    assert!(answered(&data(4096, 4096, true), &mut read(), &plain).is_err());
    assert!(answered(&simple, &mut status(), &EXPORT).is_err());
    assert!(answered(&part(chunk::NONE, true, b""), &mut status(), &EXPORT).is_err());
}

#[test]
fn extent_of_another_context_is_rejected() {
    let extent = |context: u32, len: u32, flags: u32| {
        part(chunk::BLOCK_STATUS, true, &[context, len, flags].map(u32::to_be_bytes).concat())
    };
    for (flags, zero) in [(0, false), (state::HOLE, false), (state::ZERO, true), (3, true)] {
        let mut asked = status();
        answered(&extent(7, 512, flags), &mut asked, &EXPORT).expect("in order").expect("whole");
        assert_eq!(asked.outcome(), Ok(Some(ExtentStatus { len: 512, zero })));
    }
    for wrong in [extent(8, 512, 0), extent(7, 0, 0)] {
        assert!(answered(&wrong, &mut status(), &EXPORT).is_err());
    }
    let no_context = ExportInfo { allocation: None, ..EXPORT };
    assert!(answered(&extent(7, 512, 0), &mut status(), &no_context).is_err());
}

#[test]
fn server_error_text_ends_the_request() {
    let body = [&(Errno::NoSpc as u32).to_be_bytes()[..], &4u16.to_be_bytes(), b"full\0\0\0\0"].concat();
    let at_offset = part(chunk::ERRORS | 2, true, &body);
    let bytes = [data(4096, 512, false), at_offset].concat();
    let mut asked = read();
    answered(&bytes, &mut asked, &EXPORT).expect("in order").expect("done");
    assert_eq!(asked.outcome(), Err(ServerError { errno: 28, said: "full".into() }));
    let simple = SimpleReply { error: Errno::Io as u32, cookie: COOKIE }.encode();
    let mut write = PendingCommand::new(NbdCommand::Write { fua: true }, COOKIE, 0, 512);
    assert_eq!(be::get32(&write.encode()[4..]), 0x0001_0001);
    answered(&simple, &mut write, &EXPORT).expect("in order").expect("done");
    assert_eq!(write.outcome(), Err(ServerError { errno: 5, said: String::new() }));
}

#[test]
fn incomplete_message_is_awaited() {
    for (bytes, mut request) in
        [(hole(4096, 4096, true), read()), (part(chunk::ERROR, true, b"\0\0\0\x05\0\0"), read())]
    {
        for len in 0..bytes.len() {
            assert_eq!(answered(&bytes[..len], &mut request, &EXPORT), Ok(None), "{len}");
        }
        assert!(matches!(answered(&bytes, &mut request, &EXPORT), Ok(Some(_))));
    }
}

#[test]
fn commands_are_encoded_as_the_server_reads_them() {
    for command in [
        NbdCommand::Read { whole: true },
        NbdCommand::Write { fua: true },
        NbdCommand::Disconnect,
        NbdCommand::Flush,
        NbdCommand::Trim { fua: true },
        NbdCommand::Cache,
        NbdCommand::WriteZeroes { fua: true, unmap: false, fast: true },
        NbdCommand::WriteZeroes { fua: false, unmap: true, fast: false },
        NbdCommand::BlockStatus { one: true },
    ] {
        let len = if command == NbdCommand::Flush { 0 } else { 512 };
        let bytes = PendingCommand::new(command, COOKIE, 0, len).encode();
        let request = lunar_wire::nbd::Request::decode(&bytes).expect("a request");
        let terms = crate::nbd::NegotiatedOptions {
            size: 4096,
            block_size: 512,
            max_payload: 4096,
            flags: !flag::READ_ONLY,
            structured: true,
            allocation: true,
        };
        assert_eq!(terms.check(&request), Ok(command));
    }
}
