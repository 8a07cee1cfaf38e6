//! Exercises SCSI pass-through on a device of this host.
//!
//! ```text
//! sg exercise /dev/sgN    every kind of command; WRITES to the first MiB of a disk
//! sg watch /dev/sgN       TEST UNIT READY for as long as the device is there; prints each new response
//! ```
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use lunar_router::sg::Device;
use lunar_runtime::Buf;
use lunar_target::{PassthroughCommand, PassthroughData, PassthroughNexus, PassthroughResponse};
use lunar_wire::be;
use lunar_wire::scsi::{Sense, cdb};
use lunar_wire::scsi::{TaskAttribute, TaskManagementFunction};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const DISK: u8 = 0;
const HUGE: usize = 256 << 20;
const WATCH_STEP: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = compio::runtime::Runtime::new().map_err(Into::into).and_then(|runtime| match words[..] {
        ["exercise", path] => runtime.block_on(exercise(path)),
        ["watch", path] => runtime.block_on(watch(path)),
        _ => Err("usage: sg exercise | watch /dev/sgN".into()),
    });
    let Err(e) = done else { return ExitCode::SUCCESS };
    eprintln!("{e}");
    ExitCode::FAILURE
}

/// A nexus with a device, and the tags of its commands.
struct Tried<W> {
    nexus: W,
    tags: Cell<u64>,
}

impl<W: PassthroughNexus> Tried<W> {
    async fn answer(&self, cdb: cdb::Cdb, data: PassthroughData) -> PassthroughResponse {
        let tag = self.tags.replace(self.tags.get() + 1);
        self.nexus
            .submit(PassthroughCommand { tag, cdb: cdb.into(), attribute: TaskAttribute::Simple, data })
            .await
    }

    /// The data of a read. The command must end with GOOD.
    async fn read(&self, cdb: cdb::Cdb, len: usize) -> Result<(Vec<u8>, u64)> {
        let reply = self.answer(cdb, PassthroughData::In(Buf::zeroed(len))).await;
        match reply {
            PassthroughResponse { status: 0, data: Some(data), moved, .. } => Ok((data.to_vec(), moved)),
            other => Err(format!("{:02x}h: {}", cdb[0], describe(&other)).into()),
        }
    }

    async fn write(&self, cdb: cdb::Cdb, bytes: &[u8]) -> Result<()> {
        let buf = Buf::copy_of(bytes);
        let reply = self.answer(cdb, PassthroughData::Out(buf)).await;
        must(reply.status == 0 && reply.moved == bytes.len() as u64, &describe(&reply))
    }
}

async fn exercise(path: &str) -> Result<()> {
    let device = Device::open(Path::new(path))?;
    let found = device.properties().await?;
    println!("{found:?}");
    let tried = Tried { nexus: device.nexus(), tags: Cell::new(100) };
    let (data, moved) = tried.read(cdb::inquiry(None, 252), 252).await?;
    must(moved == data.len() as u64 && (36..252).contains(&data.len()), "no residual of an INQUIRY")?;
    unknown_commands(&tried).await?;
    if found.kind == DISK {
        disk(&tried).await?;
    }
    tried.nexus.abort(1).await;
    must(tried.nexus.manage(TaskManagementFunction::AbortTaskSet).await, "ABORT TASK SET")?;
    must(tried.nexus.manage(TaskManagementFunction::LunReset).await, "LOGICAL UNIT RESET")?;
    ready(&tried).await?;
    let row = |(name, value)| format!("{name}={value}");
    println!(
        "{}",
        lunar_target::PassthroughLu::describe(&*device).into_iter().map(row).collect::<Vec<_>>().join(" ")
    );
    Ok(())
}

/// The device rejects an unsupported command, and the kernel one that it cannot carry.
async fn unknown_commands(tried: &Tried<impl PassthroughNexus>) -> Result<()> {
    let mut unknown = [0; 16];
    unknown[0] = 0xdf;
    let reply = tried.answer(unknown, PassthroughData::None).await;
    must(is(&reply, Sense::INVALID_OPCODE), &describe(&reply))?;
    let mut long = vec![0; 260];
    (long[0], long[7]) = (0x7f, 252);
    let data = PassthroughData::None;
    let passed = PassthroughCommand {
        tag: 1,
        cdb: lunar_target::Cdb::Long(long.into()),
        attribute: TaskAttribute::Ordered,
        data,
    };
    let reply = tried.nexus.submit(passed).await;
    must(is(&reply, Sense::INVALID_FIELD_IN_CDB), &describe(&reply))
}

async fn disk(tried: &Tried<impl PassthroughNexus>) -> Result<()> {
    ready(tried).await?;
    let (capacity, _) = tried.read(cdb::read_capacity_10(), 8).await?;
    let (blocks, size) = (u64::from(be::get32(&capacity)) + 1, be::get32(&capacity[4..]) as usize);
    println!("{blocks} blocks of {size} bytes");
    let bytes: Vec<u8> = (0..16 * size).map(|n| (n * 7 + n / 251) as u8).collect();
    for lba in (0..128).step_by(16) {
        tried.write(cdb::write_16(lba, 16, false), &bytes).await?;
    }
    let reads: Vec<_> =
        (0..128).step_by(16).map(|lba| tried.read(cdb::read_16(lba, 16), 16 * size)).collect();
    for read in reads {
        must(read.await?.0 == bytes, "other bytes than were written")?;
    }
    let beyond = tried.answer(cdb::read_16(blocks, 1), PassthroughData::In(Buf::zeroed(size))).await;
    must(is(&beyond, Sense::LBA_OUT_OF_RANGE), &describe(&beyond))?;
    // More than the kernel transfers in one command.
    let huge =
        tried.answer(cdb::read_16(0, (HUGE / size) as u32), PassthroughData::In(Buf::zeroed(HUGE))).await;
    must(is(&huge, Sense::INVALID_FIELD_IN_CDB), &describe(&huge))
}

/// The device reports each unit attention exactly once.
async fn ready(tried: &Tried<impl PassthroughNexus>) -> Result<()> {
    let mut last = String::new();
    for _ in 0..8 {
        let reply = tried.answer(cdb::test_unit_ready(), PassthroughData::None).await;
        if reply.status == 0 {
            return Ok(());
        }
        last = describe(&reply);
    }
    Err(format!("not ready: {last}").into())
}

async fn watch(path: &str) -> Result<()> {
    let device = Device::open(Path::new(path))?;
    let tried = Tried { nexus: device.nexus(), tags: Cell::new(0) };
    let mut last = String::new();
    while !device.is_gone() {
        let now = describe(&tried.answer(cdb::test_unit_ready(), PassthroughData::None).await);
        if now != last {
            println!("{now}");
            last = now;
        }
        compio::time::sleep(WATCH_STEP).await;
    }
    println!("gone");
    Ok(())
}

fn is(reply: &PassthroughResponse, sense: Sense) -> bool {
    Sense::decode(&reply.sense)
        .is_some_and(|actual| (actual.key, actual.asc, actual.ascq) == (sense.key, sense.asc, sense.ascq))
}

fn describe(reply: &PassthroughResponse) -> String {
    match Sense::decode(&reply.sense) {
        Some(sense) => sense.to_string(),
        None => format!("status {:02x}h, {} bytes", reply.status, reply.moved),
    }
}

fn must(is_so: bool, otherwise: &str) -> Result<()> {
    if is_so { Ok(()) } else { Err(otherwise.into()) }
}
