//! A controller of NVMe: commands of the NVM command set, properties, events, authentication and keys of TLS. The first byte
//! chooses one of them.

use lunar_proto::nvme::auth::{
    AuthMessage, AuthNames, AuthSecrets, ControllerAuth, DhChapSecret, DhGroup, HostAuth,
};
use lunar_proto::nvme::tls::{TlsKey, TlsPskVersion};
use lunar_proto::nvme::{
    AsyncEvent, ControllerKind, ControllerProperties, EventQueue, MAX_COPY_RANGES, MAX_RANGES, NvmAction,
    PropertyChange, copy_segments, fused, of_scsi, to_scsi, translate, unmap_list,
};
use lunar_wire::nvme::{Nqn, NvmeStatus, PropertyAccess, Sqe};
use lunar_wire::scsi::unmap;

pub fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 5 {
        0 => commands(rest),
        1 => properties(rest),
        2 => events(rest),
        3 => authentication(rest),
        _ => tls_key(rest),
    }
}

fn commands(bytes: &[u8]) {
    let (entries, data) = bytes.as_chunks::<{ Sqe::LEN }>();
    let entries: Vec<Sqe> = entries.iter().copied().map(Sqe).collect();
    for (sqe, block_size) in entries.iter().flat_map(|sqe| [512, 4096].map(|size| (sqe, size))) {
        match translate(sqe, block_size) {
            Ok(NvmAction::Blocks(command)) => {
                let len = command.to_host.max(command.from_host);
                assert!(len == sqe.data().len && len.is_multiple_of(block_size));
            }
            Ok(NvmAction::Unmap { ranges, .. }) => unmaps(data, ranges),
            Ok(NvmAction::Copy { ranges, .. }) => copies(sqe, data, ranges, block_size),
            Ok(NvmAction::Zeroes(_) | NvmAction::Ignored { .. }) => {}
            Err(status) => assert!(!status.is_success()),
        }
    }
    for pair in entries.windows(2) {
        if let Ok(command) = fused(&pair[0], &pair[1], 512) {
            assert_eq!(command.from_host, 2 * pair[0].data().len);
        }
    }
    if let Some(field) = bytes.first_chunk() {
        let status = NvmeStatus::decode(u16::from_le_bytes(*field));
        let (scsi, sense) = to_scsi(status);
        assert_eq!(of_scsi(scsi, sense).is_success(), status.is_success());
    }
}

fn unmaps(data: &[u8], ranges: usize) {
    assert!((1..=MAX_RANGES).contains(&ranges));
    let list = unmap_list(data, ranges);
    let found = unmap::descriptors(&list).expect("the list is whole");
    assert!(found.len() <= ranges.min(data.len() / 16));
}

/// The blocks of a namespace for Copy.
const BLOCKS: u64 = 1 << 40;

fn copies(sqe: &Sqe, data: &[u8], ranges: usize, block_size: u32) {
    let Ok(segments) = copy_segments(sqe, data, block_size, BLOCKS) else { return };
    assert!((1..=MAX_COPY_RANGES).contains(&ranges) && segments.len() == ranges);
    for segment in segments {
        let end = segment.source_lba.max(segment.destination_lba) + u64::from(segment.blocks);
        assert!(segment.blocks > 0 && end <= BLOCKS);
    }
}

/// Each 9 bytes are a Property Set; the changes take effect at once.
fn properties(bytes: &[u8]) {
    let mut it = ControllerProperties::new(ControllerKind::Io, 1024);
    let (sets, _) = bytes.as_chunks::<9>();
    for [size, o0, o1, o2, o3, value @ ..] in sets {
        let offset = u32::from_le_bytes([*o0, *o1, *o2, *o3]);
        let value = u32::from_le_bytes(*value);
        let access = PropertyAccess { offset, is_long: size & 1 != 0, value: value.into() };
        _ = it.get(access);
        match it.set(access) {
            Ok(PropertyChange::Enable) => it.set_ready(),
            Ok(PropertyChange::Disable) => _ = it.set_disabled(),
            Ok(PropertyChange::Shutdown) => _ = it.set_shut_down(it.changes()),
            Ok(PropertyChange::None) | Err(_) => {}
        }
    }
}

/// Each message begins with its length; both roles take it.
fn authentication(mut bytes: &[u8]) {
    let name = |text| Nqn::new(text).expect("valid");
    let names = AuthNames { host: name("nqn.2026-11.h"), subsystem: name("nqn.2026-11.s") };
    let secret = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let secret = DhChapSecret::parse(secret).expect("valid");
    let secrets =
        AuthSecrets { groups: vec![DhGroup::Null], ..AuthSecrets::new(secret.clone(), Some(secret)) };
    let mut controller = ControllerAuth::new(names.clone(), secrets.clone());
    let (mut host, _) = HostAuth::new(names, secrets, 1);
    while let Some((len, rest)) = bytes.split_first() {
        let (message, next) = rest.split_at(rest.len().min(4 * usize::from(*len)));
        if let Some((transaction, decoded)) = AuthMessage::decode(message) {
            let again = AuthMessage::decode(&decoded.encode(transaction));
            assert_eq!(again, Some((transaction, decoded)));
        }
        controller.receive(message);
        _ = (controller.message(), host.receive(message));
        assert!(!controller.is_done() && !host.is_done(), "the input does not know the secret");
        bytes = next;
    }
}

/// A text that may be a key.
fn tls_key(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(key) = TlsKey::parse(text) else { return };
    assert_eq!(*key.to_text(), text.trim_end_matches('\n'));
    let name = |text| Nqn::new(text).expect("valid");
    let names =
        AuthNames { host: name("nqn.2026-11.org.example:h"), subsystem: name("nqn.2026-11.org.example:s") };
    for version in [TlsPskVersion::Zero, TlsPskVersion::One] {
        let psk = key.psk(&names, version).expect("the names are short");
        assert!(psk.identity.starts_with("NVMe") && matches!(psk.secret.len(), 32 | 48));
    }
}

/// Each byte is an operation on the queue of events.
fn events(bytes: &[u8]) {
    const LIMIT: usize = 4;
    let (mut queue, mut waiting) = (EventQueue::new(LIMIT, u32::MAX), 0);
    for byte in bytes {
        let id = u16::from(byte >> 3);
        match byte & 7 {
            0 | 1 => waiting += usize::from(queue.request(id).is_ok()),
            2 | 3 => queue.raise(AsyncEvent::ALL[usize::from(id & 3)]),
            4 => queue.log_read(AsyncEvent::ALL[usize::from(id & 3)].log_page()),
            5 => {
                queue.reset(u32::MAX);
                waiting = 0;
            }
            6 => queue.configure(u32::from(id) << 8),
            _ => waiting -= usize::from(queue.take_completion().is_some()),
        }
        assert!(waiting <= LIMIT);
    }
}
