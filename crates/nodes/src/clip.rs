//! Text encoders on links, and the nodes that load and use them.

mod adjust;
mod edit;
mod embeddings;
mod encode;
mod encode_each;
mod generate;
mod loaders;

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Map, NodeEntry, NodeError, Opaque, Pieces, Value, entry, map, row, wrong_kind,
};
use fresco_memory::{Handle, Need, Opened};
use fresco_models::network::Network;
use fresco_models::text::{
    Encoded, NoEmbeddings, Prompt, PromptTokens, TextEncoder, TextOutput, Tokens,
};
use fresco_models::{ModelError, PatchSet, WeightStore};

pub use embeddings::FolderEmbeddings;
pub(crate) use loaders::{FOUR, THREE, load_clip};

use crate::hooks::Hooks;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork};
use crate::sampling::run::failure;
use crate::types::{Cond, Conditioning, tensor};

pub static NODES: &[NodeEntry] = &[
    entry::<encode::CLIPTextEncode>(),
    entry::<adjust::CLIPSetLastLayer>(),
    entry::<loaders::CLIPLoader>(),
    entry::<loaders::DualCLIPLoader>(),
    entry::<loaders::TripleCLIPLoader>(),
    entry::<loaders::QuadrupleCLIPLoader>(),
    entry::<encode::CLIPTextEncodeSDXLRefiner>(),
    entry::<encode::CLIPTextEncodeSDXL>(),
    entry::<encode::CLIPTextEncodeControlnet>(),
    entry::<encode_each::CLIPTextEncodeFlux>(),
    entry::<encode_each::CLIPTextEncodeSD3>(),
    entry::<encode_each::CLIPTextEncodeHiDream>(),
    entry::<encode_each::CLIPTextEncodeHunyuanDiT>(),
    entry::<encode_each::CLIPTextEncodeKandinsky5>(),
    entry::<encode_each::CLIPTextEncodeLumina2>(),
    entry::<encode_each::CLIPTextEncodePixArtAlpha>(),
    entry::<edit::TextEncodeQwenImageEdit>(),
    entry::<edit::TextEncodeQwenImageEditPlus>(),
    entry::<edit::TextEncodeQwenImage21>(),
    entry::<generate::TextGenerate>(),
    row(&generate::VIDEO_PROMPT),
    entry::<adjust::T5TokenizerOptions>(),
    entry::<adjust::CLIPAttentionMultiply>(),
];

/// CLIP on a link: an encoder, and what nodes on the way have set.
#[derive(Clone)]
pub struct Clip {
    loaded: Arc<TextEncoder>,
    patches: Option<Arc<PatchSet>>,
    /// With the patches.
    encoder: Arc<TextEncoder>,
    /// Of the weights as they were loaded; none for encoders that are not in the memory room.
    hold: Option<Arc<Hold>>,
    /// With the patches.
    variant: Option<Arc<Hold>>,
    /// The layer to stop at: -1 for the last one, -2 for the one before.
    pub layer: Option<i64>,
    /// Settings of tokenizers by name.
    pub tokenizer_options: BTreeMap<String, i64>,
    /// Hooks that every conditioning made with this encoder gets.
    pub cond_hooks: Option<Hooks>,
    /// Hooks whose keyframes change the encoder during sampling: every prompt is encoded once for each part of it.
    pub schedule: Option<Hooks>,
}

impl Clip {
    pub fn new(encoder: TextEncoder) -> Self {
        Self::shared(Arc::new(encoder), None)
    }

    /// An encoder over weights that the memory room has.
    pub(crate) fn claim(
        cx: &Cx,
        opened: &Opened<SharedNetwork<TextEncoder>>,
        options: &LoadOptions,
    ) -> Result<Self, NodeError> {
        let shared = &opened.shared;
        let hold = Hold::claim(cx, shared, &opened.id, Component::Text, options);
        let view = |_: &str, store: &Arc<WeightStore>| store.on(hold.compute().clone());
        let encoder = shared.network.with_stores(view).map_err(failure)?;
        Ok(Self::shared(shared.joined(encoder), Some(hold)))
    }

