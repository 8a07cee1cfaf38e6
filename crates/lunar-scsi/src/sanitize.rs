//! SANITIZE (SBC-4 sections 4.11 and 5.30): the states of an operation that the caller performs.

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{InvalidDefinition, Lu, Op, PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::cdb::sanitize::{AUSE, IMMED, PARAMETER_LIST_LENGTH, SERVICE_ACTION};
use lunar_wire::scsi::sanitize::OverwriteHeader;
use lunar_wire::scsi::{Sense, op};

const OVERWRITE: u16 = 0x01;
const BLOCK_ERASE: u16 = 0x02;
const EXIT_FAILURE_MODE: u16 = 0x1f;

/// Rows of the command table. CRYPTOGRAPHIC ERASE (03h) is not supported, because no data are encrypted. BLOCK ERASE
/// unmaps the blocks, so only a thin provisioned unit supports it.
pub(crate) const ROWS: &[Row] = &[
    row(overwrite, OVERWRITE, &[0x48, 0xa1, 0, 0, 0, 0, 0, 0xff, 0xff, 0]).writes().persists(),
    row(block_erase, BLOCK_ERASE, &[0x48, 0xa2, 0, 0, 0, 0, 0, 0, 0, 0]).writes().thin().persists(),
    row(exit_failure_mode, EXIT_FAILURE_MODE, &[0x48, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0]).persists(),
];

const fn row(handler: fn(&mut CommandContext<'_>) -> PlanResult, action: u16, usage: &'static [u8]) -> Row {
    let row =
        Row::new(op::SANITIZE, handler, ReservationClass::Never, ChangeScope::Shared, usage).action(action);
    row.only(PeripheralDeviceType::Disk).exclusive().while_sanitizing()
}

/// The state of the sanitize operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// No operation is running, and none has failed.
    #[default]
    Idle,
    /// An operation is running. `progress` is in units of 1/65536; `unrestricted` is AUSE.
    Running { progress: u16, unrestricted: bool },
    /// An operation has failed. If `unrestricted` (AUSE), EXIT FAILURE MODE may end this state.
    Failed { unrestricted: bool },
}

impl State {
    /// The sense data with which commands fail that are not allowed in this state. REQUEST SENSE reports them too.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        match self {
            State::Idle => None,
            State::Running { progress, .. } => Some(Sense::SANITIZE_IN_PROGRESS.progress(*progress)),
            State::Failed { .. } => Some(Sense::SANITIZE_FAILED),
        }
    }

    /// An operation runs.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self, State::Running { .. })
    }

    /// Fails if an operation is running, or if an unrestricted one would follow a failed restricted one.
    fn may_begin(&self, unrestricted: bool) -> Result<(), Sense> {
        match self {
            State::Running { .. } => self.not_ready().map_or(Ok(()), Err),
            State::Failed { unrestricted: false } if unrestricted => Err(Sense::in_cdb(AUSE)),
            _ => Ok(()),
        }
    }

    /// Encodes the state; empty if idle. The medium of any other state is undefined: neither old nor sanitized.
    pub(crate) fn save(&self) -> Vec<u8> {
        match self {
            State::Idle => Vec::new(),
            State::Running { unrestricted, .. } | State::Failed { unrestricted } => vec![*unrestricted as u8],
        }
    }

    /// Restores what [`State::save`] returned. An operation that a restart interrupted has failed.
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        let &[unrestricted @ 0..2] = bytes else {
            return Err(InvalidDefinition::new("the saved state of SANITIZE is invalid"));
        };
        *self = State::Failed { unrestricted: unrestricted == 1 };
        Ok(())
    }

    fn ended(self, good: bool) -> State {
        match self {
            State::Running { unrestricted, .. } if !good => State::Failed { unrestricted },
            _ => State::Idle,
        }
    }
}

impl Lu {
    /// Records the end of a sanitize operation (see [`Op::Sanitize`]). After an error every access fails until
    /// another operation succeeds or EXIT FAILURE MODE is accepted. The caller must store the state
    /// ([`Lu::saved_state`]) before it sends the status.
    pub fn sanitize_ended<E>(&self, result: Result<(), E>) {
        let mut state = self.change();
        state.sanitize = state.sanitize.ended(result.is_ok());
        state.mark_persistent_change();
    }

    /// Sets the progress of a sanitize operation, in units of 1/65536.
    pub fn sanitize_progress(&self, done: u16) {
        if let State::Running { progress, .. } = &mut self.change().sanitize {
            *progress = done;
        }
    }
}

