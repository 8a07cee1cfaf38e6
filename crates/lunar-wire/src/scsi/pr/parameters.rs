//! The parameter list of PERSISTENT RESERVE OUT (SPC-5 section 6.17).

/// The parameter list of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReserveOutParameters {
    /// RESERVATION KEY: the sender's own key.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the new key, or the key to preempt.
    pub action_key: u64,
    /// ALL_TG_PT.
    pub all_ports: bool,
    /// APTPL.
    pub aptpl: bool,
}

/// Bytes of the parameter list without TransportIDs.
pub const PARAMETERS_LEN: usize = 24;

/// Fields of the parameter list.
pub mod reserve_out {
    use crate::scsi::BitField;

    /// RESERVATION KEY.
    pub const KEY: BitField = BitField::bytes(0, 8);
    /// SERVICE ACTION RESERVATION KEY.
    pub const ACTION_KEY: BitField = BitField::bytes(8, 8);
    /// SPEC_I_PT: TransportIDs follow. REGISTER AND MOVE lacks this field and the next ones.
    pub const SPEC_I_PT: BitField = BitField::flag(20, 3);
    /// ALL_TG_PT.
    pub const ALL_TG_PT: BitField = BitField::flag(20, 2);
    /// APTPL.
    pub const APTPL: BitField = BitField::flag(20, 0);
    /// TRANSPORTID PARAMETER DATA LENGTH in bytes.
    pub const TRANSPORT_IDS_LENGTH: BitField = BitField::bytes(24, 4);
    /// The first byte of the TransportIDs.
    pub const TRANSPORT_IDS: usize = 28;
}

/// Further fields of the parameter list of REGISTER AND MOVE.
pub mod register_and_move {
    use crate::scsi::BitField;

    /// UNREG: the sender is unregistered.
    pub const UNREG: BitField = BitField::flag(17, 1);
    /// APTPL.
    pub const APTPL: BitField = BitField::flag(17, 0);
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub const RELATIVE_TARGET_PORT: BitField = BitField::bytes(18, 2);
    /// TRANSPORTID LENGTH in bytes.
    pub const TRANSPORT_ID_LENGTH: BitField = BitField::bytes(20, 4);
    /// The first byte of the TransportID.
    pub const TRANSPORT_ID: usize = 24;
}

impl ReserveOutParameters {
    /// Encodes the parameter list.
    pub fn encode(&self) -> [u8; PARAMETERS_LEN] {
        let mut b = [0; PARAMETERS_LEN];
        reserve_out::KEY.set(&mut b, self.key);
        reserve_out::ACTION_KEY.set(&mut b, self.action_key);
        reserve_out::ALL_TG_PT.set(&mut b, self.all_ports.into());
        reserve_out::APTPL.set(&mut b, self.aptpl.into());
        b
    }
}
