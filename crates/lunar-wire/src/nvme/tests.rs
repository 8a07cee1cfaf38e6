use super::*;

const BOTH: Digests = Digests { header: true, data: true };
const NEITHER: Digests = Digests { header: false, data: false };

fn header(kind: u8, flags: u8, header_len: u8, data_offset: u8, len: u32) -> PduHeader {
    PduHeader { kind, flags, header_len, data_offset, len }
}

#[test]
fn header_has_type_flags_lengths_and_offset() {
    let bytes = [4, 3, 72, 76, 0x50, 0x10, 0, 0];
    let read = PduHeader::decode(&bytes);
    assert_eq!(read, header(pdu_type::CAPSULE_COMMAND, 3, 72, 76, 4176));
    assert_eq!(read.encode(), bytes);
    let pdu = read.check(true, BOTH, 4096).expect("a write of 4 KiB in the capsule");
    assert_eq!((pdu.kind, pdu.header_digest, pdu.data), (NvmePduKind::Command, Some(72..76), 76..4172));
    assert_eq!((pdu.data_digest, pdu.len), (Some(4172..4176), 4176));
}

#[test]
fn pdu_without_data_has_no_data_digest() {
    let bare = header(4, 1, 72, 0, 76).check(true, BOTH, 4096).expect("a read");
    assert_eq!((bare.data, bare.data_digest, bare.len), (76..76, None, 76));
    // pynvmeof gives an offset without data.
    assert!(header(4, 0, 72, 72, 72).check(true, NEITHER, 4096).is_ok());
    assert_eq!(header(4, 3, 72, 0, 76).check(true, BOTH, 4096), Err(NvmePduError::field(1)));
}

#[test]
fn faults_of_a_header_name_the_field() {
    let field = NvmePduError::field;
    let limit = NvmePduError::of(fatal_error::LIMIT_EXCEEDED);
    for (faulty, by_host, digests, expected) in [
        (header(0x0a, 0, 24, 0, 24), true, NEITHER, field(0)),
        (header(5, 0, 24, 0, 24), true, NEITHER, field(0)),
        (header(4, 0, 72, 0, 72), false, NEITHER, field(0)),
        (header(4, 0, 71, 0, 72), true, NEITHER, field(2)),
        (header(4, 0, 72, 0, 72), true, BOTH, field(1)),
        (header(4, 1, 72, 0, 72), true, NEITHER, field(1)),
        (header(0, 1, 128, 0, 128), true, BOTH, field(1)),
        (header(0, 0, 128, 0, 132), true, BOTH, field(4)),
        (header(2, 0, 24, 0, 153), true, NEITHER, field(4)),
        (header(4, 0, 72, 0, 71), true, NEITHER, field(4)),
        (header(4, 0, 72, 0, u32::MAX), true, NEITHER, field(4)),
        (header(5, 0, 24, 0, 25), false, NEITHER, field(4)),
        (header(9, 0, 24, 0, 28), false, NEITHER, field(4)),
        (header(4, 0, 72, 71, 80), true, NEITHER, field(3)),
        (header(4, 0, 72, 73, 80), true, NEITHER, field(3)),
        (header(4, 0, 72, 80, 80), true, NEITHER, field(3)),
        (header(6, 3, 24, 28, 32), true, BOTH, field(4)),
        (header(6, 0, 24, 24, 24 + 4097), true, NEITHER, limit),
    ] {
        assert_eq!(faulty.check(by_host, digests, 4096), Err(expected), "{faulty:?}");
    }
}

