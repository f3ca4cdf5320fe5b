//! Nodes that make hooks from files, and the one that puts them onto a text encoder.

use std::sync::Arc;

use fresco_files::folders::Folders;
use fresco_graph::{
    Args, Choices, Cx, Form, FromValue, Input, Node, NodeError, NodeOutput, NodeResult, NodeRow,
    Output, Schema,
};
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

/// Makes a hook from a file: a row of the table below.
pub(super) struct CreateHook {
    id: &'static str,
    display: &'static str,
    about: &'static str,
    source: HookSource,
    /// Whether it changes text encoders, too.
    text: bool,
}

#[derive(Clone, Copy)]
enum HookSource {
    Lora,
    /// Weights move towards those of a checkpoint.
    Checkpoint,
}

impl HookSource {
    /// The input with the name of the file, and the folder it lists.
    fn input(self) -> (&'static str, &'static str) {
        match self {
            Self::Lora => ("lora_name", "models/loras"),
            Self::Checkpoint => ("ckpt_name", "models/checkpoints"),
        }
    }
}

impl NodeRow for CreateHook {
    fn schema(&self) -> Schema {
        let strength = |name: &str| Input::float(name, 1.0, [-20.0, 20.0, 0.01]);
        let (name, folder) = self.source.input();
        let mut schema = Schema::new(self.id, Form::V1)
            .module("comfy_extras.nodes_hooks")
            .display_name(self.display)
            .category("advanced/hooks/create")
            .description(self.about)
            .output(Output::new(Hooks::IO))
            .input(Input::combo(name, Choices::Listed(folder.into())))
            .input(strength("strength_model"));
        schema.experimental = true;
        if self.text {
            schema = schema.input(strength("strength_clip"));
        }
        schema.input(Input::new("prev_hooks", Hooks::IO).optional())
    }

    fn run(&self, mut args: Args, cx: &Cx) -> NodeResult {
        let file: String = args.take(self.source.input().0)?;
        let model = args.take("strength_model")?;
        let text = if self.text {
            args.take("strength_clip")?
        } else {
            0.0
        };
        with_hook(args.take("prev_hooks")?, (model, text), || {
            match self.source {
                HookSource::Lora => lora(cx, &file),
                HookSource::Checkpoint => checkpoint(cx, &file, self.text),
            }
        })
    }
}

pub(super) static LORA: CreateHook = CreateHook {
    id: "CreateHookLora",
    display: "Create Hook LoRA",
    about: "Makes a hook that changes weights by a LoRA, for the conditionings it is put on.",
    source: HookSource::Lora,
    text: true,
};

pub(super) static LORA_MODEL_ONLY: CreateHook = CreateHook {
    id: "CreateHookLoraModelOnly",
    display: "Create Hook LoRA (MO)",
    about: "Makes a hook that changes the model by a LoRA and leaves text encoders as they are.",
    source: HookSource::Lora,
    text: false,
};

pub(super) static CHECKPOINT: CreateHook = CreateHook {
    id: "CreateHookModelAsLora",
    display: "Create Hook Model as LoRA",
    about: "Makes a hook that moves weights towards those of another checkpoint.",
    source: HookSource::Checkpoint,
    text: true,
};

pub(super) static CHECKPOINT_MODEL_ONLY: CreateHook = CreateHook {
    id: "CreateHookModelAsLoraModelOnly",
    display: "Create Hook Model as LoRA (MO)",
    about: "Makes a hook that moves the model towards that of another checkpoint and leaves text encoders as they are.",
    source: HookSource::Checkpoint,
    text: false,
};

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
    /// Puts the hooks onto the conditionings, too, so that they change the model.
    #[input(default = true)]
    apply_to_conds: bool,
    /// Encodes the prompt once for every keyframe of the hooks.
    #[input(default = false)]
    schedule_clip: bool,
    /// The changes of the encoder's weights.
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
