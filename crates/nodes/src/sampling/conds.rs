//! CONDITIONING as the model room takes it.

use std::sync::Arc;

use fresco_graph::{Cx, Map, NodeError, Value, wrong_kind};
use fresco_models::denoise::hooks::ControlFeatures;
use fresco_models::denoise::{
    Area, CallConds, Cond, CondHooks, ControlSource, Predict, Region, SeenPicture,
};
use fresco_models::{ModelError, ModelSampling, WeightStore};
use fresco_tensor::Tensor;

use super::Model;
use super::run::failure;
use crate::control::{Control, SteeredRun, steer};
use crate::gligen::TextBoxes;
use crate::hooks::{HookedNetwork, Hooks};
use crate::resident::{Asker, InUse};
use crate::types::{self, Conditioning, as_tensor};
use crate::vision::VisionOutput;

/// Keys that are read by name; all other tensors, lists of them, numbers and words go to the model as they are.
const READ: [&str; 18] = [
    "area",
    "strength",
    "mask",
    "mask_strength",
    "set_area_to_bounds",
    "start_percent",
    "end_percent",
    "clip_start_percent",
    "clip_end_percent",
    "control",
    "control_apply_to_uncond",
    "gligen",
    "default",
    "prompt_type",
    "pooled_output",
    "hooks",
    "model_conds",
    "unclip_conditioning",
];

fn wrong(key: &str, wanted: &str, value: &Value) -> NodeError {
    NodeError::type_error(format!("conditioning {key}: {}", wrong_kind(wanted, value)))
}

fn number(options: &Map, key: &str) -> Result<Option<f64>, NodeError> {
    match options.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => v
            .as_f64()
            .map(Some)
            .ok_or_else(|| wrong(key, "a number", v)),
    }
}

fn tensor(options: &Map, key: &str) -> Result<Option<Tensor>, NodeError> {
    match options.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => as_tensor(v)
            .cloned()
            .map(Some)
            .ok_or_else(|| wrong(key, "a tensor", v)),
    }
}

fn area(value: &Value) -> Result<Area, NodeError> {
    let bad = || wrong("area", "sizes and offsets", value);
    let list = value.as_list().ok_or_else(bad)?;
    if let Some((Value::Str(kind), parts)) = list.split_first() {
        let parts: Option<Vec<f64>> = parts.iter().map(Value::as_f64).collect();
        return match parts {
            Some(parts) if &**kind == "percentage" && parts.len() % 2 == 0 => {
                Ok(Area::Parts(parts))
            }
            _ => Err(bad()),
        };
    }
    let cells: Option<Vec<usize>> = list
        .iter()
        .map(|v| v.as_int().and_then(|n| usize::try_from(n).ok()))
        .collect();
    let cells = cells.filter(|c| c.len() % 2 == 0).ok_or_else(bad)?;
    let (size, offset) = cells.split_at(cells.len() / 2);
    Ok(Area::Cells(Region {
        size: size.to_vec(),
        offset: offset.to_vec(),
    }))
}

/// A control net of a conditioning. The network behind it says what it adds.
struct Steering {
    control: Control,
    /// How the model of the run is sampled; none outside a run.
    sampling: Option<Arc<ModelSampling>>,
    /// The model's weights, where it keeps them by key.
    weights: Option<Arc<WeightStore>>,
    cx: Option<Cx>,
    /// The models of the run.
    in_use: Option<Arc<InUse>>,
}

impl ControlSource for Steering {
    fn features(
        &self,
        x: &Tensor,
        sigma: f32,
        conds: &CallConds,
        chunks: usize,
    ) -> Result<Option<ControlFeatures>, ModelError> {
        let sampling = self
            .sampling
            .as_ref()
            .ok_or_else(|| ModelError::invalid("control net", "there is no run to steer"))?;
        let run = SteeredRun {
            sampling,
            weights: self.weights.as_ref(),
            cx: self.cx.as_ref(),
        };
        let pass = || steer(&self.control, &run, x, sigma, conds, chunks);
        match &self.in_use {
            Some(in_use) => in_use.run(pass),
            None => pass(),
        }
    }
}

/// Turns CONDITIONING values into conditions. Equal control nets become one object, so that their conditions share
/// passes.
#[derive(Default)]
pub struct Reader<'a> {
    controls: Vec<(Value, Arc<dyn ControlSource>)>,
    run: Option<Run<'a>>,
    hooked: Vec<(Hooks, Network)>,
    boxed: Vec<(Value, Arc<dyn CondHooks>)>,
}

