use super::*;
use proptest::prelude::*;

const TAG: u64 = 0xa1a2_a3a4_a5a6_a7a8;
const LUN: u64 = 0x0102_0304_0506_0708;
const HERE: MemoryDescriptor =
    MemoryDescriptor { address: 0x1112_1314_1516_1718, key: 0x2122_2324, len: 0x1000 };

/// `len` zeros with the given bytes at the given offsets.
fn bytes(len: usize, there: &[(usize, &[u8])]) -> Vec<u8> {
    let mut b = vec![0; len];
    there.iter().for_each(|(at, bytes)| b[*at..at + bytes.len()].copy_from_slice(bytes));
    b
}

fn tag() -> [u8; 8] {
    TAG.to_be_bytes()
}

fn login() -> LoginRequest {
    LoginRequest {
        tag: TAG,
        it_iu_len: 8260,
        formats: format::DIRECT | format::INDIRECT,
        keep_channels: true,
        notifications: 0x40,
        immediate_offset: Some(68),
        initiator: PortId([0xee; 16]),
        target: PortId([0xdd; 16]),
    }
}

#[test]
fn login_request_matches_each_connection_manager() {
    let ib = bytes(
        64,
        &[
            (8, &tag()),
            (16, &[0, 0, 0x20, 0x44]),
            (24, &[0, 6, 0xc1, 0, 0, 68]),
            (32, &[0xee; 16]),
            (48, &[0xdd; 16]),
        ],
    );
    let rdma_cm = bytes(
        56,
        &[
            (0, &tag()),
            (8, &[0, 6, 0xc1, 0, 0, 0, 0x20, 0x44]),
            (16, &[0xee; 16]),
            (32, &[0xdd; 16]),
            (48, &[0, 68]),
        ],
    );
    for (form, mut golden) in [(LoginFormat::Ib, ib), (LoginFormat::RdmaCm, rdma_cm)] {
        assert_eq!(login().encode(form), golden, "{form:?}");
        golden.resize(92, 0);
        assert_eq!(LoginRequest::decode(&golden, form), Ok(login()), "{form:?}, with zeros behind it");
        let needed = form.request_len() as u64;
        let there = form.request_len() - 1;
        let short = Err(SrpError::Short { needed, there });
        assert_eq!(LoginRequest::decode(&golden[..there], form), short);
    }
}

#[test]
fn invalid_login_request_is_rejected() {
    for (form, opcode_at, flags_at) in [(LoginFormat::Ib, 0, 26), (LoginFormat::RdmaCm, 11, 10)] {
        let mut b = login().encode(form);
        b[flags_at] = 2;
        assert_eq!(LoginRequest::decode(&b, form), Err(SrpError::Channels(2)));
        b[opcode_at] = 1;
        assert_eq!(LoginRequest::decode(&b, form), Err(SrpError::Opcode(1)));
    }
}

#[test]
fn login_response_matches_the_standard() {
    let response = LoginResponse {
        credits: 64,
        tag: TAG,
        it_iu_len: 8260,
        ti_iu_len: 296,
        formats: 6,
        previous: PreviousChannels::Ended,
        immediate: true,
    };
    let (lens, tail) = ([0, 0, 0x20, 0x44, 0, 0, 1, 40], [0, 6, 0x81]);
    let mut golden = bytes(52, &[(0, &[0xc0]), (4, &[0, 0, 0, 64]), (8, &tag()), (16, &lens), (24, &tail)]);
    assert_eq!(response.encode()[..], golden);
    assert_eq!(LoginResponse::decode(&golden), Ok(response));
    golden[26] = 3;
    assert_eq!(LoginResponse::decode(&golden), Err(SrpError::Channels(3)));
    assert_eq!(LoginResponse::decode(&golden[..51]), Err(SrpError::Short { needed: 52, there: 51 }));
    assert_eq!(LoginResponse::decode(&[0; 52]), Err(SrpError::Opcode(0)), "no private data, on InfiniBand");
}

