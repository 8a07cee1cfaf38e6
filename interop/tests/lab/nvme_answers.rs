//! The answers of Lunar to nvme-cli beside those of the kernel's target (nvmet), field by field.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use interop::Server;
use serde_json::Value;

use super::nvme::{Portals, SERIAL, lab};

/// Fields whose values differ, each with the reason. A field is a command and the path in its answer.
const DIFFERENCES: &[(&str, &str)] = &[
    ("effects-log 0 io_cmd_set IOCS_12 (Verify)", "nvmet has no Verify"),
    ("effects-log 0 io_cmd_set IOCS_13 (Reservation Register)", "nvmet 6.12 has no reservations"),
    ("effects-log 0 io_cmd_set IOCS_14 (Reservation Report)", "nvmet 6.12 has no reservations"),
    ("effects-log 0 io_cmd_set IOCS_17 (Reservation Acquire)", "nvmet 6.12 has no reservations"),
    ("effects-log 0 io_cmd_set IOCS_21 (Reservation Release)", "nvmet 6.12 has no reservations"),
    ("effects-log 0 io_cmd_set IOCS_25 (Copy)", "nvmet has no Copy"),
    ("effects-log 0 io_cmd_set IOCS_5 (Compare)", "nvmet has no Compare"),
    ("effects-log 0 io_cmd_set IOCS_9 (Dataset Management)", "Lunar reports that deallocation changes data"),
    ("error-log errors 0 parm_error_location", "Lunar names no parameter of a failed command"),
    (
        "error-log errors 0 status_field",
        "Lunar checks the range, and nvmet reports the failure of its block device",
    ),
    ("feature-0x07", "Lunar grants as many queues as the host has asked for, and nvmet 128"),
    ("feature-0x84", "nvmet has the feature Namespace Write Protection"),
    ("fw-log nvme0 Active Firmware Slot (afi)", "nvmet has no active slot"),
    ("fw-log nvme0 Firmware Rev Slot 1", "nvmet has no revision in a slot"),
    ("host-id-64", "Lunar names the field that asks for 64 bits, and nvmet the length of the data"),
    ("id-ctrl anacap", "Lunar has no persistent loss, and its groups do not change"),
    ("id-ctrl anagrpmax", "each namespace of Lunar is a group of its own"),
    ("id-ctrl anatt", "Lunar waits longer for the peer of a router or gateway"),
    ("id-ctrl crdt1", "Lunar delays the retry of a command that a busy unit rejects"),
    ("id-ctrl elpe", "the error log of Lunar is shorter"),
    ("id-ctrl fr", "the revision is that of the program or of the kernel"),
    ("id-ctrl fuses", "nvmet has no fused commands"),
    ("id-ctrl ioccsz", "Lunar takes 8 KiB in a capsule, and nvmet 16 KiB"),
    ("id-ctrl lpa", "Lunar has the list of log pages, and no SMART log of a namespace"),
    ("id-ctrl mdts", "Lunar limits a command to 1 MiB"),
    ("id-ctrl mn", "the model is that of the program or of the kernel"),
    ("id-ctrl nanagrpid", "each namespace of Lunar is a group of its own"),
    ("id-ctrl nwpc", "nvmet has the feature Namespace Write Protection"),
    ("id-ctrl ocfs", "nvmet has no Copy"),
    ("id-ctrl oncs", "nvmet has no Compare, Verify, Copy and reservations"),
    ("id-ctrl psds 0 entry_lat", "nvmet invents figures of a power state"),
    ("id-ctrl psds 0 exit_lat", "nvmet invents figures of a power state"),
    ("id-ctrl psds 0 max_power", "nvmet invents figures of a power state"),
    ("id-ctrl rab", "nvmet recommends bursts, which have no effect over TCP"),
    ("id-ctrl subnqn", "the subsystems have different names, because Linux would join them"),
    ("id-ctrl ver", "Lunar reports NVMe 1.4, and nvmet 1.3"),
    ("id-ctrl vwc", "Lunar reports that Flush needs a namespace"),
    ("id-ns dlfeat", "deallocated blocks of Lunar read as zeros"),
    ("id-ns mcl", "nvmet has no Copy"),
    ("id-ns msrc", "nvmet has no Copy"),
    ("id-ns mssrl", "nvmet has no Copy"),
    ("id-ns nacwu", "nvmet has no fused commands"),
    ("id-ns nguid", "the namespaces have different identifiers, because Linux would ignore the second one"),
    ("id-ns nows", "the physical blocks of Lunar's file have 4 KiB"),
    ("id-ns npwa", "the physical blocks of Lunar's file have 4 KiB"),
    ("id-ns npwg", "the physical blocks of Lunar's file have 4 KiB"),
    ("id-ns nsfeat", "Lunar reports thin provisioning"),
    ("id-ns rescap", "nvmet 6.12 has no reservations"),
    ("list Devices 0 Firmware", "the revision is that of the program or of the kernel"),
    ("list Devices 0 ModelNumber", "the model is that of the program or of the kernel"),
    ("list-ctrl", "nvmet has no list of controllers"),
    ("list-ctrl ctrl_list 0 ctrl_id", "nvmet has no list of controllers"),
    ("list-ctrl num_ctrl", "nvmet has no list of controllers"),
    ("list-ctrl status", "nvmet has no list of controllers"),
    ("ns-descs ns-descs 0 nguid", "nvmet lists the UUID first"),
    ("ns-descs ns-descs 0 nidt", "nvmet lists the UUID first"),
    ("ns-descs ns-descs 0 type", "nvmet lists the UUID first"),
    ("ns-descs ns-descs 0 uuid", "nvmet lists the UUID first"),
    ("ns-descs ns-descs 1 nguid", "nvmet lists the UUID first"),
    ("ns-descs ns-descs 1 nidt", "nvmet lists the UUID first"),
    ("ns-descs ns-descs 1 type", "nvmet lists the UUID first"),
    ("ns-descs ns-descs 1 uuid", "nvmet lists the UUID first"),
    ("property-0x0", "CAP: Lunar has contiguous queues, one command set and another time-out"),
    ("property-0x14", "CC: Linux selects all command sets only if CAP has several"),
    ("property-0x8", "Lunar reports NVMe 1.4, and nvmet 1.3"),
    ("resv-report", "nvmet 6.12 has no reservations"),
    ("resv-report gen", "nvmet 6.12 has no reservations"),
    ("resv-report ptpls", "nvmet 6.12 has no reservations"),
    ("resv-report regctl", "nvmet 6.12 has no reservations"),
    ("resv-report rtype", "nvmet 6.12 has no reservations"),
    ("resv-report status", "nvmet 6.12 has no reservations"),
    ("smart-log avail_spare", "nvmet reports no spare blocks, which some hosts take for a worn disk"),
    ("smart-log temperature", "nvmet reports no temperature, which some hosts take for a fault"),
    ("supported-log-pages", "nvmet has no list of log pages"),
    ("supported-log-pages status", "nvmet has no list of log pages"),
];

