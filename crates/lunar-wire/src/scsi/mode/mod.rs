//! Mode pages in the data of MODE SENSE (SPC-5 section 7.5, SBC-4 section 6.5).

mod layout;

use super::fields::{Field, bits, flag, named, number, split};
pub use layout::{
    BlockDescriptorLayout, HeaderLayout, ModeHeader, PAGE_CODE, PAGE_HEADER_LEN, PAGE_LENGTH, PS, SPF,
    SUBPAGE_CODE, SUBPAGE_HEADER_LEN, SUBPAGE_LENGTH, caching, control, encode_page,
    informational_exceptions_control,
};

const TEN: HeaderLayout = HeaderLayout::TEN;

/// The header of MODE SENSE(10).
pub static HEADER: &[Field] =
    &[Field::flag("write_protected", TEN.wp), Field::flag("dpo_and_fua", TEN.dpofua)];

/// A mode page or subpage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModePage<'a> {
    /// PAGE CODE.
    pub code: u8,
    /// SUBPAGE CODE; 0 for a page without subpages.
    pub subpage: u8,
    /// PS: the page can be saved.
    pub saveable: bool,
    /// The whole page, its header included.
    pub bytes: &'a [u8],
}

/// The pages in the data of MODE SENSE(10) that are complete. MODE DATA LENGTH is ignored.
pub fn pages(answer: &[u8]) -> impl Iterator<Item = ModePage<'_>> {
    let start = TEN.len + usize::from(ModeHeader::decode(answer, TEN).block_descriptor_length);
    let all = split(answer.get(start..).unwrap_or(&[]), |b| {
        if SPF.is_set(b) && b.len() >= SUBPAGE_HEADER_LEN {
            return Some(SUBPAGE_HEADER_LEN + usize::from(SUBPAGE_LENGTH.get_u16(b)));
        }
        (b.len() >= PAGE_HEADER_LEN).then(|| PAGE_HEADER_LEN + usize::from(PAGE_LENGTH.get_u8(b)))
    });
    all.map(|bytes| ModePage {
        code: PAGE_CODE.get_u8(bytes),
        subpage: if SPF.is_set(bytes) { SUBPAGE_CODE.get_u8(bytes) } else { 0 },
        saveable: PS.is_set(bytes),
        bytes,
    })
}

/// WP of the header of MODE SENSE(10): the medium is write-protected.
pub fn write_protected(answer: &[u8]) -> bool {
    TEN.wp.is_set(answer)
}

/// DPOFUA of the header of MODE SENSE(10).
pub fn supports_fua(answer: &[u8]) -> bool {
    TEN.dpofua.is_set(answer)
}

/// WCE of the caching page in the data of MODE SENSE(10); `None` without that page.
pub fn write_cache(answer: &[u8]) -> Option<bool> {
    let page = pages(answer).find(|page| (page.code, page.subpage) == (CACHING_PAGE, 0))?;
    (page.bytes.len() > caching::WCE.byte().into()).then(|| caching::WCE.is_set(page.bytes))
}

/// Whether the data of MODE SENSE(10) contain the whole header.
pub fn has_header(answer: &[u8]) -> bool {
    answer.len() >= TEN.len
}

/// Converts the data of MODE SENSE(6) to those of MODE SENSE(10), without MODE DATA LENGTH above 255. Empty without a
/// header.
pub fn from_six(answer: &[u8]) -> Vec<u8> {
    let Some(([len, medium, parameter, descriptors], rest)) = answer.split_first_chunk::<4>() else {
        return Vec::new();
    };
    [&[0, *len, *medium, *parameter, 0, 0, 0, *descriptors][..], rest].concat()
}

