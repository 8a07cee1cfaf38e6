//! Commands with data.

use super::*;
use crate::ErrorCode;
use lunar_rdma::RemoteAddress;
use lunar_wire::scsi::TaskAttribute;
use lunar_wire::srp::{Residual, task_status};

impl Peer {
    /// The target writes to registered memory.
    fn fill(&mut self, at: MemoryDescriptor, offset: u64, data: &[u8]) {
        self.target.write(remote(at).beyond(offset), Payload::Bytes(data.to_vec()));
        self.target.flush().expect("a connection");
    }

    /// Whether the target's write to this memory is rejected.
    fn shuts_out(&mut self, place: RemoteAddress) -> bool {
        self.target.write(place, Payload::Bytes(vec![1]));
        // The fault may surface at either end.
        let flushed = self.target.flush();
        let mut events = EndpointEvents::default();
        self.target.poll(&mut events);
        flushed.is_err() || events.list.iter().any(|event| matches!(event, EndpointEvent::End(Some(_))))
    }
}

#[test]
fn read_lends_its_memory_until_it_is_answered() {
    let mut peer = Peer::new(8, true);
    let tag = peer.read(512);
    let unit = peer.one();
    let at = direct(command(&unit).data_in);
    let mut expected = vec![0; 64];
    (expected[0], expected[5]) = (0x02, 0x01);
    expected[8..12].copy_from_slice(&1_u32.to_be_bytes());
    expected[12..16].copy_from_slice(&tag.to_be_bytes());
    expected[20..28].copy_from_slice(&LUN.to_be_bytes());
    expected[32..48].copy_from_slice(&cdb::read_10(0, 1));
    expected[48..64].copy_from_slice(&at.encode());
    assert_eq!(unit, expected);
    assert_eq!(at.len, 512);
    peer.fill(at, 0, &pattern(512));
    peer.good(command(&unit).tag);
    let (done, back) = peer.done(tag);
    assert_eq!((done.status, done.transferred, done.overflow), (0, 512, 0));
    assert_eq!(back.expect("its buffer")[..], pattern(512));
    assert!(peer.shuts_out(remote(at)), "the memory is no longer registered");
}

#[test]
fn large_write_is_fetched_by_the_target() {
    let mut peer = Peer::new(8, true);
    let data = pattern(8193);
    let tag = peer.write(&data);
    let unit = peer.one();
    let (at, sent) = (direct(command(&unit).data_out), command(&unit).tag);
    assert_eq!((unit.len(), unit[5], at.len), (64, 0x10, 8193));
    peer.target.read(7, remote(at), Buf::zeroed(8193), 0, 8193);
    peer.target.flush().expect("a connection");
    assert!(peer.sent().is_empty());
    let (id, read) = peer.read.pop().expect("the data were read");
    assert!(id == 7 && read[..] == data[..]);
    peer.good(sent);
    let (done, back) = peer.done(tag);
    assert_eq!((done.status, done.transferred), (0, 8193));
    assert!(back.expect("its buffer")[..] == data[..]);
}

#[test]
fn small_write_goes_with_its_command() {
    let mut peer = Peer::new(8, true);
    let tag = peer.write(&[0xab; 512]);
    let unit = peer.one();
    assert_eq!((unit.len(), unit[5]), (68 + 512, 0x30));
    assert_eq!(unit[48..68], [&512_u32.to_be_bytes()[..], &[0; 16]].concat());
    assert_eq!(command(&unit).data_out, DataBuffer::Immediate(&[0xab; 512]));
    peer.good(command(&unit).tag);
    assert_eq!(peer.done(tag).0.transferred, 512);
    peer.write(&pattern(8192));
    assert_eq!(peer.one().len(), 8260, "the longest immediate data");
}

#[test]
fn data_goes_with_commands_only_where_that_was_agreed_on() {
    let short = LoginResponse { it_iu_len: 580, ..granted(8, true) };
    for (granted, lens) in [(granted(8, false), [64, 64]), (short, [580, 64])] {
        let mut peer = Peer::of(&options(), &granted);
        let sent = [512, 513].map(|len| {
            peer.write(&pattern(len));
            peer.one().len()
        });
        assert_eq!(sent, lens);
    }
}

#[test]
fn command_without_data_has_no_descriptors() {
    let mut peer = Peer::new(8, true);
    for data in [Direction::None, Direction::In(Buf::zeroed(0)), Direction::Out(Buf::zeroed(0))] {
        let tag = peer.submit(cdb::test_unit_ready(), data);
        let unit = peer.one();
        assert_eq!((unit.len(), unit[5]), (48, 0));
        peer.good(command(&unit).tag);
        assert_eq!(peer.done(tag).0.transferred, 0);
    }
}

#[test]
fn attributes_and_long_cdbs_are_as_srp_has_them() {
    let mut peer = Peer::new(8, true);
    for (ours, code) in
        [(TaskAttribute::Simple, 0), (TaskAttribute::HeadOfQueue, 1), (TaskAttribute::Ordered, 2)]
    {
        let command =
            Command { attribute: ours, ..Command::new(LUN, cdb::test_unit_ready(), Direction::None) };
        peer.state.submit(command, Waiter::Unknown).expect("room");
        assert_eq!(peer.one()[29], code);
    }
    let long = |len: usize, data| Command::long(LUN, &vec![0x7f; len], data).expect("a CDB");
    peer.state.submit(long(18, Direction::None), Waiter::Unknown).expect("room");
    let unit = peer.one();
    assert_eq!((unit[31], command(&unit).additional_cdb), (4, &[0x7f, 0x7f, 0, 0][..]));
    peer.state.submit(long(32, Direction::Out(Buf::zeroed(8))), Waiter::Unknown).expect("room");
    assert!(
        matches!(command(&peer.one()).data_out, DataBuffer::Immediate(_)),
        "the CDB ends where the immediate data begin"
    );
    peer.state.submit(long(260, Direction::Out(Buf::zeroed(8))), Waiter::Unknown).expect("room");
    let unit = peer.one();
    assert_eq!((command(&unit).additional_cdb.len(), direct(command(&unit).data_out).len), (244, 8));
}

