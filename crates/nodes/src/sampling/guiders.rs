//! GUIDER: which prompts a model is guided by, and how.

use fresco_graph::{
    Cx, FromValue, Map, Node, NodeError, NodeOutput, NodeResult, Opaque, Value, wrong_kind,
};
use fresco_models::denoise::Guidance;

use super::Model;
use super::own::{OWN_LISTS, OwnGuider};
use super::run::{Guided, NegativeModel};
use crate::types::Conditioning;

/// GUIDER.
#[derive(Clone)]
pub struct Guider(pub Guided);

impl Opaque for Guider {
    fn describe(&self) -> String {
        format!("guider of {}", self.0.model.base.name())
    }
}

impl FromValue for Guider {
    const IO: &'static str = "GUIDER";
    fn from_value(value: Value) -> Result<Self, String> {
        // A guider of a pack says what it is as one of ours.
        if let Value::Object(object) = &value
            && let Some(callback) = object.callback()
        {
            let nothing = &mut |_: &str, _: Vec<Value>| Ok(Value::Null);
            let native = callback.call("fresco_native", Vec::new(), nothing);
            let native = native.map_err(|error| error.message().to_owned())?;
            if let Value::Map(parts) = &native {
                return own(parts, value);
            }
            return native
                .downcast::<Self>()
                .cloned()
                .ok_or_else(|| wrong_kind(Self::IO, &native));
        }
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

/// A guider of a pack that joins predictions itself: its model and what it is guided by.
fn own(parts: &Map, guider: Value) -> Result<Guider, String> {
    let part = |key: &str| parts.get(key).cloned().unwrap_or_default();
    let Value::List(given) = part("lists") else {
        return Err("the guider of a pack has no conditionings".to_owned());
    };
    if given.len() > OWN_LISTS.len() {
        return Err(format!(
            "the guider of a pack has {} conditionings; {} can be",
            given.len(),
            OWN_LISTS.len()
        ));
    }
    let mut lists = Vec::new();
    for (name, list) in OWN_LISTS.into_iter().zip(given.iter()) {
        lists.push((name, Conditioning::from_value(list.clone())?));
    }
    Ok(Guider(Guided {
        model: Model::from_value(part("model"))?,
        guidance: Guidance::Cfg { cfg: 1.0 },
        lists,
        negative: None,
        own: Some(OwnGuider {
            guider,
            loops: part("loops").as_bool() == Some(true),
        }),
    }))
}

impl From<Guider> for Value {
    fn from(v: Guider) -> Self {
        Self::object(v)
    }
}

fn guider_output(
    model: Model,
    guidance: Guidance,
    lists: Vec<(&'static str, Conditioning)>,
) -> NodeResult {
    Ok(NodeOutput::one(Guider(Guided {
        model,
        guidance,
        lists,
        negative: None,
        own: None,
    })))
}

/// Follows one prompt, without guidance.
#[derive(Node)]
#[node(
    id = "BasicGuider",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/guiders",
    outputs("GUIDER")
)]
pub struct BasicGuider {
    model: Model,
    conditioning: Conditioning,
}

impl Node for BasicGuider {
    fn run(self, _: &Cx) -> NodeResult {
        guider_output(
            self.model,
            Guidance::Cfg { cfg: 1.0 },
            vec![("positive", self.conditioning)],
        )
    }
}

/// Guides towards one prompt and away from another.
#[derive(Node)]
#[node(
    id = "CFGGuider",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/guiders",
    outputs("GUIDER")
)]
pub struct CFGGuider {
    model: Model,
    positive: Conditioning,
    negative: Conditioning,
    #[input(default = 8.0, min = 0.0, max = 100.0, step = 0.1, round = 0.01)]
    cfg: f64,
}

impl Node for CFGGuider {
    fn run(self, _: &Cx) -> NodeResult {
        guider_output(
            self.model,
            Guidance::Cfg { cfg: self.cfg },
            vec![("positive", self.positive), ("negative", self.negative)],
        )
    }
}

