//! LOG SENSE and LOG SELECT (SPC-5 sections 6.8, 6.9 and 7.3). Only pages with real values exist: byte counts, error
//! counts, and informational exceptions that report no failure. The values live as long as the process (DS of the
//! page header).

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Plan, PlanResult};
use lunar_wire::scsi::cdb::log_select::{PARAMETER_LIST_LENGTH, PCR};
use lunar_wire::scsi::cdb::log_sense::{ALLOCATION_LENGTH, PAGE_CODE, PARAMETER_POINTER, PC, SUBPAGE_CODE};
use lunar_wire::scsi::log::{InformationalExceptions, LogPageHeader, LogParameterHeader};
use lunar_wire::scsi::{BitField, Sense, op};

/// CDB usage data. PPC and SP are not supported, and therefore reserved.
const LOG_SENSE: &[u8] = &[0x4d, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0];
const LOG_SELECT: &[u8] = &[0x4c, 0x02, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0];

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    Row::new(op::LOG_SENSE, sense, ReservationClass::Always, ChangeScope::Nothing, LOG_SENSE)
        .despite_reserve()
        .in_standby()
        .while_sanitizing(),
    Row::new(op::LOG_SELECT, select, ReservationClass::Never, ChangeScope::Shared, LOG_SELECT).in_standby(),
];

/// A counter; each is one log parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogCounter {
    /// Bytes written.
    WriteBytes,
    /// Writes that failed on the medium.
    WriteErrors,
    /// Bytes read.
    ReadBytes,
    /// Reads that failed on the medium.
    ReadErrors,
    /// Bytes verified.
    VerifyBytes,
    /// Verifications that failed on the medium. A miscompare does not count.
    VerifyErrors,
    /// Failures that the medium did not cause.
    OtherErrors,
}

/// Number of values of [`LogCounter`].
pub(crate) const LOG_COUNTERS: usize = 7;

/// The offset of each counter: its raw value when LOG SELECT set it, minus the value that LOG SELECT set.
#[derive(Debug, Default)]
pub(crate) struct State {
    base: [u64; LOG_COUNTERS],
}

/// Page codes, and the subpage code that lists pages with their subpages.
const SUPPORTED: u8 = 0x00;
const INFORMATIONAL_EXCEPTIONS: u8 = 0x2f;
const ALL_SUBPAGES: u8 = 0xff;
/// Pages of counters in ascending order: page code, and the counter of each parameter code.
const COUNTERS: &[(u8, &[(u16, LogCounter)])] = &[
    (0x02, &[(BYTES, LogCounter::WriteBytes), (UNCORRECTED, LogCounter::WriteErrors)]),
    (0x03, &[(BYTES, LogCounter::ReadBytes), (UNCORRECTED, LogCounter::ReadErrors)]),
    (0x05, &[(BYTES, LogCounter::VerifyBytes), (UNCORRECTED, LogCounter::VerifyErrors)]),
    (0x06, &[(0x0000, LogCounter::OtherErrors)]),
];
/// Parameters of the error counter pages: total bytes processed, total uncorrected errors.
const BYTES: u16 = 0x0005;
const UNCORRECTED: u16 = 0x0006;

/// The value of a counter parameter.
const VALUE: BitField = BitField::bytes(LogParameterHeader::LEN as u16, COUNTER_LEN);
/// Bytes of the value of a counter, and of a counter parameter.
const COUNTER_LEN: u8 = 8;
const PARAMETER: usize = LogParameterHeader::LEN + COUNTER_LEN as usize;
/// PC: cumulative and default cumulative values. Thresholds do not exist. The default values are zeros, and a reset
/// sets them.
const CUMULATIVE: u8 = 1;
const DEFAULT_CUMULATIVE: u8 = 3;

fn counters_of(page: u8) -> Option<&'static [(u16, LogCounter)]> {
    COUNTERS.iter().find(|(p, _)| *p == page).map(|(_, parameters)| *parameters)
}

