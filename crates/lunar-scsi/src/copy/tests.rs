use super::*;
use crate::testing::*;
use crate::{CopySegment, LuSettings, Nexus};
use lunar_wire::be;

const HEADER: usize = 16;
const CSCD_LEN: usize = 32;

const OWN: [u8; 8] = [0x30, 1, 2, 3, 4, 5, 6, 7];
const OTHER: [u8; 16] = [0x60, 9, 9, 9, 9, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8];

/// An identification descriptor CSCD descriptor.
fn cscd(naa: &[u8]) -> Vec<u8> {
    let mut b = vec![0; CSCD_LEN];
    (b[0], b[4], b[5], b[7]) = (0xe4, 1, 3, naa.len() as u8);
    b[8..8 + naa.len()].copy_from_slice(naa);
    be::put24(&mut b[29..], 512);
    b
}

/// A block to block segment descriptor.
fn b2b(flags: u8, ends: [u16; 2], blocks: u16, lbas: [u64; 2]) -> Vec<u8> {
    let mut b = vec![0; 28];
    (b[0], b[1], b[3]) = (0x02, flags, 0x18);
    be::put16(&mut b[4..], ends[0]);
    be::put16(&mut b[6..], ends[1]);
    be::put16(&mut b[10..], blocks);
    be::put64(&mut b[12..], lbas[0]);
    be::put64(&mut b[20..], lbas[1]);
    b
}

/// The same with a length in bytes.
fn b2b_bytes(len: u32, lbas: [u64; 2]) -> Vec<u8> {
    let mut b = b2b(0, [0, 0], 0, lbas);
    (b[0], b[3]) = (0x0a, 0x1c);
    be::put32(&mut b[8..], len);
    b.resize(32, 0);
    b
}

pub(crate) fn list(id: u8, usage: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut b = vec![0; HEADER];
    (b[0], b[1]) = (id, usage << 3);
    be::put16(&mut b[2..], cscds.len() as u16);
    be::put32(&mut b[8..], segments.len() as u32);
    [b, cscds, segments].concat()
}

/// A typical list of a host: within one logical unit, 4 blocks from LBA 1 to LBA 9.
pub(crate) fn usual() -> Vec<u8> {
    list(1, 0, &[cscd(&OWN)], &[b2b(0, [0, 0], 4, [1, 9])])
}

fn copy(n: &mut Nexus, list: &[u8]) -> PlanResult {
    let mut cdb = [0; 16];
    cdb[0] = op::EXTENDED_COPY;
    be::put32(&mut cdb[10..], list.len() as u32);
    run_with(n, &cdb, list)
}

