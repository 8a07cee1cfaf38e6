//! The blocking face and the example, against `lunar serve`: `$LUNAR_BIN` says which.

use lunar_initiator::blocking::{Data, Lun};
use lunar_initiator::{ErrorCode, Url};
use lunar_wire::scsi::cdb;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

/// A server of one LUN in memory, and its URL.
struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// None where there is no program to test.
fn server() -> Option<Server> {
    let Some(lunar) = std::env::var_os("LUNAR_BIN") else {
        println!("skipped: needs LUNAR_BIN, the path of lunar");
        return None;
    };
    let mut command = Command::new(lunar);
    command.args(["serve", "memory:64M", "--listen", "127.0.0.1:0"]);
    command.env("XDG_RUNTIME_DIR", std::env::temp_dir().join(format!("lunar-{}", std::process::id())));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("lunar starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let told: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let url =
        told.iter().find_map(|line| line.trim().strip_prefix("iscsi://").map(|_| line.trim().to_owned()));
    Some(Server { child, url: url.unwrap_or_else(|| panic!("no URL in {told:?}")) })
}

#[test]
fn threads_share_a_lun() {
    let Some(server) = server() else { return };
    let lun = Lun::open(&server.url.parse::<Url>().unwrap()).unwrap();
    assert_eq!(lun.capacity(), 64 << 20);
    thread::scope(|scope| {
        for n in 0..4u8 {
            let lun = &lun;
            scope.spawn(move || {
                for round in 0..8u64 {
                    let at = (u64::from(n) * 8 + round) * 65536 + 100;
                    let (data, mut back) = (vec![n + 1; 5000], vec![0; 5000]);
                    lun.write_at(at, &data).unwrap();
                    lun.read_at(at, &mut back).unwrap();
                    assert!(back == data);
                }
            });
        }
    });
    lun.flush().unwrap();
    lun.write_zeroes(0, 65536, true).unwrap();
    lun.unmap(65536, 65536).unwrap();
    let mut zeros = [1; 4096];
    lun.read_at(65536, &mut zeros).unwrap();
    assert_eq!(zeros, [0; 4096]);
    lun.close().unwrap();
}

#[test]
fn commands_and_errors_of_a_lun() {
    let Some(server) = server() else { return };
    let lun = Lun::open(&server.url.parse::<Url>().unwrap()).unwrap();
    let mut inquiry = [0; 96];
    let c = lun.scsi(cdb::inquiry(None, 96), Data::In(&mut inquiry)).unwrap();
    assert_eq!((c.status, &inquiry[8..13]), (0, &b"LUNAR"[..]));
    let c = lun.scsi([0xff; 16], Data::None).unwrap();
    assert_eq!((c.status, c.sense().map(|s| s.key)), (2, Some(5)));
    assert!(lun.compare_and_write(0, &[0; 512], &[7; 512]).unwrap());
    assert!(!lun.compare_and_write(0, &[0; 512], &[8; 512]).unwrap());
    assert_eq!(lun.compare_and_write(0, &[0; 512], &[8; 10]).unwrap_err().code, ErrorCode::InvalidArgument);
    let end = lun.capacity();
    assert_eq!(lun.read_at(end - 1, &mut [0; 2]).unwrap_err().code, ErrorCode::InvalidArgument);
    assert_eq!(lun.write_at(u64::MAX, &[0]).unwrap_err().code, ErrorCode::InvalidArgument);
    lun.read_at(end - 1, &mut [0; 1]).unwrap();
}

#[test]
fn the_example_reads_a_lun() {
    let Some(server) = server() else { return };
    let here = std::env::current_exe().expect("a path");
    let example = here.parent().and_then(|deps| deps.parent()).expect("a folder").join("examples/read_lun");
    let ran = Command::new(&example).arg(&server.url).output();
    let ran = ran.unwrap_or_else(|e| panic!("{}: {e}", example.display()));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.starts_with("67108864 bytes, "), "{said}");
}
