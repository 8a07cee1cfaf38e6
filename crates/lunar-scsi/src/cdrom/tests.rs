use super::*;
use crate::testing::*;
use crate::{LuSettings, Nexus};
use lunar_wire::be;

const NO_CHANGE: u8 = 0;
const NEW_MEDIA: u8 = 2;
const MEDIA_REMOVAL: u8 = 3;

fn cd() -> Nexus {
    nexus(&lu(cdrom()), "a")
}

fn toc(msf: u8, format: u8, start: u8) -> [u8; 10] {
    [op::READ_TOC, msf << 1, format, 0, 0, 0, start, 0, 255, 0]
}

fn configuration(requested: u8, start: u8, len: u8) -> [u8; 10] {
    [op::GET_CONFIGURATION, requested, 0, start, 0, 0, 0, 0, len, 0]
}

#[test]
fn toc_lists_the_track_and_the_lead_out() {
    let n = &mut cd();
    let (one, lead_out) = ([0, 0x14, 1, 0, 0, 0, 0, 0], [0, 0x14, 0xaa, 0, 0, 0, 2, 0]);
    let all = [&[0, 18, 1, 1][..], &one, &lead_out].concat();
    assert_eq!(data(n, &toc(0, 0, 0)), all);
    assert_eq!(data(n, &toc(0, 0, 1)), all);
    assert_eq!(data(n, &toc(0, 0, 0xaa)), [&[0, 10, 1, 1][..], &lead_out].concat());
    // 512 blocks after the 150 of the lead-in: 8 seconds and 62 frames.
    assert_eq!(data(n, &toc(1, 0, 0xaa))[8..], [0, 0, 8, 62]);
    assert_eq!(run(n, &toc(0, 0, 2)), fails(Sense::cdb_field(6, 7)));
    assert_eq!(run(n, &toc(0, 3, 0)), fails(Sense::cdb_field(2, 3)));
}

#[test]
fn last_session_is_reported_in_the_old_format() {
    let n = &mut cd();
    let session = [0, 10, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0];
    assert_eq!(data(n, &toc(0, 1, 0)), session);
    assert_eq!(data(n, &[op::READ_TOC, 0, 0, 0, 0, 0, 0, 0, 12, 0x40]), session);
}

#[test]
fn raw_toc_has_four_points() {
    let n = &mut cd();
    let raw = data(n, &toc(1, 2, 1));
    let expected: [&[u8]; 5] = [
        &[0, 46, 1, 1],
        &[1, 0x14, 0, 0xa0, 0, 0, 0, 0, 1, 0, 0],
        &[1, 0x14, 0, 0xa1, 0, 0, 0, 0, 1, 0, 0],
        &[1, 0x14, 0, 0xa2, 0, 0, 0, 0, 0, 8, 62],
        &[1, 0x14, 0, 1, 0, 0, 0, 0, 0, 2, 0],
    ];
    assert_eq!(raw, expected.concat());
    assert_eq!(run(n, &toc(1, 2, 2)), fails(Sense::cdb_field(6, 7)));
}

#[test]
fn profile_follows_the_size() {
    let n = &mut cd();
    let cd = data(n, &configuration(0, 0, 255));
    assert_eq!(be::get32(&cd) as usize, cd.len() - 4);
    assert_eq!(cd[6..20], [0, 8, 0, 0, 3, 8, 0, 0x10, 0, 0, 0, 8, 1, 0]);
    let large = LuSettings { capacity: 4 << 30, ..cdrom() };
    let dvd = data(&mut nexus(&lu(large), "a"), &configuration(0, 0, 255));
    assert_eq!(dvd[6..20], [0, 0x10, 0, 0, 3, 8, 0, 0x10, 1, 0, 0, 8, 0, 0]);
}

