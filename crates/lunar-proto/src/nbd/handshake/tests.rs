use super::*;
use lunar_wire::nbd::OPTION_REPLY_LEN;

fn offer(name: &str, size: u64) -> ExportOffer {
    ExportOffer {
        name: name.into(),
        description: format!("disk {name}"),
        size,
        flags: transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH,
        block_size: 512,
        preferred: 4096,
        max_payload: 32 << 20,
    }
}

/// A server of two exports that has received the client's flags.
fn begun(flags: u32) -> Handshake {
    let mut server = Handshake::new(vec![offer("a", 1 << 20), offer("b", 2 << 20)]);
    assert_eq!(server.feed(&flags.to_be_bytes(), &mut Vec::new()), (4, HandshakeStep::More));
    server
}

fn option_of(option: u32, data: &[u8]) -> Vec<u8> {
    [&OptionHeader { option, len: data.len() as u32 }.encode()[..], data].concat()
}

/// The replies to one option, as (type, data), and the step.
fn ask(server: &mut Handshake, option: u32, data: &[u8]) -> (Vec<(u32, Vec<u8>)>, HandshakeStep) {
    let (mut out, bytes) = (Vec::new(), option_of(option, data));
    let (used, step) = server.feed(&bytes, &mut out);
    assert_eq!(used, bytes.len());
    let (mut replies, mut rest) = (Vec::new(), &out[..]);
    while let Some((header, after)) = rest.split_first_chunk::<OPTION_REPLY_LEN>() {
        let header = OptionReply::decode(header).expect("a reply");
        assert_eq!(header.option, option);
        let (data, after) = after.split_at(header.len as usize);
        replies.push((header.reply, data.to_vec()));
        rest = after;
    }
    assert!(rest.is_empty());
    (replies, step)
}

fn kinds(answered: &(Vec<(u32, Vec<u8>)>, HandshakeStep)) -> Vec<u32> {
    answered.0.iter().map(|(kind, _)| *kind).collect()
}

fn named(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat()
}

fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = named(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = named(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(named(query)));
    data
}

#[test]
fn unknown_client_flags_end_the_connection() {
    for flags in [4u32, 0x8000_0001, 0x0001_0000] {
        let mut server = Handshake::new(vec![]);
        let (_, step) = server.feed(&flags.to_be_bytes(), &mut Vec::new());
        assert!(matches!(step, HandshakeStep::End(_)), "{flags:#x}");
    }
}

#[test]
fn wrong_magic_ends_the_connection() {
    let mut bytes = option_of(option::LIST, &[]);
    bytes[3] ^= 1;
    assert!(matches!(begun(3).feed(&bytes, &mut Vec::new()).1, HandshakeStep::End(_)));
}

#[test]
fn bytes_may_arrive_one_by_one() {
    let bytes = option_of(option::GO, &info_data("b", &[info::BLOCK_SIZE]));
    let mut out = Vec::new();
    let mut server = begun(3);
    for end in 0..bytes.len() {
        assert_eq!(server.feed(&bytes[..end], &mut out), (0, HandshakeStep::More), "after {end}");
        assert!(out.is_empty());
    }
    let (used, step) = server.feed(&bytes, &mut out);
    assert!(used == bytes.len() && matches!(step, HandshakeStep::Agreed(NegotiatedExport { export: 1, .. })));
}

#[test]
fn export_name_answers_with_zeros_unless_declined() {
    for (flags, zeros) in [(1, 124), (3, 0), (0, 124), (2, 0)] {
        let mut out = Vec::new();
        let (_, step) = begun(flags).feed(&option_of(option::EXPORT_NAME, b"b"), &mut out);
        assert!(matches!(step, HandshakeStep::Agreed(NegotiatedExport { export: 1, .. })));
        assert_eq!(out.len(), 10 + zeros);
        assert_eq!(out[..10], [0, 0, 0, 0, 0, 0x20, 0, 0, 0, 5]);
        assert!(out[10..].iter().all(|byte| *byte == 0));
    }
    let (_, step) = begun(3).feed(&option_of(option::EXPORT_NAME, b"none"), &mut Vec::new());
    assert!(matches!(step, HandshakeStep::End(_)));
    let (_, step) = begun(3).feed(&option_of(option::EXPORT_NAME, b""), &mut Vec::new());
    assert!(
        matches!(step, HandshakeStep::Agreed(NegotiatedExport { export: 0, .. })),
        "no name is the first"
    );
}

