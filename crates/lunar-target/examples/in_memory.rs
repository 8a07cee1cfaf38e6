//! Measures the cost of iSER and SRP without a network: initiator and target on one core, connected by memory, with a
//! null disk.
//!
//! Usage, as in `cargo xtask bench`: `in_memory iser|srp read|write BYTES DEPTH SECONDS`. It prints IOPS, and the CPU
//! time of both sides for each command.

use lunar_block::Backend;
use lunar_initiator::options::Transport;
use lunar_initiator::{Lun, Options, Session};
use lunar_rdma::mem::{self, Faults};
use lunar_runtime::cores::CorePlacement;
use lunar_runtime::{Buf, Cores};
use lunar_scsi::{Lu, LuIdentity, LuSettings};
use lunar_target::config::{
    AllowedDigests, DiscoveryConfig, TargetConfig, TargetLimits, TargetNode, TextKeyHandler, Transports,
};
use lunar_target::{LogicalUnit, single_connection, srp};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NAME: &str = "iqn.2026-11.org.example:disk";
const CAPACITY: u64 = 1 << 30;
/// Warm-up, excluded from the results: buffers and tables grow to their final sizes.
const RAMP: Duration = Duration::from_millis(200);

/// The workload.
#[derive(Clone, Copy)]
struct Load {
    transport: Transport,
    write: bool,
    bytes: usize,
    depth: usize,
    time: Duration,
}

fn limits() -> TargetLimits {
    TargetLimits {
        connections: 2,
        connections_before_login: 2,
        login_timeout: Duration::from_secs(5),
        sessions: 2,
        sessions_per_initiator: 2,
        discovery_sessions: 16,
        discovery_timeout: Duration::from_secs(60),
        commands_per_session: 128,
        text_bytes: 64 << 10,
        memory: 256 << 20,
    }
}

fn session() -> lunar_target::config::SessionConfig {
    let digests = AllowedDigests { none: true, crc32c: false };
    lunar_target::config::SessionConfig {
        initial_r2t: true,
        immediate_data: true,
        max_recv_data_segment_length: 262_144,
        max_burst_length: 1 << 20,
        first_burst_length: 262_144,
        max_outstanding_r2t: 1,
        default_time2wait: 2,
        default_time2retain: 0,
        header_digest: digests,
        data_digest: digests,
        nop_interval: None,
        nop_timeout: Duration::from_secs(5),
        data_out_timeout: Duration::from_secs(30),
        chap_algorithms: lunar_proto::chap::Algorithm::ALL.to_vec(),
    }
}

fn disk() -> Result<LogicalUnit, Box<dyn Error>> {
    let identity = LuIdentity {
        vendor: "LUNAR".into(),
        product: "null".into(),
        revision: "1".into(),
        serial: "1".into(),
        naa: vec![0x30, 0, 0, 0, 0, 0, 0, 1],
        designators: None,
    };
    let settings = LuSettings {
        device_type: lunar_scsi::PeripheralDeviceType::Disk,
        identity,
        block_size: 512,
        physical_block_size: 512,
        capacity: CAPACITY,
        read_only: false,
        removable: false,
        write_cache: true,
        thin: false,
        max_registrants: 4,
        reservable: true,
        passthrough: lunar_scsi::PassthroughMode::None,
        max_atomic: 1 << 20,
        medium_compares: false,
        explicit_access: true,
        shared: false,
    };
    let medium =
        lunar_block::open(&lunar_block::BackendSpec::sized(lunar_block::BackendKind::Null, CAPACITY))
            .map_err(|e| e.what)?;
    let lu = Lu::new(settings, None).map_err(|_| "the settings of the disk")?;
    Ok(LogicalUnit::new(Arc::new(lu), medium, None))
}

fn config() -> Result<TargetConfig, Box<dyn Error>> {
    let target = TargetNode {
        name: NAME.into(),
        alias: None,
        portal_groups: vec![1],
        relative_ports: BTreeMap::new(),
        redirects: Vec::new(),
        offline: false,
        mutual: None,
        luns: BTreeMap::from([(0, Arc::new(disk()?))]),
        access: Vec::new(),
        instance: None,
        routed_by: Vec::new(),
        depth: None,
        subsystem: None,
    };
    Ok(TargetConfig {
        limits: limits(),
        busy_poll: Default::default(),
        session: session(),
        discovery: DiscoveryConfig::default(),
        portal_groups: Vec::new(),
        targets: BTreeMap::from([(NAME.into(), target)]),
        awaited: Default::default(),
        instances: Default::default(),
        text_keys: TextKeyHandler::default(),
        tls_identities: Default::default(),
    })
}