/// All types, flags and offsets, with lengths around the limits.
#[test]
fn parts_of_a_pdu_are_in_order_and_within_it() {
    let digests =
        [NEITHER, BOTH, Digests { header: true, data: false }, Digests { header: false, data: true }];
    for (kind, flags) in (0..=12).flat_map(|kind| (0..16).map(move |flags| (kind, flags))) {
        let lens = [0, 24, 28, 29, 33, 72, 76, 77, 100, 128, 152, 4096, 4200, u32::MAX];
        let offsets = [0, 24, 28, 72, 76, 80, 255];
        for (len, offset) in lens.into_iter().flat_map(|len| offsets.map(|offset| (len, offset))) {
            for (header_len, digests) in [24, 72, 128].into_iter().flat_map(|h| digests.map(|d| (h, d))) {
                let one = header(kind, flags, header_len, offset, len);
                for pdu in [true, false].into_iter().filter_map(|host| one.check(host, digests, 4096).ok()) {
                    let mut end = usize::from(header_len);
                    for part in pdu.header_digest.iter().chain([&pdu.data]).chain(&pdu.data_digest) {
                        assert!(part.start >= end && part.end >= part.start, "{one:?} {pdu:?}");
                        end = part.end;
                    }
                    assert_eq!(end, pdu.len, "{one:?} {pdu:?}");
                }
            }
        }
    }
}

#[test]
fn headers_that_are_sent_pass_the_check() {
    for digests in [NEITHER, BOTH] {
        for (kind, data) in [
            (NvmePduKind::Command, 0),
            (NvmePduKind::Command, 8192),
            (NvmePduKind::HostData, 1),
            (NvmePduKind::ControllerData, 4096),
            (NvmePduKind::Response, 0),
            (NvmePduKind::ReadyToTransfer, 0),
            (NvmePduKind::IcRequest, 0),
            (NvmePduKind::IcResponse, 0),
        ] {
            let pdu = PduHeader::of(kind, 0, digests, data).check(kind.is_of_host(), digests, 8192);
            let pdu = pdu.unwrap_or_else(|e| panic!("{kind:?} {data}: {e}"));
            assert_eq!((pdu.kind, pdu.data.len()), (kind, data));
        }
    }
}

