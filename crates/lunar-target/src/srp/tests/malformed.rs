use super::test_target::{Host, HostResponse, command, encoded};
use super::{TestTarget, on_core};
use lunar_wire::scsi::cdb;
use lunar_wire::srp::{
    self, DataBuffer, IndirectBuffer, MemoryDescriptor, SrpCommand, SrpTaskAttribute, TaskManagement,
    function,
};

/// INVALID FIELD IN COMMAND INFORMATION UNIT.
const INVALID_UNIT: (u8, u8, u8) = (5, 0x0e, 3);

/// Checks that a connection works.
async fn expect_alive(host: &mut Host) {
    assert_eq!(host.execute(&command(9, &cdb::test_unit_ready())).await, HostResponse::good(9));
}

/// A read of one block into memory that does not exist.
fn read(data_in: DataBuffer<'_>) -> Vec<u8> {
    encoded(&SrpCommand { data_in, ..command(5, &cdb::read_10(0, 1)) })
}

fn nowhere(len: u32) -> MemoryDescriptor {
    MemoryDescriptor { address: 0, key: 77, len }
}

/// For each fault: its name, the logout reason of the target, and the information unit.
fn units() -> Vec<(&'static str, Option<u32>, Vec<u8>)> {
    let list = [nowhere(256).encode(), nowhere(256).encode()].concat();
    let indirect = read(DataBuffer::Indirect(IndirectBuffer { table: nowhere(32), len: 512, list: &list }));
    let changed = |at: usize, byte: u8| {
        let mut unit = indirect.clone();
        unit[at] = byte;
        unit
    };
    let immediate = {
        let cdb = cdb::write_10(0, 1, false);
        let mut unit =
            encoded(&SrpCommand { data_out: DataBuffer::Immediate(&[1; 512]), ..command(5, &cdb) });
        unit[48..52].copy_from_slice(&u32::MAX.to_be_bytes());
        unit
    };
    let function_status =
        TaskManagement { notifications: 0, tag: 1, lun: 0, function: 1, task_tag: 2 }.encode();
    vec![
        ("nothing", Some(8), Vec::new()),
        ("an unknown opcode", Some(2), vec![0x77; 64]),
        ("a login", Some(2), vec![0; 64]),
        ("a short command", Some(8), encoded(&command(5, &cdb::test_unit_ready()))[..47].to_vec()),
        ("a command without its descriptor", Some(8), read(DataBuffer::Direct(nowhere(512)))[..63].to_vec()),
        ("a command without its additional CDB", Some(8), changed(31, 252)),
        ("fewer descriptors than declared", Some(8), changed(7, 3)),
        ("more descriptors than its table", Some(0), changed(7, 2)[..].to_vec().tap(|unit| unit[63] = 16)),
        ("descriptors for less than the declared length", Some(0), changed(66, 3)),
        ("immediate data beyond its end", Some(8), immediate),
        ("a short function", Some(8), function_status[..47].to_vec()),
        ("an answer to nothing", Some(3), srp::credit_response(3).to_vec()),
        ("memory that is not there", None, read(DataBuffer::Direct(nowhere(512)))),
    ]
}

trait Tap: Sized {
    fn tap(self, change: impl FnOnce(&mut Self)) -> Self;
}

impl Tap for Vec<u8> {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

#[test]
fn invalid_unit_ends_only_its_connection() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut other = target.host(2, false).await.receive_attentions().await;
        for (what, reason, unit) in units() {
            let mut host = target.host(1, false).await.receive_attentions().await;
            host.send_unit(&unit);
            if let Some(reason) = reason {
                let end =
                    host.receive().await.map(|unit| srp::TargetLogout::decode(&unit).map(|end| end.reason));
                assert_eq!(end, Some(Ok(reason)), "{what}");
            }
            assert_eq!(host.receive().await, None, "{what}");
            expect_alive(&mut other).await;
        }
    });
}

