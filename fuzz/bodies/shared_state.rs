//! The state that servers of one medium share, and its object. Input: the length of the state, the sections of the state
//! without magic and checksum, and then effects, which are the values of a change too.

use lunar_gateway::object::{SharedView, log_key, member_key};
use lunar_scsi::{Lu, LuIdentity, LuSettings, PassthroughMode, PeripheralDeviceType};
use std::collections::BTreeMap;

fn lu() -> Lu {
    let identity = LuIdentity {
        vendor: "V".into(),
        product: "P".into(),
        revision: "1".into(),
        serial: "S".into(),
        naa: vec![0x30; 8],
        designators: None,
    };
    let settings = LuSettings {
        device_type: PeripheralDeviceType::Disk,
        identity,
        block_size: 512,
        physical_block_size: 512,
        capacity: 1 << 20,
        read_only: false,
        removable: false,
        write_cache: false,
        thin: true,
        max_atomic: 0,
        medium_compares: false,
        max_registrants: 8,
        reservable: true,
        passthrough: PassthroughMode::None,
        explicit_access: false,
        shared: true,
    };
    let lu = Lu::new(settings, None).expect("valid settings");
    lu.share(|| {});
    lu
}

pub fn run(input: &[u8]) {
    let Some((&len, rest)) = input.split_first() else { return };
    let (sections, effects) = rest.split_at(usize::from(len).min(rest.len()));
    let mut state = [b"lunarLU\x01", sections].concat();
    state.extend_from_slice(&crc32c::crc32c(&state).to_be_bytes());
    let lu = lu();
    let before = lu.shared_state();
    match lu.install_shared(&state, &[effects], true) {
        // An installed state installs again, and stays the same.
        Ok(_) => {
            let installed = lu.shared_state();
            assert!(lu.install_shared(&installed, &[], true).is_ok());
            assert_eq!(lu.shared_state(), installed);
        }
        Err(_) => assert_eq!(lu.shared_state(), before),
    }
    for key in ["version".to_owned(), "state".into(), log_key(1), member_key(1)] {
        let omap = BTreeMap::from([(key, effects.to_vec())]);
        let Ok(view) = SharedView::decode(&omap) else { continue };
        let Ok((changes, _)) = view.changes_since(0) else { continue };
        changes.iter().for_each(|change| drop(change.effects()));
    }
}
