//! Hooks: weight changes that belong to a conditioning, and the keyframes that schedule their strength.

mod create;
pub mod keyframes;
mod weights;

use std::sync::Arc;

use fresco_graph::{
    Args, Cx, Form, FromValue, Input, Node, NodeEntry, NodeOutput, NodeResult, NodeRow, Opaque,
    Output, Schema, Value, entry, row, wrong_kind,
};

pub use keyframes::{HookKeyframe, HookKeyframes};
pub use weights::HookWeights;
pub(crate) use weights::HookedNetwork;

pub static NODES: &[NodeEntry] = &[
    row(&create::LORA),
    row(&create::LORA_MODEL_ONLY),
    row(&create::CHECKPOINT),
    row(&create::CHECKPOINT_MODEL_ONLY),
    entry::<create::SetClipHooks>(),
    entry::<SetHookKeyframes>(),
    entry::<keyframes::CreateHookKeyframe>(),
    entry::<keyframes::CreateHookKeyframesInterpolated>(),
    entry::<keyframes::CreateHookKeyframesFromFloats>(),
    row(&COMBINE_2),
    row(&COMBINE_4),
    row(&COMBINE_8),
];

/// One weight change with its strengths.
#[derive(Clone)]
pub struct Hook {
    /// What the hook is, however often it was copied: equal identities are the same hook.
    pub identity: Arc<()>,
    pub strength_model: f64,
    pub strength_clip: f64,
    pub keyframes: HookKeyframes,
    /// None for a hook that changes nothing.
    pub weights: Option<HookWeights>,
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hook")
            .field("strength_model", &self.strength_model)
            .field("strength_clip", &self.strength_clip)
            .field("keyframes", &self.keyframes)
            .finish_non_exhaustive()
    }
}

impl Hook {
    pub fn new(strength_model: f64, strength_clip: f64) -> Self {
        Self {
            identity: Arc::new(()),
            strength_model,
            strength_clip,
            keyframes: HookKeyframes::default(),
            weights: None,
        }
    }
}

/// HOOKS: hooks in the order they apply, each once.
#[derive(Clone, Debug, Default)]
pub struct Hooks(pub Vec<Hook>);

impl Hooks {
    /// Both groups' hooks; one that is there already is not added again.
    #[must_use]
    pub fn combined(&self, other: &Self) -> Self {
        let mut all = self.clone();
        for hook in &other.0 {
            if !all
                .0
                .iter()
                .any(|h| Arc::ptr_eq(&h.identity, &hook.identity))
            {
                all.0.push(hook.clone());
            }
        }
        all
    }

    /// Whether both have the same hooks in the same order.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|(a, b)| Arc::ptr_eq(&a.identity, &b.identity) && a.keyframes == b.keyframes)
    }

    fn combine(groups: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        groups
            .into_iter()
            .flatten()
            .reduce(|all, group| all.combined(&group))
    }
}

impl Opaque for Hooks {
    fn describe(&self) -> String {
        format!("{} hooks", self.0.len())
    }
}

impl FromValue for Hooks {
    const IO: &'static str = "HOOKS";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<Hooks> for Value {
    fn from(v: Hooks) -> Self {
        Self::object(v)
    }
}

/// Schedules the strength of hooks.
#[derive(Node)]
#[node(
    id = "SetHookKeyframes",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Set Hook Keyframes",
    category = "advanced/hooks/scheduling",
    outputs("HOOKS"),
    experimental
)]
pub struct SetHookKeyframes {
    /// The hooks to schedule.
    hooks: Hooks,
    /// The strengths and when they begin.
    #[input(optional)]
    hook_kf: Option<HookKeyframes>,
}

impl Node for SetHookKeyframes {
    fn run(mut self, _: &Cx) -> NodeResult {
        if let Some(keyframes) = self.hook_kf {
            for hook in &mut self.hooks.0 {
                hook.keyframes = keyframes.clone();
            }
        }
        Ok(NodeOutput::one(self.hooks))
    }
}

/// Joins as many groups of hooks as it has inputs.
struct CombineHooks {
    id: &'static str,
    display: &'static str,
    about: &'static str,
    inputs: &'static [&'static str],
}

impl NodeRow for CombineHooks {
    fn schema(&self) -> Schema {
        let mut schema = Schema::new(self.id, Form::V1)
            .module("comfy_extras.nodes_hooks")
            .display_name(self.display)
            .category("advanced/hooks/combine")
            .description(self.about)
            .output(Output::new(Hooks::IO));
        schema.experimental = true;
        self.inputs.iter().fold(schema, |schema, name| {
            let input = Input::new(name, Hooks::IO).optional();
            schema.input(input.tooltip("A group of hooks; it may stay empty."))
        })
    }

    fn run(&self, mut args: Args, _: &Cx) -> NodeResult {
        let groups = self.inputs.iter().map(|name| args.take(name));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        Ok(NodeOutput::one(Hooks::combine(groups)))
    }
}

static COMBINE_2: CombineHooks = CombineHooks {
    id: "CombineHooks2",
    display: "Combine Hooks [2]",
    about: "Joins two groups of hooks.",
    inputs: &["hooks_A", "hooks_B"],
};

static COMBINE_4: CombineHooks = CombineHooks {
    id: "CombineHooks4",
    display: "Combine Hooks [4]",
    about: "Joins up to four groups of hooks.",
    inputs: &["hooks_A", "hooks_B", "hooks_C", "hooks_D"],
};

static COMBINE_8: CombineHooks = CombineHooks {
    id: "CombineHooks8",
    display: "Combine Hooks [8]",
    about: "Joins up to eight groups of hooks.",
    inputs: &[
        "hooks_A", "hooks_B", "hooks_C", "hooks_D", "hooks_E", "hooks_F", "hooks_G", "hooks_H",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_that_is_there_is_not_added_again() {
        let a = Hooks(vec![Hook::new(1.0, 0.5)]);
        let b = Hooks(vec![Hook::new(1.0, 0.5)]);
        assert_eq!(a.combined(&a).0.len(), 1);
        assert_eq!(a.combined(&b).combined(&a).0.len(), 2);
        assert!(Hooks::combine([None, None]).is_none());
    }
}
