//! The properties that a device reports: INQUIRY data, the VPD pages of its identity, and its capacity.

use crate::FoundLun;
use lunar_runtime::Buf;
use lunar_target::{PassthroughCommand, PassthroughData, PassthroughNexus, PassthroughResponse};
use lunar_wire::scsi::TaskAttribute;
use lunar_wire::scsi::cdb;
use lunar_wire::scsi::inquiry::{Capacity, StandardData};
use lunar_wire::scsi::vpd::{self, Designator, IDENTIFICATION, SERIAL_NUMBER, SUPPORTED_PAGES};
use std::io;

/// The length of the standard INQUIRY data that every device has.
const STANDARD_LEN: u16 = 36;
/// The maximum length of a VPD page of older devices, whose length field has one byte.
const PAGE_LEN: u16 = 252;
/// The number of attempts: a device reports one or more unit attentions after a reset.
const TRIES: u64 = 5;

/// Device types with blocks, whose capacity READ CAPACITY(10) reports: disk, CD, optical memory, simplified and zoned
/// disk (SPC-5 section 6.6.2).
const OF_BLOCKS: [u8; 5] = [0x00, 0x05, 0x07, 0x0e, 0x14];

/// Reads the properties of a device.
///
/// # Errors
/// When the device does not respond to an INQUIRY.
pub(super) async fn read(nexus: &impl PassthroughNexus) -> io::Result<FoundLun> {
    let standard = data_in(nexus, cdb::inquiry(None, STANDARD_LEN), STANDARD_LEN).await?;
    if standard.len() < usize::from(STANDARD_LEN) {
        return Err(io::Error::other(format!(
            "the device returned {} bytes of INQUIRY data; 36 are required",
            standard.len()
        )));
    }
    // Some devices fail on unsupported pages.
    let pages = page(nexus, SUPPORTED_PAGES).await;
    let has = |code| vpd::body(&pages).contains(&code);
    let serial = if has(SERIAL_NUMBER) { page(nexus, SERIAL_NUMBER).await } else { Vec::new() };
    let identification = if has(IDENTIFICATION) { page(nexus, IDENTIFICATION).await } else { Vec::new() };
    let unit = || vpd::designators(&identification).filter(|designator| designator.association == 0);
    let standard = StandardData(&standard);
    let kind = standard.device_type();
    let (blocks, block_size) = if OF_BLOCKS.contains(&kind) { capacity(nexus).await } else { (0, 0) };
    Ok(FoundLun {
        kind,
        block_size,
        physical_block_size: block_size,
        capacity: blocks.saturating_mul(block_size.into()),
        removable: standard.removable(),
        vendor: standard.vendor(),
        product: standard.product(),
        revision: standard.revision(),
        serial: vpd::serial(&serial),
        padded_serial: vpd::body(&serial).to_vec(),
        naa: unit()
            .find(|designator| designator.kind == Designator::NAA)
            .map_or(Vec::new(), |naa| naa.value.to_vec()),
        designators: unit().flat_map(|designator| designator.whole).copied().collect(),
        ..FoundLun::default()
    })
}

/// The number of blocks and the block size. 0 if the device does not report them, as without a medium.
async fn capacity(nexus: &impl PassthroughNexus) -> (u64, u32) {
    let short = data_in(nexus, cdb::read_capacity_10(), 8).await.unwrap_or_default();
    let capacity = match Capacity::decode_10(&short) {
        // The capacity exceeds this form of the command.
        Some(Capacity { last_lba: Capacity::BEYOND_10, .. }) => {
            Capacity::decode_16(&data_in(nexus, cdb::read_capacity_16(32), 32).await.unwrap_or_default())
        }
        capacity => capacity,
    };
    capacity.map_or((0, 0), |capacity| (capacity.blocks(), capacity.block_size))
}

/// A whole VPD page. Empty if the device fails or returns another page.
async fn page(nexus: &impl PassthroughNexus, code: u8) -> Vec<u8> {
    let page = inquiry(nexus, code, PAGE_LEN).await;
    let Some(len) = vpd::whole_len(&page) else { return page };
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    if len <= PAGE_LEN { page } else { inquiry(nexus, code, len).await }
}

/// The first `len` bytes of a VPD page. Empty if the device fails or returns another page.
async fn inquiry(nexus: &impl PassthroughNexus, code: u8, len: u16) -> Vec<u8> {
    let page = data_in(nexus, cdb::inquiry(Some(code), len), len).await.unwrap_or_default();
    if vpd::whole_len(&page).is_some() && vpd::code(&page) == Some(code) { page } else { Vec::new() }
}

/// The data of a command.
async fn data_in(nexus: &impl PassthroughNexus, cdb: cdb::Cdb, len: u16) -> io::Result<Vec<u8>> {
    let mut result = Ok(Vec::new());
    for tag in 0..TRIES {
        let (data, attribute) = (PassthroughData::In(Buf::zeroed(len.into())), TaskAttribute::Simple);
        match nexus.submit(PassthroughCommand { tag, cdb: cdb.into(), attribute, data }).await {
            PassthroughResponse { status: 0, data, .. } => {
                return Ok(data.map_or(Vec::new(), |data| data.to_vec()));
            }
            PassthroughResponse { status, sense, .. } => {
                result = Err(io::Error::other(failure_message(status, &sense)))
            }
        }
    }
    result
}

fn failure_message(status: u8, sense: &[u8]) -> String {
    match lunar_wire::scsi::Sense::decode(sense) {
        Some(sense) => format!("the device returned {sense}"),
        None => format!("the device returned status {status:02x}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::LocalBoxFuture;
    use lunar_target::CommandFate;
    use lunar_wire::scsi::TaskManagementFunction;
    use proptest::prelude::*;

    /// A device that returns the same data for every page.
    struct Says(Vec<u8>);

    impl PassthroughNexus for Says {
        fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
            let PassthroughData::In(mut buf) = command.data else { unreachable!("INQUIRY reads") };
            let len = buf.len().min(self.0.len());
            buf[..len].copy_from_slice(&self.0[..len]);
            buf.set_visible(len);
            let reply = PassthroughResponse {
                status: 0,
                sense: [].into(),
                moved: len as u64,
                data: Some(buf),
                fate: CommandFate::Ended,
            };
            Box::pin(async { reply })
        }

        fn abort(&self, _tag: u64) -> LocalBoxFuture<'_, CommandFate> {
            Box::pin(async { CommandFate::Ended })
        }

        fn manage(&self, _function: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
            Box::pin(async { false })
        }
    }

    proptest! {
        #[test]
        fn arbitrary_inquiry_data_is_read(
            head in proptest::sample::select(vec![vec![], vec![0, 0x80], vec![0, 0x83], vec![0, 0, 0xff, 0xff]]),
            rest in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let says = Says([head, rest].concat());
            let runtime = compio::runtime::Runtime::new().expect("a runtime");
            let result = runtime.block_on(read(&says));
            prop_assert_eq!(result.is_ok(), says.0.len() >= 36);
        }
    }
}
