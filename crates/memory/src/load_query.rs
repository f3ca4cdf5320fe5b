//! A load that somebody asks about, with names and texts as people give them, before it is held against the models and devices
//! that there are.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    DeviceTotal, EjectOthers, LoadModel, LoadRequest, ModelRegistry, Need, Placement, Refusal,
    Unit, parse_expert,
};

/// More virtual memory than this cannot be meant.
const MOST_VIRTUAL_GB: f64 = 1e6;

/// What a load is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadSubject {
    /// A model that is there, by its id.
    Weights(String),
    /// One that is described.
    Units(Arc<[Unit]>),
}

/// A load that is only thought of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadQuery {
    pub subject: LoadSubject,
    /// Devices with their memory instead of the real ones.
    pub devices: Option<Vec<DeviceTotal>>,
    /// None: the primary one.
    pub compute_device: Option<String>,
    pub virtual_vram_gb: Option<f64>,
    /// Names with commas between.
    pub donor_device: Option<String>,
    /// As users write it.
    pub expert: Option<String>,
    pub eject_models: bool,
    pub text_encoder: bool,
    /// Bytes for computing beside the weights.
    pub required: u64,
}

impl LoadQuery {
    pub(crate) fn weights_id(&self) -> Option<&str> {
        match &self.subject {
            LoadSubject::Weights(id) => Some(id),
            LoadSubject::Units(_) => None,
        }
    }

    /// With the models and devices that there are.
    pub(crate) fn resolve(&self, registry: &ModelRegistry) -> Result<LoadRequest, Refusal> {
        let totals = match &self.devices {
            Some(devices) => devices.clone(),
            None => registry.totals(),
        };
        let compute = self.compute_device.clone().unwrap_or_else(|| {
            let first = totals.iter().find(|d| d.name != "cpu");
            first.map_or_else(|| "cpu".to_owned(), |d| d.name.clone())
        });
        let (name, weights, units) = match &self.subject {
            LoadSubject::Weights(id) => {
                let (report, _) = registry.model(id).ok_or(Refusal::Unknown)?;
                let name = report.weights.to_string();
                (name, Some(report.weights), Arc::default())
            }
            LoadSubject::Units(units) => ("model".to_owned(), None, Arc::clone(units)),
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
            devices: self.devices.clone(),
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
    ) -> Result<Option<Placement>, Refusal> {
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
            problems.push(format!("unknown device {name:?}; there are {names}"));
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
            return Err(Refusal::Invalid(problems));
        }
        // As with the loaders, an expert text decides alone.
        Ok(match expert {
            Some(expert) => Some(Placement::Expert(expert)),
            None => (gb > 0.0).then_some(Placement::Virtual { gb, donors }),
        })
    }
}
