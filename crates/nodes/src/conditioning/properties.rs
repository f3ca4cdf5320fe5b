//! Masks, hooks and time ranges set in one go, on one conditioning or on a positive and negative pair.

use fresco_graph::{
    Cx, FromValue, Node, NodeError, NodeOutput, NodeResult, Output, Value, wrong_kind,
};

use super::{joined, pair, set_mask};
use crate::hooks::Hooks;
use crate::types::{Conditioning, Mask};

/// TIMESTEPS_RANGE: from and to, in parts of sampling.
#[derive(Clone, Copy, Debug)]
pub struct TimestepsRange(f64, f64);

impl FromValue for TimestepsRange {
    const IO: &'static str = "TIMESTEPS_RANGE";
    fn from_value(value: Value) -> Result<Self, String> {
        match value.as_list() {
            Some([start, end]) => Ok(Self(
                f64::from_value(start.clone())?,
                f64::from_value(end.clone())?,
            )),
            _ => Err(wrong_kind("a range of two numbers", &value)),
        }
    }
}

impl From<TimestepsRange> for Value {
    fn from(v: TimestepsRange) -> Self {
        Self::from([v.0, v.1])
    }
}

/// What the nodes of this file set.
struct Properties {
    strength: f64,
    set_cond_area: String,
    mask: Option<Mask>,
    hooks: Option<Hooks>,
    timesteps: Option<TimestepsRange>,
}

impl Properties {
    fn set_on(&self, conditioning: Conditioning) -> Result<Conditioning, NodeError> {
        let mut out = set_hooks(conditioning, self.hooks.as_ref());
        if let Some(mask) = &self.mask {
            out = set_mask(out, mask.0.clone(), self.strength, &self.set_cond_area)?;
        }
        if let Some(TimestepsRange(start, end)) = self.timesteps {
            out = out.set("start_percent", start).set("end_percent", end);
        }
        Ok(out)
    }
}

/// Adds hooks to those an entry has.
fn set_hooks(mut conditioning: Conditioning, hooks: Option<&Hooks>) -> Conditioning {
    if let Some(hooks) = hooks {
        for cond in &mut conditioning.0 {
            let all = match cond.options.get("hooks").and_then(Value::downcast::<Hooks>) {
                Some(there) => there.combined(hooks),
                None => hooks.clone(),
            };
            cond.options.insert("hooks".into(), all.into());
        }
    }
    conditioning
}

/// Marks a conditioning as what counts where no other does.
fn as_default(conditioning: Conditioning, hooks: Option<&Hooks>) -> Conditioning {
    set_hooks(conditioning, hooks).set("default", true)
}

macro_rules! properties {
    ($node:expr) => {
        Properties {
            strength: $node.strength,
            set_cond_area: $node.set_cond_area,
            mask: $node.mask,
            hooks: $node.hooks,
            timesteps: $node.timesteps,
        }
    };
}

/// Sets mask, hooks and time range of a conditioning.
#[derive(Node)]
#[node(
    id = "ConditioningSetProperties",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Cond Set Props",
    category = "advanced/hooks/cond single",
    outputs("CONDITIONING"),
    experimental
)]
pub struct ConditioningSetProperties {
    /// The prompt whose properties are set.
    #[input(name = "cond_NEW")]
    new: Conditioning,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(choices = ["default", "mask bounds"])]
    set_cond_area: String,
    #[input(optional)]
    mask: Option<Mask>,
    #[input(optional)]
    hooks: Option<Hooks>,
    #[input(optional)]
    timesteps: Option<TimestepsRange>,
}

impl Node for ConditioningSetProperties {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(properties!(self).set_on(self.new)?))
    }
}

/// Sets mask, hooks and time range of a conditioning and adds it to another.
#[derive(Node)]
#[node(
    id = "ConditioningSetPropertiesAndCombine",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Cond Set Props Combine",
    category = "advanced/hooks/cond single",
    outputs("CONDITIONING"),
    experimental
)]
pub struct ConditioningSetPropertiesAndCombine {
    /// The prompt that the new one is added to.
    cond: Conditioning,
    /// The prompt whose properties are set.
    #[input(name = "cond_NEW")]
    new: Conditioning,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(choices = ["default", "mask bounds"])]
    set_cond_area: String,
    #[input(optional)]
    mask: Option<Mask>,
    #[input(optional)]
    hooks: Option<Hooks>,
    #[input(optional)]
    timesteps: Option<TimestepsRange>,
}

impl Node for ConditioningSetPropertiesAndCombine {
    fn run(self, _: &Cx) -> NodeResult {
        let new = properties!(self).set_on(self.new)?;
        Ok(NodeOutput::one(joined(self.cond, new)))
    }
}

/// Sets mask, hooks and time range of a positive and a negative conditioning.
#[derive(Node)]
#[node(id = "PairConditioningSetProperties", v1, module = "comfy_extras.nodes_hooks", display = "Cond Pair Set Props", category = "advanced/hooks/cond pair", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")), experimental)]
pub struct PairConditioningSetProperties {
    /// The prompt whose properties are set.
    #[input(name = "positive_NEW")]
    positive: Conditioning,
    /// The negative prompt whose properties are set.
    #[input(name = "negative_NEW")]
    negative: Conditioning,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(choices = ["default", "mask bounds"])]
    set_cond_area: String,
    #[input(optional)]
    mask: Option<Mask>,
    #[input(optional)]
    hooks: Option<Hooks>,
    #[input(optional)]
    timesteps: Option<TimestepsRange>,
}