#[test]
fn login_reject_matches_the_standard() {
    let reject = LoginReject { reason: LoginRejectReason::IT_IU_TOO_LONG, tag: TAG, formats: 6 };
    let golden = bytes(32, &[(0, &[0xc2]), (4, &[0, 1, 0, 2]), (8, &tag()), (24, &[0, 6])]);
    assert_eq!(reject.encode()[..], golden);
    assert_eq!(LoginReject::decode(&golden), Ok(reject));
    assert_eq!(LoginReject::decode(&golden[..31]), Err(SrpError::Short { needed: 32, there: 31 }));
    assert_eq!(LoginRejectReason(0x0001_0007).to_string(), "reason 0x00010007");
}

#[test]
fn port_id_joins_halves_and_parses_text() {
    let port = PortId::new(0x0102_0304_0506_0708, 0x0a0b_0c0d_0e0f_1011);
    let text = "0x01020304050607080a0b0c0d0e0f1011";
    assert_eq!((port.to_string().as_str(), text.parse()), (text, Ok(port)));
    assert_eq!((port.extension(), port.guid()), (0x0102_0304_0506_0708, 0x0a0b_0c0d_0e0f_1011));
    assert_eq!(text.to_uppercase().replace("0X", "0x").parse(), Ok(port));
    for wrong in ["", &text[2..], &text[..33], "0x+1020304050607080a0b0c0d0e0f1011", "0x é"] {
        assert_eq!(wrong.parse::<PortId>(), Err(InvalidPortId), "{wrong}");
    }
    assert_eq!(PortId::default().to_string().len(), 34);
}

const CDB: [u8; 16] = [0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

fn command<'a>(data_out: DataBuffer<'a>, data_in: DataBuffer<'a>) -> SrpCommand<'a> {
    let attribute = SrpTaskAttribute::Ordered;
    SrpCommand {
        notifications: 6,
        tag: TAG,
        lun: LUN,
        attribute,
        cdb: &CDB,
        additional_cdb: &[],
        data_out,
        data_in,
    }
}

fn encoded(command: &SrpCommand) -> Vec<u8> {
    let mut b = Vec::new();
    command.encode(Some(IMMEDIATE_OFFSET), &mut b).unwrap();
    b
}

/// Decodes a command with immediate data negotiated.
fn decode(b: &[u8]) -> Result<SrpCommand<'_>, SrpError> {
    SrpCommand::decode(b, Some(IMMEDIATE_OFFSET))
}

/// The first 48 bytes of `command`, with its formats and counts of descriptors.
fn head(formats: [u8; 3]) -> Vec<u8> {
    let lun = LUN.to_be_bytes();
    bytes(48, &[(0, &[2, 6]), (5, &formats), (8, &tag()), (20, &lun), (29, &[2]), (32, &CDB)])
}

const HERE_BYTES: [u8; 16] =
    [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0, 0, 0x10, 0];

#[test]
fn direct_command_matches_the_standard() {
    let none = command(DataBuffer::None, DataBuffer::None);
    assert_eq!(encoded(&none), head([0, 0, 0]));
    let read = command(DataBuffer::None, DataBuffer::Direct(HERE));
    assert_eq!(encoded(&read), [&head([1, 0, 0])[..], &HERE_BYTES].concat());
    let mut write = command(DataBuffer::Direct(HERE), DataBuffer::None);
    write.additional_cdb = &[1, 2, 3, 4];
    let mut golden = [&head([0x10, 0, 0])[..], &[1, 2, 3, 4], &HERE_BYTES].concat();
    golden[31] = 4;
    assert_eq!(encoded(&write), golden);
    golden[31] = 7;
    for command in [none, read, write] {
        assert_eq!(decode(&encoded(&command)), Ok(command));
        assert!(!command.is_bidirectional());
    }
    assert_eq!(decode(&golden), Ok(write), "the low bits of the length are reserved");
    assert_eq!((read.data_in.len(), read.data_out.is_empty()), (4096, true));
}