#[test]
fn features_are_chosen() {
    let n = &mut cd();
    let codes = |data: Vec<u8>| {
        let (mut rest, mut codes) = (&data[8..], Vec::new());
        while !rest.is_empty() {
            codes.push(be::get16(rest));
            rest = &rest[4 + rest[3] as usize..];
        }
        codes
    };
    assert_eq!(codes(data(n, &configuration(0, 0, 255))), [0, 1, 2, 3, 0x10]);
    assert_eq!(codes(data(n, &configuration(1, 2, 255))), [2, 3, 0x10]);
    assert_eq!(codes(data(n, &configuration(2, 3, 255))), [3]);
    assert_eq!(data(n, &configuration(2, 0x20, 255)), [0, 0, 0, 4, 0, 0, 0, 8], "no such feature");
    assert_eq!(data(n, &configuration(0, 0, 8)).len(), 8);
    assert_eq!(run(n, &configuration(3, 0, 8)), fails(Sense::cdb_field(1, 1)));
}

#[test]
fn configuration_matches_golden_bytes() {
    let expected: [&[u8]; 6] = [
        &[0, 0, 0, 56, 0, 0, 0, 8],
        &[0, 0, 0x03, 8, 0, 0x10, 0, 0, 0, 8, 1, 0],
        &[0, 1, 0x0b, 8, 0, 0, 0, 1, 0, 0, 0, 0],
        &[0, 2, 0x07, 4, 0, 0, 0, 0],
        &[0, 3, 0x03, 4, 0x29, 0, 0, 0],
        &[0, 0x10, 0x01, 8, 0, 0, 8, 0, 0, 16, 0, 0],
    ];
    assert_eq!(data(&mut cd(), &configuration(0, 0, 255)), expected.concat());
}

#[test]
fn events_are_polled_by_class() {
    let n = &mut cd();
    let poll = |classes| [op::GET_EVENT_STATUS, 1, 0, 0, classes, 0, 0, 0, 8, 0];
    assert_eq!(data(n, &poll(0x10)), [0, 6, 4, 0x10, 0, 2, 0, 0]);
    assert_eq!(data(n, &poll(0x02)), [0, 2, 0x80, 0x10]);
    assert_eq!(run(n, &[op::GET_EVENT_STATUS, 0, 0, 0, 0x10, 0, 0, 0, 8, 0]), fails(Sense::cdb_field(1, 0)));
}

#[test]
fn each_change_of_the_medium_is_one_event() {
    let mut state = State::default();
    let events = [true, true, false, false, true].map(|present| state.event(NexusId(1), present));
    assert_eq!(events, [NO_CHANGE, NO_CHANGE, MEDIA_REMOVAL, NO_CHANGE, NEW_MEDIA]);
    assert_eq!(state.event(NexusId(2), true), NO_CHANGE);
}

#[test]
fn ejected_medium_is_missed_everywhere() {
    let lu = lu(cdrom());
    let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
    let poll = [op::GET_EVENT_STATUS, 1, 0, 0, 0x10, 0, 0, 0, 8, 0];
    let start_stop = |flags| [op::START_STOP_UNIT, 0, 0, 0, flags, 0];
    assert_eq!(data(&mut b, &poll)[4..6], [NO_CHANGE, 2]);
    assert!(run(&mut a, &start_stop(2)).is_ok());
    assert_eq!(data(&mut b, &poll)[4..6], [MEDIA_REMOVAL, 1]);
    assert_eq!(data(&mut b, &poll)[4..6], [NO_CHANGE, 1]);
    assert_eq!(run(&mut b, &toc(0, 0, 0)), fails(Sense::NOT_READY_NO_MEDIUM));
    assert_eq!(data(&mut b, &configuration(1, 0, 255))[6..8], [0, 0], "no profile");
    assert_eq!(data(&mut b, &configuration(2, 0x10, 255))[10], 0, "not current");
    assert_eq!(data(&mut b, &[op::MECHANISM_STATUS, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0])[1], 0x10);
    assert!(run(&mut a, &start_stop(3)).is_ok());
    assert_eq!(data(&mut b, &poll)[4..6], [NEW_MEDIA, 2]);
    assert_eq!(run(&mut b, &[op::TEST_UNIT_READY]), fails(Sense::MEDIUM_CHANGED));
    assert!(run(&mut b, &toc(0, 0, 0)).is_ok());
}