fn overwrite(cx: &mut CommandContext<'_>) -> PlanResult {
    cx.state.sanitize.may_begin(AUSE.is_set(cx.cdb))?;
    let (len, block_size) = (PARAMETER_LIST_LENGTH.get_u32(cx.cdb), cx.lu.settings().block_size);
    if len <= HEADER as u32 || len > HEADER as u32 + block_size {
        return Err(Sense::in_cdb(PARAMETER_LIST_LENGTH).into());
    }
    let Some(list) = cx.parameters else { return Ok(Plan::Parameters { len }) };
    let overwrite = Overwrite::parse(list, block_size as usize)?;
    Ok(begin(cx, Some(overwrite)))
}

fn block_erase(cx: &mut CommandContext<'_>) -> PlanResult {
    cx.state.sanitize.may_begin(AUSE.is_set(cx.cdb))?;
    Ok(begin(cx, None))
}

fn begin(cx: &mut CommandContext<'_>, overwrite: Option<Overwrite>) -> Plan {
    cx.state.sanitize = State::Running { progress: 0, unrestricted: AUSE.is_set(cx.cdb) };
    cx.state.mark_persistent_change();
    let immediate = IMMED.is_set(cx.cdb);
    Plan::op(match overwrite {
        Some(o) => Op::Sanitize { pattern: Some(o.pattern), passes: o.passes, invert: o.invert, immediate },
        None => Op::Sanitize { pattern: None, passes: 1, invert: false, immediate },
    })
}

fn exit_failure_mode(cx: &mut CommandContext<'_>) -> PlanResult {
    match cx.state.sanitize {
        State::Idle => Ok(Plan::Done),
        State::Failed { unrestricted: false } => Err(Sense::in_cdb(SERVICE_ACTION).into()),
        State::Failed { unrestricted: true } => {
            cx.state.sanitize = State::Idle;
            cx.state.mark_persistent_change();
            Ok(Plan::Done)
        }
        State::Running { .. } => {
            cx.state.sanitize.may_begin(false)?;
            Ok(Plan::Done)
        }
    }
}

/// The content of a block in an overwrite: the pattern, repeated from the first byte of the block on. `pass` counts
/// from 0 to `passes` - 1. With `invert` each pass inverts the previous one, and the last pass has the pattern itself
/// (SBC-4 section 5.30.2.2).
pub fn overwrite_block(pattern: &[u8], block_size: u32, pass: u8, passes: u8, invert: bool) -> Vec<u8> {
    let mask = if invert && passes.wrapping_sub(pass).is_multiple_of(2) { 0xff } else { 0 };
    pattern.iter().map(|b| b ^ mask).cycle().take(block_size as usize).collect()
}

/// The parameter list of OVERWRITE (SBC-4 section 5.30.2.2).
struct Overwrite {
    pattern: Vec<u8>,
    passes: u8,
    invert: bool,
}

/// Bytes before the initialization pattern.
const HEADER: usize = OverwriteHeader::LEN;