/// PAGE CODE of the read-write error recovery page.
pub const ERROR_RECOVERY_PAGE: u8 = 0x01;
/// PAGE CODE of the disconnect-reconnect page.
pub const DISCONNECT_RECONNECT_PAGE: u8 = 0x02;
/// PAGE CODE of the caching page.
pub const CACHING_PAGE: u8 = 0x08;
/// PAGE CODE of the control page.
pub const CONTROL_PAGE: u8 = 0x0a;
/// PAGE CODE of the informational exceptions control page.
pub const INFORMATIONAL_EXCEPTIONS_CONTROL_PAGE: u8 = 0x1c;
/// PAGE CODE that requests all pages.
pub const ALL_PAGES: u8 = 0x3f;
/// SUBPAGE CODE that requests all subpages.
pub const ALL_SUBPAGES: u8 = 0xff;

const ORDER: &[(u64, &str)] = &[(0, "restricted"), (1, "unrestricted")];
const SHARING: &[(u64, &str)] = &[(0, "one task set for all"), (1, "a task set for each I_T nexus")];
const REPORTING: &[(u64, &str)] = &[
    (0, "no report"),
    (2, "unit attention"),
    (3, "recovered error, if allowed"),
    (4, "recovered error"),
    (5, "no sense"),
    (6, "on request"),
];

static ERROR_RECOVERY: &[Field] = &[
    flag("awre", 2, 7),
    flag("arre", 2, 6),
    flag("transfer_block", 2, 5),
    flag("read_continuous", 2, 4),
    flag("post_error", 2, 2),
    flag("data_terminate", 2, 1),
    number("read_retries", 3, 1),
    number("write_retries", 8, 1),
    number("recovery_time_limit_ms", 10, 2),
];

static CONNECTION: &[Field] = &[
    number("buffer_full_ratio", 2, 1),
    number("buffer_empty_ratio", 3, 1),
    number("max_burst_512_bytes", 10, 2),
    number("first_burst_512_bytes", 14, 2),
];

static CACHING: &[Field] = &[
    Field::flag("write_cache", caching::WCE),
    flag("read_cache_disabled", 2, 0),
    flag("initiator_control", 2, 7),
    flag("abort_prefetch", 2, 6),
    flag("discontinuity", 2, 4),
    flag("multiplication_factor", 2, 1),
    number("disable_prefetch_blocks", 4, 2),
    number("min_prefetch_blocks", 6, 2),
    number("max_prefetch_blocks", 8, 2),
    number("max_prefetch_ceiling_blocks", 10, 2),
    flag("force_sequential_write", 12, 7),
    flag("read_ahead_disabled", 12, 5),
    flag("non_volatile_cache_disabled", 12, 0),
];

static CONTROL: &[Field] = &[
    named("task_set", 2, (5, 3), SHARING),
    Field::flag("descriptor_sense", control::D_SENSE),
    flag("global_logging_target_save_disable", 2, 1),
    named("queue_algorithm", 3, (4, 4), ORDER),
    bits("queue_error", 3, 1, 2),
    bits("unit_attention_interlock", 4, 4, 2),
    Field::flag("software_write_protect", control::SWP),
    flag("application_tag_owner", 5, 7),
    Field::flag("task_aborted_status", control::TAS),
    bits("autoload", 5, 0, 3),
    number("busy_timeout_100ms", 8, 2),
    number("extended_self_test_s", 10, 2),
];

static CONTROL_EXTENSION: &[Field] = &[
    flag("timestamp_changeable", 4, 2),
    flag("scsi_precedence", 4, 1),
    flag("implicit_alua", 4, 0),
    bits("initial_priority", 5, 0, 4),
    number("max_sense_bytes", 6, 1),
];

static POWER: &[Field] = &[
    flag("standby_y", 2, 0),
    flag("idle_c", 3, 3),
    flag("idle_b", 3, 2),
    flag("idle_a", 3, 1),
    flag("standby_z", 3, 0),
    number("idle_a_timer_100ms", 4, 4),
    number("standby_z_timer_100ms", 8, 4),
];

