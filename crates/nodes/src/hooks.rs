//! Hooks: weight changes that belong to a conditioning, and the keyframes that schedule their strength.

mod create;
pub mod keyframes;
mod weights;

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeOutput, NodeResult, Opaque, Value, entry, wrong_kind,
};

pub use keyframes::{HookKeyframe, HookKeyframes};
pub use weights::HookWeights;
pub(crate) use weights::HookedNetwork;

pub static NODES: &[NodeEntry] = &[
    entry::<create::CreateHookLora>(),
    entry::<create::CreateHookLoraModelOnly>(),
    entry::<create::CreateHookModelAsLora>(),
    entry::<create::CreateHookModelAsLoraModelOnly>(),
    entry::<create::SetClipHooks>(),
    entry::<SetHookKeyframes>(),
    entry::<keyframes::CreateHookKeyframe>(),
    entry::<keyframes::CreateHookKeyframesInterpolated>(),
    entry::<keyframes::CreateHookKeyframesFromFloats>(),
    entry::<CombineHooks2>(),
    entry::<CombineHooks4>(),
    entry::<CombineHooks8>(),
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
    hooks: Hooks,
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

/// Joins two groups of hooks.
#[derive(Node)]
#[node(
    id = "CombineHooks2",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Combine Hooks [2]",
    category = "advanced/hooks/combine",
    outputs("HOOKS"),
    experimental
)]
pub struct CombineHooks2 {
    #[input(optional, name = "hooks_A")]
    a: Option<Hooks>,
    #[input(optional, name = "hooks_B")]
    b: Option<Hooks>,
}

impl Node for CombineHooks2 {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(Hooks::combine([self.a, self.b])))
    }
}

/// Joins up to four groups of hooks.
#[derive(Node)]
#[node(
    id = "CombineHooks4",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Combine Hooks [4]",
    category = "advanced/hooks/combine",
    outputs("HOOKS"),
    experimental
)]
pub struct CombineHooks4 {
    #[input(optional, name = "hooks_A")]
    a: Option<Hooks>,
    #[input(optional, name = "hooks_B")]
    b: Option<Hooks>,
    #[input(optional, name = "hooks_C")]
    c: Option<Hooks>,
    #[input(optional, name = "hooks_D")]
    d: Option<Hooks>,
}

impl Node for CombineHooks4 {
    fn run(self, _: &Cx) -> NodeResult {
        let groups = [self.a, self.b, self.c, self.d];
        Ok(NodeOutput::one(Hooks::combine(groups)))
    }
}

/// Joins up to eight groups of hooks.
#[derive(Node)]
#[node(
    id = "CombineHooks8",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Combine Hooks [8]",
    category = "advanced/hooks/combine",
    outputs("HOOKS"),
    experimental
)]
pub struct CombineHooks8 {
    #[input(optional, name = "hooks_A")]
    a: Option<Hooks>,
    #[input(optional, name = "hooks_B")]
    b: Option<Hooks>,
    #[input(optional, name = "hooks_C")]
    c: Option<Hooks>,
    #[input(optional, name = "hooks_D")]
    d: Option<Hooks>,
    #[input(optional, name = "hooks_E")]
    e: Option<Hooks>,
    #[input(optional, name = "hooks_F")]
    f: Option<Hooks>,
    #[input(optional, name = "hooks_G")]
    g: Option<Hooks>,
    #[input(optional, name = "hooks_H")]
    h: Option<Hooks>,
}

impl Node for CombineHooks8 {
    fn run(self, _: &Cx) -> NodeResult {
        let groups = [
            self.a, self.b, self.c, self.d, self.e, self.f, self.g, self.h,
        ];
        Ok(NodeOutput::one(Hooks::combine(groups)))
    }
}

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
