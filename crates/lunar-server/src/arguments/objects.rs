//! The objects of the command line as the API shows them: in the form of a file.

use crate::config::{Config, LunConfig};
use lunar_admin::{ConfigObject, Document, Keys, ObjectId, ObjectOrigin, ObjectSource};
use lunar_scsi::PeripheralDeviceType;
use lunar_target::config::{Portal, PortalProtocol};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The objects of a configuration that was made from arguments.
pub(super) fn document(config: &Config) -> Document {
    let groups = config.portal_groups.iter().map(|group| {
        let portals: Vec<Value> = group.portals.iter().map(portal).collect();
        (ObjectId::PortalGroup(group.tag), Keys::from_iter([("portals".to_owned(), portals.into())]))
    });
    let subsystems = config.targets.iter().filter_map(|one| Some((&one.name, one.subsystem.as_ref()?)));
    let namespaces = subsystems.clone().flat_map(|(nqn, subsystem)| {
        subsystem.shared.iter().map(move |(nsid, (target, lun))| {
            let keys = [("target".to_owned(), target.as_str().into()), ("lun".to_owned(), (*lun).into())];
            (ObjectId::Namespace(nqn.clone(), *nsid), Keys::from_iter(keys))
        })
    });
    let subsystems = subsystems.map(|(nqn, _)| (ObjectId::Subsystem(nqn.clone()), Keys::new()));
    let own = || config.targets.iter().filter(|target| target.subsystem.is_none());
    let targets = own().map(|target| (ObjectId::Target(target.name.clone()), Keys::new()));
    let luns = own().flat_map(|target| {
        let lun =
            |(number, lun): (&u16, &LunConfig)| (ObjectId::Lun(target.name.clone(), *number), keys(lun));
        target.luns.iter().map(lun)
    });
    let source = || ObjectSource { origin: ObjectOrigin::CommandLine, file: PathBuf::new(), line: 0 };
    let object = |(id, keys)| (id, ConfigObject { keys, source: source() });
    groups.chain(targets).chain(luns).chain(subsystems).chain(namespaces).map(object).collect()
}

fn portal(portal: &Portal) -> Value {
    let transport: &[&str] = match (portal.transports.protocol, portal.transports.iser) {
        (PortalProtocol::Srp, _) => &["srp"],
        (PortalProtocol::NvmeTcp, _) => &["nvme-tcp"],
        (PortalProtocol::NvmeDiscovery, _) => &["nvme-discovery"],
        (_, true) => &["tcp", "iser"],
        _ => return portal.listen.to_string().into(),
    };
    json!({ "listen": portal.listen.to_string(), "transport": transport })
}

fn keys(lun: &LunConfig) -> Keys {
    let path = lun.source.path().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()));
    let is_cdrom = lun.kind == PeripheralDeviceType::CdRom;
    let pairs = [
        ("backend", lun.source.kind().map(|kind| kind.name().into())),
        ("path", path.map(|path| path.display().to_string().into())),
        ("size", lun.source.size().map(Value::from)),
        ("kind", is_cdrom.then(|| "cdrom".into())),
        ("format", lun.raw.then(|| "raw".into())),
        ("serial", lun.serial.as_deref().map(Value::from)),
    ];
    pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}
