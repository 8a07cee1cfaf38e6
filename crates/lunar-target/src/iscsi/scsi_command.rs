//! SCSI Command PDUs (RFC 7143 section 11.3).

use crate::core::command::{Cdb, ScsiCommand};
use lunar_wire::iscsi::{Bhs, flag, request};

/// Decodes a SCSI Command PDU. None: its fields contradict each other (a format error, RFC 7143 section 7.7).
#[inline(always)]
pub fn read(h: &Bhs, ahs: &[u8], connection: u16) -> Option<ScsiCommand> {
    let flags = h.flags();
    let (reads, writes, edtl) = (flags & flag::READ != 0, flags & flag::WRITE != 0, h.edtl());
    if (!writes && !h.is_final()) || (edtl > 0 && !reads && !writes) {
        return None;
    }
    let mut c = ScsiCommand {
        tag: h.itt(),
        connection,
        lun: h.lun(),
        sequence: h.cmd_sn(),
        immediate: h.immediate(),
        reads,
        writes,
        has_unsolicited: !h.is_final(),
        copies_stably: false,
        attribute: request::task_attribute(h),
        expected_len: edtl,
        cdb: Cdb::Short(*h.cdb()),
    };
    if !ahs.is_empty() {
        c.cdb = extended(h.cdb(), ahs)?;
    }
    Some(c)
}

/// The CDB with the bytes of its additional header segments.
fn extended(cdb: &[u8; 16], ahs: &[u8]) -> Option<Cdb> {
    let whole = request::whole_cdb(cdb, ahs)?;
    Some(if whole.len() == cdb.len() { Cdb::Short(*cdb) } else { Cdb::Long(whole.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8, edtl: u32) -> Bhs {
        let mut h = Bhs::new(1);
        h.set_flags(flags);
        h.set_edtl(edtl);
        h
    }

    #[test]
    fn contradictory_flags_are_format_error() {
        for (flags, edtl, good) in
            [(0x80, 0, true), (0x80, 512, false), (0x40, 512, false), (0x20, 512, true), (0xc0, 8, true)]
        {
            assert_eq!(read(&header(flags, edtl), &[], 0).is_some(), good, "{flags:02x} {edtl}");
        }
    }

    #[test]
    fn extended_cdb_continues_header() {
        let mut ahs = vec![0, 17, 1, 0];
        ahs.extend(1..=16);
        let c = read(&header(0x80, 0), &ahs, 0).expect("a command");
        assert_eq!((c.cdb().len(), &c.cdb()[16..]), (32, &(1..=16).collect::<Vec<u8>>()[..]));
        let bidi = [0, 5, 2, 0, 0, 0, 2, 0];
        let both = [&bidi[..], &ahs].concat();
        assert_eq!(read(&header(0x80, 0), &both, 0).expect("a command").cdb().len(), 32);
    }

    #[test]
    fn overlong_header_segment_is_format_error() {
        for ahs in [[0, 0, 1, 0], [0, 17, 1, 0], [255, 255, 1, 0]] {
            assert!(read(&header(0x80, 0), &ahs, 0).is_none());
        }
    }
}