#[test]
fn client_without_block_size_may_use_any_alignment() {
    let block_size = |step| match step {
        HandshakeStep::Agreed(agreed) => agreed.terms.block_size,
        other => panic!("{other:?}"),
    };
    let minimum = begun(3).offers[0].block_size;
    assert!(minimum > 1);
    let (_, step) = begun(3).feed(&option_of(option::EXPORT_NAME, b"a"), &mut Vec::new());
    assert_eq!(block_size(step), 1);
    assert_eq!(block_size(ask(&mut begun(3), option::GO, &info_data("a", &[])).1), 1);
    assert_eq!(block_size(ask(&mut begun(3), option::GO, &info_data("a", &[info::BLOCK_SIZE])).1), minimum);
    let mut asked_before = begun(3);
    ask(&mut asked_before, option::INFO, &info_data("a", &[info::BLOCK_SIZE]));
    assert_eq!(block_size(ask(&mut asked_before, option::GO, &info_data("a", &[])).1), minimum);
    assert_eq!(block_size(ask(&mut asked_before, option::GO, &info_data("b", &[])).1), 1);
}

#[test]
fn only_export_name_works_without_fixed_newstyle() {
    assert!(matches!(begun(2).feed(&option_of(option::LIST, &[]), &mut Vec::new()).1, HandshakeStep::End(_)));
}

#[test]
fn exports_are_listed_with_their_descriptions() {
    let mut server = begun(3);
    let (replies, step) = ask(&mut server, option::LIST, &[]);
    assert_eq!(step, HandshakeStep::More);
    let expected = ["a", "b"].map(|name| [named(name), format!("disk {name}").into_bytes()].concat());
    assert_eq!(replies[..2], expected.map(|data| (reply::SERVER, data)));
    assert_eq!(replies[2], (reply::ACK, vec![]));
    assert_eq!(kinds(&ask(&mut server, option::LIST, &[0])), [reply::ERR_INVALID]);
}

#[test]
fn info_reports_the_export_and_go_starts_transmission() {
    let mut server = begun(3);
    let all = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 99];
    let (replies, step) = ask(&mut server, option::INFO, &info_data("", &all));
    assert_eq!(step, HandshakeStep::More);
    let expected: [&[u8]; 4] = [
        &[0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 5],
        b"\0\x01a",
        b"\0\x02disk a",
        &[0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0],
    ];
    for (received, expected) in replies.iter().zip(expected) {
        assert_eq!(*received, (reply::INFO, expected.to_vec()));
    }
    assert_eq!(replies[4], (reply::ACK, vec![]));
    let (replies, step) = ask(&mut server, option::GO, &info_data("a", &[]));
    assert_eq!(replies.len(), 2);
    let HandshakeStep::Agreed(agreed) = step else { panic!("{step:?}") };
    assert_eq!((agreed.export, agreed.terms.size, agreed.terms.structured), (0, 1 << 20, false));
    assert_eq!(agreed.terms.flags & transmission_flag::SEND_DF, 0);
}

#[test]
fn invalid_info_is_rejected() {
    let good = info_data("a", &[info::NAME]);
    let mut longer = good.clone();
    longer.push(0);
    for data in [&good[..good.len() - 1], &longer, &[0, 0, 0, 9], &[0xff; 6], &[]] {
        assert_eq!(kinds(&ask(&mut begun(3), option::GO, data)), [reply::ERR_INVALID], "{data:?}");
    }
    let unknown = ask(&mut begun(3), option::GO, &info_data("c", &[]));
    assert_eq!((kinds(&unknown), unknown.1), (vec![reply::ERR_UNKNOWN], HandshakeStep::More));
}

#[test]
fn df_is_offered_with_structured_replies() {
    let mut server = begun(3);
    assert_eq!(kinds(&ask(&mut server, option::STRUCTURED_REPLY, &[1])), [reply::ERR_INVALID]);
    assert_eq!(kinds(&ask(&mut server, option::STRUCTURED_REPLY, &[])), [reply::ACK]);
    let HandshakeStep::Agreed(agreed) = ask(&mut server, option::GO, &info_data("a", &[])).1 else {
        panic!()
    };
    assert!(agreed.terms.structured && !agreed.terms.allocation);
    assert_ne!(agreed.terms.flags & transmission_flag::SEND_DF, 0);
}

