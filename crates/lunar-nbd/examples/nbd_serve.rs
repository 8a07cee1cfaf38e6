//! Serves one disk over NBD until the end of standard input: `nbd_serve LISTEN DISK [BLOCK_SIZE]`. LISTEN is
//! ADDRESS:PORT or a path; DISK is null:BYTES, memory:BYTES or a path. Prints the listening address.

use lunar_block::{BackendKind, BackendSpec};
use lunar_nbd::server::{ListenAddress, NbdExport, ServerLimits, serve};
use lunar_runtime::Cores;
use std::error::Error;
use std::io::Read;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, disk, block_size @ ..] = &arguments[..] else {
        return Err("nbd LISTEN DISK [BLOCK_SIZE]".into());
    };
    let listen = match listen.parse() {
        Ok(address) => ListenAddress::Tcp(address),
        Err(_) => ListenAddress::Unix(listen.into()),
    };
    let spec = match BackendKind::split_argument(disk) {
        Some((kind, size)) => BackendSpec::sized(kind, size.parse()?),
        None => BackendSpec::path(disk),
    };
    let export = NbdExport {
        name: "disk".into(),
        backend: lunar_block::open(&spec)?,
        block_size: block_size.first().map_or(Ok(512), |size| size.parse())?,
        read_only: false,
        description: disk.clone(),
    };
    let cpus = std::thread::available_parallelism()?.get();
    let cores = Arc::new(Cores::start(&(0..cpus).collect::<Vec<_>>())?);
    let handle = serve(&[listen], vec![export], cores, ServerLimits::default())?;
    println!("{}", handle.addresses()[0].url("disk"));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    handle.stop()?;
    Ok(())
}