fn table(len: u32, list: &[u8], total: u32) -> IndirectBuffer<'_> {
    IndirectBuffer { table: MemoryDescriptor { len, ..HERE }, len: total, list }
}

#[test]
fn indirect_command_matches_the_standard() {
    let list = [HERE.encode(), HERE.encode()].concat();
    let whole = command(DataBuffer::None, DataBuffer::Indirect(table(32, &list, 0x2000)));
    let golden = [&head([2, 0, 2])[..], &HERE_BYTES[..12], &[0, 0, 0, 32], &[0, 0, 0x20, 0], &list].concat();
    assert_eq!(encoded(&whole), golden);
    let Ok(SrpCommand { data_in: DataBuffer::Indirect(all), .. }) = decode(&golden) else {
        panic!("{golden:?}")
    };
    assert!(all.is_whole() && all.descriptors().eq([HERE, HERE]) && all.len == 0x2000);
    let part = command(DataBuffer::Indirect(table(48, &list, 0x3000)), DataBuffer::None);
    let b = encoded(&part);
    assert_eq!(b[5..8], [0x20, 2, 0]);
    assert_eq!(decode(&b), Ok(part));
    assert!(matches!(part.data_out, DataBuffer::Indirect(all) if !all.is_whole()));
    let both = command(part.data_out, whole.data_in);
    assert_eq!(decode(&encoded(&both)), Ok(both));
    assert!(both.is_bidirectional());
}

#[test]
fn immediate_data_begin_at_the_negotiated_offset() {
    let write = command(DataBuffer::Immediate(&[7; 5]), DataBuffer::None);
    let golden = [&head([0x30, 0, 0])[..], &[0, 0, 0, 5], &[0; 16], &[7; 5]].concat();
    assert_eq!(encoded(&write), golden);
    assert_eq!(decode(&golden), Ok(write));
    assert_eq!(SrpCommand::decode(&golden, None), Err(SrpError::Format(0x30)), "it was not agreed on");
    assert_eq!(write.encode(None, &mut Vec::new()), Err(SrpError::Format(0x30)));
}

#[test]
fn truncated_command_is_rejected() {
    let list = [HERE.encode(), HERE.encode()].concat();
    let mut commands = [
        command(DataBuffer::None, DataBuffer::None),
        command(DataBuffer::Direct(HERE), DataBuffer::Direct(HERE)),
        command(DataBuffer::Indirect(table(32, &list, 0x2000)), DataBuffer::None),
        command(DataBuffer::Immediate(&[1; 32]), DataBuffer::None),
    ];
    commands[0].additional_cdb = &[0; 252];
    for b in commands.iter().map(encoded) {
        for len in 0..b.len() {
            let cut = decode(&b[..len]);
            assert!(matches!(cut, Err(SrpError::Short { there, .. }) if there == len), "{len} {cut:?}");
        }
    }
}

#[test]
fn reserved_buffer_formats_are_rejected() {
    for formats in [0x03, 0x13, 0x33, 0x04, 0x40, 0xf0, 0x0f] {
        let b = [&head([formats, 0, 0])[..], &[0; 64]].concat();
        assert_eq!(decode(&b), Err(SrpError::Format(formats)), "{formats:#x}");
    }
    let wrong = command(DataBuffer::None, DataBuffer::Immediate(&[1]));
    assert_eq!(wrong.encode(Some(68), &mut Vec::new()), Err(SrpError::Format(3)));
    let mut b = encoded(&command(DataBuffer::None, DataBuffer::None));
    b[29] = 3;
    assert_eq!(decode(&b), Err(SrpError::Attribute(3)));
    b[1] = 6;
    let tag = u64::from_be_bytes(tag());
    assert_eq!(SrpCommand::tag_and_notifications(&b), Some((tag, 6)), "for the response that rejects it");
    assert_eq!(SrpCommand::tag_and_notifications(&b[..47]), None);
}

