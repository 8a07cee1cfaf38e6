//! The settings of the device server of a LUN: on a medium of this host, or in passthrough.

use super::UnitName;
use crate::config::LunConfig;
use crate::{Diagnostic, identity};
use lunar_block::BackendInfo;
use lunar_scsi::{LuSettings, PassthroughMode, PeripheralDeviceType};

/// The settings of a LUN on this medium.
pub(crate) fn settings(
    name: &UnitName,
    lun: &LunConfig,
    info: BackendInfo,
    max_registrants: usize,
) -> Result<LuSettings, Diagnostic> {
    // A routed LUN may have no medium now.
    if info.capacity < u64::from(lun.block_size) && lun.source.lu_address().is_none() {
        return Err(Diagnostic::new(
            format!("the medium has {} bytes, less than a block of {} bytes", info.capacity, lun.block_size),
            "serve a larger medium",
        ));
    }
    Ok(LuSettings {
        device_type: lun.kind,
        identity: identity::identity(name, lun),
        block_size: lun.block_size,
        physical_block_size: lun.physical_block_size.max(lun.block_size),
        capacity: info.capacity,
        read_only: lun.read_only || info.read_only,
        removable: lun.removable,
        write_cache: lun.write_cache,
        thin: lun.thin && info.unmap,
        // Set when the medium is opened.
        max_atomic: 0,
        medium_compares: false,
        max_registrants,
        reservable: lun.reservable,
        passthrough: PassthroughMode::None,
        explicit_access: lun.source.lu_address().is_none(),
        shared: false,
    })
}

/// The settings of a passthrough LUN. Hosts get all responses from the device.
pub(super) fn passing(
    name: &UnitName,
    lun: &LunConfig,
    passthrough: PassthroughMode,
    max_registrants: usize,
) -> LuSettings {
    LuSettings {
        device_type: PeripheralDeviceType::Disk,
        identity: identity::identity(name, lun),
        block_size: 512,
        physical_block_size: 512,
        capacity: 0,
        // The device reports write protection, command by command.
        read_only: lun.read_only && lun.found.is_none(),
        removable: lun.removable,
        write_cache: true,
        thin: false,
        max_atomic: 0,
        medium_compares: false,
        max_registrants,
        reservable: lun.reservable,
        passthrough,
        explicit_access: true,
        shared: false,
    }
}