/// Guides with two models: one follows the prompt, the other is what it is guided away from.
#[derive(Node)]
#[node(
    id = "DualModelGuider",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    display = "Dual Model CFG Guider",
    category = "sampling/custom_sampling/guiders",
    outputs("GUIDER")
)]
pub struct DualModelGuider {
    model: Model,
    positive: Conditioning,
    #[input(default = 4.0, min = 0.0, max = 100.0, step = 0.1)]
    cfg: f64,
    /// The model for the negative prompt; without one the first model does both.
    #[input(optional)]
    model_negative: Option<Model>,
    #[input(optional)]
    negative: Option<Conditioning>,
}

impl Node for DualModelGuider {
    fn run(self, _: &Cx) -> NodeResult {
        let Some(negative) = self.negative else {
            return Err(NodeError::value_error(
                "the guider of two models needs a negative conditioning: connect an empty prompt, or the positive one through \
                 ConditioningZeroOut",
            ));
        };
        let guidance = Guidance::Cfg { cfg: self.cfg };
        let Some(second) = self.model_negative else {
            let lists = vec![("positive", self.positive), ("negative", negative)];
            return guider_output(self.model, guidance, lists);
        };
        Ok(NodeOutput::one(Guider(Guided {
            model: self.model,
            guidance,
            lists: vec![("positive", self.positive)],
            negative: Some(Box::new(NegativeModel {
                model: second,
                conditioning: negative,
            })),
            own: None,
        })))
    }
}

/// Guides from a negative prompt to a second one, and from there to the first.
#[derive(Node)]
#[node(
    id = "DualCFGGuider",
    v3,
    module = "comfy_extras.nodes_custom_sampler",
    category = "sampling/custom_sampling/guiders",
    outputs("GUIDER")
)]
pub struct DualCFGGuider {
    model: Model,
    /// The prompt that is guided to last.
    cond1: Conditioning,
    /// The prompt that is guided to first.
    cond2: Conditioning,
    negative: Conditioning,
    /// How strongly to guide from the second prompt to the first.
    #[input(default = 8.0, min = 0.0, max = 100.0, step = 0.1, round = 0.01)]
    cfg_conds: f64,
    /// How strongly to guide from the negative prompt to the second.
    #[input(default = 8.0, min = 0.0, max = 100.0, step = 0.1, round = 0.01)]
    cfg_cond2_negative: f64,
    /// regular adds both guidances; nested guides from the result of one.
    #[input(choices = ["regular", "nested"])]
    style: String,
}

impl Node for DualCFGGuider {
    fn run(self, _: &Cx) -> NodeResult {
        let guidance = Guidance::Dual {
            cfg_conds: self.cfg_conds,
            cfg_negative: self.cfg_cond2_negative,
            nested: self.style == "nested",
        };
        let lists = vec![
            ("positive", self.cond1),
            ("middle", self.cond2.set("prompt_type", "negative")),
            ("negative", self.negative),
        ];
        guider_output(self.model, guidance, lists)
    }
}

/// Guides towards a prompt and away from that part of a negative one which the prompt does not want as well.
#[derive(Node)]
#[node(
    id = "PerpNegGuider",
    v3,
    module = "comfy_extras.nodes_perpneg",
    category = "_for_testing",
    outputs("GUIDER"),
    experimental
)]
pub struct PerpNegGuider {
    model: Model,
    positive: Conditioning,
    negative: Conditioning,
    empty_conditioning: Conditioning,
    #[input(default = 8.0, min = 0.0, max = 100.0, step = 0.1, round = 0.01)]
    cfg: f64,
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01)]
    neg_scale: f64,
}

impl Node for PerpNegGuider {
    fn run(self, _: &Cx) -> NodeResult {
        let guidance = Guidance::PerpNeg {
            cfg: self.cfg,
            neg_scale: self.neg_scale,
        };
        let empty = self.empty_conditioning.set("prompt_type", "negative");
        let lists = vec![
            ("positive", self.positive),
            ("empty_negative_prompt", empty),
            ("negative", self.negative),
        ];
        guider_output(self.model, guidance, lists)
    }
}
