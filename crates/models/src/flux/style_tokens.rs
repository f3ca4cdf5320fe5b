//! USO: a picture's style as tokens before those of the prompt, from three layers of the network that saw it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear};
use fresco_tensor::{Device, Tensor, WeightFile, repeat_to_batch};

use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::model_patch::{PatchNetwork, PatchStore};
use crate::network::Lazy;
use crate::store::{Origin, Walk, WeightStore};
use crate::transformer::Shapes;

/// What stands before the names of such files.
const PREFIX: &str = "feature_embedder.";
/// The network in messages.
const WHAT: &str = "the style network";
/// For people.
pub const KIND: &str = "a style reference of Flux.1 (USO)";
const EPS: f32 = 1e-5;

/// Sizes of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StyleConfig {
    /// Tokens that a picture has, and those that are made of them for each layer.
    pub seen: usize,
    pub made: usize,
    /// Width of what saw it, and of the model.
    pub vision: usize,
    pub hidden: usize,
}

impl StyleConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (made, seen) = shapes.matrix("mid_embedding_linear.0.weight")?;
        let (hidden, vision) = shapes.matrix("mid_projection.weight")?;
        Ok(Self {
            seen,
            made,
            vision,
            hidden,
        })
    }
}

/// One layer's states.
struct Part {
    tokens: Arc<Linear>,
    norm: Arc<LayerNorm>,
    projection: Arc<Linear>,
}

impl Part {
    fn new(weights: &Walk<'_>, name: &str, config: StyleConfig) -> Result<Self> {
        let StyleConfig {
            seen,
            made,
            vision,
            hidden,
        } = config;
        Ok(Self {
            tokens: weights.linear(&format!("{name}_embedding_linear.0"), made, seen)?,
            norm: weights.layer_norm(&format!("{name}_layer_norm"), vision, EPS)?,
            projection: weights.linear(&format!("{name}_projection"), hidden, vision)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let columns = x.transpose(1, 2)?;
        let fewer = self.tokens.forward_with(&columns, then(Act::Silu))?;
        let fewer = self.norm.forward(&fewer.transpose(1, 2)?)?;
        Ok(self.projection.forward(&fewer)?)
    }
}

/// The network.
pub struct StyleTokens {
    device: Device,
    config: StyleConfig,
    high: Part,
    mid: Part,
    low: Part,
}

impl StyleTokens {
    pub fn new(weights: &Walk<'_>, config: StyleConfig) -> Result<Self> {
        Ok(Self {
            device: weights.device(),
            config,
            high: Part::new(weights, "high", config)?,
            mid: Part::new(weights, "mid", config)?,
            low: Part::new(weights, "low", config)?,
        })
    }

    /// Tokens (b, n, hidden) on its device from states (b, seen, vision): of the layer before the last, a middle one and
    /// an early one.
    pub fn forward(&self, [high, mid, low]: [&Tensor; 3]) -> Result<Tensor> {
        let part = |part: &Part, x: &Tensor| part.forward(&x.to(&self.device)?);
        let all = [
            part(&self.high, high)?,
            part(&self.mid, mid)?,
            part(&self.low, low)?,
        ];
        Ok(Tensor::cat(&all.iter().collect::<Vec<_>>(), 1)?)
    }
}

/// The style of a picture during a run.
pub struct StyleReference {
    pub network: Arc<Lazy<PatchNetwork>>,
    /// Of the layer before the last, a middle one and an early one.
    pub states: [Tensor; 3],
}

impl StyleReference {
    /// The tokens for so many items, in a network of this width.
    pub(super) fn tokens(&self, items: usize, width: usize, device: &Device) -> Result<Tensor> {
        let network = self.network.get()?;
        let style = network.of::<StyleTokens>()?;
        if style.config.hidden != width {
            let own = style.config.hidden;
            let reason = format!("it is for models of width {own}, and this one is {width} wide");
            return Err(ModelError::invalid("model patch", reason));
        }
        let [high, mid, low] = &self.states;
        let tokens = style.forward([high, mid, low])?.to(device)?;
        Ok(repeat_to_batch(&tokens, items)?)
    }
}

/// Says what is wrong with states for a style network.
pub fn check_states(config: &StyleConfig, states: &[Tensor; 3]) -> Result<()> {
    let wrong = states.iter().find(|x| {
        let fits = matches!(x.shape(), [_, n, c] if (*n, *c) == (config.seen, config.vision));
        !fits
    });
    match wrong {
        None => Ok(()),
        Some(x) => {
            let reason = format!(
                "{KIND} takes {} tokens of width {} from a vision model (SigLIP), not {:?}",
                config.seen,
                config.vision,
                x.shape()
            );
            Err(ModelError::invalid("vision output", reason))
        }
    }
}

/// Recognises such a file.
pub(crate) fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<PatchStore>> {
    let sign = format!("{PREFIX}mid_layer_norm.bias");
    if !names.contains(&sign) {
        return Ok(None);
    }
    let own = names
        .iter()
        .filter_map(|name| Some((name.strip_prefix(PREFIX)?.to_owned(), name)));
    let origins: BTreeMap<String, Origin> = own
        .map(|(key, name)| (key, Origin::Whole(name.clone())))
        .collect();
    let store = WeightStore::mapped(Arc::clone(file), origins, device.clone());
    let config = StyleConfig::detect(&store)?;
    PatchStore::new(KIND, WHAT, store, config, |weights, config| {
        StyleTokens::new(weights, *config)
    })
    .map(Some)
}
