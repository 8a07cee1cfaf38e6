//! READ BUFFER(10) and WRITE BUFFER (SPC-5 sections 6.18 and 6.49): each logical unit has one data buffer and one
//! echo buffer. The echo buffer belongs to the nexus that wrote it last, which EBOS announces.

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{NexusId, Plan, PlanResult};
use lunar_wire::scsi::buffer::{BufferDescriptor, EchoBufferDescriptor};
use lunar_wire::scsi::cdb::read_buffer_10::ALLOCATION_LENGTH;
use lunar_wire::scsi::cdb::write_buffer::{BUFFER_ID, BUFFER_OFFSET, MODE, PARAMETER_LIST_LENGTH};
use lunar_wire::scsi::{BitField, Sense, op};

const READ_BUFFER: &[u8] = &[0x3c, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0];
const WRITE_BUFFER: &[u8] = &[0x3b, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0];

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    Row::new(op::READ_BUFFER_10, read, ReservationClass::Reading, ChangeScope::Nothing, READ_BUFFER)
        .in_standby(),
    Row::new(op::WRITE_BUFFER, write, ReservationClass::Never, ChangeScope::Shared, WRITE_BUFFER)
        .in_standby(),
];

/// Values of MODE. Modes that download microcode are not supported.
const DATA: u8 = 0x02;
const DESCRIPTOR: u8 = 0x03;
const ECHO: u8 = 0x0a;
const ECHO_DESCRIPTOR: u8 = 0x0b;

/// Size of the data buffer, which has buffer ID 0, in bytes.
const DATA_LEN: usize = 64 << 10;
/// Size of the echo buffer in bytes: the maximum that its descriptor can express.
const ECHO_LEN: usize = 4096;

/// The buffers. Memory is allocated at the first write.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Empty until the first write, then [`DATA_LEN`] bytes.
    data: Vec<u8>,
    echo: Option<Echo>,
}

#[derive(Debug)]
struct Echo {
    owner: NexusId,
    bytes: Vec<u8>,
    /// Nexuses that do not know yet that their echo buffer was overwritten. If there are too many, the oldest is
    /// dropped.
    overwritten: Vec<NexusId>,
}

/// Maximum number of nexuses with an unreported overwrite of their echo buffer.
const OVERWRITTEN_MAX: usize = 64;

impl State {
    fn write_echo(&mut self, owner: NexusId, bytes: &[u8]) {
        let mut overwritten = match self.echo.take() {
            Some(old) => [old.overwritten, vec![old.owner]].concat(),
            None => Vec::new(),
        };
        overwritten.retain(|id| *id != owner);
        if overwritten.len() > OVERWRITTEN_MAX {
            overwritten.remove(0);
        }
        self.echo = Some(Echo { owner, bytes: bytes.to_vec(), overwritten });
    }

    fn read_echo(&self, nexus: NexusId) -> Result<Vec<u8>, Sense> {
        match &self.echo {
            Some(echo) if echo.owner == nexus => Ok(echo.bytes.clone()),
            Some(echo) if echo.overwritten.contains(&nexus) => Err(Sense::ECHO_BUFFER_OVERWRITTEN),
            _ => Err(Sense::COMMAND_SEQUENCE),
        }
    }

