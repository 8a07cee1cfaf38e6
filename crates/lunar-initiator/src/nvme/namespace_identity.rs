//! The identity and the geometry of a namespace, as Identify reports them.

use super::association::identify_entry;
use super::command::{NvmeCommand, NvmeResult};
use super::status::error_of;
use crate::{Direction, Error, ErrorCode};
use lunar_runtime::Buf;
use lunar_wire::nvme::{IdentifyNamespace, NamespaceIdentifier, NvmeStatus};
use std::fmt;

/// Identify Namespace (CNS 00h).
const NAMESPACE: u32 = 0x00;
/// The identifiers of a namespace (CNS 03h).
const IDENTIFIERS: u32 = 0x03;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Block sizes, as powers of 2, that are supported.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 9..=16;

/// Properties that must not change while a namespace is in use: its identifiers and its block size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// UUID, if there is one.
    pub uuid: Option<[u8; 16]>,
    /// NGUID, if there is one.
    pub nguid: Option<[u8; 16]>,
    /// EUI64, if there is one.
    pub eui64: Option<[u8; 8]>,
    /// The binary logarithm of the block size.
    pub block_shift: u8,
}

/// A UUID in its text form (RFC 9562).
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| digits(&uuid[part])).join("-")
}

/// Bytes as hexadecimal digits.
pub fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `uuid.`, or `eui.` with NGUID or EUI64, as Linux has it in `wwid`. Empty without an identifier.
impl fmt::Display for NamespaceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(uuid) = &self.uuid {
            return write!(f, "uuid.{}", uuid_text(uuid));
        }
        let bytes = self.nguid.as_ref().map(|id| &id[..]).or(self.eui64.as_ref().map(|id| &id[..]));
        bytes.map_or(Ok(()), |bytes| write!(f, "eui.{}", digits(bytes)))
    }
}

impl NamespaceIdentity {
    /// The change to another identity, as the end of a message.
    pub(super) fn change_to(&self, other: &NamespaceIdentity) -> String {
        let [before, now] = [self, other].map(|one| (one.to_string(), 1u64 << one.block_shift));
        match before.0 == now.0 && before.1 != now.1 {
            true => format!("had blocks of {} bytes, and has blocks of {} bytes now", before.1, now.1),
            false => format!("was {}, and is {} now", before.0, now.0),
        }
    }
}

/// A namespace that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceProperties {
    /// Its identity.
    pub identity: NamespaceIdentity,
    /// Identify Namespace.
    pub identify: IdentifyNamespace,
    /// The capacity in bytes.
    pub capacity: u64,
}

impl NamespaceProperties {
    /// The block size in bytes.
    pub fn block_size(&self) -> u32 {
        1 << self.identity.block_shift
    }

    /// Whether writes are refused now.
    pub fn is_read_only(&self) -> bool {
        self.identify.attributes & 1 != 0
    }

    /// Whether deallocated blocks read as zeros (DLFEAT).
    pub fn reads_zeros(&self) -> bool {
        self.identify.deallocation & 7 == 1
    }

    /// Whether Write Zeroes may deallocate (DLFEAT bit 3).
    pub fn zeroes_deallocate(&self) -> bool {
        self.identify.deallocation & 8 != 0
    }
}

/// Reads the properties of a namespace by commands that `execute` sends on the admin queue.
///
/// # Errors
/// [`ErrorCode::NotFound`] when there is none; the errors of [`decode`].
pub async fn read<F: Future<Output = NvmeResult>>(
    execute: impl Fn(NvmeCommand) -> F,
    namespace: u32,
) -> Result<NamespaceProperties, Error> {
    let identify = |structure| {
        let data = Direction::In(Buf::zeroed(PAGE));
        execute(NvmeCommand::new(identify_entry(structure, namespace), data))
    };
    let (result, page) = identify(NAMESPACE).await;
    let status = result?.status;
    let page = page.filter(|_| status.is_success()).ok_or_else(|| failed(namespace, status))?;
    let list = listed(namespace, identify(IDENTIFIERS).await)?;
    decode(namespace, &page, list.as_deref())
}

/// The list of identifiers in the answer to its entry; None if the controller has no such list. Any other failure must not
/// pass for a namespace without identifiers: another namespace would go unnoticed.
///
/// # Errors
/// [`ErrorCode::NotFound`] when there is no such namespace; another status as an error, or the lack of a completion.
fn listed(namespace: u32, (result, buf): NvmeResult) -> Result<Option<Buf>, Error> {
    let status = result?.status;
    // Controllers before version 1.3 have no such list.
    if is(status, NvmeStatus::INVALID_FIELD) || is(status, NvmeStatus::INVALID_OPCODE) {
        return Ok(None);
    }
    if status.is_success() { Ok(buf) } else { Err(failed(namespace, status)) }
}

fn is(status: NvmeStatus, other: NvmeStatus) -> bool {
    (status.kind, status.code) == (other.kind, other.code)
}

/// The error of an Identify of a namespace that ended with this status.
fn failed(namespace: u32, status: NvmeStatus) -> Error {
    if is(status, NvmeStatus::INVALID_NAMESPACE) { absent(namespace) } else { error_of(status) }
}

