//! The RPCs of a configuration.

use crate::{ImportError, json};
use serde::Deserialize;
use serde_json::Value;

/// A saved RPC, or an object among its parameters.
#[derive(Default)]
pub(super) struct Call {
    /// Its place in the file.
    pub(super) place: String,
    pub(super) method: String,
    parameters: Value,
}

#[derive(Deserialize)]
struct SpdkConfig {
    subsystems: Vec<SpdkPart>,
}

#[derive(Deserialize)]
struct SpdkPart {
    subsystem: String,
    config: Option<Vec<Value>>,
}

/// Reads all RPCs in their order.
pub(super) fn read(text: &str) -> Result<Vec<Call>, ImportError> {
    let file: SpdkConfig = json::parse(text).map_err(|e| {
        let hint = "give the file that rpc.py save_config writes";
        ImportError::new(format!("the file is no configuration of SPDK: {e}"), hint)
    })?;
    let mut calls = Vec::new();
    for SpdkPart { subsystem, config } in file.subsystems {
        for (n, value) in config.unwrap_or_default().into_iter().enumerate() {
            let place = format!("{subsystem}[{n}]");
            // A list is a batch of RPCs.
            match value {
                Value::Array(batch) => {
                    let one = |(m, value)| call(value, format!("{place}[{m}]"));
                    calls.extend(batch.into_iter().enumerate().map(one));
                }
                value => calls.push(call(value, place)),
            }
        }
    }
    Ok(calls)
}

fn call(mut value: Value, place: String) -> Call {
    let method = value.get("method").and_then(Value::as_str).unwrap_or("an RPC without a method").to_owned();
    let parameters = value.get_mut("params").map(Value::take).unwrap_or_default();
    Call { place, method, parameters }
}

impl Call {
    /// A parameter that is text; empty if it is absent.
    pub(super) fn text(&self, key: &str) -> &str {
        self.parameters.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.parameters.get(key).and_then(Value::as_u64)
    }

    /// The texts in a parameter that is a list.
    pub(super) fn texts(&self, key: &str) -> Option<Vec<&str>> {
        let list = self.parameters.get(key).and_then(Value::as_array)?;
        Some(list.iter().filter_map(Value::as_str).collect())
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        self.parameters.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    /// A parameter that is an object.
    pub(super) fn part(&self, key: &str) -> Call {
        let parameters = self.parameters.get(key).cloned().unwrap_or_default();
        Call { parameters, ..Call::default() }
    }
}