    fn write_data(&mut self, offset: usize, bytes: &[u8]) {
        self.data.resize(DATA_LEN, 0);
        self.data[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn read_data(&self, offset: usize, len: usize) -> Vec<u8> {
        let end = (offset + len).min(DATA_LEN);
        if self.data.is_empty() { vec![0; end - offset] } else { self.data[offset..end].to_vec() }
    }
}

/// The fields that both commands share.
struct BufferFields {
    mode: u8,
    id: u8,
    offset: usize,
    len: usize,
}

impl BufferFields {
    fn of(cdb: &[u8], len: BitField) -> BufferFields {
        let (offset, len) = (BUFFER_OFFSET.get_u32(cdb) as usize, len.get_u32(cdb) as usize);
        BufferFields { mode: MODE.get_u8(cdb), id: BUFFER_ID.get_u8(cdb), offset, len }
    }

    /// Checks that the buffer ID is 0, and that the offset lies within the data buffer.
    fn check_data(&self) -> Result<(), Sense> {
        if self.id != 0 {
            return Err(Sense::in_cdb(BUFFER_ID));
        }
        if self.offset > DATA_LEN { Err(Sense::in_cdb(BUFFER_OFFSET)) } else { Ok(()) }
    }

    /// Checks that the access state allows the mode: in standby and unavailable only the echo buffer works (SPC-5
    /// section 5.18.2.4).
    fn check_access(&self, cx: &CommandContext<'_>) -> Result<(), Sense> {
        let echo = [ECHO, ECHO_DESCRIPTOR].contains(&self.mode);
        cx.state.alua.not_ready(cx.port).filter(|_| !echo).map_or(Ok(()), Err)
    }
}

fn read(cx: &mut CommandContext<'_>) -> PlanResult {
    let fields = BufferFields::of(cx.cdb, ALLOCATION_LENGTH);
    fields.check_access(cx)?;
    let data = match fields.mode {
        DATA => {
            fields.check_data()?;
            cx.state.buffer.read_data(fields.offset, fields.len)
        }
        DESCRIPTOR => descriptor(fields.id).to_vec(),
        ECHO => cx.state.buffer.read_echo(cx.nexus)?,
        ECHO_DESCRIPTOR => echo_descriptor().to_vec(),
        _ => return Err(Sense::in_cdb(MODE).into()),
    };
    Ok(Plan::data_cut(data, fields.len as u32))
}

/// The capacity; zeros for a buffer that does not exist.
fn descriptor(id: u8) -> [u8; BufferDescriptor::LEN] {
    let buffer_capacity = if id == 0 { DATA_LEN as u32 } else { 0 };
    BufferDescriptor { offset_boundary: 0, buffer_capacity }.encode()
}

fn echo_descriptor() -> [u8; EchoBufferDescriptor::LEN] {
    EchoBufferDescriptor { ebos: true, buffer_capacity: ECHO_LEN as u16 }.encode()
}

fn write(cx: &mut CommandContext<'_>) -> PlanResult {
    let fields = BufferFields::of(cx.cdb, PARAMETER_LIST_LENGTH);
    fields.check_access(cx)?;
    let room = match fields.mode {
        DATA => {
            fields.check_data()?;
            DATA_LEN - fields.offset
        }
        ECHO => ECHO_LEN,
        _ => return Err(Sense::in_cdb(MODE).into()),
    };
    if fields.len > room {
        return Err(Sense::in_cdb(PARAMETER_LIST_LENGTH).into());
    }
    match cx.parameters {
        _ if fields.len == 0 => Ok(Plan::Done),
        None => Ok(Plan::Parameters { len: fields.len as u32 }),
        Some(bytes) => {
            let bytes = &bytes[..bytes.len().min(fields.len)];
            match fields.mode {
                DATA => cx.state.buffer.write_data(fields.offset, bytes),
                _ => cx.state.buffer.write_echo(cx.nexus, bytes),
            }
            Ok(Plan::Done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use lunar_wire::be;

    fn cdb(opcode: u8, mode: u8, id: u8, offset: u32, len: u32) -> [u8; 10] {
        let mut cdb = [opcode, mode, id, 0, 0, 0, 0, 0, 0, 0];
        be::put24(&mut cdb[3..], offset);
        be::put24(&mut cdb[6..], len);
        cdb
    }

    #[test]
    fn data_buffer_keeps_what_is_written_wherever_it_is_written() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        assert_eq!(data(&mut a, &cdb(op::READ_BUFFER_10, DATA, 0, 65534, 100)), [0, 0]);
        assert_eq!(lu.change().buffer.data.capacity(), 0, "nothing is kept before a write");
        let write = cdb(op::WRITE_BUFFER, DATA, 0, 65533, 3);
        assert_eq!(run_with(&mut a, &write, &[1, 2, 3]), Ok(Plan::Done));
        assert_eq!(data(&mut b, &cdb(op::READ_BUFFER_10, DATA, 0, 65532, 100)), [0, 1, 2, 3]);
        assert_eq!(data(&mut b, &cdb(op::READ_BUFFER_10, DATA, 0, 65532, 2)), [0, 1]);
        assert_eq!(run(&mut b, &cdb(op::READ_BUFFER_10, DATA, 0, 65536, 9)), Ok(Plan::Done));
    }

    #[test]
    fn sense_points_at_a_range_outside_the_buffer() {
        let mut n = nexus(&lu(disk()), "a");
        for (cdb, at) in [
            (cdb(op::READ_BUFFER_10, DATA, 1, 0, 4), 2),
            (cdb(op::READ_BUFFER_10, DATA, 0, 65537, 4), 3),
            (cdb(op::WRITE_BUFFER, DATA, 0, 65535, 2), 6),
            (cdb(op::WRITE_BUFFER, DATA, 3, 0, 2), 2),
            (cdb(op::WRITE_BUFFER, ECHO, 0, 0, 4097), 6),
        ] {
            assert_eq!(run(&mut n, &cdb), fails(Sense::cdb_field(at, 7)));
        }
    }

    #[test]
    fn microcode_is_refused_in_every_mode() {
        let mut n = nexus(&lu(disk()), "a");
        for mode in (0..32).filter(|m| ![DATA, ECHO].contains(m)) {
            let answer = run(&mut n, &cdb(op::WRITE_BUFFER, mode, 0, 0, 4));
            assert_eq!(answer, fails(Sense::cdb_field(1, 4)), "mode {mode:02x}");
        }
    }

    #[test]
    fn read_buffer_descriptors_report_the_sizes() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(data(&mut n, &cdb(op::READ_BUFFER_10, DESCRIPTOR, 0, 0, 4)), [0, 1, 0, 0]);
        assert_eq!(data(&mut n, &cdb(op::READ_BUFFER_10, DESCRIPTOR, 1, 0, 4)), [0; 4]);
        assert_eq!(data(&mut n, &cdb(op::READ_BUFFER_10, ECHO_DESCRIPTOR, 0, 0, 4)), [1, 0, 0x10, 0]);
    }

    #[test]
    fn echo_buffer_belongs_to_its_writer() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        let read = cdb(op::READ_BUFFER_10, ECHO, 0, 0, 252);
        let write = cdb(op::WRITE_BUFFER, ECHO, 0, 0, 3);
        assert_eq!(run(&mut a, &read), fails(Sense::COMMAND_SEQUENCE));
        assert_eq!(run_with(&mut a, &write, &[1, 2, 3]), Ok(Plan::Done));
        assert_eq!(data(&mut a, &read), [1, 2, 3]);
        assert_eq!(run(&mut b, &read), fails(Sense::COMMAND_SEQUENCE));
        assert_eq!(run_with(&mut b, &write, &[4, 5, 6]), Ok(Plan::Done));
        assert_eq!(run(&mut a, &read), fails(Sense::ECHO_BUFFER_OVERWRITTEN));
        assert_eq!(data(&mut b, &read), [4, 5, 6]);
    }

    #[test]
    fn list_of_the_overwritten_is_bounded() {
        let mut state = State::default();
        (0..1000).for_each(|i| state.write_echo(NexusId(i), &[0]));
        assert_eq!(state.echo.unwrap().overwritten.len(), OVERWRITTEN_MAX);
    }
}