/// Starts a target, and logs in to it.
async fn log_in(
    load: Load,
    config: TargetConfig,
    place: CorePlacement,
) -> Result<Session, lunar_initiator::Error> {
    let mut options = Options::new("iqn.2026-11.org.example:host");
    (options.transport, options.timeouts.noop_interval) = (load.transport, Duration::ZERO);
    let is_srp = load.transport == Transport::Srp;
    let transports =
        if is_srp { Transports::SRP } else { Transports { tcp: false, iser: true, ..Transports::TCP } };
    let name = match is_srp {
        true => format!("{:016x}", srp::port_id(NAME).guid()),
        false => NAME.to_owned(),
    };
    let make = move |private: &[u8], terms: lunar_rdma::ConnParam| {
        let faults: [Rc<Faults>; 2] = Default::default();
        faults.iter().for_each(|end| end.logs.set(false));
        let (request, connecting) = mem::request_with(private, terms, faults);
        compio::runtime::spawn(single_connection::serve(config, transports, place, request)).detach();
        connecting
    };
    Session::open_on(&name, options, make).await
}

async fn work(
    lun: Arc<Lun>,
    load: Load,
    first: u64,
    on: Rc<Cell<bool>>,
    count: Rc<Cell<u64>>,
) -> std::io::Result<()> {
    let places = CAPACITY / load.bytes as u64;
    let (mut buf, mut at) = (Buf::zeroed(load.bytes), first);
    while on.get() {
        // Advance by a large prime, so that no two consecutive offsets are adjacent.
        at = (at + 1_000_003) % places;
        let offset = at * load.bytes as u64;
        let (result, back) =
            if load.write { lun.write(offset, buf, false).await } else { lun.read(offset, buf).await };
        result?;
        buf = back;
        count.set(count.get() + 1);
    }
    Ok(())
}

/// Runs the workload. Returns the number of commands, and the CPU time of this thread for them in nanoseconds.
async fn run(load: Load, config: TargetConfig, place: CorePlacement) -> Result<(u64, u64), String> {
    let session = log_in(load, config, place).await.map_err(|e| e.to_string())?;
    let lun = Lun::open(&session, 0).await.map_err(|e| e.to_string())?;
    let (on, count) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
    let workers: Vec<_> = (0..load.depth as u64)
        .map(|first| compio::runtime::spawn(work(lun.clone(), load, first * 7919, on.clone(), count.clone())))
        .collect();
    lunar_runtime::sleep_until(Instant::now() + RAMP).await;
    let (before, counted) = (cpu_ns()?, count.get());
    lunar_runtime::sleep_until(Instant::now() + load.time).await;
    let (used, done) = (cpu_ns()? - before, count.get() - counted);
    on.set(false);
    for worker in workers {
        worker.await.map_err(|_| "a worker panicked")?.map_err(|e| e.to_string())?;
    }
    Ok((done, used))
}

/// CPU time of this thread in nanoseconds. The thread runs both sides.
fn cpu_ns() -> Result<u64, String> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").map_err(|e| e.to_string())?;
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).ok_or_else(|| format!("schedstat: {stat}"))
}

fn measure(load: Load) -> Result<(u64, u64), Box<dyn Error>> {
    let (config, cores) = (config()?, Cores::one()?);
    let place = cores.place(None);
    Ok(cores.wait(0, move || run(load, config, place))??)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [transport, op, bytes, depth, seconds] = &words[..] else {
        return Err("in_memory iser|srp read|write BYTES DEPTH SECONDS".into());
    };
    let load = Load {
        transport: if transport == "srp" { Transport::Srp } else { Transport::Iser },
        write: op == "write",
        bytes: bytes.parse()?,
        depth: depth.parse()?,
        time: Duration::from_secs_f64(seconds.parse()?),
    };
    let (count, cpu_ns) = measure(load)?;
    let each = cpu_ns as f64 / count.max(1) as f64;
    println!("iops {:.0} cpu_us_per_io {:.4}", count as f64 / load.time.as_secs_f64(), each / 1e3);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iser_and_srp_read_and_write() {
        for transport in [Transport::Iser, Transport::Srp] {
            for write in [false, true] {
                let load = Load { transport, write, bytes: 4096, depth: 8, time: Duration::from_millis(50) };
                let (count, cpu_ns) = measure(load).expect("a measurement");
                assert!(count > 0 && cpu_ns > 0, "{transport:?}, write: {write}: {count} in {cpu_ns} ns");
            }
        }
    }
}