#[test]
fn initialization_has_alignment_digests_and_limit() {
    let request = IcRequest { alignment: 0, digests: BOTH, max_r2t: 0 };
    let mut bytes = request.encode();
    assert_eq!(bytes[..16], [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(IcRequest::decode(&bytes), Ok(request));
    (bytes[10], bytes[8]) = (32, 0);
    assert_eq!(IcRequest::decode(&bytes), Err(NvmePduError::field(10)));
    bytes[8] = 1;
    assert_eq!(IcRequest::decode(&bytes), Err(NvmePduError::field(8)));
    let response = IcResponse { alignment: 0, digests: NEITHER, max_data: 1 << 20 };
    assert_eq!(response.encode()[8..16], [0, 0, 0, 0, 0, 0, 16, 0]);
    assert_eq!(IcResponse::decode(&response.encode()), Ok(response));
    for max_data in [0, 4095, 4098] {
        let invalid = IcResponse { max_data, ..response }.encode();
        assert_eq!(IcResponse::decode(&invalid), Err(NvmePduError::field(12)), "{max_data}");
    }
}

#[test]
fn termination_has_fault_and_a_part_of_the_header() {
    let error = NvmePduError::field(4);
    let long = [7; 200];
    for (faulty, copied) in [(&[][..], &[0][..]), (&[1, 2, 3], &[1, 2, 3]), (&long, &long[..128])] {
        let pdu = TermRequest { error, header: faulty }.encode(NvmePduKind::ControllerTermRequest);
        let header = PduHeader::decode(pdu.first_chunk().expect("a header"));
        assert!(header.check(false, BOTH, 0).is_ok_and(|checked| checked.len == pdu.len()), "{pdu:?}");
        assert_eq!(TermRequest::decode(&pdu), Some(TermRequest { error, header: copied }));
        assert_eq!(pdu[8..14], [1, 0, 4, 0, 0, 0]);
    }
    assert_eq!(TermRequest::decode(&[0; 23]), None);
}

#[test]
fn data_and_r2t_share_a_form() {
    let part = DataPdu { command: 0x1234, tag: 7, offset: 8192, len: 4096 };
    let bytes = part.encode(NvmePduKind::HostData, pdu_flag::LAST, NEITHER);
    assert_eq!(bytes[..8], [6, 4, 24, 24, 0x18, 0x10, 0, 0]);
    assert_eq!(bytes[8..20], [0x34, 0x12, 7, 0, 0, 32, 0, 0, 0, 16, 0, 0]);
    assert_eq!(DataPdu::decode(&bytes), part);
    let request = part.encode(NvmePduKind::ReadyToTransfer, 0, BOTH);
    assert_eq!(request[..8], [9, 1, 24, 0, 28, 0, 0, 0]);
}

#[test]
fn command_has_its_fields_at_their_places() {
    let read = Sqe::new(nvm_opcode::READ, 0x1020, 1)
        .with_data(SglDescriptor::transport(4096))
        .with_dword(10, 0x89ab_cdef)
        .with_dword(11, 1)
        .with_dword(12, 7 | 1 << 30);
    assert_eq!(read.0[..8], [2, 0x40, 0x20, 0x10, 1, 0, 0, 0]);
    assert_eq!(read.0[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0x5a]);
    assert_eq!((read.opcode(), read.id(), read.namespace()), (nvm_opcode::READ, 0x1020, 1));
    assert_eq!((read.lba(), read.blocks(), read.is_fua()), (0x1_89ab_cdef, 8, true));
    assert_eq!((read.fuse(), read.has_sgl()), (Fuse::None, true));
    let mut fused = read;
    fused.0[1] = 1;
    assert_eq!((fused.fuse(), fused.has_sgl()), (Fuse::First, false));
}

#[test]
fn descriptor_shows_where_data_are() {
    let at = |kind, len, address| SglDescriptor { address, len, kind }.place();
    assert_eq!(at(0x5a, 512, 0), Ok(DataPlace::Host));
    assert_eq!(at(0x5a, 0, 0), Ok(DataPlace::None));
    assert_eq!(at(0, 0, 0), Ok(DataPlace::None), "pynvmeof");
    assert_eq!(at(1, 512, 0), Ok(DataPlace::Capsule));
    assert_eq!(at(1, 512, 4), Err(NvmeStatus::SGL_INVALID_OFFSET));
    assert_eq!(at(0, 512, 0), Err(NvmeStatus::SGL_INVALID_TYPE));
    assert_eq!(at(0x40, 512, 0), Err(NvmeStatus::SGL_INVALID_TYPE));
}

#[test]
fn status_has_type_code_and_flags() {
    for (status, field) in [
        (NvmeStatus::SUCCESS, 0),
        (NvmeStatus::LBA_OUT_OF_RANGE, 0x8100),
        (NvmeStatus::ANA_INACCESSIBLE, 0x0604),
        (NvmeStatus { more: true, retry_delay: 2, ..NvmeStatus::INTERRUPTED }, 0x6042),
    ] {
        assert_eq!(status.encode(), field, "{status}");
        assert_eq!((NvmeStatus::decode(field), NvmeStatus::decode(field | 1)), (status, status));
    }
    assert_eq!(NvmeStatus::RESERVATION_CONFLICT.to_string(), "reservation conflict (0h/83h)");
    let unknown = NvmeStatus { code: 0x7f, ..NvmeStatus::SUCCESS };
    assert_eq!((unknown.to_string(), unknown.is_success()), ("unknown status (0h/7fh)".into(), false));
}

#[test]
fn completion_has_result_head_identifier_and_status() {
    let done = Cqe { result: 0x20001, head: 5, id: 0x1020, status: NvmeStatus::SUCCESS };
    assert_eq!(done.encode(), [1, 0, 2, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0x20, 0x10, 0, 0]);
    assert_eq!(Cqe::decode(&done.encode()), done);
}

#[test]
fn connect_of_linux_is_decoded() {
    // As Linux 6.12 sends it for the admin queue of an I/O controller.
    let mut sqe = Sqe([0; 64]);
    sqe.0[..5].copy_from_slice(&[0x7f, 0x40, 0, 0, 1]);
    sqe.0[24..40].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1]);
    (sqe.0[44], sqe.0[48], sqe.0[49]) = (31, 0x88, 0x13);
    let connect = ConnectCommand::decode(&sqe).expect("valid");
    let expected =
        ConnectCommand { queue: 0, queue_len: 32, disables_flow_control: false, keep_alive_ms: 5000 };
    assert_eq!((connect, sqe.fabrics_type(), sqe.data().place()), (expected, 1, Ok(DataPlace::Capsule)));
    assert_eq!(connect.encode(0).0, sqe.0);
    sqe.0[40] = 1;
    assert_eq!(ConnectCommand::decode(&sqe).map_err(|e| e.result()), Err(40));
    (sqe.0[40], sqe.0[44]) = (0, 0);
    assert_eq!(ConnectCommand::decode(&sqe).map_err(|e| e.result()), Err(44));
}

