//! The body of `POST /memory/plan` that asks how a load would go.

use std::sync::Arc;

use fresco_graph::{Map, Value};
use fresco_memory::{DeviceTotal, LoadQuery, LoadSubject, Unit};

use crate::http::error::{ApiError, Code};

/// Layers of a model that is only described.
const MOST_UNITS: usize = 100_000;
/// A load as it is asked about. Every problem is named.
pub(crate) fn load_query(body: &Map) -> Result<LoadQuery, ApiError> {
    let mut reader = Reader {
        problems: Vec::new(),
    };
    let subject = match body.get("weights_id") {
        Some(Value::Str(id)) => LoadSubject::Weights(id.to_string()),
        Some(_) => {
            reader.problem("weights_id must be text");
            LoadSubject::Units(Arc::default())
        }
        None => LoadSubject::Units(reader.units(body.get("units"))),
    };
    let query = LoadQuery {
        subject,
        devices: reader.devices(body.get("devices")),
        compute_device: reader.text(body, "compute_device"),
        virtual_vram_gb: reader.amount(body, "virtual_vram_gb"),
        donor_device: reader.text(body, "donor_device"),
        expert: reader.text(body, "expert_mode_allocations"),
        eject_models: body.get("eject_models").is_some_and(Value::truthy),
        text_encoder: body.get("text_encoder").is_some_and(Value::truthy),
        required: reader
            .bytes(body.get("required"), "required")
            .unwrap_or_default(),
    };
    if reader.problems.is_empty() {
        Ok(query)
    } else {
        let text = reader.problems.join("; ");
        Err(ApiError::coded(Code::BadMemoryRequest, text))
    }
}

struct Reader {
    problems: Vec<String>,
}

impl Reader {
    fn problem(&mut self, text: impl Into<String>) {
        // A long list says no more than its start.
        if self.problems.len() < 20 {
            self.problems.push(text.into());
        }
    }

    fn text(&mut self, body: &Map, key: &str) -> Option<String> {
        match body.get(key)? {
            Value::Null => None,
            Value::Str(text) => Some(text.to_string()),
            _ => {
                self.problem(format!("{key} must be text"));
                None
            }
        }
    }

    fn amount(&mut self, body: &Map, key: &str) -> Option<f64> {
        let value = match body.get(key)? {
            Value::Null => return None,
            Value::Int(i) => *i as f64,
            Value::Float(f) => *f,
            _ => f64::NAN,
        };
        if value.is_finite() && value >= 0.0 {
            return Some(value);
        }
        self.problem(format!("{key} must be a number, 0 or more"));
        None
    }

    fn bytes(&mut self, value: Option<&Value>, what: &str) -> Option<u64> {
        match value {
            None | Some(Value::Null) => return None,
            Some(Value::Int(i)) => {
                // More than any machine has, and still far from overflowing sums.
                if let Some(bytes) = u64::try_from(*i).ok().filter(|b| *b <= 1 << 50) {
                    return Some(bytes);
                }
            }
            Some(_) => {}
        }
        self.problem(format!("{what} must be a whole number of bytes, 0 to 2^50"));
        None
    }

    fn units(&mut self, value: Option<&Value>) -> Arc<[Unit]> {
        let Some(items) = value.and_then(Value::as_list) else {
            self.problem("units must be a list of {name, bytes}");
            return Arc::default();
        };
        if items.is_empty() || items.len() > MOST_UNITS {
            self.problem(format!("there must be 1 to {MOST_UNITS} units"));
            return Arc::default();
        }
        let mut units = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let Some(name) = item.get("name").and_then(Value::as_str) else {
                self.problem(format!("units[{i}] must have a name"));
                continue;
            };
            let what = format!("bytes of units[{i}]");
            if item.get("bytes").is_none() {
                self.problem(format!("units[{i}] must have bytes"));
            }
            let flag = |key: &str, default: bool| item.get(key).map_or(default, Value::truthy);
            let embedding = flag("embedding", false);
            let block = match item.get("block") {
                Some(Value::Int(i)) => u32::try_from(*i).ok(),
                _ => None,
            };
            let bytes = self.bytes(item.get("bytes"), &what).unwrap_or_default();
            units.push(Unit {
                name: name.into(),
                bytes,
                cost: bytes,
                embedding,
                biased: flag("biased", !embedding),
                castable: flag("castable", true),
                own: false,
                block,
            });
        }
        units.into()
    }

    fn devices(&mut self, value: Option<&Value>) -> Option<Vec<DeviceTotal>> {
        let items = match value {
            None | Some(Value::Null) => return None,
            Some(value) => value.as_list(),
        };
        let Some(items) = items.filter(|i| (1..=256).contains(&i.len())) else {
            self.problem("devices must be a list of {device, total}");
            return None;
        };
        let mut devices: Vec<DeviceTotal> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            let total = self.bytes(item.get("total"), &format!("total of devices[{i}]"));
            match item.get("device").and_then(Value::as_str) {
                Some(name) if devices.iter().any(|d| d.name == name) => {
                    self.problem(format!("devices names {name} twice"));
                }
                Some(name) if !name.is_empty() => {
                    devices.push(DeviceTotal {
                        name: name.to_owned(),
                        total: total.unwrap_or_default(),
                    });
                }
                _ => self.problem(format!("devices[{i}] must have a device")),
            }
        }
        Some(devices)
    }
}
