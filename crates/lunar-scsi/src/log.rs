//! LOG SENSE and LOG SELECT (SPC-5 sections 6.8, 6.9 and 7.3). Only pages with real values exist: byte counts, error
//! counts, and informational exceptions that report no failure. The values live as long as the process (DS of the
//! page header).

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Plan, PlanResult};
use lunar_wire::be;
use lunar_wire::scsi::{Sense, op};

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

/// Page header, byte 0: DS (parameters are not saved), and SPF.
const DS: u8 = 0x80;
const SPF: u8 = 0x40;
/// Parameter control byte: TSD for a counter, and FORMAT AND LINKING of a binary list.
const COUNTER: u8 = 0x20;
const BINARY_LIST: u8 = 0x03;
/// Bytes of a page header, and of a counter parameter.
const PAGE_HEADER: usize = 4;
const PARAMETER: usize = 12;
/// PC: cumulative and default cumulative values. Thresholds do not exist. The default values are zeros, and a reset
/// sets them.
const CUMULATIVE: u8 = 1;
const DEFAULT_CUMULATIVE: u8 = 3;

fn counters_of(page: u8) -> Option<&'static [(u16, LogCounter)]> {
    COUNTERS.iter().find(|(p, _)| *p == page).map(|(_, parameters)| *parameters)
}

fn sense(cx: &mut CommandContext<'_>) -> PlanResult {
    let (control, page, subpage) = (cx.cdb[2] >> 6, cx.cdb[2] & 0x3f, cx.cdb[3]);
    let data = match (page, subpage) {
        (SUPPORTED, 0 | ALL_SUBPAGES) => supported(cx.cdb, subpage != 0)?,
        (SUPPORTED, _) => return Err(Sense::cdb_field(3, 7).into()),
        (INFORMATIONAL_EXCEPTIONS, 0) => informational_exceptions(cx.cdb)?,
        _ => counters(cx, control, page, subpage)?,
    };
    Ok(Plan::data_cut(data, be::get16(&cx.cdb[7..]) as u32))
}

/// The list of pages. It has no parameters, so PARAMETER POINTER must be 0.
fn supported(cdb: &[u8], subpages: bool) -> Result<Vec<u8>, Sense> {
    if be::get16(&cdb[5..]) != 0 {
        return Err(Sense::cdb_field(5, 7));
    }
    let counters = COUNTERS.iter().map(|(page, _)| *page);
    let pages = std::iter::once(SUPPORTED).chain(counters).chain([INFORMATIONAL_EXCEPTIONS]);
    if !subpages {
        return Ok(page(&[SUPPORTED, 0], pages.collect()));
    }
    let mut list: Vec<u8> = pages.flat_map(|p| [p, 0]).collect();
    list.splice(2..2, [SUPPORTED, ALL_SUBPAGES]);
    Ok(page(&[SUPPORTED | SPF, ALL_SUBPAGES], list))
}

/// ASC and ASCQ 0: no informational exception. The temperature is unknown (FFh).
fn informational_exceptions(cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    if be::get16(&cdb[5..]) != 0 {
        return Err(Sense::cdb_field(5, 7));
    }
    Ok(page(&[INFORMATIONAL_EXCEPTIONS | DS, 0], vec![0, 0, BINARY_LIST, 4, 0, 0, 0xff, 0]))
}

fn counters(cx: &CommandContext<'_>, control: u8, code: u8, subpage: u8) -> Result<Vec<u8>, Sense> {
    let parameters = counters_of(code).ok_or(Sense::cdb_field(2, 5))?;
    if subpage != 0 {
        return Err(Sense::cdb_field(3, 7));
    }
    if ![CUMULATIVE, DEFAULT_CUMULATIVE].contains(&control) {
        return Err(Sense::cdb_field(2, 7));
    }
    let from = be::get16(&cx.cdb[5..]);
    let mut body = Vec::new();
    for &(parameter, count) in parameters.iter().filter(|(p, _)| *p >= from) {
        let value = if control == CUMULATIVE { cx.log_value(count) } else { 0 };
        body.extend_from_slice(&parameter.to_be_bytes());
        body.extend_from_slice(&[COUNTER, 8]);
        body.extend_from_slice(&value.to_be_bytes());
    }
    if body.is_empty() {
        return Err(Sense::cdb_field(5, 7));
    }
    Ok(page(&[code | DS, 0], body))
}