#[test]
fn connect_data_name_host_and_subsystem() {
    let data = ConnectData {
        host_id: [9; 16],
        controller: None,
        subsystem: Nqn::new("nqn.2026-11.org.example:disks").expect("valid"),
        host: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:12345678-1234-1234-1234-123456789abc")
            .expect("valid"),
    };
    let mut bytes = data.encode();
    assert_eq!((bytes[16..18].to_vec(), &bytes[256..260]), (vec![0xff, 0xff], &b"nqn."[..]));
    assert_eq!(ConnectData::decode(&bytes), Ok(data.clone()));
    bytes[16] = 1;
    bytes[17] = 0;
    assert_eq!(ConnectData::decode(&bytes).map(|data| data.controller), Ok(Some(1)));
    bytes[512] = b'x';
    let fault = ConnectData::decode(&bytes).expect_err("the host");
    assert_eq!((fault.status, fault.result()), (NvmeStatus::CONNECT_HOST, 0x1_0200));
    bytes[256..512].fill(b'a');
    let fault = ConnectData::decode(&bytes).expect_err("no end");
    assert_eq!((fault.status, fault.result()), (NvmeStatus::CONNECT_PARAMETERS, 0x1_0100));
}

#[test]
fn host_without_a_name_is_named_by_its_identifier() {
    let names = |host_id: [u8; 16]| {
        let subsystem = Nqn::new("nqn.2026-11.org.example:disks").expect("valid");
        let data = ConnectData { host_id, controller: None, host: subsystem.clone(), subsystem };
        let mut bytes = data.encode();
        bytes[512..768].fill(0);
        ConnectData::decode(&bytes).map(|data| data.host.to_string()).map_err(|fault| fault.result())
    };
    let id = [0x12, 0x34, 0x56, 0x78, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc];
    let name = "nqn.2014-08.org.nvmexpress:uuid:12345678-1234-1234-1234-123456789abc";
    assert_eq!(names(id), Ok(name.into()));
    assert_eq!(names([0; 16]), Err(0x1_0200), "nothing identifies the host");
}

#[test]
fn properties_have_four_or_eight_bytes() {
    let get = PropertyAccess { offset: property::CAP, is_long: true, value: 0 };
    let set = PropertyAccess { offset: property::CC, is_long: false, value: 0x46_0061 };
    assert_eq!(PropertyAccess::decode(&get.encode(1, false)), Some(get));
    let mut sqe = set.encode(1, true);
    assert_eq!((sqe.0[44], &sqe.0[48..51]), (0x14, &[0x61, 0, 0x46][..]));
    assert_eq!(PropertyAccess::decode(&sqe), Some(set));
    sqe.0[52] = 1;
    assert_eq!(PropertyAccess::decode(&sqe), Some(set), "the value has four bytes");
    sqe.0[40] = 2;
    assert_eq!(PropertyAccess::decode(&sqe), None);
    let linux = ControllerConfiguration(0x46_0061);
    assert!(linux.is_enabled() && !linux.is_shutdown());
    assert_eq!((linux.command_set(), linux.entry_sizes()), (6, (6, 4)));
    assert!(ControllerConfiguration(0x46_4061).is_shutdown());
    assert_eq!(ControllerConfiguration(3 << 7 | 2 << 11).page_shift(), 3);
    assert_eq!(ControllerConfiguration(3 << 7 | 2 << 11).arbitration(), 2);
}

