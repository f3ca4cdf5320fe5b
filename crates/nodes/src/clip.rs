//! Text encoders on links, and the nodes that load and use them.

mod adjust;
mod embeddings;
mod encode;
mod loaders;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use fresco_graph::{
    Cx, FromValue, Map, NodeEntry, NodeError, Opaque, Value, entry, map, wrong_kind,
};
use fresco_models::text::{NoEmbeddings, PromptTokens, TextEncoder};
use fresco_models::{ModelError, WeightPatches};
use fresco_tensor::Tensor;

pub use embeddings::FolderEmbeddings;

use crate::hooks::Hooks;
use crate::types::{Cond, Conditioning, tensor};

pub static NODES: &[NodeEntry] = &[
    entry::<encode::CLIPTextEncode>(),
    entry::<adjust::CLIPSetLastLayer>(),
    entry::<loaders::CLIPLoader>(),
    entry::<loaders::DualCLIPLoader>(),
    entry::<encode::CLIPTextEncodeSDXLRefiner>(),
    entry::<encode::CLIPTextEncodeSDXL>(),
    entry::<encode::CLIPTextEncodeControlnet>(),
    entry::<adjust::T5TokenizerOptions>(),
    entry::<adjust::CLIPAttentionMultiply>(),
];

/// CLIP on a link: an encoder, and what nodes on the way have set.
#[derive(Clone)]
pub struct Clip {
    loaded: Arc<TextEncoder>,
    patches: Vec<Arc<dyn WeightPatches>>,
    /// The encoder with the patches, made when the first prompt comes; copies with the same patches share it.
    patched: Arc<OnceLock<Arc<TextEncoder>>>,
    /// The layer to stop at: -1 for the last one, -2 for the one before.
    pub layer: Option<i64>,
    /// Settings of tokenizers by name; those of this family have none.
    pub tokenizer_options: BTreeMap<String, i64>,
    /// Hooks that every conditioning made with this encoder gets.
    pub cond_hooks: Option<Hooks>,
}

impl Clip {
    pub fn new(encoder: TextEncoder) -> Self {
        Self {
            loaded: Arc::new(encoder),
            patches: Vec::new(),
            patched: Arc::default(),
            layer: None,
            tokenizer_options: BTreeMap::new(),
            cond_hooks: None,
        }
    }

    /// The encoder as it was loaded, without patches.
    pub fn loaded(&self) -> &Arc<TextEncoder> {
        &self.loaded
    }

    /// What changes its weights, in the order it applies. Keys are those of [`TextEncoder::keys`].
    pub fn patches(&self) -> &[Arc<dyn WeightPatches>] {
        &self.patches
    }

    /// A copy with one more change to the weights.
    #[must_use]
    pub fn with_patches(&self, patches: Arc<dyn WeightPatches>) -> Self {
        let mut copy = self.clone();
        copy.patches.push(patches);
        copy.patched = Arc::default();
        copy
    }

    /// The encoder with all patches.
    pub fn encoder(&self) -> Result<Arc<TextEncoder>, NodeError> {
        if self.patches.is_empty() {
            return Ok(Arc::clone(&self.loaded));
        }
        if let Some(encoder) = self.patched.get() {
            return Ok(Arc::clone(encoder));
        }
        let chain: Arc<dyn WeightPatches> = Arc::new(Chain::new(&self.patches));
        let encoder = Arc::new(self.loaded.patched(&chain)?);
        Ok(Arc::clone(self.patched.get_or_init(|| encoder)))
    }

    pub fn tokenize(&self, text: &str, cx: &Cx) -> Result<PromptTokens, NodeError> {
        let tokens = match FolderEmbeddings::of(cx) {
            Some(embeddings) => self.loaded.tokenize(text, &embeddings)?,
            None => self.loaded.tokenize(text, &NoEmbeddings)?,
        };
        for name in tokens.missing() {
            tracing::warn!(
                embedding = name,
                "the embedding does not exist, ignoring it"
            );
        }
        Ok(tokens)
    }

    /// A prompt as conditioning; `extra` goes into its options.
    pub fn encode(&self, tokens: &PromptTokens, extra: Map) -> Result<Conditioning, NodeError> {
        let (cond, pooled) = self.encode_tensors(tokens)?;
        let mut options = map! {"pooled_output" => pooled.map_or(Value::Null, tensor)};
        if let Some(hooks) = &self.cond_hooks {
            options.insert("hooks".into(), hooks.clone().into());
        }
        options.extend(extra);
        Ok(Conditioning(vec![Cond {
            tokens: tensor(cond),
            options,
        }]))
    }

    /// Tokens `(1, n, c)` and the pooled one `(1, c)`.
    pub fn encode_tensors(
        &self,
        tokens: &PromptTokens,
    ) -> Result<(Tensor, Option<Tensor>), NodeError> {
        let encoded = self.encoder()?.encode(tokens, self.layer)?;
        Ok((encoded.cond, encoded.pooled))
    }
}

/// The encoder, or the reason there is none.
fn required(clip: Option<Clip>) -> Result<Clip, NodeError> {
    clip.ok_or_else(|| {
        NodeError::runtime(
            "ERROR: clip input is invalid: None\n\nA checkpoint loader gives none when its file brings no text encoder.",
        )
    })
}

impl Opaque for Clip {
    fn describe(&self) -> String {
        format!("a text encoder of {:?}", self.loaded.stack())
    }

    fn bytes(&self) -> u64 {
        let patched = self.patched.get().map_or(0, |encoder| encoder.bytes());
        self.loaded.bytes() + patched
    }
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

/// Patches one after the other, rounded once at the end.
struct Chain(Vec<(BTreeSet<String>, Arc<dyn WeightPatches>)>);

impl Chain {
    fn new(patches: &[Arc<dyn WeightPatches>]) -> Self {
        let each = patches
            .iter()
            .map(|p| (p.keys().into_iter().collect(), Arc::clone(p)));
        Self(each.collect())
    }
}

impl WeightPatches for Chain {
    fn keys(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.0.iter().flat_map(|(keys, _)| keys).collect();
        all.into_iter().cloned().collect()
    }

    fn apply(&self, key: &str, mut weight: Tensor) -> Result<Tensor, ModelError> {
        for (keys, patches) in &self.0 {
            if keys.contains(key) {
                weight = patches.apply(key, weight)?;
            }
        }
        Ok(weight)
    }
}

#[cfg(test)]
mod tests;
