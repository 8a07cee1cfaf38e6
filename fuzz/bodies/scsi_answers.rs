//! Responses to INQUIRY, MODE SENSE, PERSISTENT RESERVE IN and other informational commands. Every decoder reads the
//! same bytes, as does that of the parameter list of UNMAP.

use lunar_wire::iscsi::{request, sense_segment};
use lunar_wire::scsi::copy::OperatingParameters;
use lunar_wire::scsi::fields::{FieldValue, read};
use lunar_wire::scsi::inquiry::{Capacity, StandardData};
use lunar_wire::scsi::limits::{BlockLimits, Provisioning};
use lunar_wire::scsi::log::{LogPageHeader, LogParameterHeader};
use lunar_wire::scsi::mode::{BlockDescriptorLayout, HeaderLayout, ModeHeader};
use lunar_wire::scsi::sanitize::OverwriteHeader;
use lunar_wire::scsi::vpd::Designator;
use lunar_wire::scsi::{Sense, inquiry, lun, mode, pr, report, unmap, vpd};

pub fn run(input: &[u8]) {
    let b = &input[..input.len().min(4096)];
    for table in [inquiry::STANDARD, inquiry::CAPACITY, mode::HEADER, pr::CAPABILITIES, report::FUNCTIONS] {
        read(table, b).for_each(|(_, value)| plain(&value));
    }
    for table in (0..=255).filter_map(vpd::table) {
        read(table, b).for_each(|(_, value)| plain(&value));
    }
    assert!(inquiry::standards(b).count() <= 8);
    pages(b);
    lists(b);
    structures(b);
    round_trips(b);
    segments(b);
    headers(b);
    if let Some(sense) = Sense::decode(b) {
        shown(&sense.to_string());
        sense.detail().iter().for_each(|text| shown(text));
    }
}

fn pages(b: &[u8]) {
    shown(&vpd::serial(b));
    let ports = vpd::ports(b).flat_map(|port| port.designators());
    vpd::designators(b).chain(ports).for_each(|d| shown(&d.text()));
    vpd::addresses(b).for_each(|(_, text)| shown(&text));
    assert!(vpd::policies(b).count() <= b.len() / 4);
    assert!(vpd::copy_descriptors(b).count() <= b.len() / 4);
    for page in mode::pages(b) {
        let table = page.table().unwrap_or(&[]);
        read(table, page.bytes).for_each(|(_, value)| plain(&value));
    }
}

/// Checks that encoded values decode to themselves.
fn round_trips(b: &[u8]) {
    let (limits, provisioning) = (BlockLimits::decode(b), Provisioning::decode(b));
    assert_eq!(BlockLimits::decode(&limits.encode()), limits);
    assert_eq!(Provisioning::decode(&provisioning.encode()), provisioning);
    for one in vpd::designators(b).filter(|one| one.value.len() <= 252) {
        let encoded = one.encode();
        let again = vpd::descriptors(&encoded).next();
        assert_eq!(again, Some(Designator { whole: &encoded, ..one }));
    }
    let long = Capacity::decode_16(b);
    assert!(long.is_none_or(|capacity| Capacity::decode_16(&capacity.encode_16()) == Some(capacity)));
    let short = Capacity::decode_10(b);
    assert!(short.is_none_or(|capacity| Capacity::decode_10(&capacity.encode_10()) == Some(capacity)));
}

fn structures(b: &[u8]) {
    let standard = StandardData(b);
    [standard.vendor(), standard.product(), standard.revision()].iter().for_each(|text| shown(text));
    assert!(standard.device_type() < 0x20 && standard.alua() < 4);
    assert_eq!(inquiry::is_connected(b), b.first().is_some_and(|byte| byte & 0xe0 == 0));
    assert!(Capacity::decode_16(b).is_none_or(|capacity| capacity.blocks() > 0 && b.len() >= 12));
    assert!(Capacity::decode_10(b).is_none_or(|capacity| !capacity.thin && b.len() >= 8));
    assert!(b.len() > 4 || BlockLimits::decode(b) == BlockLimits::default());
    assert!(b.len() > 5 || Provisioning::decode(b) == Provisioning::default());
    assert_eq!(OperatingParameters::decode(b).is_some(), b.len() >= OperatingParameters::HEAD_LEN);
    assert!(vpd::body(b).len() <= vpd::after_header(b).len() && vpd::code(b).is_some() == (b.len() > 1));
    assert!(
        b.len() > 3 || vpd::whole_len(b).is_none() && !mode::write_protected(b) && !mode::supports_fua(b)
    );
    assert!(mode::from_six(b).is_empty() || mode::has_header(&mode::from_six(b)));
    assert!(mode::write_cache(b).is_none() || mode::has_header(b));
}

fn segments(b: &[u8]) {
    assert!(sense_segment::decode(b).is_ok_and(|sense| sense.len() <= b.len()) || b.len() > 1);
    let mut short = b.to_vec();
    sense_segment::truncate(&mut short, 64);
    assert!(short.len() <= 64 && sense_segment::undelimited(&short).len() < 63);
    assert!(request::whole_cdb(&[0; 16], b).is_none_or(|cdb| (16..=260).contains(&cdb.len())));
}

/// Every header is the same after it is encoded and decoded again.
fn headers(b: &[u8]) {
    let (page, parameter) = (LogPageHeader::decode(b), LogParameterHeader::decode(b));
    assert_eq!(LogPageHeader::decode(&page.encode()), page);
    assert_eq!(LogParameterHeader::decode(&parameter.encode()), parameter);
    for layout in [HeaderLayout::SIX, HeaderLayout::TEN] {
        let header = ModeHeader::decode(b, layout);
        assert_eq!(ModeHeader::decode(&header.encode(layout), layout), header);
        let descriptor = BlockDescriptorLayout::of(header.longlba);
        assert!(descriptor.number_of_logical_blocks.get(b) <= descriptor.max_blocks());
    }
    let overwrite = OverwriteHeader::decode(b);
    assert!(overwrite.test < 4 && overwrite.overwrite_count < 0x20);
}

fn lists(b: &[u8]) {
    assert!(pr::keys(b).count() <= b.len() / 8);
    assert!(pr::reservation(b).is_none_or(|held| held.kind < 16));
    pr::registrations(b).for_each(|one| shown(&one.initiator));
    assert!(report::commands(b).count() <= b.len() / 8);
    assert!(report::groups(b).map(|group| 2 + group.ports.len()).sum::<usize>() <= b.len() / 4);
    assert!(report::extents(b).count() <= b.len() / 16);
    assert!(lun::list(b).count() <= b.len() / 8);
    assert!(unmap::descriptors(b).is_none_or(|all| all.len() <= b.len() / 16));
    for (code, value) in report::parameters(b) {
        for page in [0x02, 0x06, 0x0d, 0x2f] {
            let parameter = report::parameter(page, code, value);
            assert!(parameter.is_none_or(|(name, _)| !name.is_empty()));
        }
    }
}

fn plain(value: &FieldValue) {
    if let FieldValue::Text(text) = value {
        shown(text);
    }
}

/// Checks that the text has no control characters for a terminal.
fn shown(text: &str) {
    assert!(!text.contains(char::is_control), "{text:?}");
}
