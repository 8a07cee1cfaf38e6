//! A computer that starts from a LUN. iPXE, the firmware of QEMU's network cards, is the initiator. It reads the script of
//! docs/netboot.md by TFTP, logs in, runs the boot sector, and turns INT 13h into READ commands.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use interop::Server;
use interop::server::Folder;
use interop::tool::{self, Tool, ToolOutput};

const TOOLS: [Tool; 1] = [Tool { program: "qemu-system-x86_64", package: "qemu-system-x86 ipxe-qemu" }];
const FIRMWARE: &str = "pxe-e1000.rom";
/// Emulation is slow on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

const SECRET: &str = "diskless-secret1";
/// Sector 1 of the disk, which the boot sector prints.
const GREETING: &str = "sector 1 of the LUN\n";
/// The exit status of QEMU when the boot sector has ended.
const ENDED: i32 = 3;

/// A boot sector. It reads sector 1 to 0000:7e00 (INT 13h, AH=42h), and writes this text to the serial port. Then it
/// looks for the signature "iBFT" from segment 8000h to 9fffh, and writes 1 KiB from there. At the end it stops QEMU
/// by the device `isa-debug-exit` at port 501h.
#[rustfmt::skip]
const CODE: &[u8] = &[
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0,   // xor ax, ax; mov ds, ax; mov es, ax; mov ss, ax
    0xbc, 0x00, 0x7c,                                 // mov sp, 7c00h
    0xbe, 0x49, 0x7c, 0xb4, 0x42, 0xcd, 0x13,         // mov si, packet; mov ah, 42h; int 13h
    0x72, 0x2e,                                       // jc end
    0xbe, 0x00, 0x7e, 0xba, 0xf8, 0x03,               // mov si, 7e00h; mov dx, 3f8h
    0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8,   // text: lodsb; test al, al; jz table; out dx, al; jmp text
    0xbb, 0x00, 0x80,                                 // table: mov bx, 8000h
    0x8e, 0xdb, 0x31, 0xf6,                           // find: mov ds, bx; xor si, si
    0x66, 0x81, 0x3c, b'i', b'B', b'F', b'T',         // cmp dword [si], "iBFT"
    0x74, 0x09,                                       // je found
    0x43, 0x81, 0xfb, 0x00, 0xa0, 0x72, 0xec,         // inc bx; cmp bx, a000h; jb find
    0xeb, 0x07,                                       // jmp end
    0xb9, 0x00, 0x04,                                 // found: mov cx, 400h
    0xac, 0xee, 0xe2, 0xfc,                           // byte: lodsb; out dx, al; loop byte
    0xba, 0x01, 0x05, 0xb0, 0x01, 0xee, 0xf4,         // end: mov dx, 501h; mov al, 1; out dx, al; hlt
    0x10, 0x00, 0x01, 0x00, 0x00, 0x7e, 0x00, 0x00,   // packet: 16 bytes; 1 sector to 0000:7e00;
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,   // from LBA 1
];

fn is_ready() -> bool {
    let folders = ["/usr/lib/ipxe/qemu", "/usr/share/qemu", "/usr/share/ipxe/qemu"];
    if tool::have(&TOOLS) && !folders.iter().any(|folder| Path::new(folder).join(FIRMWARE).exists()) {
        println!("skipped: needs {FIRMWARE} (apt-get install ipxe-qemu)");
        return false;
    }
    tool::have(&TOOLS)
}

/// The first block of docs/netboot.md with this info string.
fn example(info: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/netboot.md");
    let page = fs::read_to_string(page).expect("docs/netboot.md");
    let (_, rest) = page.split_once(&format!("```{info}\n")).expect("the example");
    rest.split("```").next().expect("its text").to_string()
}

/// Serves the bootable disk with the configuration of the page.
fn serve() -> Server {
    let (dir, mut disk) = (Folder::fresh(), CODE.to_vec());
    disk.resize(510, 0);
    disk.extend([0x55, 0xaa]); // the signature of a boot sector
    disk.extend(GREETING.as_bytes());
    disk.resize(64 << 20, 0);
    fs::write(dir.join("boot1.img"), disk).expect("write the disk");
    let secret = dir.join("diskless1.secret");
    let by_owner = tool::run(Command::new("install").args(["-m", "600", "/dev/null"]).arg(&secret), LIMIT);
    assert!(by_owner.ok(), "{}", by_owner.said);
    fs::write(secret, SECRET).expect("write the secret");
    Server::start_in(dir, &example("toml").replace("0.0.0.0:3260", "127.0.0.1:0"))
}

/// Starts a computer with the script of the page. QEMU's network shows this host as 10.0.2.2.
fn boot(server: &Server, secret: &str) -> (ToolOutput, String) {
    let script = example("text file boot.ipxe").replace("SECRET", secret);
    let script = script.replace("192.0.2.10::3260", &format!("10.0.2.2::{}", server.portal().port()));
    let (folder, serial) = (server.dir().join("tftp"), server.dir().join("serial"));
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("boot.ipxe"), script).expect("write the script");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-machine", "pc", "-m", "128", "-display", "none", "-no-reboot"]);
    qemu.args(["-device", "isa-debug-exit,iobase=0x501", "-serial", &format!("file:{}", serial.display())]);
    qemu.args(["-netdev", &format!("user,id=n,tftp={},bootfile=boot.ipxe", folder.display())]);
    qemu.args(["-device", "e1000,netdev=n,bootindex=1"]);
    let ran = tool::run(&mut qemu, LIMIT);
    let printed = fs::read(serial).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (ran, printed.unwrap_or_default())
}

#[test]
fn ipxe_starts_a_computer_from_a_lun() {
    if !is_ready() {
        return;
    }
    let server = serve();
    let (ran, printed) = boot(&server, SECRET);
    let about = format!("{ran:?}\n{printed:?}\n{}", server.log());
    assert_eq!(ran.status.and_then(|status| status.code()), Some(ENDED), "{about}");
    let expected = [
        GREETING,
        "iBFT",
        "iqn.2026-11.org.example:diskless1\0",
        "iqn.2026-11.org.example:boot1\0",
        "diskless1\0",
    ];
    expected.iter().for_each(|text| assert!(printed.contains(text), "{text:?} is missing: {about}"));
}

#[test]
fn ipxe_with_another_secret_starts_nothing() {
    if !is_ready() {
        return;
    }
    let server = serve();
    let (ran, printed) = boot(&server, "another-secret-1");
    let about = format!("{ran:?}\n{printed:?}\n{}", server.log());
    assert!(ran.ok() && printed.is_empty(), "{about}");
    assert!(server.log().contains("wrong secret for the CHAP user diskless1"), "{about}");
}
