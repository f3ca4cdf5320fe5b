//! The body of `POST /memory/plan` that asks how a load would go.

use std::sync::Arc;

use fresco_graph::{Map, Value};
use fresco_memory::{
    DeviceTotal, EjectOthers, LoadModel, LoadRequest, ModelRegistry, Need, Placement, Unit,
    parse_expert,
};

use crate::error::{ApiError, Code};
use crate::memory::unknown;
use crate::registries::Registries;

/// Layers of a model that is only described.
const MOST_UNITS: usize = 100_000;
/// More virtual memory than this cannot be meant.
const MOST_VIRTUAL_GB: f64 = 1e6;

fn bad(problems: &[String]) -> ApiError {
    ApiError::coded(Code::BadMemoryRequest, problems.join("; "))
}

/// What the load is about.
enum Subject {
    /// A model that is there, by its id.
    Weights(String),
    /// One that is described.
    Units(Arc<[Unit]>),
}

/// A hypothetical load as it was asked for.
pub(crate) struct WantedLoad {
    subject: Subject,
    /// Devices with their memory instead of the real ones.
    pub(crate) devices: Option<Vec<DeviceTotal>>,
    /// None: the primary one.
    pub(crate) compute_device: Option<String>,
    virtual_vram_gb: Option<f64>,
    donor_device: Option<String>,
    expert: Option<String>,
    eject_models: bool,
    text_encoder: bool,
    /// Bytes for computing beside the weights.
    required: u64,
}

impl WantedLoad {
    /// Every problem is named.
    pub(crate) fn read(body: &Map) -> Result<Self, ApiError> {
        let mut reader = Reader {
            problems: Vec::new(),
        };
        let subject = match body.get("weights_id") {
            Some(Value::Str(id)) => Subject::Weights(id.to_string()),
            Some(_) => {
                reader.problem("weights_id must be text");
                Subject::Units(Arc::default())
            }
            None => Subject::Units(reader.units(body.get("units"))),
        };
        let wanted = Self {
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
            Ok(wanted)
        } else {
            Err(bad(&reader.problems))
        }
    }

    /// Whose memory it would be loaded into.
    pub(crate) fn registry<'a>(&self, all: &'a Registries) -> &'a ModelRegistry {
        let id = match &self.subject {
            Subject::Weights(id) => Some(id.as_str()),
            Subject::Units(_) => None,
        };
        all.for_load(id, self.compute_device.as_deref())
    }

    /// With the models and devices that there are.
    pub(crate) fn resolve(self, registry: &ModelRegistry) -> Result<LoadRequest, ApiError> {
        let totals = match &self.devices {
            Some(devices) => devices.clone(),
            None => registry.totals(),
        };
        let compute = self.compute_device.clone().unwrap_or_else(|| {
            let first = totals.iter().find(|d| d.name != "cpu");
            first.map_or_else(|| "cpu".to_owned(), |d| d.name.clone())
        });
        let (name, weights, units) = match &self.subject {
            Subject::Weights(id) => {
                let (report, _) = registry.model(id).ok_or_else(|| unknown(id))?;
                let name = report.weights.to_string();
                (name, Some(report.weights), Arc::default())
            }
            Subject::Units(units) => ("model".to_owned(), None, Arc::clone(units)),
        };
        let placement = self.placement(&compute, &totals)?;
        Ok(LoadRequest {
            models: vec![LoadModel {
                name,
                weights,
                units,
                compute,
                offload: "cpu".to_owned(),
                placement,
                text_encoder: self.text_encoder,
                full: false,
            }],
            devices: self.devices,
            need: Need {
                required: self.required,
                ..Need::default()
            },
            eject: if self.eject_models {
                EjectOthers::ComputeDevice
            } else {
                EjectOthers::None
            },
        })
    }

    fn placement(
        &self,
        compute: &str,
        totals: &[DeviceTotal],
    ) -> Result<Option<Placement>, ApiError> {
        let mut problems = Vec::new();
        let names: Vec<&str> = totals.iter().map(|d| d.name.as_str()).collect();
        let known = |name: &str| name == "cpu" || names.contains(&name);
        let donors: Vec<String> = match self.donor_device.as_deref() {
            None | Some("") => vec!["cpu".to_owned()],
            Some(text) => text.split(',').map(|d| d.trim().to_owned()).collect(),
        };
        let named = donors.iter().map(String::as_str).chain([compute]);
        for name in named.filter(|name| !known(name)) {
            let names = names.join(", ");
            problems.push(format!("there is no device {name:?}; there are {names}"));
        }
        let gb = self.virtual_vram_gb.unwrap_or(0.0);
        if gb > MOST_VIRTUAL_GB {
            problems.push(format!("{gb} GB of virtual memory cannot be meant"));
        }
        let expert = parse_expert(self.expert.as_deref().unwrap_or_default(), totals);
        let expert = expert.unwrap_or_else(|errors| {
            problems.extend(errors.iter().map(ToString::to_string));
            None
        });
        if !problems.is_empty() {
            return Err(bad(&problems));
        }
        // As with the loaders, an expert text decides alone.
        Ok(match expert {
            Some(expert) => Some(Placement::Expert(expert)),
            None => (gb > 0.0).then_some(Placement::Virtual { gb, donors }),
        })
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