impl Node for PairConditioningSetProperties {
    fn run(self, _: &Cx) -> NodeResult {
        let properties = properties!(self);
        Ok(pair(
            properties.set_on(self.positive)?,
            properties.set_on(self.negative)?,
        ))
    }
}

/// Sets mask, hooks and time range of a conditioning pair and adds it to another pair.
#[derive(Node)]
#[node(id = "PairConditioningSetPropertiesAndCombine", v1, module = "comfy_extras.nodes_hooks", display = "Cond Pair Set Props Combine", category = "advanced/hooks/cond pair", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")), experimental)]
pub struct PairConditioningSetPropertiesAndCombine {
    positive: Conditioning,
    negative: Conditioning,
    /// The prompt whose properties are set.
    #[input(name = "positive_NEW")]
    new_positive: Conditioning,
    /// The negative prompt whose properties are set.
    #[input(name = "negative_NEW")]
    new_negative: Conditioning,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(choices = ["default", "mask bounds"])]
    set_cond_area: String,
    #[input(optional)]
    mask: Option<Mask>,
    #[input(optional)]
    hooks: Option<Hooks>,
    #[input(optional)]
    timesteps: Option<TimestepsRange>,
}

impl Node for PairConditioningSetPropertiesAndCombine {
    fn run(self, _: &Cx) -> NodeResult {
        let properties = properties!(self);
        Ok(pair(
            joined(self.positive, properties.set_on(self.new_positive)?),
            joined(self.negative, properties.set_on(self.new_negative)?),
        ))
    }
}

/// Adds a conditioning that counts where no other does.
#[derive(Node)]
#[node(
    id = "ConditioningSetDefaultCombine",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Cond Set Default Combine",
    category = "advanced/hooks/cond single",
    outputs("CONDITIONING"),
    experimental
)]
pub struct ConditioningSetDefaultCombine {
    /// The prompt for parts of the picture.
    cond: Conditioning,
    /// The prompt for all that no other covers.
    #[input(name = "cond_DEFAULT")]
    fallback: Conditioning,
    /// Changes of weights that act with the default prompt.
    #[input(optional)]
    hooks: Option<Hooks>,
}

impl Node for ConditioningSetDefaultCombine {
    fn run(self, _: &Cx) -> NodeResult {
        let fallback = as_default(self.fallback, self.hooks.as_ref());
        Ok(NodeOutput::one(joined(self.cond, fallback)))
    }
}

/// Adds a conditioning pair that counts where no other does.
#[derive(Node)]
#[node(id = "PairConditioningSetDefaultCombine", v1, module = "comfy_extras.nodes_hooks", display = "Cond Pair Set Default Combine", category = "advanced/hooks/cond pair", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")), experimental)]
pub struct PairConditioningSetDefaultCombine {
    positive: Conditioning,
    negative: Conditioning,
    /// The prompt for all that no other covers.
    #[input(name = "positive_DEFAULT")]
    fallback_positive: Conditioning,
    /// The negative prompt for all that no other covers.
    #[input(name = "negative_DEFAULT")]
    fallback_negative: Conditioning,
    /// Changes of weights that act with the default prompts.
    #[input(optional)]
    hooks: Option<Hooks>,
}

impl Node for PairConditioningSetDefaultCombine {
    fn run(self, _: &Cx) -> NodeResult {
        let hooks = self.hooks.as_ref();
        Ok(pair(
            joined(self.positive, as_default(self.fallback_positive, hooks)),
            joined(self.negative, as_default(self.fallback_negative, hooks)),
        ))
    }
}

/// Joins two pairs of conditionings.
#[derive(Node)]
#[node(id = "PairConditioningCombine", v1, module = "comfy_extras.nodes_hooks", display = "Cond Pair Combine", category = "advanced/hooks/cond pair", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")), experimental)]
pub struct PairConditioningCombine {
    /// The prompt of the first pair.
    #[input(name = "positive_A")]
    first_positive: Conditioning,
    /// The negative prompt of the first pair.
    #[input(name = "negative_A")]
    first_negative: Conditioning,
    /// The prompt of the second pair.
    #[input(name = "positive_B")]
    second_positive: Conditioning,
    /// The negative prompt of the second pair.
    #[input(name = "negative_B")]
    second_negative: Conditioning,
}

impl Node for PairConditioningCombine {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(pair(
            joined(self.first_positive, self.second_positive),
            joined(self.first_negative, self.second_negative),
        ))
    }
}

/// A part of sampling, and the parts before and after it.
#[derive(Node)]
#[node(id = "ConditioningTimestepsRange", v1, module = "comfy_extras.nodes_hooks", display = "Timesteps Range", category = "advanced/hooks", outputs("TIMESTEPS_RANGE", Output::new("TIMESTEPS_RANGE").named("BEFORE_RANGE"), Output::new("TIMESTEPS_RANGE").named("AFTER_RANGE")), experimental)]
pub struct ConditioningTimestepsRange {
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
}

impl Node for ConditioningTimestepsRange {
    fn run(self, _: &Cx) -> NodeResult {
        let (start, end) = (self.start_percent, self.end_percent);
        Ok(NodeOutput::slots(vec![
            TimestepsRange(start, end).into(),
            TimestepsRange(0.0, start).into(),
            TimestepsRange(end, 1.0).into(),
        ]))
    }
}