    fn shared(encoder: Arc<TextEncoder>, hold: Option<Arc<Hold>>) -> Self {
        Self {
            loaded: Arc::clone(&encoder),
            patches: None,
            encoder,
            variant: hold.clone(),
            hold,
            layer: None,
            tokenizer_options: BTreeMap::new(),
            cond_hooks: None,
            schedule: None,
        }
    }

    /// The encoder as it was loaded, without patches.
    pub fn loaded(&self) -> &Arc<TextEncoder> {
        &self.loaded
    }

    /// The weights without patches, each network's with what stands before its keys in patches.
    pub fn stores(&self) -> Vec<(String, Arc<WeightStore>)> {
        let stores = self.loaded.stores();
        stores
            .map(|(_, prefix, store)| (prefix, Arc::clone(store)))
            .collect()
    }

    /// What changes the weights.
    pub fn weight_patches(&self) -> Option<&Arc<PatchSet>> {
        self.patches.as_ref()
    }

    /// The same encoder with these changes to its weights, in place of those it had.
    pub fn with_weight_patches(self, patches: Arc<PatchSet>) -> Result<Self, NodeError> {
        let encoder = self.loaded.with_stores(|prefix, store| match &self.hold {
            Some(hold) => hold.patched(&patches, store, prefix),
            None => patches.store(store, prefix),
        })?;
        let encoder = Arc::new(encoder);
        let variant = self.hold.as_ref().map(|hold| {
            let network: Arc<dyn Network> = encoder.clone();
            hold.derive(&network, patches.keys().count())
        });
        Ok(Self {
            encoder,
            variant,
            patches: Some(patches),
            ..self
        })
    }

    /// The handle of its weights.
    pub fn handle(&self) -> Option<&Handle> {
        self.variant.as_deref().map(Hold::handle)
    }

    /// The hold on its weights with all patches, where the memory room has them.
    pub(crate) fn hold(&self) -> Option<&Arc<Hold>> {
        self.variant.as_ref()
    }

    /// The encoder with all patches.
    pub fn encoder(&self) -> &Arc<TextEncoder> {
        &self.encoder
    }

    pub fn tokenize(&self, text: &str, cx: &Cx) -> Result<PromptTokens, NodeError> {
        self.tokenize_prompt(Prompt::new(text), cx)
    }

    /// The same with pictures, or in another template.
    pub fn tokenize_prompt(&self, prompt: Prompt<'_>, cx: &Cx) -> Result<PromptTokens, NodeError> {
        let prompt = Prompt {
            options: Some(&self.tokenizer_options),
            ..prompt
        };
        let tokens = match FolderEmbeddings::of(cx) {
            Some(embeddings) => self.loaded.tokenize_prompt(&prompt, &embeddings),
            None => self.loaded.tokenize_prompt(&prompt, &NoEmbeddings),
        };
        let tokens = tokens.map_err(failure)?;
        for name in tokens.missing() {
            tracing::warn!(
                embedding = name,
                "the embedding does not exist, ignoring it"
            );
        }
        Ok(tokens)
    }

    /// A prompt as conditioning; `extra` goes into its options.
    pub fn encode(
        &self,
        tokens: &PromptTokens,
        extra: Map,
        cx: &Cx,
    ) -> Result<Conditioning, NodeError> {
        let Some(hooks) = &self.schedule else {
            return self.encode_now(tokens, extra, cx);
        };
        let bound = |key: &str| extra.get(key).and_then(Value::as_f64);
        let (from, to) = (bound("start_percent"), bound("end_percent"));
        let plain = Self {
            schedule: None,
            ..self.clone()
        };
        let mut all = Conditioning(Vec::new());
        for ((start, end), strengths) in hooks.clip_schedule() {
            // What is never sampled is not encoded.
            if from.is_some_and(|from| end < from) || to.is_some_and(|to| start > to) {
                continue;
            }
            let mut options = map! {"clip_start_percent" => start, "clip_end_percent" => end};
            options.extend(extra.clone());
            let clip = hooks.on_clip(plain.clone(), &strengths)?;
            all.0.extend(clip.encode_now(tokens, options, cx)?.0);
        }
        Ok(all)
    }

