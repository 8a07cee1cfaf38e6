//! Compares the table of functions with the headers of this host.

use super::library::{CALLBACKS, Library, rbd_image_info_t};
use std::fmt::Write;
use std::fs;
use std::mem::offset_of;
use std::process::{Command, Output};

const INCLUDES: &str =
    "#include <rados/librados.h>\n#include <rbd/librbd.h>\n#include <stddef.h>\n#include <time.h>\n";
/// Types that C names differently.
const C_NAMES: [(&str, &str); 10] = [
    ("", "void"),
    ("c_char", "char"),
    ("c_int", "int"),
    ("c_void", "void"),
    ("isize", "ssize_t"),
    ("timespec", "struct timespec"),
    ("u32", "uint32_t"),
    ("u64", "uint64_t"),
    ("u8", "uint8_t"),
    ("usize", "size_t"),
];

/// A type in C. The callbacks are those of this table, so that they are compared too.
fn in_c(rust: &str) -> String {
    if let Some(pointee) = rust.strip_prefix("*mut ") {
        return format!("{} *", in_c(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("{} const *", in_c(pointee));
    }
    if CALLBACKS.iter().any(|(name, ..)| *name == rust) {
        return format!("lunar_{rust}");
    }
    C_NAMES.iter().find(|(name, _)| *name == rust).map_or(rust, |(_, c)| c).to_owned()
}

/// A pointer to a function in C.
fn pointer(name: &str, arguments: &[&str], result: &str) -> String {
    let arguments: Vec<String> = arguments.iter().map(|argument| in_c(argument)).collect();
    let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
    format!("{} (*lunar_{name})({arguments})", in_c(result))
}

/// A C program that compiles without a warning if the headers agree with these signatures.
fn program(signatures: &[(&str, &[&str], &str)]) -> String {
    let mut text = INCLUDES.to_owned();
    for (name, arguments, result) in CALLBACKS {
        let _ = writeln!(text, "typedef {};", pointer(name, arguments, result));
    }
    for (name, arguments, result) in signatures {
        let _ = writeln!(text, "{} = {name};", pointer(name, arguments, result));
    }
    let layout = [
        ("sizeof(rbd_image_info_t)", size_of::<rbd_image_info_t>()),
        ("offsetof(rbd_image_info_t, size)", offset_of!(rbd_image_info_t, size)),
        ("offsetof(rbd_image_info_t, obj_size)", offset_of!(rbd_image_info_t, obj_size)),
        ("offsetof(rbd_image_info_t, parent_name)", offset_of!(rbd_image_info_t, parent_name)),
    ];
    for (what, here) in layout {
        let _ = writeln!(text, "_Static_assert({what} == {here}, \"{what}\");");
    }
    text
}

/// Compiles a text. None without a C compiler.
fn compile(name: &str, text: &str) -> Option<Output> {
    let file = std::env::temp_dir().join(format!("lunar-rbd-{name}-{}.c", std::process::id()));
    fs::write(&file, text).expect("a file");
    let ran = Command::new("cc").args(["-fsyntax-only", "-Wall", "-Werror"]).arg(&file).output().ok();
    fs::remove_file(file).expect("a file");
    ran
}

#[test]
fn headers_of_this_host_agree_with_the_table() {
    if !compile("includes", INCLUDES).is_some_and(|ran| ran.status.success()) {
        return println!("skipped: needs librbd-dev, librados-dev and cc (apt-get install gcc librbd-dev)");
    }
    let check = |name: &str, signatures: &[(&str, &[&str], &str)]| {
        let ran = compile(name, &program(signatures)).expect("a compiler");
        (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let (agrees, said) = check("table", Library::SIGNATURES);
    assert!(agrees, "{said}");
    let compare =
        ["rbd_image_t", "u64", "usize", "*const c_char", "*const c_char", "rbd_completion_t", "u64", "c_int"];
    let wrong: [(&str, &[&str], &str); 5] = [
        ("rbd_aio_compare_and_write", &compare, "isize"),
        ("rados_unwatch2", &["rados_ioctx_t", "u32"], "c_int"),
        ("rbd_aio_get_return_value", &["rbd_completion_t"], "c_int"),
        ("rados_write_op_omap_rm_keys", &["rados_write_op_t", "*mut *mut c_char", "usize"], ""),
        ("rbd_update_watch", &["rbd_image_t", "*mut u64", "rbd_callback_t", "*mut c_void"], "c_int"),
    ];
    for signature in wrong {
        assert!(!check("wrong", &[signature]).0, "{signature:?}");
    }
}
