//! Serves a file or memory as `/dev/ublkbN` until SIGINT or SIGTERM. SIGHUP updates the capacity.
//!
//! ```text
//! ublk start LUN [id=N] [queues=N] [depth=N] [block-size=N] [read-only=true]
//! ublk recover ID LUN
//! ublk remove ID
//! ```
//!
//! LUN is a path, or `memory:BYTES`. Prints the path of the device when it is ready.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use lunar_block::{Backend, BackendKind, BackendSpec};
use lunar_host::ublk::{Options, UblkDevice};
use lunar_runtime::Cores;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> ExitCode {
    let Err(e) = run() else { return ExitCode::SUCCESS };
    eprintln!("{e}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let cores = Cores::start(&[0, 0])?;
    let (backend, id, given) = match words[..] {
        ["start", lun, ref rest @ ..] => (open(lun)?, None, options(rest)?),
        ["recover", id, lun] => (open(lun)?, Some(id.parse()?), Options::default()),
        ["remove", id] => return Ok(UblkDevice::remove(id.parse()?)?),
        _ => return Err("usage: ublk start LUN [NAME=VALUE]... | recover ID LUN | remove ID".into()),
    };
    let mut device = match id {
        Some(id) => UblkDevice::recover(&cores, backend.clone(), id)?,
        None => UblkDevice::start(&cores, backend.clone(), &given)?,
    };
    println!("{}", device.path().display());
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        backend.refresh();
        if let Err(e) = device.resize() {
            eprintln!("{e}");
        }
    }
    if device.is_in_use() {
        eprintln!("{} is in use, and is taken away all the same", device.path().display());
    }
    device.stop()?;
    Ok(())
}

fn open(lun: &str) -> Result<Arc<dyn Backend>, Box<dyn Error>> {
    let spec = match lun.strip_prefix("memory:") {
        Some(size) => BackendSpec::sized(BackendKind::Memory, size.parse()?),
        None => BackendSpec::path(lun),
    };
    Ok(lunar_block::open(&spec)?)
}

fn options(words: &[&str]) -> Result<Options, Box<dyn Error>> {
    let mut options = Options::default();
    for word in words {
        match word.split_once('=').ok_or("NAME=VALUE is wanted")? {
            ("id", value) => options.id = Some(value.parse()?),
            ("queues", value) => options.queues = value.parse()?,
            ("depth", value) => options.depth = value.parse()?,
            ("block-size", value) => options.block_size = value.parse()?,
            ("read-only", value) => options.read_only = value.parse()?,
            (name, _) => return Err(format!("no option {name}").into()),
        }
    }
    Ok(options)
}