#[test]
fn names_have_a_date_and_a_domain_or_a_uuid() {
    let long = format!("nqn.2026-11.org.example:{}", "x".repeat(199));
    for good in [
        DISCOVERY_NQN,
        "nqn.2026-11.org.example",
        "nqn.2026-11.org.example:a:b",
        "nqn.2014-08.org.nvmexpress:uuid:12345678-1234-1234-1234-123456789ABC",
        &long,
    ] {
        let name = Nqn::new(good).unwrap_or_else(|e| panic!("{good}: {e}"));
        assert_eq!(Nqn::decode(&name.encode()), Ok(name));
    }
    for (bad, fault) in [
        ("", "begin with nqn."),
        ("iqn.2026-11.org.example", "begin with nqn."),
        ("nqn.2026", "date is missing"),
        ("nqn.2026-13.org.example", "date is malformed"),
        ("nqn.2026_11.org.example", "date is malformed"),
        ("nqn.2026-11", "domain is missing"),
        ("nqn.2026-11.", "domain is missing"),
        ("nqn.2026-11.:disk", "domain is missing"),
        ("nqn.2014-08.org.nvmexpress:uuid:1234", "UUID is malformed"),
        ("nqn.2026-11.org.example:\n", "control character"),
        (&format!("{long}y"), "223 bytes"),
    ] {
        let e = Nqn::new(bad).expect_err(bad);
        assert!(e.to_string().contains(fault), "{bad}: {e}");
    }
    assert_eq!(Nqn::decode(&[b'n'; NQN_LEN]), Err(InvalidNqn("the name has no end")));
    assert_eq!(Nqn::decode(&[0xff; NQN_LEN].map(|b| b & 0xfe)), Err(InvalidNqn("the name has no end")));
}

#[test]
fn discovery_entry_keeps_its_fields() {
    let entry = DiscoveryEntry {
        transport: TransportKind::Tcp,
        family: AddressFamily::V4,
        kind: DiscoveryKind::Subsystem,
        secure: SecureChannel::NotRequired,
        without_flow_control: true,
        port: 1,
        controller: 0xffff,
        admin_queue_len: 32,
        subsystem: Nqn::new("nqn.2026-11.org.example:disks").expect("valid"),
        address: "192.0.2.10".into(),
        service: "4420".into(),
        security: 0,
    };
    let mut bytes = entry.encode();
    assert_eq!(bytes[..10], [3, 1, 2, 6, 1, 0, 0xff, 0xff, 32, 0]);
    assert_eq!((&bytes[32..37], &bytes[512..523]), (&b"4420\0"[..], &b"192.0.2.10\0"[..]));
    assert_eq!(DiscoveryEntry::decode(&bytes).as_ref(), Some(&entry));
    bytes[36..64].fill(b' ');
    assert_eq!(DiscoveryEntry::decode(&bytes).as_ref(), Some(&entry), "padded with spaces");
    bytes[32] = 0x1b;
    assert_eq!(DiscoveryEntry::decode(&bytes), None, "a control character");
    let header = DiscoveryHeader { generation: 3, entries: 2 };
    let bytes = header.encode();
    assert_eq!(DiscoveryHeader::decode(bytes.first_chunk().expect("a start")), Some(header));
    assert_eq!(DiscoveryHeader::decode(&[1; 18]), None);
}

#[test]
fn controller_has_its_fields_at_their_places() {
    let controller = IdentifyController {
        serial: padded_text("SN1"),
        model: padded_text("Lunar \u{e9}"),
        multipath: 0x0b,
        controller: 0x102,
        version: 0x1_0400,
        keep_alive: 10,
        command_capsule: 516,
        subsystem: Nqn::new("nqn.2026-11.org.example:disks").expect("valid").encode(),
        ..IdentifyController::zeroed()
    };
    let page = controller.encode();
    assert_eq!((&page[4..9], &page[24..33]), (&b"SN1  "[..], &b"Lunar _  "[..]));
    assert_eq!((page[76], &page[78..84]), (0x0b, &[2, 1, 0, 4, 1, 0][..]));
    assert_eq!((&page[320..322], &page[1792..1796]), (&[10, 0][..], &[4, 2, 0, 0][..]));
    assert_eq!(&page[768..772], b"nqn.");
    assert_eq!(IdentifyController::decode(&page), controller);
}

