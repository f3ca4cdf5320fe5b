//! Nodes that make hooks from files, and the one that puts them onto a text encoder.

use std::sync::Arc;

use fresco_files::folders::Folders;
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::text::TextEncoder;
use fresco_tensor::{Device, open_weights};

use super::{Hook, HookKeyframes, HookWeights, Hooks};
use crate::clip::Clip;
use crate::loaders::families;
use crate::lora::open_lora;
use crate::sampling::model::WEIGHT_PREFIX;

/// The hooks that were there with one more after them. With no strength at all the file is not read.
fn with_hook(
    before: Option<Hooks>,
    strengths: (f64, f64),
    weights: impl FnOnce() -> Result<HookWeights, NodeError>,
) -> NodeResult {
    let before = before.unwrap_or_default();
    if strengths == (0.0, 0.0) {
        return Ok(NodeOutput::one(before));
    }
    let hook = Hook {
        weights: Some(weights()?),
        ..Hook::new(strengths.0, strengths.1)
    };
    Ok(NodeOutput::one(before.combined(&Hooks(vec![hook]))))
}

fn lora(cx: &Cx, name: &str) -> Result<HookWeights, NodeError> {
    Ok(HookWeights::Lora(Arc::new(
        open_lora(cx, name)?.file().clone(),
    )))
}

/// The weights of a checkpoint's model and, if they are wanted, of its text encoder.
fn checkpoint(cx: &Cx, name: &str, with_text: bool) -> Result<HookWeights, NodeError> {
    let folders = cx.resource::<Folders>()?;
    let path = folders
        .require("checkpoints", name)
        .map_err(|e| NodeError::file_not_found(e.to_string()))?;
    let file = open_weights(&path)?;
    let found = families(cx).detect(&file)?;
    let mut stores = vec![(WEIGHT_PREFIX.to_owned(), found.store(&file, Device::cpu()))];
    if let (true, Some(stack)) = (with_text, found.text)
        && let Some(encoder) = TextEncoder::from_checkpoint(&file, stack, &Device::cpu())?
    {
        let each = encoder.stores();
        stores.extend(each.map(|(_, prefix, store)| (prefix, Arc::clone(store))));
    }
    Ok(HookWeights::Checkpoint(stores))
}

/// Makes a hook that changes weights by a LoRA, for the conditionings it is put on.
#[derive(Node)]
#[node(
    id = "CreateHookLora",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Create Hook LoRA",
    category = "advanced/hooks/create",
    outputs("HOOKS"),
    experimental
)]
pub(super) struct CreateHookLora {
    #[input(listed = "models/loras")]
    lora_name: String,
    #[input(default = 1.0, min = -20.0, max = 20.0, step = 0.01)]
    strength_model: f64,
    #[input(default = 1.0, min = -20.0, max = 20.0, step = 0.01)]
    strength_clip: f64,
    #[input(optional)]
    prev_hooks: Option<Hooks>,
}

impl Node for CreateHookLora {
    fn run(self, cx: &Cx) -> NodeResult {
        let strengths = (self.strength_model, self.strength_clip);
        with_hook(self.prev_hooks, strengths, || lora(cx, &self.lora_name))
    }
}

/// Makes a hook that changes the model by a LoRA and leaves text encoders as they are.
#[derive(Node)]
#[node(
    id = "CreateHookLoraModelOnly",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Create Hook LoRA (MO)",
    category = "advanced/hooks/create",
    outputs("HOOKS"),
    experimental
)]
pub(super) struct CreateHookLoraModelOnly {
    #[input(listed = "models/loras")]
    lora_name: String,
    #[input(default = 1.0, min = -20.0, max = 20.0, step = 0.01)]
    strength_model: f64,
    #[input(optional)]
    prev_hooks: Option<Hooks>,
}

impl Node for CreateHookLoraModelOnly {
    fn run(self, cx: &Cx) -> NodeResult {
        let strengths = (self.strength_model, 0.0);
        with_hook(self.prev_hooks, strengths, || lora(cx, &self.lora_name))
    }
}

/// Makes a hook that moves weights towards those of another checkpoint.
#[derive(Node)]
#[node(
    id = "CreateHookModelAsLora",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Create Hook Model as LoRA",
    category = "advanced/hooks/create",
    outputs("HOOKS"),
    experimental
)]
pub(super) struct CreateHookModelAsLora {
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
    #[input(default = 1.0, min = -20.0, max = 20.0, step = 0.01)]
    strength_model: f64,
    #[input(default = 1.0, min = -20.0, max = 20.0, step = 0.01)]
    strength_clip: f64,
    #[input(optional)]
    prev_hooks: Option<Hooks>,
}

impl Node for CreateHookModelAsLora {
    fn run(self, cx: &Cx) -> NodeResult {
        let strengths = (self.strength_model, self.strength_clip);
        with_hook(self.prev_hooks, strengths, || {
            checkpoint(cx, &self.ckpt_name, true)
        })
    }
}

/// Makes a hook that moves the model towards that of another checkpoint and leaves text encoders as they are.
#[derive(Node)]
#[node(
    id = "CreateHookModelAsLoraModelOnly",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Create Hook Model as LoRA (MO)",
    category = "advanced/hooks/create",
    outputs("HOOKS"),
    experimental
)]
pub(super) struct CreateHookModelAsLoraModelOnly {
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
    #[input(default = 1.0, min = -20.0, max = 20.0, step = 0.01)]
    strength_model: f64,
    #[input(optional)]
    prev_hooks: Option<Hooks>,
}

impl Node for CreateHookModelAsLoraModelOnly {
    fn run(self, cx: &Cx) -> NodeResult {
        let strengths = (self.strength_model, 0.0);
        with_hook(self.prev_hooks, strengths, || {
            checkpoint(cx, &self.ckpt_name, false)
        })
    }
}

/// Changes a text encoder by hooks, and puts them onto the conditionings it makes.
#[derive(Node)]
#[node(
    id = "SetClipHooks",
    v1,
    module = "comfy_extras.nodes_hooks",
    display = "Set CLIP Hooks",
    category = "advanced/hooks/clip",
    outputs("CLIP"),
    experimental
)]
pub(super) struct SetClipHooks {
    clip: Clip,
    #[input(default = true)]
    apply_to_conds: bool,
    #[input(default = false)]
    schedule_clip: bool,
    #[input(optional)]
    hooks: Option<Hooks>,
}

impl Node for SetClipHooks {
    fn run(self, _: &Cx) -> NodeResult {
        let mut clip = self.clip;
        let Some(hooks) = self.hooks else {
            return Ok(NodeOutput::one(clip));
        };
        if self.apply_to_conds {
            clip.cond_hooks = Some(hooks.clone());
        }
        if self.schedule_clip {
            clip.schedule = Some(hooks);
            return Ok(NodeOutput::one(clip));
        }
        // Without a schedule the keyframes do not count.
        let mut hooks = hooks;
        for hook in &mut hooks.0 {
            hook.keyframes = HookKeyframes::default();
        }
        let strengths = vec![1.0; hooks.0.len()];
        clip.schedule = None;
        Ok(NodeOutput::one(hooks.on_clip(clip, &strengths)?))
    }
}