/// A read with a table length of `len` bytes, two descriptors of 4 KiB in the command, and `total` as data length.
fn with_table(len: u32, total: u32) -> Vec<u8> {
    let list = [HERE.encode(), HERE.encode()].concat();
    let table = MemoryDescriptor { len, ..HERE }.encode();
    [&head([2, 0, 2])[..], &table, &total.to_be_bytes(), &list].concat()
}

#[test]
fn inconsistent_descriptor_table_is_rejected() {
    for len in [0, 16, 31, 33, u32::MAX] {
        let wrong = Err(SrpError::Table { len, descriptors: 2 });
        assert_eq!(decode(&with_table(len, 0x2000)), wrong, "{len}");
    }
    for (len, said) in [(32, 0x1fff), (32, 0x2001), (48, 0x1fff)] {
        assert_eq!(
            decode(&with_table(len, said)),
            Err(SrpError::Total { said, sum: 0x2000 }),
            "{len} {said}"
        );
    }
    assert!(decode(&with_table(48, u32::MAX)).is_ok(), "the others may be that long");
    let max = [MemoryDescriptor { len: u32::MAX, ..HERE }.encode(); 255].concat();
    let mut b = with_table(16 * 255, 0xffff_ff01);
    b.truncate(68);
    b.extend_from_slice(&max);
    b[7] = 255;
    let sum = 255 * 0xffff_ffff;
    assert_eq!(decode(&b), Err(SrpError::Total { said: 0xffff_ff01, sum }), "the sum is one of 64 bits");
    let max = [HERE.encode(); 256].concat();
    let many = command(DataBuffer::Indirect(table(4096, &max, 1 << 20)), DataBuffer::None);
    let wrong = Err(SrpError::Table { len: 4096, descriptors: 256 });
    assert_eq!(many.encode(None, &mut Vec::new()), wrong);
}

#[test]
fn misplaced_immediate_data_are_rejected() {
    let mut b = encoded(&command(DataBuffer::Immediate(&[7; 5]), DataBuffer::None));
    for (len, needed) in [(6, 74), (0xffff_ffbc, 1 << 32), (u32::MAX, (1 << 32) + 67)] {
        b[48..52].copy_from_slice(&u32::to_be_bytes(len));
        assert_eq!(decode(&b), Err(SrpError::Short { needed, there: 73 }), "{len}");
    }
    assert_eq!(SrpCommand::decode(&b, Some(51)), Err(SrpError::Offset { at: 51, end: 52 }));
    let mut long = command(DataBuffer::Immediate(&[7; 5]), DataBuffer::None);
    long.additional_cdb = &[0; 20];
    let (mut b, wrong) = (vec![1], Err(SrpError::Offset { at: 68, end: 72 }));
    assert_eq!((long.encode(Some(68), &mut b), b), (wrong, vec![1]));
    long.additional_cdb = &[0; 3];
    assert_eq!(long.encode(Some(68), &mut Vec::new()), Err(SrpError::Cdb(3)));
}