impl Overwrite {
    fn parse(list: &[u8], block_size: usize) -> Result<Overwrite, Sense> {
        let Some((head, rest)) = list.split_at_checked(HEADER) else {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        };
        let header = OverwriteHeader::decode(head);
        let len = usize::from(header.initialization_pattern_length);
        if header.test != 0 {
            return Err(Sense::in_parameters(OverwriteHeader::TEST));
        }
        if header.overwrite_count == 0 {
            return Err(Sense::in_parameters(OverwriteHeader::OVERWRITE_COUNT));
        }
        if OverwriteHeader::RESERVED.is_set(head) {
            return Err(Sense::in_parameters(OverwriteHeader::RESERVED));
        }
        if len == 0 || len > block_size {
            return Err(Sense::in_parameters(OverwriteHeader::INITIALIZATION_PATTERN_LENGTH));
        }
        let pattern = rest.get(..len).ok_or(Sense::PARAMETER_LIST_LENGTH)?.to_vec();
        Ok(Overwrite { pattern, passes: header.overwrite_count, invert: header.invert })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{LuSettings, Nexus};

    const READ_ONE: &[u8] = &[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const TUR: &[u8] = &[op::TEST_UNIT_READY];
    const ERASE: &[u8] = &[op::SANITIZE, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];
    const EXIT: &[u8] = &[op::SANITIZE, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0];
    const IN_PROGRESS: Sense = Sense::SANITIZE_IN_PROGRESS.progress(0);

    fn overwrite(n: &mut Nexus, flags: u8, list: &[u8]) -> PlanResult {
        let len = (list.len() as u16).to_be_bytes();
        run_with(n, &[op::SANITIZE, flags | 1, 0, 0, 0, 0, 0, len[0], len[1], 0], list)
    }

    /// The plan of a command after its state is stored.
    fn begin(lu: &Lu, answer: PlanResult) -> PlanResult {
        commit(lu, answer).map(|(plan, _)| plan)
    }

    fn erased(immediate: bool) -> PlanResult {
        let op = Op::Sanitize { pattern: None, passes: 1, invert: false, immediate };
        Ok(Plan::Op(Box::new(op)))
    }

    #[test]
    fn overwrite_names_pattern_passes_and_inversion() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        let op = Op::Sanitize { pattern: Some(vec![0xaa, 0x55]), passes: 3, invert: true, immediate: true };
        let answer = overwrite(&mut n, 0x80, &[0x83, 0, 0, 2, 0xaa, 0x55]);
        assert_eq!(begin(&lu, answer), Ok(Plan::Op(Box::new(op))));
    }

    #[test]
    fn wrong_parameter_lists_are_pointed_at_and_begin_nothing() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        for (list, at, bit) in [
            ([0x00, 0, 0, 1, 9], 0, 4),
            ([0x21, 0, 0, 1, 9], 0, 6),
            ([0x01, 1, 0, 1, 9], 1, 7),
            ([0x01, 0, 0, 0, 9], 2, 7),
            ([0x01, 0, 2, 1, 9], 2, 7),
        ] {
            assert_eq!(overwrite(&mut n, 0, &list), fails(Sense::parameter_field(at, bit)));
        }
        assert_eq!(overwrite(&mut n, 0, &[1, 0, 0, 2, 9]), fails(Sense::PARAMETER_LIST_LENGTH));
        assert_eq!(run(&mut n, TUR), Ok(Plan::Done));
    }

    #[test]
    fn length_is_more_than_the_header_and_at_most_a_block() {
        let mut n = nexus(&lu(disk()), "a");
        for len in [0u16, 1, 4, 517, 0xffff] {
            let [high, low] = len.to_be_bytes();
            let answer = run(&mut n, &[op::SANITIZE, 1, 0, 0, 0, 0, 0, high, low, 0]);
            assert_eq!(answer, fails(Sense::cdb_field(7, 7)), "{len}");
        }
        let whole_block = run(&mut n, &[op::SANITIZE, 1, 0, 0, 0, 0, 0, 2, 4, 0]);
        assert_eq!(whole_block, Ok(Plan::Parameters { len: 516 }));
    }

    #[test]
    fn other_service_actions_and_reserved_fields_are_refused() {
        let mut n = nexus(&lu(disk()), "a");
        for action in (0..0x20u8).filter(|a| ![1, 2, 0x1f].contains(a)) {
            assert_eq!(run(&mut n, &[op::SANITIZE, action]), fails(Sense::cdb_field(1, 4)), "{action:02x}");
        }
        assert_eq!(run(&mut n, &[op::SANITIZE, 0x42]), fails(Sense::cdb_field(1, 6)), "ZNR");
        let with_list = [op::SANITIZE, 0x02, 0, 0, 0, 0, 0, 0, 8, 0];
        assert_eq!(run(&mut n, &with_list), fails(Sense::cdb_field(8, 3)));
    }