/// Fields that may be equal or not, each with the reason.
const VARYING: &[(&str, &str)] = &[
    ("error-log errors 0 cmdid", "Linux counts the uses of each identifier"),
    ("id-ctrl cntlid", "Lunar begins with a random identifier, and nvmet with 1"),
];

/// The fields of all answers of a target, with their values.
type Answers = BTreeMap<String, String>;

/// Reads the answers in a folder, which has a file and a file of the exit status for each command.
fn answers_in(dir: &Path) -> Answers {
    let mut answers = Answers::new();
    for entry in fs::read_dir(dir).expect("the answers").map(|entry| entry.expect("an answer")) {
        let name = entry.file_name().into_string().expect("a name in UTF-8");
        if name.ends_with(".status") {
            continue;
        }
        let read = |name: &str| fs::read_to_string(dir.join(name)).expect("text");
        let (text, status) = (read(&name), read(&format!("{name}.status")));
        add_fields(&mut answers, &format!("{name} status"), &Value::String(status.trim().into()));
        let value = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.trim().into()));
        add_fields(&mut answers, &name, &value);
    }
    answers
}

/// Adds the fields of a value, with the keys and indices that lead to them.
fn add_fields(answers: &mut Answers, path: &str, value: &Value) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| add_fields(answers, &format!("{path} {key}"), value));
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(at, value)| add_fields(answers, &format!("{path} {at}"), value));
        }
        Value::String(text) => _ = answers.insert(path.into(), text.trim().into()),
        value => _ = answers.insert(path.into(), value.to_string()),
    }
}

/// The faults of a comparison: differences without a row, and rows without a difference.
fn faults(lunar: &Answers, nvmet: &Answers, rows: &[(&str, &str)]) -> Vec<String> {
    let shown = |answers: &Answers, field: &str| answers.get(field).map_or("-".into(), Clone::clone);
    let fields: BTreeSet<&String> = lunar.keys().chain(nvmet.keys()).collect();
    let differs = |field: &str| lunar.get(field) != nvmet.get(field);
    let is_listed = |field: &str| rows.iter().any(|(row, _)| *row == field);
    let unlisted = fields.into_iter().filter(|field| differs(field) && !is_listed(field));
    let unlisted = unlisted
        .map(|field| format!("{field}: Lunar {:?}, nvmet {:?}", shown(lunar, field), shown(nvmet, field)));
    let equal = rows.iter().filter(|(row, _)| !differs(row));
    unlisted.chain(equal.map(|(row, _)| format!("{row}: does not differ any more"))).collect()
}

#[test]
fn nvme_cli_answers_agree_with_nvmet() {
    let Some(lab) = lab() else { return };
    let portals = Portals::free();
    let _server = Server::start(&portals.config(&[0], "").replace("512MiB", "64MiB"));
    let scenario = portals.start_with(lab, "nvme_answers", &[0], &[("SERIAL", SERIAL)]);
    let dir = scenario.must_pass().share().join("answers");
    let [mut lunar, mut nvmet] = ["Lunar", "nvmet"].map(|target| answers_in(&dir.join(target)));
    assert!(lunar.len() > 200, "nvme-cli has printed {} fields", lunar.len());
    VARYING.iter().for_each(|(field, _)| {
        let is_there = [&mut lunar, &mut nvmet].map(|answers| answers.remove(*field).is_some());
        assert_eq!(is_there, [true; 2], "{field}");
    });
    let faults = faults(&lunar, &nvmet, DIFFERENCES);
    assert!(faults.is_empty(), "{} faults of the table\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn comparison_finds_new_and_past_differences() {
    let read = |text: &str| {
        let mut answers = Answers::new();
        add_fields(&mut answers, "id", &serde_json::from_str(text).expect("JSON"));
        answers
    };
    let lunar = read(r#"{"a": 1, "b": [{"c": "x "}, {"c": "y"}], "d": 4}"#);
    let nvmet = read(r#"{"a": 1, "b": [{"c": "x"}, {"c": "z"}], "e": 5}"#);
    let rows = [("id b 1 c", ""), ("id a", "")];
    let all = [
        "id d: Lunar \"4\", nvmet \"-\"",
        "id e: Lunar \"-\", nvmet \"5\"",
        "id a: does not differ any more",
    ];
    assert_eq!(faults(&lunar, &nvmet, &rows), all);
}