#[test]
fn external_table_length_is_checked() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        let table = host.source(&[nowhere(256).encode(), nowhere(255).encode()].concat());
        host.send_unit(&read(DataBuffer::Indirect(IndirectBuffer { table, len: 512, list: &[] })));
        host.expect_logout(0).await;
    });
}

#[test]
fn unsupported_command_is_answered() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        let cdb = cdb::read_10(0, 1);
        let piece = DataBuffer::Direct(nowhere(512));
        let whole =
            DataBuffer::Indirect(IndirectBuffer { table: nowhere((64 << 10) + 16), len: 512, list: &[] });
        let aca = SrpCommand { attribute: SrpTaskAttribute::Aca, ..command(5, &cdb) };
        let mut units = vec![
            encoded(&SrpCommand { data_in: piece, data_out: piece, ..command(5, &cdb) }),
            encoded(&aca),
            encoded(&SrpCommand { additional_cdb: &[0; 248], ..command(5, &cdb) }),
            encoded(&SrpCommand { data_in: whole, ..command(5, &cdb) }),
        ];
        let mut format = encoded(&command(5, &cdb));
        format[5] = 0x04;
        units.push(format);
        let mut attribute = encoded(&command(5, &cdb));
        attribute[29] = 7;
        units.push(attribute);
        for unit in units {
            host.send_unit(&unit);
            assert_eq!(host.answer().await, HostResponse::check(5, INVALID_UNIT), "{unit:02x?}");
        }
        expect_alive(&mut host).await;
    });
}

#[test]
fn unagreed_immediate_data_are_rejected() {
    on_core(async move || {
        let target = TestTarget::new();
        let login = srp::LoginRequest { immediate_offset: None, ..super::test_target::login(1) };
        let host = target.connect_srp(&login.encode(srp::LoginFormat::RdmaCm)).await.expect("a login");
        assert!(!host.welcome.immediate);
        let mut host = host.receive_attentions().await;
        let cdb = cdb::write_10(0, 1, false);
        let write = SrpCommand { data_out: DataBuffer::Immediate(&[1; 512]), ..command(5, &cdb) };
        assert_eq!(host.execute(&write).await, HostResponse::check(5, INVALID_UNIT));
    });
}

#[test]
fn excess_requests_end_connection() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        host.faults[1].reads.hold();
        let (at, cdb) = (host.source(&[7; 512]), cdb::write_10(0, 1, false));
        for tag in 1..=host.welcome.credits {
            host.send(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(tag.into(), &cdb) });
        }
        host.expect_silence().await;
        host.manage(99, function::ABORT_TASK, 1);
        host.expect_close().await;
    });
}

#[test]
fn logout_ends_connection() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        host.send_unit(&srp::logout(3));
        host.expect_close().await;
    });
}

#[test]
fn logout_drops_response_that_waits_for_rdma_read() {
    on_core(async move || {
        let target = TestTarget::new();
        let mut host = target.host(1, false).await.receive_attentions().await;
        host.faults[1].reads.hold();
        let (at, cdb) = (host.source(&[7; 512]), cdb::write_10(0, 1, false));
        host.send(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(5, &cdb) });
        super::test_target::run_ready().await;
        host.manage(6, function::ABORT_TASK, 5);
        host.expect_silence().await;
        host.send_unit(&srp::logout(7));
        host.expect_close().await;
    });
}

#[test]
fn lost_connection_during_rdma_read_leaves_nothing() {
    on_core(async move || {
        let target = TestTarget::new();
        let host = target.host(1, false).await.receive_attentions().await;
        host.faults[1].reads.hold();
        let (at, cdb) = (host.source(&[7; 512]), cdb::write_10(0, 1, false));
        host.send(&SrpCommand { data_out: DataBuffer::Direct(at), ..command(5, &cdb) });
        super::test_target::run_ready().await;
        host.endpoint.close();
        while !target.shared.registry.list().is_empty() {
            super::test_target::run_ready().await;
        }
        expect_alive(&mut target.host(1, false).await.receive_attentions().await).await;
    });
}