/// What vision networks saw.
fn seen(value: &Value) -> Result<Vec<SeenPicture>, NodeError> {
    let bad = || wrong("unclip_conditioning", "what a vision network saw", value);
    let list = value.as_list().ok_or_else(bad)?;
    list.iter()
        .map(|one| {
            let one = one.as_map().ok_or_else(bad)?;
            let output = one.get("clip_vision_output").ok_or_else(bad)?;
            let output = output.downcast::<VisionOutput>().ok_or_else(bad)?;
            Ok(SeenPicture {
                embeds: output.tensor("image_embeds")?.clone(),
                strength: number(one, "strength")?.unwrap_or(1.0),
                noise: number(one, "noise_augmentation")?.unwrap_or(0.0),
            })
        })
        .collect()
}

/// The run that conditions are for.
struct Run<'a> {
    model: &'a Model,
    /// The noise level it begins at, for hooks.
    first: f32,
    in_use: Option<Arc<InUse>>,
    asker: Asker,
    cx: Cx,
}

/// A network of a condition's own; none if its hooks change nothing.
type Network = Option<Arc<dyn Predict + Send + Sync>>;

impl<'a> Reader<'a> {
    /// For conditions that are sampled with a model from a noise level on.
    pub(crate) fn for_run(
        model: &'a Model,
        first: f32,
        in_use: Option<Arc<InUse>>,
        cx: &Cx,
    ) -> Self {
        Self {
            run: Some(Run {
                model,
                first,
                in_use,
                asker: Asker::of(cx),
                cx: cx.clone(),
            }),
            ..Self::default()
        }
    }

    /// The network with the weights of hooks. Equal groups of hooks share one, so that their conditions share passes.
    fn network(&mut self, value: &Value) -> Result<Network, NodeError> {
        let hooks = value
            .downcast::<Hooks>()
            .ok_or_else(|| wrong("hooks", "HOOKS", value))?;
        if let Some((_, known)) = self.hooked.iter().find(|(h, _)| h.same(hooks)) {
            return Ok(known.clone());
        }
        let network: Network = match &self.run {
            None => None,
            Some(run) => HookedNetwork::new(run.model, hooks, run.first, run.asker.clone())?
                .map(|n| Arc::new(n) as Arc<dyn Predict + Send + Sync>),
        };
        self.hooked.push((hooks.clone(), network.clone()));
        Ok(network)
    }

    pub fn read(&mut self, list: &Conditioning) -> Result<Vec<Cond>, NodeError> {
        list.0.iter().map(|c| self.cond(c)).collect()
    }

    fn control(&mut self, value: &Value) -> Result<Arc<dyn ControlSource>, NodeError> {
        if let Some((_, known)) = self.controls.iter().find(|(v, _)| v.same(value)) {
            return Ok(known.clone());
        }
        let control = value
            .downcast::<Control>()
            .ok_or_else(|| wrong("control", "CONTROL_NET", value))?;
        let source: Arc<dyn ControlSource> = Arc::new(Steering {
            control: control.clone(),
            sampling: self.run.as_ref().map(|run| run.model.sampling.clone()),
            weights: match &self.run {
                Some(run) => {
                    let ready = run.model.ready().map_err(failure)?;
                    ready.network.store().cloned()
                }
                None => None,
            },
            cx: self.run.as_ref().map(|run| run.cx.clone()),
            in_use: self.run.as_ref().and_then(|run| run.in_use.clone()),
        });
        self.controls.push((value.clone(), source.clone()));
        Ok(source)
    }

    /// Boxes with words. Equal ones become one object.
    fn boxes(&mut self, value: &Value) -> Result<Arc<dyn CondHooks>, NodeError> {
        if let Some((_, known)) = self.boxed.iter().find(|(v, _)| v.same(value)) {
            return Ok(known.clone());
        }
        let boxes = value
            .downcast::<TextBoxes>()
            .ok_or_else(|| wrong("gligen", "boxes with text", value))?;
        let in_use = self.run.as_ref().and_then(|run| run.in_use.clone());
        let hooks = boxes.hooks(in_use);
        self.boxed.push((value.clone(), hooks.clone()));
        Ok(hooks)
    }