/// A command longer than the target's maximum is not sent.
#[test]
fn command_longer_than_the_target_takes_fails_here() {
    let mut peer = Peer::of(&options(), &LoginResponse { it_iu_len: 64, ..granted(8, true) });
    let command = Command::long(LUN, &[0x7f; 32], Direction::In(Buf::zeroed(8))).expect("a CDB");
    let tag = peer.state.submit(command, Waiter::Unknown).expect("room");
    assert!(peer.sent().is_empty());
    assert!(matches!(peer.datamover.receive(&mut peer.state), Ok(ReceiveStatus::More)));
    assert_eq!(peer.failed(tag).code, ErrorCode::ScsiError);
    peer.read(8);
    assert_eq!(peer.one().len(), 64, "other commands are sent");
}

#[test]
fn residuals_give_the_bytes_moved() {
    let mut peer = Peer::new(8, false);
    let tag = peer.read(100);
    let unit = peer.one();
    peer.fill(direct(command(&unit).data_in), 0, &[5; 36]);
    let residual_in = Residual::Under(64);
    peer.answer(SrpResponse { tag: command(&unit).tag, credits: 1, residual_in, ..SrpResponse::default() });
    let (done, back) = peer.done(tag);
    assert_eq!((done.transferred, done.overflow), (36, 0));
    assert_eq!(back.expect("its buffer")[..37], [&[5; 36][..], &[0]].concat());
    for (is_read, sent) in
        [(true, Residual::Over(24)), (false, Residual::Over(24)), (false, Residual::Under(1))]
    {
        let tag = if is_read { peer.read(100) } else { peer.write(&[0; 100]) };
        let unit = peer.one();
        let (residual_in, residual_out) =
            if is_read { (sent, Residual::None) } else { (Residual::None, sent) };
        let answer = SrpResponse {
            tag: command(&unit).tag,
            credits: 1,
            residual_in,
            residual_out,
            ..SrpResponse::default()
        };
        peer.answer(answer);
        let done = peer.done(tag).0;
        let expected = if sent == Residual::Under(1) { (99, 0) } else { (100, 24) };
        assert_eq!((done.transferred, done.overflow), expected);
    }
}

#[test]
fn residual_that_cannot_be_ends_the_session() {
    let mut peer = Peer::new(8, false);
    peer.read(100);
    let unit = peer.one();
    let residual_in = Residual::Under(101);
    let mut answer = Vec::new();
    SrpResponse { tag: command(&unit).tag, residual_in, ..SrpResponse::default() }.encode(&mut answer);
    assert!(matches!(peer.say(&answer), Ok(ReceiveStatus::End)));
    assert_eq!(peer.state.connection.fault().map(|e| e.code), Some(ErrorCode::ProtocolError));
}

#[test]
fn sense_data_come_with_the_status() {
    let mut peer = Peer::new(8, true);
    let tag = peer.read(512);
    let unit = peer.one();
    let sense = [0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0];
    let residual_in = Residual::Under(512);
    let answer = SrpResponse {
        tag: command(&unit).tag,
        credits: 1,
        status: 2,
        residual_in,
        sense: &sense,
        ..SrpResponse::default()
    };
    peer.answer(answer);
    let (done, back) = peer.done(tag);
    assert_eq!((done.status, &done.sense[..], done.transferred), (2, &sense[..], 0));
    assert_eq!(done.sense().map(|sense| (sense.key, sense.asc)), Some((3, 0x11)));
    assert_eq!(back.map(|back| back.len()), Some(512));
}

/// The rest of the buffer has its previous contents.
#[test]
fn failure_without_a_residual_has_brought_nothing() {
    let mut peer = Peer::new(8, true);
    for (status, key, transferred) in
        [(2, Some(3), 0), (2, Some(0xb), 0), (2, None, 0), (8, None, 0), (2, Some(0), 512), (2, Some(1), 512)]
    {
        let tag = peer.read(512);
        let unit = peer.one();
        let fixed = [0x70, 0, key.unwrap_or(0), 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0];
        let sense = if key.is_some() { &fixed[..] } else { &[] };
        peer.answer(SrpResponse {
            tag: command(&unit).tag,
            credits: 1,
            status,
            sense,
            ..SrpResponse::default()
        });
        assert_eq!(peer.done(tag).0.transferred, transferred, "{status} {key:?}");
    }
}

#[test]
fn unit_that_the_target_could_not_use_fails_its_command() {
    let mut peer = Peer::new(8, true);
    let tag = peer.read(512);
    let unit = peer.one();
    let data = [0, 0, 0, task_status::INVALID_FIELDS];
    peer.answer(SrpResponse { tag: command(&unit).tag, credits: 1, data: &data, ..SrpResponse::default() });
    let e = peer.failed(tag);
    assert!(e.code == ErrorCode::ScsiError && e.what.contains("response code 02h"), "{e}");
}