fn sense(cx: &mut CommandContext<'_>) -> PlanResult {
    let (page, subpage) = (PAGE_CODE.get_u8(cx.cdb), SUBPAGE_CODE.get_u8(cx.cdb));
    let data = match (page, subpage) {
        (SUPPORTED, 0 | ALL_SUBPAGES) => supported(cx.cdb, subpage != 0)?,
        (SUPPORTED, _) => return Err(Sense::in_cdb(SUBPAGE_CODE).into()),
        (INFORMATIONAL_EXCEPTIONS, 0) => informational_exceptions(cx.cdb)?,
        _ => counters(cx, page, subpage)?,
    };
    Ok(Plan::data_cut(data, ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

/// The list of pages. It has no parameters, so PARAMETER POINTER must be 0.
fn supported(cdb: &[u8], subpages: bool) -> Result<Vec<u8>, Sense> {
    if PARAMETER_POINTER.is_set(cdb) {
        return Err(Sense::in_cdb(PARAMETER_POINTER));
    }
    let counters = COUNTERS.iter().map(|(page, _)| *page);
    let pages = std::iter::once(SUPPORTED).chain(counters).chain([INFORMATIONAL_EXCEPTIONS]);
    if !subpages {
        return Ok(page(LogPageHeader { page_code: SUPPORTED, ..Default::default() }, pages.collect()));
    }
    let mut list: Vec<u8> = pages.flat_map(|p| [p, 0]).collect();
    list.splice(2..2, [SUPPORTED, ALL_SUBPAGES]);
    let (page_code, subpage_code) = (SUPPORTED, ALL_SUBPAGES);
    Ok(page(LogPageHeader { subpage_format: true, page_code, subpage_code, ..Default::default() }, list))
}

/// ASC and ASCQ 0: no informational exception. The temperature is unknown (FFh).
fn informational_exceptions(cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    if PARAMETER_POINTER.is_set(cdb) {
        return Err(Sense::in_cdb(PARAMETER_POINTER));
    }
    let value = InformationalExceptions { asc: 0, ascq: 0, temperature: 0xff }.encode();
    let header = LogParameterHeader {
        parameter_code: 0,
        control: LogParameterHeader::BINARY_LIST,
        parameter_length: value.len() as u8,
    };
    Ok(unsaved_page(INFORMATIONAL_EXCEPTIONS, [header.encode(), value].concat()))
}

fn counters(cx: &CommandContext<'_>, code: u8, subpage: u8) -> Result<Vec<u8>, Sense> {
    let control = PC.get_u8(cx.cdb);
    let parameters = counters_of(code).ok_or(Sense::in_cdb(PAGE_CODE))?;
    if subpage != 0 {
        return Err(Sense::in_cdb(SUBPAGE_CODE));
    }
    if ![CUMULATIVE, DEFAULT_CUMULATIVE].contains(&control) {
        return Err(Sense::in_cdb(PC));
    }
    let from = PARAMETER_POINTER.get_u16(cx.cdb);
    let value = |count| if control == CUMULATIVE { cx.log_value(count) } else { 0 };
    let reported = parameters.iter().filter(|(parameter, _)| *parameter >= from);
    let body: Vec<u8> = reported.flat_map(|&(parameter, count)| counter(parameter, value(count))).collect();
    if body.is_empty() {
        return Err(Sense::in_cdb(PARAMETER_POINTER));
    }
    Ok(unsaved_page(code, body))
}

fn counter(parameter_code: u16, value: u64) -> [u8; PARAMETER] {
    let control = LogParameterHeader::TSD;
    let header = LogParameterHeader { parameter_code, control, parameter_length: COUNTER_LEN };
    let mut b = [0; PARAMETER];
    b[..LogParameterHeader::LEN].copy_from_slice(&header.encode());
    VALUE.set(&mut b, value);
    b
}

/// A page whose parameters are not saved.
fn unsaved_page(page_code: u8, body: Vec<u8>) -> Vec<u8> {
    page(LogPageHeader { disable_save: true, page_code, ..Default::default() }, body)
}

fn page(header: LogPageHeader, body: Vec<u8>) -> Vec<u8> {
    let header = LogPageHeader { page_length: body.len() as u16, ..header };
    [&header.encode()[..], &body].concat()
}

impl CommandContext<'_> {
    fn log_value(&self, count: LogCounter) -> u64 {
        self.lu.per_core_slots().total(count).wrapping_sub(self.state.log.base[count as usize])
    }

    fn set_log_value(&mut self, count: LogCounter, value: u64) {
        self.state.log.base[count as usize] = self.lu.per_core_slots().total(count).wrapping_sub(value);
    }
}

fn select(cx: &mut CommandContext<'_>) -> PlanResult {
    let len = PARAMETER_LIST_LENGTH.get_u32(cx.cdb);
    let values = match cx.parameters {
        _ if len == 0 => reset(cx.cdb)?,
        _ if PCR.is_set(cx.cdb) => return Err(Sense::in_cdb(PCR).into()),
        _ if PAGE_CODE.is_set(cx.cdb) => return Err(Sense::in_cdb(PAGE_CODE).into()),
        _ if PC.get_u8(cx.cdb) != CUMULATIVE => return Err(Sense::in_cdb(PC).into()),
        _ if SUBPAGE_CODE.is_set(cx.cdb) => return Err(Sense::in_cdb(SUBPAGE_CODE).into()),
        None => return Ok(Plan::Parameters { len }),
        Some(list) => parse(list)?,
    };
    if !values.is_empty() {
        values.iter().for_each(|&(count, value)| cx.set_log_value(count, value));
        cx.state.raise_on_others(Sense::LOG_PARAMETERS_CHANGED, cx.nexus);
    }
    Ok(Plan::Done)
}

/// LOG SELECT without a parameter list: PCR or PC sets the counters of one page, or of all pages (page 00h), to zero.
fn reset(cdb: &[u8]) -> Result<Vec<(LogCounter, u64)>, Sense> {
    let (control, code) = (PC.get_u8(cdb), PAGE_CODE.get_u8(cdb));
    if code != 0 && counters_of(code).is_none() && code != INFORMATIONAL_EXCEPTIONS {
        return Err(Sense::in_cdb(PAGE_CODE));
    }
    if SUBPAGE_CODE.is_set(cdb) {
        return Err(Sense::in_cdb(SUBPAGE_CODE));
    }
    if !PCR.is_set(cdb) && control != DEFAULT_CUMULATIVE {
        return Ok(Vec::new());
    }
    let pages = COUNTERS.iter().filter(|(p, _)| code == 0 || *p == code);
    Ok(pages.flat_map(|(_, parameters)| *parameters).map(|(_, count)| (*count, 0)).collect())
}

/// The values that a list of pages sets. Fails if any part of the list is invalid.
fn parse(list: &[u8]) -> Result<Vec<(LogCounter, u64)>, Sense> {
    let (mut values, mut at) = (Vec::new(), 0);
    while at < list.len() {
        let head = list.get(at..at + LogPageHeader::LEN).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let head = LogPageHeader::decode(head);
        let invalid = |field: BitField| Sense::in_parameters(field.after(at as u16));
        let parameters = counters_of(head.page_code).ok_or(invalid(LogPageHeader::PAGE_CODE))?;
        if head.subpage_format || head.subpage_code != 0 {
            return Err(invalid(LogPageHeader::SPF));
        }
        at += LogPageHeader::LEN;
        let end = at + usize::from(head.page_length);
        let body = list.get(at..end).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        for parameter in body.chunks(PARAMETER) {
            values.push(parse_parameter(parameter, parameters, at as u16)?);
            at += parameter.len();
        }
    }
    Ok(values)
}

/// `at` is the offset of the parameter in the list. DU, ETC and TMC cannot be set.
fn parse_parameter(b: &[u8], known: &[(u16, LogCounter)], at: u16) -> Result<(LogCounter, u64), Sense> {
    if b.len() != PARAMETER {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let header = LogParameterHeader::decode(b);
    let invalid = |field: BitField| Sense::in_parameters(field.after(at));
    let known = known.iter().find(|(code, _)| *code == header.parameter_code);
    let (_, count) = known.ok_or(invalid(LogParameterHeader::PARAMETER_CODE))?;
    if header.control & !LogParameterHeader::TSD != 0 {
        return Err(invalid(LogParameterHeader::CONTROL));
    }
    if header.parameter_length != COUNTER_LEN {
        return Err(invalid(LogParameterHeader::PARAMETER_LENGTH));
    }
    Ok((*count, VALUE.get(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nexus;
    use crate::testing::*;
    use lunar_wire::be;

    const CURRENT: u8 = 1 << 6;
    const PCR: u8 = 0x02;

    fn log_sense(page: u8, subpage: u8, from: u8) -> [u8; 10] {
        [op::LOG_SENSE, 0, page, subpage, 0, 0, from, 1, 0, 0]
    }

    fn bytes_read(n: &mut Nexus) -> u64 {
        be::get64(&data(n, &log_sense(CURRENT | 3, 0, 0))[8..])
    }

    #[test]
    fn pages_are_listed_with_and_without_subpages() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(data(&mut n, &log_sense(0, 0, 0)), [0, 0, 0, 6, 0, 2, 3, 5, 6, 0x2f]);
        let all = [0x40, 0xff, 0, 14, 0, 0, 0, 0xff, 2, 0, 3, 0, 5, 0, 6, 0, 0x2f, 0];
        assert_eq!(data(&mut n, &log_sense(CURRENT, 0xff, 0)), all);
        for page in [0, 2, 3, 5, 6, 0x2f] {
            assert!(data(&mut n, &log_sense(CURRENT | page, 0, 0)).len() > 4, "{page:02x}");
        }
    }

    #[test]
    fn informational_exceptions_page_reports_no_failure() {
        let mut n = nexus(&lu(disk()), "a");
        let page = [0xaf, 0, 0, 8, 0, 0, 0x03, 4, 0, 0, 0xff, 0];
        assert_eq!(data(&mut n, &log_sense(CURRENT | 0x2f, 0, 0)), page);
    }

    #[test]
    fn counters_add_up_over_cores() {
        let lu = lu(disk());
        let mut a = nexus(&lu, "a");
        lu.count(LogCounter::ReadBytes, 512);
        let other = lu.clone();
        let core = std::thread::spawn(move || {
            other.count(LogCounter::ReadBytes, 4096);
            other.count(LogCounter::ReadErrors, 1);
            other.count(LogCounter::OtherErrors, 2);
        });
        core.join().expect("counting does not panic");
        let page = [
            [0x83, 0, 0, 24].as_slice(),
            &[0, 5, 0x20, 8, 0, 0, 0, 0, 0, 0, 0x12, 0],
            &[0, 6, 0x20, 8, 0, 0, 0, 0, 0, 0, 0, 1],
        ];
        assert_eq!(data(&mut a, &log_sense(CURRENT | 3, 0, 0)), page.concat());
        assert_eq!(data(&mut a, &log_sense(CURRENT | 3, 0, 6)), [&[0x83, 0, 0, 12], page[2]].concat());
        assert_eq!(data(&mut a, &log_sense(CURRENT | 6, 0, 0))[15], 2);
        assert_eq!(data(&mut a, &log_sense(DEFAULT_CUMULATIVE << 6 | 3, 0, 0))[14..16], [0, 0]);
    }

    #[test]
    fn sense_points_at_an_invalid_log_sense() {
        let mut n = nexus(&lu(disk()), "a");
        for (cdb, at, bit) in [
            (log_sense(CURRENT | 0x0d, 0, 0), 2, 5),
            (log_sense(CURRENT | 3, 1, 0), 3, 7),
            (log_sense(0, 1, 0), 3, 7),
            (log_sense(3, 0, 0), 2, 7),
            (log_sense(2 << 6 | 3, 0, 0), 2, 7),
            (log_sense(CURRENT | 3, 0, 7), 5, 7),
            (log_sense(0, 0, 1), 5, 7),
            (log_sense(CURRENT | 0x2f, 0, 1), 5, 7),
        ] {
            assert_eq!(run(&mut n, &cdb), fails(Sense::cdb_field(at, bit)), "{cdb:02x?}");
        }
        let saving = [op::LOG_SENSE, 1, CURRENT | 3, 0, 0, 0, 0, 1, 0, 0];
        assert_eq!(run(&mut n, &saving), fails(Sense::cdb_field(1, 0)));
    }

    #[test]
    fn log_reset_clears_one_page_or_all() {
        let lu = lu(disk());
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        lu.count(LogCounter::ReadBytes, 512);
        let reset = |page| [op::LOG_SELECT, PCR, CURRENT | page, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(run(&mut a, &reset(2)), Ok(Plan::Done));
        assert_eq!(bytes_read(&mut a), 512);
        assert_eq!(run(&mut a, &reset(0)), Ok(Plan::Done));
        assert_eq!(bytes_read(&mut a), 0);
        lu.count(LogCounter::ReadBytes, 1);
        assert_eq!(bytes_read(&mut a), 1);
        assert_eq!(run(&mut b, &[op::TEST_UNIT_READY]), fails(Sense::LOG_PARAMETERS_CHANGED));
        assert_eq!(run(&mut b, &[op::TEST_UNIT_READY]), Ok(Plan::Done));
        assert_eq!(run(&mut a, &reset(0x0d)), fails(Sense::cdb_field(2, 5)));
        let nothing = [op::LOG_SELECT, 0, CURRENT | 3, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(run(&mut a, &nothing), Ok(Plan::Done));
        assert_eq!(run(&mut b, &[op::TEST_UNIT_READY]), Ok(Plan::Done), "nothing changed");
    }

    #[test]
    fn values_are_set_by_a_list() {
        let mut n = nexus(&lu(disk()), "a");
        let cdb = |len| [op::LOG_SELECT, 0, CURRENT, 0, 0, 0, 0, 0, len, 0];
        let list = [3, 0, 0, 12, 0, 5, 0, 8, 0, 0, 0, 0, 0, 0, 1, 2];
        assert_eq!(run_with(&mut n, &cdb(16), &list), Ok(Plan::Done));
        assert_eq!(bytes_read(&mut n), 0x102);
        for (at, value, sense) in [
            (0, 0x0d, Sense::parameter_field(0, 5)),
            (0, 0x43, Sense::parameter_field(0, 6)),
            (3, 13, Sense::PARAMETER_LIST_LENGTH),
            (3, 11, Sense::PARAMETER_LIST_LENGTH),
            (5, 7, Sense::parameter_field(4, 7)),
            (6, 0x80, Sense::parameter_field(6, 7)),
            (7, 4, Sense::parameter_field(7, 7)),
        ] {
            let mut wrong = list;
            wrong[at] = value;
            assert_eq!(run_with(&mut n, &cdb(16), &wrong), fails(sense), "byte {at}");
        }
        let reset_with_list = [op::LOG_SELECT, PCR, CURRENT, 0, 0, 0, 0, 0, 16, 0];
        assert_eq!(run(&mut n, &reset_with_list), fails(Sense::cdb_field(1, 1)));
    }
}