fn absent(namespace: u32) -> Error {
    Error::new(ErrorCode::NotFound, format!("the controller has no namespace {namespace}"))
}

/// Decodes Identify Namespace and the list of identifiers.
///
/// # Errors
/// [`ErrorCode::NotFound`] when there is no such namespace; [`ErrorCode::InvalidArgument`] when its format is not
/// supported.
fn decode(namespace: u32, page: &[u8], list: Option<&[u8]>) -> Result<NamespaceProperties, Error> {
    let page = page.first_chunk().expect("a page has 4096 bytes");
    let identify = IdentifyNamespace::decode(page);
    // An inactive namespace has a page of zeros.
    if identify.size == 0 || identify.capacity == 0 {
        return Err(absent(namespace));
    }
    let (metadata, block_shift) = IdentifyNamespace::active_format(page);
    if metadata > 0 {
        let what = format!(
            "namespace {namespace} has {metadata} bytes of metadata per block, which is not supported"
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what).with_hint("use a format without metadata"));
    }
    if !BLOCK_SHIFTS.contains(&block_shift) {
        let what =
            format!("namespace {namespace} has blocks of 2^{block_shift} bytes, which is not supported");
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    let capacity = identify.size.checked_mul(1 << block_shift).ok_or_else(|| {
        let what = format!("namespace {namespace} claims {} blocks, more than 2^64 bytes", identify.size);
        Error::new(ErrorCode::ProtocolError, what)
    })?;
    let some = |id: [u8; 16]| (id != [0; 16]).then_some(id);
    let mut identity = NamespaceIdentity {
        uuid: None,
        nguid: some(identify.nguid),
        eui64: (identify.eui64 != [0; 8]).then_some(identify.eui64),
        block_shift,
    };
    for identifier in NamespaceIdentifier::decode(list.unwrap_or_default()) {
        match identifier {
            NamespaceIdentifier::Uuid(id) => identity.uuid = some(id),
            NamespaceIdentifier::Nguid(id) => identity.nguid = some(id),
            NamespaceIdentifier::Eui64(id) => identity.eui64 = Some(id),
            NamespaceIdentifier::CommandSet(0) => {}
            NamespaceIdentifier::CommandSet(set) => {
                let what = format!("namespace {namespace} has the command set {set}, which is not supported");
                return Err(Error::new(ErrorCode::InvalidArgument, what));
            }
        }
    }
    Ok(NamespaceProperties { identity, identify, capacity })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(shift: u8, metadata: u8) -> [u8; 4096] {
        let mut page = [0; 4096];
        (page[0], page[8]) = (16, 16);
        (page[128], page[130]) = (metadata, shift);
        page
    }

    #[test]
    fn second_format_is_used_where_it_is_the_active_one() {
        let mut page = page(9, 0);
        (page[26], page[134]) = (1, 12);
        let properties = decode(1, &page, None).expect("a namespace");
        assert_eq!((properties.block_size(), properties.capacity), (4096, 16 << 12));
    }

    #[test]
    fn unusable_namespace_is_refused() {
        let code = |page: &[u8]| decode(7, page, None).expect_err("unusable").code;
        assert_eq!(code(&[0; 4096]), ErrorCode::NotFound);
        assert_eq!(code(&page(9, 8)), ErrorCode::InvalidArgument);
        assert_eq!(code(&page(0, 0)), ErrorCode::InvalidArgument);
        let mut huge = page(12, 0);
        huge[7] = 0xff;
        assert_eq!(code(&huge), ErrorCode::ProtocolError);
        let zoned = [4, 1, 0, 0, 2];
        assert_eq!(decode(7, &page(9, 0), Some(&zoned)).expect_err("zoned").code, ErrorCode::InvalidArgument);
    }

    #[test]
    fn identity_is_shown_as_linux_shows_it() {
        let list = [&[3, 16, 0, 0][..], &[0xab; 16], &[1, 8, 0, 0], &[7; 8]].concat();
        let found = decode(1, &page(9, 0), Some(&list)).expect("a namespace").identity;
        assert_eq!(found.to_string(), "uuid.abababab-abab-abab-abab-abababababab");
        let other = NamespaceIdentity { uuid: None, ..found };
        assert_eq!(other.to_string(), "eui.0707070707070707");
        assert_eq!(NamespaceIdentity::default().to_string(), "");
    }

    #[test]
    fn change_names_what_differs() {
        let before = decode(1, &page(9, 0), None).expect("a namespace").identity;
        let larger = NamespaceIdentity { block_shift: 12, ..before.clone() };
        let expected = "had blocks of 512 bytes, and has blocks of 4096 bytes now";
        assert_eq!(before.change_to(&larger), expected);
        let named = NamespaceIdentity { eui64: Some([7; 8]), ..before.clone() };
        let other = NamespaceIdentity { eui64: Some([8; 8]), ..larger };
        assert_eq!(named.change_to(&other), "was eui.0707070707070707, and is eui.0808080808080808 now");
    }
}
