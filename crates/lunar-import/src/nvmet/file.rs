//! The keys of `config.json`. Attributes of configfs are text in groups, such as `addr_traddr` in `addr`.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NvmetConfig {
    pub(super) discovery_nqn: String,
    pub(super) hosts: Vec<NvmetHost>,
    pub(super) ports: Vec<NvmetPort>,
    pub(super) subsystems: Vec<NvmetSubsystem>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NvmetHost {
    pub(super) nqn: String,
    /// `key` and `ctrl_key`: the secrets of the host and of the subsystem.
    pub(super) dhchap: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NvmetPort {
    pub(super) portid: Attribute,
    pub(super) addr: Attributes,
    pub(super) param: Attributes,
    pub(super) ana_groups: Vec<NvmetGroup>,
    pub(super) referrals: Vec<NvmetReferral>,
    /// The NQNs of the subsystems that it offers.
    pub(super) subsystems: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NvmetGroup {
    pub(super) grpid: Attribute,
    pub(super) ana: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NvmetReferral {
    pub(super) name: Attribute,
    pub(super) enable: Attribute,
    pub(super) addr: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NvmetSubsystem {
    pub(super) nqn: String,
    pub(super) attr: Attributes,
    pub(super) allowed_hosts: Vec<String>,
    pub(super) namespaces: Vec<NvmetNamespace>,
    pub(super) passthru: Vec<NvmetPassthru>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NvmetNamespace {
    pub(super) nsid: Attribute,
    pub(super) enable: Attribute,
    pub(super) device: Attributes,
    pub(super) ana_grpid: Attribute,
    pub(super) ana: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NvmetPassthru {
    pub(super) enable: Attribute,
    pub(super) device: Attributes,
}

/// A value, which nvmetcli writes as text or as a number.
#[derive(Clone, Default, Deserialize)]
#[serde(from = "Value")]
pub(super) struct Attribute(String);

impl From<Value> for Attribute {
    fn from(value: Value) -> Attribute {
        Attribute(match value {
            // The kernel's text for a pointer that is not set.
            Value::String(text) if text.trim() == "(null)" => String::new(),
            Value::String(text) => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => u8::from(flag).to_string(),
            _ => String::new(),
        })
    }
}

impl Attribute {
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn number(&self) -> Option<u32> {
        self.0.parse().ok()
    }

    pub(super) fn is_set(&self) -> bool {
        self.number().is_some_and(|number| number != 0)
    }
}

/// A group of attributes.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Attributes(BTreeMap<String, Attribute>);

impl Attributes {
    /// The text of an attribute, which is empty if it is absent.
    pub(super) fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", Attribute::text)
    }

    pub(super) fn is_set(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(Attribute::is_set)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.text()))
    }
}