#[test]
fn response_matches_the_standard() {
    let response = SrpResponse {
        solicited: true,
        credits: 2,
        tag: TAG,
        status: 2,
        residual_out: Residual::Over(0x0102_0304),
        residual_in: Residual::Under(0x0506_0708),
        data: &[0, 0, 0, 5],
        sense: &[0x72, 1],
    };
    let numbers = [0, 0, 0x27, 2, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 2, 0, 0, 0, 4];
    let mut golden = bytes(
        42,
        &[(0, &[0xc1, 1]), (4, &[0, 0, 0, 2]), (8, &tag()), (16, &numbers), (36, &[0, 0, 0, 5, 0x72, 1])],
    );
    let mut b = Vec::new();
    response.encode(&mut b);
    assert_eq!(b, golden);
    assert_eq!((SrpResponse::decode(&b), response.task_status()), (Ok(response), Some(5)));
    assert_eq!(SrpResponse::decode(&b[..41]), Err(SrpError::Short { needed: 42, there: 41 }));
    golden[18] = 0x20;
    let bare = SrpResponse::decode(&golden).unwrap();
    assert_eq!((bare.data, bare.sense, bare.task_status()), (&[][..], &[][..], None));
    assert_eq!((bare.residual_out, bare.residual_in), (Residual::None, Residual::Under(0x0506_0708)));
    golden[18] = 0x0c;
    assert_eq!(SrpResponse::decode(&golden), Err(SrpError::Residual(0x0c)));
    golden[18] = 3;
    golden[28..36].fill(0xff);
    let needed = 36 + 2 * 0xffff_ffff;
    assert_eq!(SrpResponse::decode(&golden), Err(SrpError::Short { needed, there: 42 }));
}

#[test]
fn task_management_matches_the_standard() {
    let function = function::LUN_RESET;
    let reset = TaskManagement { notifications: 4, tag: TAG, lun: LUN, function, task_tag: 9 };
    let lun = LUN.to_be_bytes();
    let golden = bytes(48, &[(0, &[1, 4]), (8, &tag()), (20, &lun), (30, &[8]), (32, &9u64.to_be_bytes())]);
    assert_eq!(reset.encode()[..], golden);
    assert_eq!(FromInitiator::decode(&golden, None), Ok(FromInitiator::TaskManagement(reset)));
    assert_eq!(TaskManagement::decode(&golden[..47]), Err(SrpError::Short { needed: 48, there: 47 }));
}

#[test]
fn control_units_match_the_standard() {
    let small = |first, word: u32| bytes(16, &[(0, &[first]), (4, &word.to_be_bytes()), (8, &tag())]);
    let credit = CreditRequest { solicited: false, credits: -3, tag: TAG };
    assert_eq!(credit.encode()[..], small(0x81, 0xffff_fffd));
    assert_eq!(FromTarget::decode(&credit.encode()), Ok(FromTarget::Credit(credit)));
    let end = TargetLogout { solicited: false, reason: 5, tag: TAG };
    assert_eq!(end.encode()[..], small(0x80, 5));
    assert_eq!(FromTarget::decode(&end.encode()), Ok(FromTarget::Logout(end)));
    for (b, first, iu) in [
        (credit_response(TAG), 0x41, FromInitiator::CreditResponse(TAG)),
        (aer_response(TAG), 0x42, FromInitiator::AerResponse(TAG)),
        (logout(TAG), 0x03, FromInitiator::Logout(TAG)),
    ] {
        assert_eq!((&b[..], FromInitiator::decode(&b, None)), (&small(first, 0)[..], Ok(iu)));
        let short = SrpError::Short { needed: 16, there: 15 };
        assert_eq!(FromInitiator::decode(&b[..15], None), Err(short));
    }
}

#[test]
fn asynchronous_event_matches_the_standard() {
    let aer = Aer { solicited: true, credits: 1, tag: TAG, lun: LUN, sense: &[0x70, 0, 6] };
    let (lun, len) = (LUN.to_be_bytes(), [0, 0, 0, 3]);
    let there: [(usize, &[u8]); 6] =
        [(0, &[0x82, 1]), (4, &[0, 0, 0, 1]), (8, &tag()), (20, &lun), (28, &len), (36, &[0x70, 0, 6])];
    let mut golden = bytes(39, &there);
    let mut b = Vec::new();
    aer.encode(&mut b);
    assert_eq!(b, golden);
    assert_eq!(FromTarget::decode(&b), Ok(FromTarget::Aer(aer)));
    golden[28..32].fill(0xff);
    let needed = 36 + 0xffff_ffff;
    assert_eq!(FromTarget::decode(&golden), Err(SrpError::Short { needed, there: 39 }));
}

