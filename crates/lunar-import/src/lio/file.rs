//! The keys of `saveconfig.json`.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
pub(super) struct SaveConfig {
    #[serde(default)]
    pub(super) fabric_modules: Vec<FabricModule>,
    #[serde(default)]
    pub(super) storage_objects: Vec<StorageObject>,
    #[serde(default)]
    pub(super) targets: Vec<LioTarget>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct FabricModule {
    pub(super) name: String,
    pub(super) discovery_enable_auth: Flag,
    pub(super) userid: String,
    pub(super) password: String,
    pub(super) mutual_userid: String,
    pub(super) mutual_password: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct StorageObject {
    pub(super) plugin: String,
    pub(super) name: String,
    pub(super) dev: String,
    pub(super) size: Option<u64>,
    pub(super) wwn: String,
    pub(super) write_back: Flag,
    pub(super) readonly: Flag,
    pub(super) nullio: Flag,
    pub(super) aio: Flag,
    pub(super) config: String,
    pub(super) attributes: Attributes,
    pub(super) alua_tpgs: Vec<AluaGroup>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct AluaGroup {
    pub(super) name: String,
    pub(super) alua_access_state: i64,
    pub(super) preferred: Flag,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct LioTarget {
    pub(super) fabric: String,
    pub(super) wwn: String,
    pub(super) tpgs: Vec<LioPortalGroup>,
}

/// A target portal group, which has its own LUNs and access list.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct LioPortalGroup {
    pub(super) tag: Option<u16>,
    pub(super) enable: Option<Flag>,
    pub(super) attributes: Attributes,
    pub(super) parameters: BTreeMap<String, Value>,
    #[serde(flatten)]
    pub(super) credentials: Credentials,
    pub(super) luns: Vec<Lun>,
    pub(super) node_acls: Vec<NodeAcl>,
    pub(super) portals: Vec<LioPortal>,
}

#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Credentials {
    pub(super) chap_userid: String,
    pub(super) chap_password: String,
    pub(super) chap_mutual_userid: String,
    pub(super) chap_mutual_password: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Lun {
    pub(super) index: u16,
    pub(super) storage_object: String,
}

#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct NodeAcl {
    pub(super) node_wwn: String,
    pub(super) attributes: Attributes,
    #[serde(flatten)]
    pub(super) credentials: Credentials,
    pub(super) mapped_luns: Vec<MappedLun>,
}

#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct MappedLun {
    pub(super) index: u16,
    pub(super) tpg_lun: u16,
    pub(super) write_protect: Flag,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct LioPortal {
    pub(super) ip_address: String,
    pub(super) port: Option<u16>,
    pub(super) iser: Flag,
    pub(super) offload: Flag,
}

/// A flag: `true`, 1 or "1".
#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(from = "Value")]
pub(super) struct Flag(pub(super) bool);

impl From<Value> for Flag {
    fn from(value: Value) -> Flag {
        Flag(value == Value::Bool(true) || number(&value).is_some_and(|number| number != 0))
    }
}

/// Attributes, whose values are numbers or text.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub(super) struct Attributes(BTreeMap<String, Value>);

impl Attributes {
    pub(super) fn number(&self, key: &str) -> Option<i64> {
        number(self.0.get(key)?)
    }

    pub(super) fn is_set(&self, key: &str) -> Option<bool> {
        self.number(key).map(|number| number != 0)
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Bool(flag) => Some(i64::from(*flag)),
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_i64(),
    }
}
