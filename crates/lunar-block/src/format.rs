//! Detects disk image formats, whose files are not raw disks.

use crate::{BackendSpec, OpenError};
use lunar_runtime::Buf;
use rustix::io::{Errno, pread};
use std::fs::File;
use std::io::{self, ErrorKind};

/// The magic bytes of each format, and their offset from the start.
const HEADS: [(usize, &[u8], &str); 11] = [
    (0, b"QFI\xfb\0\0\0\x01", "qcow"),
    (0, b"QFI\xfb", "qcow2"),
    (0, b"QED\0", "QED"),
    (0, b"KDMV", "VMDK"),
    (0, b"COWD", "VMDK"),
    (0, b"# Disk DescriptorFile", "VMDK"),
    (0, b"vhdxfile", "VHDX"),
    (0, b"conectix", "VHD"),
    (64, b"\x7f\x10\xda\xbe", "VDI"),
    (0, b"WithoutFreeSpace", "Parallels"),
    (0, b"WithouFreSpacExt", "Parallels"),
];

/// The footer of a fixed VHD, which starts like a raw disk: its cookie, and its format version.
const FOOTER: (&[u8], &[u8]) = (b"conectix", b"\0\x01\0\0");
const FOOTER_BYTES: usize = 512;

/// The number of bytes that are examined at either end. With O_DIRECT, offset, length and memory must be multiples of a
/// block.
const PROBE_LEN: usize = 64 << 10;

/// Rejects a file in an image format.
pub(crate) fn check(spec: &BackendSpec, file: &File, size: u64) -> Result<(), OpenError> {
    let cannot = |e: io::Error| {
        let subject = spec.path.display().to_string();
        OpenError::new(subject, format!("cannot be read: {e}"), "check the medium").of(e.kind())
    };
    match find(file, size).map_err(cannot)? {
        None => Ok(()),
        Some(format) => Err(refused(spec, format)),
    }
}

fn refused(spec: &BackendSpec, format: &str) -> OpenError {
    let path = spec.path.display();
    let hint = format!(
        "convert the image (qemu-img convert -f {} -O raw {path} disk.img), or export it with qemu-nbd and use its nbd: URL; \
        if the bytes of the file are the disk itself: --raw, or format = \"raw\" in the configuration",
        if format == "VHD" { "vpc".into() } else { format.to_lowercase() }
    );
    let what = format!("is a disk image in the format {format}, not raw");
    OpenError::new(path.to_string(), what, hint).of(ErrorKind::InvalidData)
}

fn find(file: &File, size: u64) -> io::Result<Option<&'static str>> {
    let head = read(file, 0)?;
    if let Some(format) = of_head(&head) {
        return Ok(Some(format));
    }
    let last = size.saturating_sub(1) / PROBE_LEN as u64 * PROBE_LEN as u64;
    let tail = if last == 0 { head } else { read(file, last)? };
    // The footer may cross the boundary between the last two blocks.
    let before = if tail.len() < FOOTER_BYTES && last > 0 {
        read(file, last - PROBE_LEN as u64)?
    } else {
        Buf::zeroed(0)
    };
    let end = [&before[..], &tail[..]].concat();
    Ok(is_footer(&end).then_some("VHD"))
}

/// Reads `PROBE_LEN` bytes, or fewer at the end.
fn read(file: &File, offset: u64) -> io::Result<Buf> {
    let mut buf = Buf::zeroed(PROBE_LEN);
    let len = loop {
        match pread(file, &mut buf[..], offset) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    buf.set_visible(len);
    Ok(buf)
}

fn of_head(head: &[u8]) -> Option<&'static str> {
    let is = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|from| from.starts_with(magic));
    HEADS.iter().find(|(at, magic, _)| is(*at, magic)).map(|(_, _, format)| *format)
}

fn is_footer(end: &[u8]) -> bool {
    let Some(start) = end.len().checked_sub(FOOTER_BYTES) else { return false };
    let footer = &end[start..];
    footer.starts_with(FOOTER.0) && footer[12..].starts_with(FOOTER.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_detected_by_its_magic_bytes() {
        for (at, magic, format) in HEADS {
            let mut head = vec![0; 512];
            head[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(of_head(&head), Some(format));
            assert_eq!(of_head(&head[1..]), None);
        }
        assert_eq!(of_head(&[0; 4096]), None);
    }

    #[test]
    fn fixed_vhd_is_detected_by_its_footer() {
        let path = std::env::temp_dir().join(format!("lunar-vhd-{}", std::process::id()));
        let mut footer = [0; FOOTER_BYTES];
        footer[..8].copy_from_slice(FOOTER.0);
        footer[12..16].copy_from_slice(FOOTER.1);
        for len in [0, 512, PROBE_LEN - 256, PROBE_LEN, 3 * PROBE_LEN, 3 * PROBE_LEN - 511] {
            std::fs::write(&path, [&vec![0; len][..], &footer].concat()).expect("written");
            let file = File::open(&path).expect("there");
            let size = (len + FOOTER_BYTES) as u64;
            assert_eq!(find(&file, size).expect("read"), Some("VHD"), "{len}");
            std::fs::write(&path, [&footer[..], &vec![0; len + 1]].concat()).expect("written");
        }
        std::fs::write(&path, [7; 1000]).expect("written");
        assert_eq!(find(&File::open(&path).expect("there"), 1000).expect("read"), None);
        std::fs::remove_file(path).expect("its name");
    }
}