    fn cond(&mut self, entry: &types::Cond) -> Result<Cond, NodeError> {
        let options = &entry.options;
        let truthy = |key: &str| options.get(key).is_some_and(Value::truthy);
        let mut cond = Cond {
            tokens: if entry.tokens.is_null() {
                None
            } else {
                Some(entry.tensor()?.clone())
            },
            pooled: tensor(options, "pooled_output")?,
            area: match options.get("area") {
                None | Some(Value::Null) => None,
                Some(v) => Some(area(v)?),
            },
            strength: number(options, "strength")?.unwrap_or(1.0),
            mask: tensor(options, "mask")?,
            mask_strength: number(options, "mask_strength")?.unwrap_or(1.0),
            area_of_mask: truthy("set_area_to_bounds"),
            start_percent: number(options, "start_percent")?,
            end_percent: number(options, "end_percent")?,
            control_to_uncond: truthy("control_apply_to_uncond"),
            is_default: options.contains_key("default"),
            prompt_type: options
                .get("prompt_type")
                .and_then(Value::as_str)
                .map(Into::into),
            ..Cond::default()
        };
        if let Some(start) = number(options, "clip_start_percent")? {
            let end = number(options, "clip_end_percent")?.unwrap_or(1.0);
            cond.text_percent = Some((start, end));
        }
        if let Some(control) = options.get("control").filter(|v| !v.is_null()) {
            cond.control = Some(self.control(control)?);
        }
        if let Some(hooks) = options.get("hooks").filter(|v| !v.is_null()) {
            cond.network = self.network(hooks)?;
        }
        if let Some(boxes) = options.get("gligen").filter(|v| v.truthy()) {
            cond.hooks = Some(self.boxes(boxes)?);
        }
        if let Some(list) = options.get("unclip_conditioning").filter(|v| !v.is_null()) {
            cond.seen = seen(list)?;
        }
        for (key, value) in options.iter().filter(|(k, _)| !READ.contains(&&***k)) {
            if value.is_null() {
                cond.nulls.insert(key.clone());
            } else if let Some(t) = as_tensor(value) {
                cond.tensors.insert(key.clone(), t.clone());
            } else if let (Value::Int(_) | Value::Float(_), Some(n)) = (value, value.as_f64()) {
                cond.numbers.insert(key.clone(), n);
            } else if let Some(seen) = value.downcast::<VisionOutput>() {
                // What a vision network saw goes along under the names of its parts.
                for (part, value) in seen.0.iter() {
                    if let Some(t) = as_tensor(value) {
                        cond.tensors
                            .insert(format!("{key}.{part}").into(), t.clone());
                    }
                }
            } else if let Some(word) = value.as_str() {
                cond.words.insert(key.clone(), word.into());
            } else if let Value::List(items) = value {
                let tensors: Option<Vec<Tensor>> =
                    items.iter().map(|v| as_tensor(v).cloned()).collect();
                let numbers: Option<Vec<f32>> =
                    items.iter().map(|v| v.as_f64().map(|n| n as f32)).collect();
                if let Some(tensors) = tensors.filter(|list| !list.is_empty()) {
                    cond.lists.insert(key.clone(), tensors);
                } else if let Some(numbers) = numbers {
                    cond.tensors
                        .insert(key.clone(), Tensor::from_slice(&numbers));
                }
            }
        }
        Ok(cond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_graph::map;

    fn read(options: Map) -> Result<Cond, NodeError> {
        let tokens = types::tensor(Tensor::zeros([1, 2, 4]).unwrap());
        let list = Conditioning(vec![types::Cond { tokens, options }]);
        Reader::default().read(&list).map(|mut l| l.remove(0))
    }

    #[test]
    fn options_are_read() {
        let mask = types::tensor(Tensor::ones([1, 4, 4]).unwrap());
        let cond = read(map! {
            "area" => vec![4, 6, 1, 2], "strength" => 0.5, "mask" => mask, "set_area_to_bounds" => true,
            "start_percent" => 0.25, "width" => 512, "note" => "kept out",
        })
        .unwrap();
        let region = Region {
            size: vec![4, 6],
            offset: vec![1, 2],
        };
        assert_eq!(cond.area, Some(Area::Cells(region)));
        assert_eq!((cond.strength, cond.mask_strength), (0.5, 1.0));
        assert!(cond.area_of_mask && cond.mask.is_some());
        assert_eq!(cond.numbers.get("width"), Some(&512.0));
        let parts: Vec<Value> = vec!["percentage".into(), 0.5.into(), 1.0.into()];
        let cond = read(map! {"area" => parts}).unwrap();
        assert_eq!(cond.area, Some(Area::Parts(vec![0.5, 1.0])));
    }

    #[test]
    fn odd_options_are_errors() {
        for bad in [
            map! {"area" => vec![4, 6, 1]},
            map! {"area" => vec![-4, 6, 1, 1]},
            map! {"area" => "all"},
            map! {"area" => vec![Value::from("percentage"), Value::from("x")]},
            map! {"strength" => "strong"},
            map! {"mask" => 3},
            map! {"control" => 3},
            map! {"pooled_output" => "x"},
        ] {
            assert!(read(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