#[test]
fn event_beyond_the_allocation_length_is_reported_later() {
    let lu = lu(cdrom());
    let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
    let poll = |len| [op::GET_EVENT_STATUS, 1, 0, 0, 0x10, 0, 0, 0, len, 0];
    assert_eq!(data(&mut b, &poll(8))[4], NO_CHANGE);
    assert!(run(&mut a, &[op::START_STOP_UNIT, 0, 0, 0, 2, 0]).is_ok());
    assert_eq!(data(&mut b, &poll(4)).len(), 4);
    assert_eq!(data(&mut b, &poll(8))[4], MEDIA_REMOVAL);
}

#[test]
fn capabilities_page_is_there() {
    let page = data(&mut cd(), &[op::MODE_SENSE_10, 8, 0x2a, 0, 0, 0, 0, 0, 255, 0]);
    let expected = [0x2a, 18, 0x0b, 0, 0, 0, 0x29, 0, 0x10, 0x80, 0, 0, 0, 0, 0x10, 0x80, 0, 0, 0, 0];
    assert_eq!(page[8..], expected);
}

#[test]
fn events_and_configuration_pass_unit_attentions_by() {
    let mut n = lu(cdrom()).attach(port("a"), false);
    assert!(run(&mut n, &[op::GET_EVENT_STATUS, 1, 0, 0, 0x10, 0, 0, 0, 8, 0]).is_ok());
    assert!(run(&mut n, &configuration(0, 0, 8)).is_ok());
    assert_eq!(run(&mut n, &[op::TEST_UNIT_READY]), fails(Sense::POWER_ON));
}

#[test]
fn disc_and_track_are_one_and_complete() {
    let n = &mut cd();
    let disc = data(n, &[op::READ_DISC_INFORMATION, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
    let expected = [&[0, 32, 0x0e, 1, 1, 1, 1, 0x20][..], &[0; 8], &[0xff; 8], &[0; 10]].concat();
    assert_eq!(disc, expected);
    assert_eq!(
        run(n, &[op::READ_DISC_INFORMATION, 1, 0, 0, 0, 0, 0, 0, 255, 0]),
        fails(Sense::cdb_field(1, 2))
    );
    let track = |by, number| [op::READ_TRACK_INFORMATION, by, 0, 0, 1, number, 0, 0, 255, 0];
    let by_lba = data(n, &track(0, 255));
    let expected = [&[0, 34, 1, 1, 0, 4, 1, 0][..], &[0; 16], &[0, 0, 2, 0], &[0; 8]].concat();
    assert_eq!(by_lba, expected);
    assert_eq!(data(n, &[op::READ_TRACK_INFORMATION, 1, 0, 0, 0, 1, 0, 0, 255, 0]), by_lba);
    let beyond = [op::READ_TRACK_INFORMATION, 0, 0, 0, 2, 0, 0, 0, 255, 0];
    assert_eq!(run(n, &beyond), fails(Sense::LBA_OUT_OF_RANGE.at(512)));
    assert_eq!(run(n, &track(1, 1)), fails(Sense::cdb_field(2, 7)));
    assert_eq!(run(n, &track(3, 1)), fails(Sense::cdb_field(1, 1)));
}

#[test]
fn mechanism_is_idle() {
    let status = [op::MECHANISM_STATUS, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    assert_eq!(data(&mut cd(), &status), [0; 8]);
}

#[test]
fn disk_and_cdrom_reject_commands_of_each_other() {
    let mut disk = nexus(&lu(disk()), "a");
    for row in ROWS {
        assert_eq!(run(&mut disk, &[row.opcode]), fails(Sense::INVALID_OPCODE), "{:02x}", row.opcode);
    }
    let n = &mut cd();
    for opcode in [op::SANITIZE, op::EXTENDED_COPY, op::MAINTENANCE_IN, op::MAINTENANCE_OUT] {
        let answer = run(n, &[opcode, 0x0a]);
        assert!(answer.is_err(), "{opcode:02x}");
    }
}