    fn encode_now(
        &self,
        tokens: &PromptTokens,
        extra: Map,
        cx: &Cx,
    ) -> Result<Conditioning, NodeError> {
        let encoded = self.encode_tensors(tokens, cx)?;
        let pooled = encoded.pooled.map_or(Value::Null, tensor);
        let mut options = map! {"pooled_output" => pooled};
        for (name, value) in encoded.extras {
            options.insert(name.into(), tensor(value));
        }
        if let Some(hooks) = &self.cond_hooks {
            options.insert("hooks".into(), hooks.clone().into());
        }
        options.extend(extra);
        Ok(Conditioning(vec![Cond {
            tokens: tensor(encoded.cond),
            options,
        }]))
    }

    /// A prompt as tensors.
    pub fn encode_tensors(&self, tokens: &PromptTokens, cx: &Cx) -> Result<Encoded, NodeError> {
        self.encode_by(tokens, true, cx)
    }

    /// The same; the vector for all of it does not go through the network's projection.
    pub(crate) fn encode_unprojected(
        &self,
        tokens: &PromptTokens,
        cx: &Cx,
    ) -> Result<Encoded, NodeError> {
        self.encode_by(tokens, false, cx)
    }

    fn encode_by(
        &self,
        tokens: &PromptTokens,
        projected: bool,
        cx: &Cx,
    ) -> Result<Encoded, NodeError> {
        self.in_use(cx, || {
            if projected {
                self.encoder.encode(tokens, self.layer)
            } else {
                self.encoder.encode_unprojected(tokens, self.layer)
            }
        })
    }

    /// What one network of the encoder makes of tokens; none if it has no network of this name.
    pub(crate) fn encode_alone(
        &self,
        network: &str,
        tokens: &Tokens,
        projected: Option<bool>,
        cx: &Cx,
    ) -> Result<Option<TextOutput>, NodeError> {
        self.in_use(cx, || {
            self.encoder
                .encode_alone(network, tokens, self.layer, projected)
        })
    }

    /// Runs something while its weights are held on the device.
    fn in_use<T>(
        &self,
        cx: &Cx,
        mut run: impl FnMut() -> Result<T, ModelError>,
    ) -> Result<T, NodeError> {
        let made = match &self.variant {
            Some(hold) => InUse::of(cx, &[hold.handle()], Need::default())?.run(run),
            None => run(),
        };
        made.map_err(failure)
    }
}

/// The encoder, or the reason there is none.
pub(crate) fn required(clip: Option<Clip>) -> Result<Clip, NodeError> {
    clip.ok_or_else(|| {
        NodeError::runtime(
            "ERROR: clip input is invalid: None\n\nA checkpoint loader gives none when its file brings no text \
             encoder: load the one that belongs to the model with CLIPLoader, DualCLIPLoader or TripleCLIPLoader.",
        )
    })
}

impl Opaque for Clip {
    fn describe(&self) -> String {
        format!("a text encoder of {:?}", self.loaded.stack())
    }

    fn bytes(&self) -> u64 {
        // A patched encoder counts only what the patches changed.
        match &self.patches {
            Some(_) => self.loaded.bytes() + self.encoder.bytes(),
            None => self.loaded.bytes(),
        }
    }

    // The memory room counts the weights.
    fn pieces(&self, _: &mut Pieces) {}
}

impl FromValue for Clip {
    const IO: &'static str = "CLIP";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<Clip> for Value {
    fn from(clip: Clip) -> Self {
        Self::object(clip)
    }
}

#[cfg(test)]
mod tests;
