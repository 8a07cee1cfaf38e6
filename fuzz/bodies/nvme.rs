//! PDUs of NVMe over TCP, from both sides. The first byte chooses sender and digests. Every decoder reads the same bytes,
//! and the result is encoded again.

use lunar_wire::nvme::{
    AnaEntry, AnaGroup, ConnectCommand, ConnectData, Cqe, DataPdu, Digests, DiscoveryEntry, DiscoveryHeader,
    IcRequest, IcResponse, IdentifyController, NamespaceIdentifier, Nqn, NvmePduKind, PduHeader,
    PropertyAccess, Sqe, TermRequest, listed_namespaces,
};

/// The limit of data in bytes.
const MAX_DATA: usize = 8192;

pub fn run(input: &[u8]) {
    let Some((choice, pdu)) = input.split_first() else { return };
    let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    header(pdu, choice & 4 != 0, digests);
    parts(pdu, digests);
    if let Some(sqe) = pdu.first_chunk() {
        command(&Sqe(*sqe));
    }
    names(pdu);
    pages(pdu);
}

fn pages(page: &[u8]) {
    if let Some((changes, groups)) = AnaGroup::decode(page) {
        assert_eq!(AnaGroup::decode(&AnaGroup::encode(changes, &groups, true)), Some((changes, groups)));
    }
    let entries: Vec<_> = AnaEntry::all(page).collect();
    assert!(entries.iter().rev().skip(1).all(Option::is_some), "only the last group can be cut off");
    assert!(
        entries.iter().flatten().map(|entry| 32 + 4 * entry.namespaces().count()).sum::<usize>()
            <= page.len()
    );
    let identifiers = NamespaceIdentifier::decode(page);
    assert!(identifiers.len() <= page.len() / 5);
    if page.len() <= 4096 {
        assert_eq!(NamespaceIdentifier::decode(&NamespaceIdentifier::encode(&identifiers)), identifiers);
    }
    assert!(listed_namespaces(page).all(|id| id != 0));
    if let Some(controller) = page.first_chunk().map(IdentifyController::decode) {
        assert_eq!(IdentifyController::decode(&controller.encode()), controller);
    }
}

fn header(pdu: &[u8], by_host: bool, digests: Digests) {
    let Some(header) = pdu.first_chunk().map(PduHeader::decode) else { return };
    assert_eq!(Some(&header.encode()), pdu.first_chunk());
    let Ok(checked) = header.check(by_host, digests, MAX_DATA) else { return };
    assert_eq!(checked.kind.is_of_host(), by_host);
    assert!(checked.data.len() <= MAX_DATA && checked.data.end <= checked.len);
    let digest = checked.data_digest.map_or(checked.data.end, |digest| digest.end);
    assert_eq!(digest, checked.len);
}

fn parts(pdu: &[u8], digests: Digests) {
    if let Some(Ok(request)) = pdu.first_chunk().map(IcRequest::decode) {
        assert_eq!(IcRequest::decode(&request.encode()), Ok(request));
    }
    if let Some(Ok(response)) = pdu.first_chunk().map(IcResponse::decode) {
        assert_eq!(IcResponse::decode(&response.encode()), Ok(response));
    }
    if let Some(part) = pdu.first_chunk().map(DataPdu::decode) {
        let again = part.encode(NvmePduKind::ReadyToTransfer, 0, digests);
        assert_eq!(DataPdu::decode(&again), part);
    }
    if let Some(request) = TermRequest::decode(pdu) {
        let again = request.encode(NvmePduKind::HostTermRequest);
        assert_eq!(TermRequest::decode(&again).map(|request| request.error), Some(request.error));
    }
    if let Some(done) = pdu.first_chunk().map(Cqe::decode) {
        assert_eq!(Cqe::decode(&done.encode()), done);
        _ = done.status.to_string();
    }
}

fn command(sqe: &Sqe) {
    let data = sqe.data();
    assert_eq!(sqe.with_data(data), *sqe);
    _ = (data.place(), sqe.fuse(), sqe.blocks(), sqe.lba());
    if let Ok(connect) = ConnectCommand::decode(sqe) {
        assert_eq!(ConnectCommand::decode(&connect.encode(sqe.id())), Ok(connect));
    }
    if let Some(access) = PropertyAccess::decode(sqe) {
        assert_eq!(PropertyAccess::decode(&access.encode(sqe.id(), true)), Some(access));
    }
}

fn names(pdu: &[u8]) {
    if let Some(Ok(data)) = pdu.first_chunk().map(ConnectData::decode) {
        assert_eq!(ConnectData::decode(&data.encode()), Ok(data));
    }
    if let Some(entry) = pdu.first_chunk().and_then(DiscoveryEntry::decode) {
        assert_eq!(DiscoveryEntry::decode(&entry.encode()).as_ref(), Some(&entry));
    }
    _ = pdu.first_chunk().map(DiscoveryHeader::decode);
    if let Ok(name) = str::from_utf8(pdu).map_or(Err(()), |text| Nqn::new(text).map_err(drop)) {
        assert_eq!(Nqn::decode(&name.encode()), Ok(name));
    }
}