fn page(code: &[u8; 2], body: Vec<u8>) -> Vec<u8> {
    [&code[..], &(body.len() as u16).to_be_bytes(), &body].concat()
}

impl CommandContext<'_> {
    fn log_value(&self, count: LogCounter) -> u64 {
        self.lu.per_core_slots().total(count).wrapping_sub(self.state.log.base[count as usize])
    }

    fn set_log_value(&mut self, count: LogCounter, value: u64) {
        self.state.log.base[count as usize] = self.lu.per_core_slots().total(count).wrapping_sub(value);
    }
}

/// PCR (parameter code reset), CDB byte 1.
const PCR: u8 = 0x02;

fn select(cx: &mut CommandContext<'_>) -> PlanResult {
    let len = be::get16(&cx.cdb[7..]) as u32;
    let values = match cx.parameters {
        _ if len == 0 => reset(cx.cdb)?,
        _ if cx.cdb[1] & PCR != 0 => return Err(Sense::cdb_field(1, 1).into()),
        _ if cx.cdb[2] & 0x3f != 0 => return Err(Sense::cdb_field(2, 5).into()),
        _ if cx.cdb[2] >> 6 != CUMULATIVE => return Err(Sense::cdb_field(2, 7).into()),
        _ if cx.cdb[3] != 0 => return Err(Sense::cdb_field(3, 7).into()),
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
    let (control, code) = (cdb[2] >> 6, cdb[2] & 0x3f);
    if code != 0 && counters_of(code).is_none() && code != INFORMATIONAL_EXCEPTIONS {
        return Err(Sense::cdb_field(2, 5));
    }
    if cdb[3] != 0 {
        return Err(Sense::cdb_field(3, 7));
    }
    if cdb[1] & PCR == 0 && control != DEFAULT_CUMULATIVE {
        return Ok(Vec::new());
    }
    let pages = COUNTERS.iter().filter(|(p, _)| code == 0 || *p == code);
    Ok(pages.flat_map(|(_, parameters)| *parameters).map(|(_, count)| (*count, 0)).collect())
}

/// The values that a list of pages sets. Fails if any part of the list is invalid.
fn parse(list: &[u8]) -> Result<Vec<(LogCounter, u64)>, Sense> {
    let (mut values, mut at) = (Vec::new(), 0);
    while at < list.len() {
        let head = list[at..].first_chunk::<PAGE_HEADER>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let Some(parameters) = counters_of(head[0] & 0x3f) else {
            return Err(Sense::parameter_field(at as u16, 5));
        };
        if head[0] & SPF != 0 || head[1] != 0 {
            return Err(Sense::parameter_field(at as u16, 6));
        }
        at += PAGE_HEADER;
        let end = at + be::get16(&head[2..]) as usize;
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
    let b: &[u8; PARAMETER] = b.try_into().map_err(|_| Sense::PARAMETER_LIST_LENGTH)?;
    let code = be::get16(b);
    let (_, count) = known.iter().find(|(p, _)| *p == code).ok_or(Sense::parameter_field(at, 7))?;
    if b[2] & !COUNTER != 0 {
        return Err(Sense::parameter_field(at + 2, 7));
    }
    if b[3] != 8 {
        return Err(Sense::parameter_field(at + 3, 7));
    }
    Ok((*count, be::get64(&b[4..])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nexus;
    use crate::testing::*;

    const CURRENT: u8 = 1 << 6;

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
