use crate::testing::*;
use crate::{Lu, LuSettings, Plan, PlanResult};
use lunar_wire::scsi::{Sense, op};

const SENSE_6: u8 = op::MODE_SENSE_6;
const SENSE_10: u8 = op::MODE_SENSE_10;
const SELECT_6: u8 = op::MODE_SELECT_6;
const WRITE_ONE: &[u8] = &[op::WRITE_10, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn caching(byte_2: u8) -> Vec<u8> {
    let mut page = vec![8, 0x12, byte_2];
    page.resize(20, 0);
    page
}

fn control(d_sense: bool, swp: bool, tas: bool) -> Vec<u8> {
    vec![10, 10, (d_sense as u8) << 2, 0x10, (swp as u8) << 3, (tas as u8) << 6, 0, 0, 0, 0, 0, 0]
}

fn list(page: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 0], page].concat()
}

fn select(n: &mut crate::Nexus, list: &[u8]) -> PlanResult {
    run_with(n, &[SELECT_6, 0x10, 0, 0, list.len() as u8, 0], list)
}

#[test]
fn caching_page_in_each_of_its_states() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    assert_eq!(select(&mut n, &list(&caching(0))), Ok(Plan::Done));
    for (pc, byte_2) in [(0, 0), (1, 4), (2, 4), (3, 4)] {
        let data = data(&mut n, &[SENSE_6, 8, pc << 6 | 8, 0, 255, 0]);
        assert_eq!(data[..7], [23, 0, 0x10, 0, 0x88, 0x12, byte_2], "PC {pc}");
        assert_eq!(data.len(), 24);
    }
}

#[test]
fn all_pages_come_in_order_with_a_block_descriptor() {
    let mut n = nexus(&lu(disk()), "a");
    for subpage in [0, 0xff] {
        let data = data(&mut n, &[SENSE_6, 0, 0x3f, subpage, 255, 0]);
        assert_eq!(data[..12], [data.len() as u8 - 1, 0, 0x10, 8, 0, 0, 8, 0, 0, 0, 2, 0]);
        let mut at = 12;
        let mut codes = Vec::new();
        while at < data.len() {
            codes.push(data[at] & 0x3f);
            at += 2 + data[at + 1] as usize;
        }
        assert_eq!(codes, [1, 2, 8, 10, 0x1c]);
    }
}

