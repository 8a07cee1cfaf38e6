//! Compares the binary interface in `ffi` with the headers of this host.

use super::ffi::{NUMBERS, PLACES, SIZES};
use std::fmt::Write;
use std::fs;
use std::process::Command;

/// A C program that checks all layouts and constants of `ffi`.
fn program() -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
         static int bad;\nstatic void same(const char *what, long c, long rust) {\n\
         if (c != rust) { bad = 1; printf(\"%s: %ld in C, %ld here\\n\", what, c, rust); } }\nint main(void) {\n",
    );
    let mut line = |c: String, here: i64| {
        let _ = writeln!(text, "same(\"{c}\", (long)({c}), {here}L);");
    };
    for (structure, field, at) in PLACES {
        // The headers name the union in the connection parameters, and the first member of the union of addresses.
        let field = match (*structure, *field) {
            ("rdma_cm_event", "param") => "param.conn",
            ("ibv_device", "ops") => "_ops",
            (_, field) => field,
        };
        line(format!("offsetof(struct {structure}, {field})"), *at as i64);
    }
    for (structure, size) in SIZES {
        line(format!("sizeof(struct {structure})"), *size as i64);
    }
    for (name, number) in NUMBERS {
        line(name.to_string(), *number);
    }
    text + "return bad; }\n"
}

#[test]
fn headers_of_this_host_agree() {
    let dir = std::env::temp_dir().join(format!("lunar-rdma-abi-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (source, binary) = (dir.join("abi.c"), dir.join("abi"));
    fs::write(&source, "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n").unwrap();
    let compile = |source, binary| Command::new("cc").arg("-w").arg(source).arg("-o").arg(binary).output();
    let probe = Command::new("cc").arg("-fsyntax-only").arg(&source).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: needs libibverbs-dev, librdmacm-dev and cc (apt-get install gcc libibverbs-dev librdmacm-dev)"
        );
        return fs::remove_dir_all(dir).unwrap();
    }
    fs::write(&source, program()).unwrap();
    let compiled = compile(&source, &binary).unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let said = Command::new(&binary).output().unwrap();
    fs::remove_dir_all(dir).unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}