#[test]
fn contexts_are_listed_and_selected_for_one_export() {
    let mut server = begun(3);
    let set = |server: &mut Handshake, name: &str, queries: &[&str]| {
        kinds(&ask(server, option::SET_META_CONTEXT, &context_data(name, queries)))
    };
    assert_eq!(set(&mut server, "a", &["base:allocation"]), [reply::ERR_INVALID], "nothing structured yet");
    ask(&mut server, option::STRUCTURED_REPLY, &[]);
    let listed: [(&[&str], bool); 5] = [
        (&[], true),
        (&["base:"], true),
        (&["base:allocation"], true),
        (&["qemu:dirty-bitmap:x", "base:other"], false),
        (&["x-y:", "base:allocation", "base:"], true),
    ];
    for (queries, found) in listed {
        let (replies, _) = ask(&mut server, option::LIST_META_CONTEXT, &context_data("a", queries));
        assert_eq!(replies.len(), 1 + usize::from(found), "{queries:?}");
        if found {
            assert_eq!(replies[0], (reply::META_CONTEXT, b"\0\0\0\0base:allocation".to_vec()));
        }
    }
    assert_eq!(set(&mut server, "a", &[]), [reply::ACK]);
    assert_eq!(set(&mut server, "a", &["base:"]), [reply::ACK]);
    assert_eq!(set(&mut server, "c", &["base:allocation"]), [reply::ERR_UNKNOWN]);
    assert_eq!(set(&mut server, "a", &["base:allocation"]), [reply::META_CONTEXT, reply::ACK]);
    let with = |server: &mut Handshake, name: &str| match ask(server, option::GO, &info_data(name, &[])).1 {
        HandshakeStep::Agreed(agreed) => agreed.terms.allocation,
        other => panic!("{other:?}"),
    };
    assert!(with(&mut server, "a"));
    assert!(!with(&mut server, "b"), "it was selected for another");
    set(&mut server, "a", &["base:other"]);
    assert!(!with(&mut server, "a"), "the last selection counts");
}

#[test]
fn invalid_context_query_is_rejected() {
    let mut server = begun(3);
    ask(&mut server, option::STRUCTURED_REPLY, &[]);
    let good = context_data("a", &["base:allocation"]);
    let mut more = good.clone();
    more[8] = 9;
    for data in [&good[..good.len() - 1], &more, &[good.as_slice(), &[0]].concat(), &[0, 0, 0, 0]] {
        assert_eq!(kinds(&ask(&mut server, option::SET_META_CONTEXT, data)), [reply::ERR_INVALID]);
    }
    let long = context_data("a", &[&"x".repeat(MAX_STRING + 1)]);
    assert_eq!(kinds(&ask(&mut server, option::LIST_META_CONTEXT, &long)), [reply::ERR_INVALID]);
}

#[test]
fn unsupported_options_are_refused_and_negotiation_continues() {
    let mut server = begun(3);
    let cases = [(option::STARTTLS, reply::ERR_POLICY), (11, reply::ERR_UNSUP), (4, reply::ERR_UNSUP)];
    for (option, refusal) in cases {
        let answered = ask(&mut server, option, &[]);
        assert_eq!((kinds(&answered), answered.1), (vec![refusal], HandshakeStep::More));
    }
    assert_eq!(kinds(&ask(&mut server, option::STARTTLS, &[1])), [reply::ERR_INVALID]);
    let answered = ask(&mut server, option::ABORT, b"ignored");
    assert!(kinds(&answered) == [reply::ACK] && matches!(answered.1, HandshakeStep::End(_)));
}

#[test]
fn option_that_is_too_long_is_skipped() {
    let mut server = begun(3);
    let len = MAX_OPTION + 1;
    let bytes = option_of(option::LIST, &vec![0; len]);
    let mut out = Vec::new();
    assert_eq!(server.feed(&bytes, &mut out), (OPTION_LEN, HandshakeStep::More));
    assert_eq!(server.feed(&bytes[..100], &mut out), (100, HandshakeStep::More));
    assert!(out.is_empty());
    assert_eq!(server.feed(&vec![0; len], &mut out), (len - 100, HandshakeStep::More));
    let header = out.first_chunk().and_then(OptionReply::decode).expect("a reply");
    assert_eq!(header.reply, reply::ERR_TOO_BIG);
    assert_eq!(kinds(&ask(&mut server, option::LIST, &[])).len(), 3);
}

#[test]
fn too_many_options_end_the_connection() {
    let mut server = begun(3);
    let mut ends = (0..2 * MAX_OPTIONS).map(|_| ask(&mut server, option::LIST, &[]).1);
    assert!(ends.any(|step| matches!(step, HandshakeStep::End(_))));
}