fn segments(answer: PlanResult) -> Vec<CopySegment> {
    match answer {
        Ok(Plan::Op(op)) => match *op {
            Op::Copy { segments, .. } => segments,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn receive(action: u8, id: u8) -> [u8; 16] {
    [0x84, action, id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]
}

/// The sense data with which a disk with 512-byte blocks rejects a list.
fn refused(list: &[u8]) -> Sense {
    copy(&mut nexus(&lu(disk()), "a"), list).unwrap_err().sense.unwrap()
}

#[test]
fn segments_come_out_in_order_with_their_ends() {
    let mut n = nexus(&lu(disk()), "a");
    let wanted = list(
        7,
        0,
        &[cscd(&OWN), cscd(&OTHER)],
        &[b2b(2, [0, 1], 3, [4, 5]), b2b(1, [1, 0xffff], 0, [6, 7]), b2b_bytes(1024, [8, 9])],
    );
    let got = segments(copy(&mut n, &wanted));
    let first = CopySegment {
        source: OWN.to_vec(),
        destination: OTHER.to_vec(),
        source_lba: 4,
        destination_lba: 5,
        blocks: 3,
        count_by_destination: true,
        source_block_size: 512,
        destination_block_size: 512,
    };
    assert_eq!(got[0], first);
    assert_eq!((&got[1].source[..], &got[1].destination[..], got[1].blocks), (&OTHER[..], &OWN[..], 0));
    assert_eq!((got[2].blocks, got[2].count_by_destination), (2, false));
}

#[test]
fn empty_copy_list_succeeds() {
    let mut n = nexus(&lu(disk()), "a");
    assert_eq!(run(&mut n, &[op::EXTENDED_COPY]), Ok(Plan::Done));
    assert_eq!(copy(&mut n, &list(1, 0, &[cscd(&OWN)], &[])), Ok(Plan::Done));
}

#[test]
fn more_than_announced_is_refused() {
    let (cscd, segment) = (cscd(&OWN), b2b(0, [0, 0], 1, [0, 9]));
    let cscds = |n| vec![cscd.clone(); n];
    let segments = |n| vec![segment.clone(); n];
    assert_eq!(refused(&list(1, 0, &cscds(17), &segments(1))).ascq, Sense::TOO_MANY_TARGETS.ascq);
    assert_eq!(refused(&list(1, 0, &cscds(1), &segments(65))).ascq, Sense::TOO_MANY_SEGMENTS.ascq);
    let mut n = nexus(&lu(disk()), "a");
    let too_long = HEADER + MAX_DESCRIPTORS_LEN + 1;
    let cdb = [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (too_long >> 8) as u8, too_long as u8, 0, 0];
    assert_eq!(run(&mut n, &cdb), fails(Sense::PARAMETER_LIST_LENGTH));
    assert_eq!(refused(&list(1, 0, &cscds(17), &segments(73))), Sense::PARAMETER_LIST_LENGTH);
    let full = list(1, 0, &cscds(16), &segments(64));
    assert!(copy(&mut n, &full).is_ok());
}

#[test]
fn list_cut_anywhere_has_a_length_error() {
    let whole = usual();
    for len in 1..whole.len() {
        assert_eq!(refused(&whole[..len]), Sense::PARAMETER_LIST_LENGTH, "{len}");
    }
}

#[test]
fn wrong_fields_are_pointed_at() {
    let set = |at: usize, value: u8| {
        let mut list = usual();
        list[at] = value;
        refused(&list)
    };
    assert_eq!(set(1, 1 << 3), Sense::parameter_field(1, 4));
    assert_eq!(set(1, 3 << 3), Sense::parameter_field(0, 7));
    assert_eq!(set(1, 0x40), Sense::parameter_field(1, 7));
    assert_eq!(set(15, 1), Sense::INLINE_DATA_LENGTH);
    assert_eq!(set(16, 0xe0), Sense::UNSUPPORTED_TARGET_TYPE.pointing(false, 16, 7));
    assert_eq!(set(17, 0x01), Sense::COPY_WRONG_TARGET.pointing(false, 17, 4));
    assert_eq!(set(20, 2), Sense::parameter_field(20, 3));
    assert_eq!(set(21, 1), Sense::parameter_field(21, 5));
    assert_eq!(set(23, 21), Sense::parameter_field(23, 7));
    assert_eq!(set(48, 0x03), Sense::UNSUPPORTED_SEGMENT_TYPE.pointing(false, 48, 7));
    assert_eq!(set(49, 4), Sense::parameter_field(49, 7));
    assert_eq!(set(51, 0x10), Sense::parameter_field(50, 7));
    assert_eq!(set(53, 1), Sense::COPY_UNKNOWN_TARGET.segment(0, 4));
    assert_eq!(set(55, 1), Sense::COPY_UNKNOWN_TARGET.segment(0, 6));
}

#[test]
fn obsolete_fields_do_not_matter() {
    let mut list = usual();
    list[17] = 0xe0;
    assert!(copy(&mut nexus(&lu(disk()), "a"), &list).is_ok());
}

#[test]
fn lengths_in_bytes_must_come_out_even_and_within_the_limit() {
    let one = |segment: Vec<u8>| refused(&list(1, 0, &[cscd(&OWN)], &[segment]));
    assert_eq!(one(b2b_bytes(513, [0, 9])), Sense::COPY_INEXACT_SEGMENT.segment(0, 8));
    assert_eq!(one(b2b_bytes(MAX_SEGMENT_LEN + 512, [0, 9])), Sense::parameter_field(56, 7));
    let mut within = b2b_bytes(512, [0, 9]);
    within[31] = 1;
    assert_eq!(one(within), Sense::parameter_field(78, 7));
    let mut unknown = cscd(&OWN);
    unknown[29..].fill(0);
    let no_size = list(1, 0, &[unknown], &[b2b_bytes(512, [0, 9])]);
    assert_eq!(refused(&no_size), Sense::COPY_INEXACT_SEGMENT.segment(0, 8));
}

#[test]
fn range_lies_within_both_media() {
    let lu = lu(disk());
    let n = nexus(&lu, "a");
    let range = |blocks, lbas| {
        let list = CopyParameterList::parse(
            &list(1, 0, &[cscd(&OWN)], &[b2b(0, [0, 0], blocks, lbas)]),
            &lu.settings(),
        );
        list.unwrap().segments[0].range(0, &n, &n)
    };
    let fits = CopyRange { source: 512, destination: (BLOCKS - 4) * 512, len: 2048 };
    assert_eq!(range(4, [1, BLOCKS - 4]), Ok(fits));
    assert_eq!(range(4, [1, BLOCKS - 3]), Err(Sense::COPY_ABORTED.segment(0, 20)));
    assert_eq!(range(4, [BLOCKS, 0]), Err(Sense::COPY_ABORTED.segment(0, 12)));
    assert_eq!(range(4, [u64::MAX, 0]), Err(Sense::COPY_ABORTED.segment(0, 12)));
    assert_eq!(range(4, [1 << 60, 0]), Err(Sense::COPY_ABORTED.segment(0, 12)));
    assert_eq!(range(0, [1, 2]).unwrap().len, 0);
}

#[test]
fn copy_length_is_a_multiple_of_both_block_sizes() {
    let large = LuSettings { block_size: 4096, ..disk() };
    let (small, large) = (nexus(&lu(disk()), "a"), nexus(&lu(large), "a"));
    let segment = |blocks, count_by_destination| CopySegment {
        source: OWN.to_vec(),
        destination: OTHER.to_vec(),
        source_lba: 0,
        destination_lba: 1,
        blocks,
        count_by_destination,
        source_block_size: 512,
        destination_block_size: 0,
    };
    assert_eq!(segment(16, false).range(2, &small, &large).unwrap().len, 8192);
    assert_eq!(segment(2, true).range(2, &small, &large).unwrap().destination, 4096);
    let inexact = Sense::COPY_INEXACT_SEGMENT.segment(2, 8);
    assert_eq!(segment(9, false).range(2, &small, &large), Err(inexact));
    let wrong = Sense::COPY_WRONG_TARGET.segment(2, 4);
    assert_eq!(
        segment(1, false).range(2, &large, &small),
        Err(wrong),
        "the list says 512, the disk has 4096"
    );
}

#[test]
fn medium_that_may_not_be_written_or_read_is_out_of_reach() {
    let usual = CopyParameterList::parse(&usual(), &disk()).unwrap();
    let (open, protected) = (lu(disk()), lu(LuSettings { read_only: true, ..disk() }));
    let (open, mut protected) = (nexus(&open, "a"), nexus(&protected, "a"));
    let range = |to: &Nexus| usual.segments[0].range(0, &open, to);
    assert_eq!(range(&protected), Err(Sense::COPY_TARGET_UNREACHABLE.segment(0, 6)));
    assert!(usual.segments[0].range(0, &protected, &open).is_ok());
    let into_protected = copy(&mut protected, &self::usual());
    assert!(into_protected.is_ok(), "the destination decides, not who gets the command");
}

#[test]
fn copy_status_is_found_by_list_identifier() {
    let lu = lu(disk());
    let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
    assert_eq!(run(&mut a, &receive(0, 1)), fails(Sense::cdb_field(2, 7)));
    assert!(copy(&mut a, &usual()).is_ok());
    assert_eq!(data(&mut a, &receive(0, 1)), [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(copy(&mut a, &usual()), fails(Sense::OPERATION_IN_PROGRESS));
    assert_eq!(run(&mut b, &receive(0, 1)), fails(Sense::cdb_field(2, 7)));
    lu.copy_ended(a.id(), 1, CopyResult { segments: 1, bytes: 2048, failure: None });
    assert_eq!(data(&mut a, &receive(0, 1)), [0, 0, 0, 8, 1, 0, 1, 0, 0, 0, 8, 0]);
    assert_eq!(data(&mut a, &receive(4, 1)), [0; 4]);
    assert!(copy(&mut a, &usual()).is_ok(), "an ended copy frees its identifier");
}

#[test]
fn details_of_a_failed_segment_hold_its_sense() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    assert!(copy(&mut n, &usual()).is_ok());
    let sense = Sense::COPY_ABORTED.segment(0, 20);
    lu.copy_ended(n.id(), 1, CopyResult { segments: 0, bytes: 0, failure: Some(sense) });
    assert_eq!(data(&mut n, &receive(0, 1))[4], 2);
    let details = data(&mut n, &receive(4, 1));
    assert_eq!((details[3] as usize, details[56], details[59]), (details.len() - 4, 2, 18));
    assert_eq!(details[60..], sense.encode(false));
    assert_eq!(details[..60], [&[0, 0, 0, 74][..], &[0; 52], &[2, 0, 0, 18]].concat());
}

#[test]
fn without_a_list_identifier_nothing_is_kept() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    let anonymous = list(0, 3, &[cscd(&OWN)], &[b2b(0, [0, 0], 4, [1, 9])]);
    assert!(copy(&mut n, &anonymous).is_ok());
    assert!(copy(&mut n, &anonymous).is_ok(), "any number at a time");
    lu.copy_ended(n.id(), 0, CopyResult::default());
    assert_eq!(run(&mut n, &receive(0, 0)), fails(Sense::cdb_field(2, 7)));
}

#[test]
fn copies_whose_data_may_be_discarded_can_share_an_identifier() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    let discard = list(1, 2, &[cscd(&OWN)], &[b2b(0, [0, 0], 4, [1, 9])]);
    assert!(copy(&mut n, &discard).is_ok());
    assert!(copy(&mut n, &discard).is_ok());
    for bytes in [1, 2] {
        lu.copy_ended(n.id(), 1, CopyResult { segments: 1, bytes, failure: None });
    }
    assert_eq!(data(&mut n, &receive(0, 1))[11], 2, "the last one counts");
}

#[test]
fn reset_forgets_copies() {
    let lu = lu(disk());
    let mut n = nexus(&lu, "a");
    assert!(copy(&mut n, &usual()).is_ok());
    lu.reset();
    assert_eq!(run(&mut n, &[op::TEST_UNIT_READY]), fails(Sense::LUN_RESET));
    assert_eq!(run(&mut n, &receive(0, 1)), fails(Sense::cdb_field(2, 7)));
}

#[test]
fn limits_are_announced() {
    let mut n = nexus(&lu(disk()), "a");
    let b = data(&mut n, &receive(3, 0));
    assert_eq!(be::get32(&b) as usize, b.len() - 4);
    assert_eq!(b[4], 1, "SNLID");
    assert_eq!((be::get16(&b[8..]), be::get16(&b[10..]), be::get32(&b[12..])), (16, 64, 2560));
    assert_eq!(be::get32(&b[16..]), 256 << 20);
    assert_eq!((be::get16(&b[34..]), b[36], b[37]), (64, 64, 9));
    assert_eq!(b[43..], [3, 0x02, 0x0a, 0xe4]);
    assert_eq!(b[..20], [0, 0, 0, 43, 1, 0, 0, 0, 0, 16, 0, 64, 0, 0, 0x0a, 0, 0x10, 0, 0, 0]);
    assert_eq!(b[20..43], [&[0; 14][..], &[0, 64, 64, 9], &[0; 5]].concat());
    assert_eq!(run(&mut n, &receive(1, 0)), fails(Sense::cdb_field(1, 4)), "RECEIVE DATA");
}