#[test]
fn unexpected_opcode_is_rejected() {
    for opcode in [0x00, 0xc0, 0xc1, 0xc2, 0x04] {
        assert_eq!(FromInitiator::decode(&[opcode; 64], None), Err(SrpError::Opcode(opcode)));
    }
    for opcode in [0x00, 0x01, 0x02, 0xc0, 0xc2] {
        assert_eq!(FromTarget::decode(&[opcode; 64]), Err(SrpError::Opcode(opcode)));
    }
    let nothing = SrpError::Short { needed: 1, there: 0 };
    assert_eq!(FromInitiator::decode(&[], None), Err(nothing));
    assert_eq!(FromTarget::decode(&[]), Err(nothing));
}

fn descriptor() -> impl Strategy<Value = MemoryDescriptor> {
    (any::<u64>(), any::<u32>(), 0..1u32 << 24).prop_map(|(address, key, len)| MemoryDescriptor {
        address,
        key,
        len,
    })
}

/// An owned [`DataBuffer`].
#[derive(Clone, Debug)]
enum Owned {
    None,
    Direct(MemoryDescriptor),
    Indirect(Vec<MemoryDescriptor>, u32),
    Immediate(Vec<u8>),
}

fn owned() -> impl Strategy<Value = Owned> {
    prop_oneof![
        Just(Owned::None),
        descriptor().prop_map(Owned::Direct),
        (prop::collection::vec(descriptor(), 1..20), 0..3u32)
            .prop_map(|(all, more)| Owned::Indirect(all, more)),
        prop::collection::vec(any::<u8>(), 0..100).prop_map(Owned::Immediate),
    ]
}

/// Borrows it as a [`DataBuffer`] whose descriptors are in `list`.
fn data<'a>(owned: &'a Owned, list: &'a mut Vec<u8>) -> DataBuffer<'a> {
    match owned {
        Owned::None => DataBuffer::None,
        Owned::Direct(one) => DataBuffer::Direct(*one),
        Owned::Immediate(bytes) => DataBuffer::Immediate(bytes),
        Owned::Indirect(all, more) => {
            all.iter().for_each(|one| list.extend_from_slice(&one.encode()));
            DataBuffer::Indirect(table(
                list.len() as u32 + 16 * more,
                list,
                all.iter().map(|one| one.len).sum(),
            ))
        }
    }
}

proptest! {
    #[test]
    fn command_round_trips(
        cdb in any::<[u8; 16]>(),
        words in prop::collection::vec(any::<[u8; 4]>(), 0..64),
        out in owned(),
        back in owned().prop_filter("data-out only", |data| !matches!(data, Owned::Immediate(_))),
    ) {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let (data_out, data_in) = (data(&out, &mut first), data(&back, &mut second));
        let (additional_cdb, cdb) = (words.as_flattened(), &cdb);
        let command = SrpCommand { additional_cdb, cdb, ..command(data_out, data_in) };
        let mut b = vec![0xff; 3];
        command.encode(Some(1024), &mut b).unwrap();
        prop_assert_eq!(SrpCommand::decode(&b[3..], Some(1024)), Ok(command));
    }

    #[test]
    fn arbitrary_bytes_decode_without_panic(mut b in prop::collection::vec(any::<u8>(), 0..200), first in 0..3u8) {
        if let Some(opcode) = b.first_mut() {
            *opcode = [*opcode, 2, 0xc1][usize::from(first)];
        }
        if let Ok(FromInitiator::Command(command)) = FromInitiator::decode(&b, Some(68)) {
            let mut again = Vec::new();
            command.encode(Some(68), &mut again).unwrap();
            prop_assert_eq!(decode(&again), Ok(command));
        }
        let _ = FromTarget::decode(&b);
    }
}