    #[test]
    fn commands_during_sanitize_fail_with_progress() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        assert!(run(&mut b, READ_ONE).is_ok());
        assert_eq!(begin(&lu, run(&mut a, ERASE)), erased(false));
        for command in [TUR, READ_ONE, ERASE, EXIT, &[op::START_STOP_UNIT, 0, 0, 0, 1, 0]] {
            assert_eq!(run(&mut b, command), fails(IN_PROGRESS), "{command:02x?}");
        }
        lu.sanitize_progress(0x8000);
        let half = Sense::SANITIZE_IN_PROGRESS.progress(0x8000);
        assert_eq!(data(&mut b, &[op::REQUEST_SENSE, 0, 0, 0, 252, 0]), half.encode(false));
        assert_eq!(data(&mut b, &[op::INQUIRY, 0, 0, 0, 36, 0]).len(), 36);
        lu.sanitize_ended(Ok::<(), ()>(()));
        assert!(run(&mut b, READ_ONE).is_ok());
        assert!(run(&mut a, TUR).is_ok());
    }

    #[test]
    fn sanitize_starts_after_its_state_is_saved() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        let decided = [run(&mut a, ERASE), overwrite(&mut a, 0, &[1, 0, 0, 1, 9])];
        for answer in decided {
            assert!(matches!(&answer, Ok(Plan::Op(op)) if matches!(**op, Op::Persist(_))), "{answer:?}");
            assert!(run(&mut b, READ_ONE).is_ok(), "nothing has begun");
        }
    }

    #[test]
    fn restricted_failure_is_left_by_a_restricted_success_only() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        assert_eq!(begin(&lu, run(&mut n, ERASE)), erased(false));
        lu.sanitize_ended(Err(()));
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::SANITIZE_FAILED));
        assert_eq!(run(&mut n, EXIT), fails(Sense::cdb_field(1, 4)));
        let unrestricted = [op::SANITIZE, 0x22];
        assert_eq!(run(&mut n, &unrestricted), fails(Sense::cdb_field(1, 5)));
        assert_eq!(begin(&lu, run(&mut n, ERASE)), erased(false));
        lu.sanitize_ended(Ok::<(), ()>(()));
        assert!(run(&mut n, READ_ONE).is_ok());
    }

    #[test]
    fn unrestricted_failure_is_left_by_exit_failure_mode() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        assert_eq!(run(&mut n, EXIT), Ok(Plan::Done), "without a failure it does nothing");
        assert_eq!(begin(&lu, run(&mut n, &[op::SANITIZE, 0xa2])), erased(true));
        lu.sanitize_ended(Err(()));
        assert_eq!(run(&mut n, TUR), fails(Sense::SANITIZE_FAILED));
        assert_eq!(commit(&lu, run(&mut n, EXIT)), Ok((Plan::Done, true)));
        assert_eq!(run(&mut n, TUR), Ok(Plan::Done));
    }

    #[test]
    fn interrupted_sanitize_is_failed_after_a_restart() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        let restarted = |saved: Vec<u8>| {
            let lu = std::sync::Arc::new(Lu::new(disk(), Some(&saved)).unwrap());
            let mut n = lu.attach(port("a"), false);
            assert_eq!(run(&mut n, TUR), fails(Sense::POWER_ON));
            (run(&mut n, TUR), run(&mut n, EXIT))
        };
        let clean = lu.saved_state();
        assert_eq!(restarted(clean.1).0, Ok(Plan::Done));
        assert_eq!(begin(&lu, run(&mut n, ERASE)), erased(false));
        let running = lu.saved_state();
        assert!(running.0 > clean.0, "it is to be kept before it begins");
        let restricted = (fails(Sense::SANITIZE_FAILED), fails(Sense::cdb_field(1, 4)));
        assert_eq!(restarted(running.1), restricted);
        lu.sanitize_ended(Err(()));
        assert_eq!(restarted(lu.saved_state().1), restricted);
        assert_eq!(begin(&lu, run(&mut n, ERASE)), erased(false));
        lu.sanitize_ended(Ok::<(), ()>(()));
        assert_eq!(restarted(lu.saved_state().1).0, Ok(Plan::Done));
    }

    #[test]
    fn last_pass_writes_the_pattern() {
        let block = |pass, invert| overwrite_block(&[0x0f, 1, 2], 8, pass, 2, invert);
        assert_eq!(block(1, true), [0x0f, 1, 2, 0x0f, 1, 2, 0x0f, 1]);
        assert_eq!(block(0, true)[..3], [0xf0, 0xfe, 0xfd]);
        assert_eq!(block(0, false), block(1, true));
    }

    #[test]
    fn protected_media_are_not_sanitized() {
        let mut n = nexus(&lu(LuSettings { read_only: true, ..disk() }), "a");
        assert_eq!(run(&mut n, ERASE), fails(Sense::WRITE_PROTECTED));
        let mut cd = nexus(&lu(cdrom()), "a");
        assert_eq!(run(&mut cd, ERASE), fails(Sense::INVALID_OPCODE));
    }

    #[test]
    fn only_thin_media_are_erased_by_block() {
        let mut n = nexus(&lu(LuSettings { thin: false, ..disk() }), "a");
        assert_eq!(run(&mut n, ERASE), fails(Sense::cdb_field(1, 4)));
    }
}