#[test]
fn namespace_has_size_identifiers_and_format() {
    let namespace = IdentifyNamespace {
        size: 1 << 21,
        capacity: 1 << 21,
        sharing: 1,
        access_group: 7,
        nguid: [3; 16],
        block_shift: 12,
        ..IdentifyNamespace::zeroed()
    };
    let page = namespace.encode();
    assert_eq!((page[2], page[10], page[30], page[92]), (0x20, 0x20, 1, 7));
    assert_eq!((page[104..120].to_vec(), &page[128..132]), (vec![3; 16], &[0, 0, 12, 0][..]));
    assert_eq!(IdentifyNamespace::decode(&page), namespace);
}

#[test]
fn format_in_use_is_that_of_the_index() {
    let mut page = IdentifyNamespace { block_shift: 9, ..IdentifyNamespace::zeroed() }.encode();
    page[128 + 4 * 3..][..3].copy_from_slice(&[8, 0, 12]);
    page[128 + 4 * 0x21..][..3].copy_from_slice(&[0, 0, 16]);
    for (index, format) in [(0x10, (0, 9)), (0x03, (8, 12)), (0x41, (0, 16))] {
        page[26] = index;
        assert_eq!(IdentifyNamespace::active_format(&page), format, "FLBAS {index:02x}h");
    }
}

#[test]
fn identifiers_form_a_list_that_ends() {
    use NamespaceIdentifier::{CommandSet, Eui64, Nguid, Uuid};
    let identifiers = [Uuid([1; 16]), Nguid([2; 16]), Eui64([3; 8]), CommandSet(0)];
    let list = NamespaceIdentifier::encode(&identifiers);
    assert_eq!((list[..5].to_vec(), &list[52..58]), (vec![3, 16, 0, 0, 1], &[4, 1, 0, 0, 0, 0][..]));
    assert_eq!(NamespaceIdentifier::decode(&list), identifiers);
    let unknown = [9, 2, 0, 0, 7, 7, 1, 8, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 2, 16, 0, 0, 1];
    assert_eq!(
        NamespaceIdentifier::decode(&unknown),
        [Eui64([5; 8])],
        "others are skipped, and a cut one ends it"
    );
    assert_eq!(NamespaceIdentifier::encode(&[Uuid([1; 16]); 300])[4095], 0, "what does not fit is left out");
}