#[test]
fn long_form_has_long_block_descriptors() {
    let mut n = nexus(&lu(disk()), "a");
    let data = data(&mut n, &[SENSE_10, 0x10, 10, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(data[..8], [0, 34, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(data[8..24], [0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(data[24..], [0x8a, 10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn unknown_pages_are_pointed_at() {
    let mut n = nexus(&lu(disk()), "a");
    assert_eq!(run(&mut n, &[SENSE_6, 0, 0x07, 0, 255, 0]), fails(Sense::cdb_field(2, 5)));
    assert_eq!(run(&mut n, &[SENSE_6, 0, 0x0a, 1, 255, 0]), fails(Sense::cdb_field(3, 7)));
    let mut cd = nexus(&lu(cdrom()), "a");
    assert_eq!(run(&mut cd, &[SENSE_6, 0, 0x08, 0, 255, 0]), fails(Sense::cdb_field(2, 5)));
}

#[test]
fn write_cache_off_makes_writes_stable() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    assert_eq!(run(&mut n, WRITE_ONE), Ok(Plan::Write { offset: 0, len: 512, stable: false }));
    select(&mut n, &list(&caching(0))).unwrap();
    assert_eq!(run(&mut n, WRITE_ONE), Ok(Plan::Write { offset: 0, len: 512, stable: true }));
}

#[test]
fn software_write_protect_and_its_bit() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    select(&mut n, &list(&control(false, true, false))).unwrap();
    assert_eq!(run(&mut n, WRITE_ONE), fails(Sense::WRITE_PROTECTED));
    assert_eq!(data(&mut n, &[SENSE_6, 8, 10, 0, 4, 0]), [15, 0, 0x90, 0]);
    select(&mut n, &list(&control(false, false, false))).unwrap();
    assert!(run(&mut n, WRITE_ONE).is_ok());
}

#[test]
fn sense_format_and_task_aborted_status_reach_every_nexus() {
    let lu = lu(disk());
    let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
    assert!(!b.uses_descriptor_sense() && !b.task_aborted_status());
    select(&mut a, &list(&control(true, false, true))).unwrap();
    assert!(b.uses_descriptor_sense() && b.task_aborted_status());
    assert_eq!(run(&mut a, WRITE_ONE), Ok(Plan::Write { offset: 0, len: 512, stable: false }));
    assert_eq!(run(&mut b, WRITE_ONE), fails(Sense::MODE_PARAMETERS_CHANGED));
    select(&mut a, &list(&control(true, false, true))).unwrap();
    assert!(run(&mut b, WRITE_ONE).is_ok(), "without a change there is no unit attention");
    lu.task_set_cleared(Some(a.id()));
    assert!(run(&mut b, WRITE_ONE).is_ok(), "with TAS, cleared tasks have a status instead");
}

#[test]
fn saved_values_survive_reset_and_restart() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    assert_eq!(lu.saved_state().0, 0);
    let off = list(&caching(0));
    let answer = run_with(&mut n, &[SELECT_6, 0x11, 0, 0, 24, 0], &off);
    assert_eq!(commit(&lu, answer), Ok((Plan::Done, true)));
    let (version, saved) = lu.saved_state();
    assert_eq!(version, 1);
    let reborn = std::sync::Arc::new(Lu::new(disk(), Some(&saved)).unwrap());
    let mut n = nexus(&reborn, "a");
    assert_eq!(run(&mut n, WRITE_ONE), Ok(Plan::Write { offset: 0, len: 512, stable: true }));
    select(&mut n, &list(&caching(4))).unwrap();
    reborn.reset();
    assert_eq!(run(&mut n, WRITE_ONE), fails(Sense::LUN_RESET));
    assert_eq!(run(&mut n, WRITE_ONE), Ok(Plan::Write { offset: 0, len: 512, stable: true }));
}

#[test]
fn current_values_are_handed_over_if_defaults_are_equal() {
    let lu = lu(disk());
    assert_eq!(lu.hand_over(), []);
    select(&mut nexus(&lu, "a"), &list(&caching(0))).unwrap();
    let state = lu.hand_over();
    let other = LuSettings { write_cache: !disk().write_cache, ..disk() };
    for (settings, write_cache) in [(disk(), false), (other.clone(), other.write_cache)] {
        let next = Lu::new(settings, None).unwrap();
        next.take_over(&state).unwrap();
        assert_eq!(next.write_cache(), write_cache);
    }
}

#[test]
fn where_nothing_is_kept_no_page_is_saved() {
    let lu = lu(disk());
    lu.set_volatile();
    let mut n = nexus(&lu, "a");
    assert_eq!(data(&mut n, &[SENSE_6, 8, 8, 0, 255, 0])[4], 0x08, "PS");
    assert_eq!(run(&mut n, &[SENSE_6, 8, 0xc8, 0, 255, 0]), fails(Sense::SAVING_NOT_SUPPORTED));
    assert_eq!(run(&mut n, &[SELECT_6, 0x11, 0, 0, 24, 0]), fails(Sense::cdb_field(1, 0)));
    select(&mut n, &list(&caching(0))).unwrap();
    assert_eq!(run(&mut n, WRITE_ONE), Ok(Plan::Write { offset: 0, len: 512, stable: true }));
}

#[test]
fn wrong_lists_change_nothing() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    let long = Sense::PARAMETER_LIST_LENGTH;
    let at = Sense::parameter_field;
    let mut ps = caching(0);
    ps[0] |= 0x80;
    let cases: Vec<(Vec<u8>, Sense)> = vec![
        (vec![0, 0, 0], long),
        (vec![0, 0, 0, 8, 0, 0], long),
        (vec![0, 9, 0, 0], at(1, 7)),
        (vec![0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0], at(3, 7)),
        (vec![0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 2, 0], at(4, 7)),
        (vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 4, 0], at(9, 7)),
        (list(&[7, 10]), at(4, 5)),
        (list(&[0x4a, 1, 0, 0x1c]), at(4, 6)),
        (list(&ps), at(4, 7)),
        (list(&[8]), long),
        (list(&[8, 0x11, 0]), at(5, 7)),
        (list(&caching(0)[..19]), long),
        (list(&caching(0x40)), at(6, 6)),
        (list(&[caching(0), vec![7, 0]].concat()), at(24, 5)),
    ];
    for (list, sense) in cases {
        assert_eq!(select(&mut n, &list), fails(sense), "{list:02x?}");
    }
    assert_eq!(run(&mut n, &[SELECT_6, 0, 0, 0, 24, 0]), fails(Sense::cdb_field(1, 4)));
    assert_eq!(run(&mut n, WRITE_ONE), Ok(Plan::Write { offset: 0, len: 512, stable: false }));
    assert_eq!(run(&mut n, &[SELECT_6, 0x10, 0, 0, 0, 0]), Ok(Plan::Done));
}

/// PS is set where a value can be changed.
#[test]
fn mode_pages_have_the_bytes_of_the_standard() {
    let zeros = |n| vec![0; n];
    let disk_pages: [Vec<u8>; 5] = [
        [vec![0x01, 0x0a], zeros(10)].concat(),
        [vec![0x02, 0x0e], zeros(14)].concat(),
        [vec![0x88, 0x12, 0x04], zeros(17)].concat(),
        [vec![0x8a, 0x0a, 0, 0x10], zeros(8)].concat(),
        [vec![0x1c, 0x0a, 0x08], zeros(9)].concat(),
    ];
    let changeable: [Vec<u8>; 5] = [
        [vec![0x01, 0x0a], zeros(10)].concat(),
        [vec![0x02, 0x0e], zeros(14)].concat(),
        [vec![0x88, 0x12, 0x04], zeros(17)].concat(),
        [vec![0x8a, 0x0a, 0x04, 0, 0x08, 0x40], zeros(6)].concat(),
        [vec![0x1c, 0x0a], zeros(10)].concat(),
    ];
    let mut n = nexus(&lu(disk()), "a");
    assert_eq!(data(&mut n, &[SENSE_6, 8, 0x3f, 0, 255, 0])[4..], disk_pages.concat());
    assert_eq!(data(&mut n, &[SENSE_6, 8, 0x7f, 0, 255, 0])[4..], changeable.concat());
    let mut cd = nexus(&lu(cdrom()), "a");
    let cd_pages = data(&mut cd, &[SENSE_6, 8, 0x3f, 0, 255, 0]);
    assert_eq!(cd_pages[..4], [cd_pages.len() as u8 - 1, 0, 0, 0]);
    let first = [&disk_pages[0][..], &disk_pages[3], &disk_pages[4]].concat();
    assert_eq!((&cd_pages[4..40], &cd_pages[40..42]), (&first[..], &[0x2a, 0x12][..]));
}

#[test]
fn wrong_fields_of_a_long_list_are_pointed_at() {
    let mut n = nexus(&lu(disk()), "a");
    let cdb = |len: usize| [op::MODE_SELECT_10, 0x10, 0, 0, 0, 0, 0, 0, len as u8, 0];
    let at = Sense::parameter_field;
    let long = |blocks: u8, size: u8| {
        vec![0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 0, 0, blocks, 0, 0, 0, 0, 0, 0, 0, size, 0]
    };
    let cases: Vec<(Vec<u8>, PlanResult)> = vec![
        (vec![0; 7], fails(Sense::PARAMETER_LIST_LENGTH)),
        (vec![0, 0, 9, 0, 0, 0, 0, 0], fails(at(2, 7))),
        (vec![0, 0, 0, 0, 0, 0, 0, 16], fails(at(6, 7))),
        (vec![0, 0, 0, 0, 1, 0, 0, 8], fails(at(6, 7))),
        (vec![0, 0, 0, 0, 0, 0, 0, 8, 0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0], Ok(Plan::Done)),
        (long(8, 2), Ok(Plan::Done)),
        (long(0, 0), Ok(Plan::Done)),
        (long(9, 2), fails(at(8, 7))),
        (long(8, 4), fails(at(20, 7))),
        ([long(8, 2), vec![7, 0]].concat(), fails(at(24, 5))),
        (long(8, 2)[..23].to_vec(), fails(Sense::PARAMETER_LIST_LENGTH)),
    ];
    for (list, answer) in cases {
        assert_eq!(run_with(&mut n, &cdb(list.len()), &list), answer, "{list:02x?}");
    }
    assert_eq!(run(&mut n, &[op::MODE_SELECT_10, 0, 0, 0, 0, 0, 0, 1, 0, 0]), fails(Sense::cdb_field(1, 4)));
    let pages = run(&mut n, &[op::MODE_SELECT_10, 0x10, 0, 0, 0, 0, 0, 1, 2, 0]);
    assert_eq!(pages, Ok(Plan::Parameters { len: 0x102 }));
}