static EXCEPTIONS: &[Field] = &[
    flag("performance", 2, 7),
    flag("background_functions", 2, 5),
    flag("warnings", 2, 4),
    Field::flag("disabled", informational_exceptions_control::DEXCPT),
    flag("test", 2, 2),
    flag("log_errors", 2, 0),
    named("method", 3, (0, 4), REPORTING),
    number("interval_100ms", 4, 4),
    number("report_count", 8, 4),
];

/// Page, subpage, the name, and the fields.
type Row = (u8, u8, &'static str, &'static [Field]);

const PAGES: &[Row] = &[
    (0x01, 0, "read-write error recovery", ERROR_RECOVERY),
    (0x02, 0, "disconnect-reconnect", CONNECTION),
    (0x07, 0, "verify error recovery", &[]),
    (0x08, 0, "caching", CACHING),
    (0x0a, 0, "control", CONTROL),
    (0x0a, 1, "control extension", CONTROL_EXTENSION),
    (0x18, 0, "protocol specific logical unit", &[]),
    (0x19, 0, "protocol specific port", &[]),
    (0x1a, 0, "power condition", POWER),
    (0x1c, 0, "informational exceptions control", EXCEPTIONS),
    (0x1c, 2, "logical block provisioning", &[]),
    (0x2a, 0, "CD capabilities", &[]),
];

impl ModePage<'_> {
    fn row(&self) -> Option<&'static Row> {
        PAGES.iter().find(|(code, subpage, ..)| (*code, *subpage) == (self.code, self.subpage))
    }

    /// The name of the page; `None` if it is unknown.
    pub fn name(&self) -> Option<&'static str> {
        self.row().map(|row| row.2)
    }

    /// The fields of the page; `None` if they are not decoded.
    pub fn table(&self) -> Option<&'static [Field]> {
        self.row().map(|row| row.3).filter(|table| !table.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::{FieldValue, read};
    use super::*;

    #[test]
    fn write_cache_is_found_after_the_block_descriptors() {
        let b = [0, 0, 0, 0x90, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0x48, 1, 0, 2, 9, 9, 0x08, 1, 0x04];
        assert_eq!(write_cache(&b), Some(true));
        assert!(write_protected(&b) && supports_fua(&b) && has_header(&b));
        assert!(!has_header(&b[..7]) && !write_protected(&b[..3]) && !supports_fua(&[]));
        (0..b.len()).for_each(|n| assert_eq!(write_cache(&b[..n]), None, "{n} bytes"));
    }

    #[test]
    fn data_of_the_short_command_are_converted() {
        let b = [15, 1, 0x80, 0, 0x88, 0x01, 0x00];
        assert_eq!(from_six(&b), [0, 15, 1, 0x80, 0, 0, 0, 0, 0x88, 0x01, 0x00]);
        assert_eq!(write_cache(&from_six(&b)), Some(false));
        (0..4).for_each(|n| assert!(from_six(&b[..n]).is_empty(), "{n} bytes"));
    }

    #[test]
    fn mode_pages_follow_block_descriptors() {
        let mut b = vec![0, 0, 0, 0x90, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        b.extend([0x4a, 1, 0, 2, 1, 9, 0x88, 0x12, 0x04]);
        b.resize(b.len() + 17, 0);
        let all: Vec<_> = pages(&b).collect();
        assert_eq!((all[0].code, all[0].subpage, all[0].name()), (0x0a, 1, Some("control extension")));
        assert_eq!((all[1].code, all[1].saveable, all.len()), (0x08, true, 2));
        let first = read(all[1].table().unwrap(), all[1].bytes).next();
        assert_eq!(first, Some(("write_cache", FieldValue::Flag(true))));
        assert_eq!(read(HEADER, &b).filter(|(_, v)| *v == FieldValue::Flag(true)).count(), 2);
        (0..b.len()).for_each(|n| assert!(pages(&b[..n]).count() < 2));
    }
}