#[test]
fn lists_of_namespaces_begin_after_an_identifier() {
    let list = namespace_list([1, 2, 5], 1);
    assert_eq!(list[..12], [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(listed_namespaces(&list).collect::<Vec<_>>(), [2, 5]);
    assert_eq!(listed_namespaces(&namespace_list(1..=2000, 0)).count(), 1024);
    let many: Vec<u32> = (1..=1025).collect();
    assert_eq!(listed_namespaces(&changed_namespaces(&many)).collect::<Vec<_>>(), [u32::MAX]);
    assert_eq!(listed_namespaces(&changed_namespaces(&many[..1024])).count(), 1024);
}

#[test]
fn access_log_has_groups_with_their_namespaces() {
    let group =
        |id, state, namespaces: &[u32]| AnaGroup { id, changes: 3, state, namespaces: namespaces.into() };
    let groups = [group(1, AnaState::Optimized, &[1, 4]), group(2, AnaState::Inaccessible, &[])];
    let page = AnaGroup::encode(9, &groups, true);
    assert_eq!(page.len(), 16 + 2 * 32 + 8);
    assert_eq!((page[0], page[8], page[16], page[20], page[32], page[48]), (9, 2, 1, 2, 1, 1));
    assert_eq!(AnaGroup::decode(&page), Some((9, groups.to_vec())));
    let bare = AnaGroup::decode(&AnaGroup::encode(9, &groups, false)).expect("a page").1;
    assert!(bare.iter().all(|group| group.namespaces.is_empty()));
    assert_eq!(AnaGroup::decode(&page[..page.len() - 1]), None);
    let mut invalid = page;
    invalid[20..24].fill(0xff);
    assert_eq!(AnaGroup::decode(&invalid), None, "more namespaces than there is room");
}

#[test]
fn part_of_an_access_log_has_the_groups_that_are_whole() {
    let group = |id, namespaces: &[u32]| {
        let (changes, state) = (3, AnaState::Optimized);
        AnaGroup { id, changes, state, namespaces: namespaces.into() }
    };
    let mut page = AnaGroup::encode(9, &[group(7, &[1, 4]), group(8, &[5])], true);
    page[72] = 5;
    let ids = |page: &[u8]| AnaEntry::all(page).map(|entry| entry.map(|e| e.id)).collect::<Vec<_>>();
    assert_eq!(ids(&page), [Some(7), Some(8)]);
    for (len, expected) in [(15, vec![None]), (16, vec![None]), (55, vec![None]), (56, vec![Some(7), None])] {
        assert_eq!(ids(&page[..len]), expected, "{len} bytes");
    }
    let [first, second] = AnaEntry::all(&page).map(|entry| entry.expect("whole")).collect::<Vec<_>>()[..]
    else {
        panic!("two groups");
    };
    assert_eq!(
        (first.state, first.namespaces().collect::<Vec<_>>()),
        (Some(AnaState::Optimized), vec![1, 4])
    );
    assert_eq!((second.state, AnaGroup::decode(&page)), (None, None), "a reserved state");
}

#[test]
fn effects_are_those_of_both_command_sets() {
    let page = effects(
        &[(admin_opcode::IDENTIFY, effect::SUPPORTED)],
        &[(nvm_opcode::WRITE, effect::SUPPORTED | effect::CHANGES_DATA)],
    );
    assert_eq!((page[24], page[1024 + 4], page[1024 + 8]), (1, 3, 0));
}

#[test]
fn logs_have_their_counters_at_their_places() {
    let smart = SmartLog { spare: 100, reads: 0x0102, ..SmartLog::zeroed() }.encode();
    assert_eq!((smart[3], &smart[64..66]), (100, &[2, 1][..]));
    let error = ErrorEntry { count: 1, command: 5, status: 0x8100, namespace: 2, ..ErrorEntry::zeroed() };
    assert_eq!((error.encode()[10], &error.encode()[12..14], error.encode()[24]), (5, &[0, 0x81][..], 2));
    let firmware = FirmwareLog { active: 1, first: padded_text("0.1.0") }.encode();
    assert_eq!((firmware[0], &firmware[8..16]), (1, &b"0.1.0   "[..]));
    let notice = ReservationLog { count: 1, kind: 2, more: 0, namespace: 3 };
    assert_eq!((notice.encode()[8], notice.encode()[12]), (2, 3));
}

#[test]
fn reservation_types_are_those_of_scsi() {
    let codes: Vec<u8> = (1..=6).filter_map(ReservationKind::decode).map(ReservationKind::scsi).collect();
    assert_eq!(codes, [1, 3, 5, 6, 7, 8]);
    for code in 0..=255 {
        let kind = ReservationKind::decode(code);
        assert_eq!(kind.is_some(), (1..=6).contains(&code));
        assert_eq!(kind.and_then(|kind| ReservationKind::of_scsi(kind.scsi())), kind);
    }
    assert_eq!([0, 2, 4, 9].map(ReservationKind::of_scsi), [None; 4]);
}

#[test]
fn reservation_commands_have_action_type_and_keys() {
    let register = ReservationAction { action: 2, ignores_key: false, kind: 0, persistence: 3 };
    let sqe = Sqe::new(nvm_opcode::RESERVATION_REGISTER, 1, 1).with_dword(10, register.encode());
    assert_eq!((sqe.dword(10), ReservationAction::decode(&sqe)), (0xc000_0002, register));
    let acquire = ReservationAction { action: 1, ignores_key: true, kind: 4, persistence: 0 };
    assert_eq!(acquire.encode(), 0x0409);
    let keys = [5u64.to_le_bytes(), 7u64.to_le_bytes()].concat();
    assert_eq!(reservation_keys(&keys), Some((5, 7)));
    assert_eq!(
        (reservation_keys(&keys[..15]), reservation_key(&keys), reservation_key(&keys[..7])),
        (None, Some(5), None)
    );
    let report = ReservationReport { generation: 4, kind: 1, registrants: 2, persistence: 1 }.encode();
    assert_eq!(report[..10], [4, 0, 0, 0, 1, 2, 0, 0, 0, 1]);
    let registrant = ReservationRegistrant { controller: 0xffff, status: 1, key: 5, host_id: [9; 16] };
    assert_eq!(ReservationRegistrant::decode(&registrant.encode()), registrant);
}
