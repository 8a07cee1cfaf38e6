//! The places where `unsafe` is permitted, and why.

use super::TidyFinding;
use super::project::SourceFile;
use super::source::lines_with_word;

/// Files and folders that need it.
const PLACES: [(&str, &str); 12] = [
    ("crates/lunar-block/src/file/loops.rs", "ioctl of loop devices"),
    ("crates/lunar-block/src/file/resident.rs", "cachestat(2), which no crate wraps"),
    ("crates/lunar-block/src/rbd/", "calls of librados and librbd"),
    ("crates/lunar-host/src/ublk/", "rings and memory shared with the ublk driver"),
    ("crates/lunar-rdma/src/verbs/", "calls of libibverbs and librdmacm"),
    ("crates/lunar-router/src/sg/ioctl.rs", "ioctl of the sg driver"),
    ("crates/lunar-runtime/src/buf.rs", "buffers that the kernel fills"),
    ("crates/lunar-runtime/src/multishot_poll.rs", "an io_uring operation of our own"),
    ("crates/lunar-runtime/src/regions.rs", "mapped memory"),
    ("crates/lunar-runtime/src/shared_library.rs", "the dynamic loader"),
    ("crates/lunar-runtime/src/stream.rs", "a socket taken from its descriptor"),
    ("crates/lunar-server/src/inherited.rs", "descriptors that the service manager passed"),
];

/// `unsafe` at any other place.
pub fn check(file: &SourceFile) -> Vec<TidyFinding> {
    if PLACES.iter().any(|(place, _)| file.path.starts_with(place)) {
        return Vec::new();
    }
    let lines = lines_with_word(file.code(), "unsafe").into_iter();
    let remedy = "use a safe crate, or list the file with its reason in xtask/src/tidy/unsafe_places.rs";
    lines
        .map(|line| TidyFinding::new(&file.path, line, "unsafe at a place that is not listed", remedy))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    #[test]
    fn unsafe_outside_of_the_listed_places_is_reported() {
        let text = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(check(&file("crates/lunar-runtime/src/buf.rs", text)), []);
        assert_eq!(check(&file("crates/lunar-rdma/src/verbs/cm.rs", text)), []);
        let found = check(&file("crates/lunar-target/src/lib.rs", text));
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [2]);
    }
}
