//! PhotoMaker (Li et al. 2024): a person in a prompt, by what a vision network sees of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear};
use fresco_tensor::{Device, Tensor, WeightFile};

use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Layout, Origin, Walk, WeightStore};
use crate::transformer::Shapes;
use crate::vision::{self, VisionConfig, VisionEncoder};

const EPS: f32 = 1e-5;

/// The network in messages.
const WHAT: &str = "the PhotoMaker model";

/// A norm and two layers.
struct Mlp {
    norm: Arc<LayerNorm>,
    layers: [Arc<Linear>; 2],
}

impl Mlp {
    fn new(weights: &Walk<'_>, input: usize, width: usize) -> Result<Self> {
        Ok(Self {
            norm: weights.layer_norm("layernorm", input, EPS)?,
            layers: [
                weights.linear("fc1", width, input)?,
                weights.linear("fc2", width, width)?,
            ],
        })
    }

    fn forward(&self, x: &Tensor, add: &Tensor) -> Result<Tensor> {
        let inner = self.norm.forward(x)?;
        let inner = self.layers[0].forward_with(&inner, then(Act::Gelu))?;
        Ok(self.layers[1].forward_with(&inner, plus(add))?)
    }
}

/// A row of a prompt and a person become one row.
pub struct Fuse {
    first: Mlp,
    second: Mlp,
    norm: Arc<LayerNorm>,
    device: Device,
}

impl Fuse {
    pub fn new(weights: &Walk<'_>, width: usize) -> Result<Self> {
        Ok(Self {
            first: Mlp::new(&weights.at("mlp1"), 2 * width, width)?,
            second: Mlp::new(&weights.at("mlp2"), width, width)?,
            norm: weights.layer_norm("layer_norm", width, EPS)?,
            device: weights.device(),
        })
    }

    /// `prompt` (1, n, c) with one row in place of which the person (1, c) stands. In main memory.
    pub fn forward(&self, prompt: &Tensor, person: &Tensor, row: usize) -> Result<Tensor> {
        let [_, rows, width] = prompt.dims3()?;
        if row >= rows || person.len() != width {
            let reason = format!(
                "a person of {} numbers does not fit into row {row} of a prompt of {rows} rows of {width}: it has to be \
                 encoded by the text encoders of SDXL",
                person.len()
            );
            return Err(ModelError::invalid("prompt", reason));
        }
        let words = prompt.narrow(0, 0, 1)?.narrow(1, row, 1)?;
        let words = words.reshape([1, width])?.to(&self.device)?;
        let person = person.reshape([1, width])?.to(&self.device)?;
        let both = Tensor::cat(&[&words, &person], 1)?;
        let made = self.first.forward(&both, &words)?;
        let made = self.second.forward(&made, &made)?;
        let made = self.norm.forward(&made)?.to(&Device::cpu())?;
        let mut out = prompt.clone();
        out.paste(&[0, row, 0], &made.reshape([1, 1, width])?)?;
        Ok(out)
    }
}

/// The weights of a file, whether they stand alone or under the name of their part.
pub fn store(file: &Arc<dyn WeightFile>, device: Device) -> Result<Arc<WeightStore>> {
    let mut keys = BTreeMap::new();
    for name in file.names() {
        let key = name.strip_prefix("id_encoder.").unwrap_or(&name).to_owned();
        keys.insert(key, Origin::Whole(name));
    }
    let known = ["visual_projection_2.weight", "fuse_module.mlp1.fc1.weight"];
    if !known.iter().all(|key| keys.contains_key(*key)) {
        let file = file.path().display().to_string();
        return Err(ModelError::unsupported(
            file,
            "this is not a PhotoMaker model of the first version",
        ));
    }
    Ok(WeightStore::mapped(Arc::clone(file), keys, device).with_units(&vision::UNITS))
}

/// See the [module](self).
pub struct PhotoMaker {
    vision: VisionEncoder,
    /// To the width of the second text encoder.
    second: Arc<Linear>,
    fuse: Fuse,
    device: Device,
}

impl PhotoMaker {
    pub fn new(store: &WeightStore) -> Result<Self> {
        let config = Self::config(store)?;
        store.build(WHAT, |weights| Self::walk(weights, &config))
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(store: &WeightStore) -> Result<()> {
        let config = Self::config(store)?;
        Layout::of(|weights| Self::walk(weights, &config))?.verify(store, WHAT)
    }

    fn config(store: &WeightStore) -> Result<(VisionConfig, usize)> {
        let second = Shapes(store).matrix("visual_projection_2.weight")?.0;
        let vision = VisionConfig::detect(store)?;
        Ok((vision, second))
    }

    fn walk(weights: &Walk<'_>, (vision, second): &(VisionConfig, usize)) -> Result<Self> {
        let width = vision.projection.unwrap_or(vision.hidden) + second;
        Ok(Self {
            vision: VisionEncoder::walk(weights, vision)?,
            second: weights.matrix("visual_projection_2", *second, vision.hidden)?,
            fuse: Fuse::new(&weights.at("fuse_module"), width)?,
            device: weights.device(),
        })
    }

    /// The person in the first of some pictures (b, h, w, 3) in 0..1: (1, c).
    pub fn person(&self, pictures: &Tensor) -> Result<Tensor> {
        let seen = self.vision.encode(&pictures.narrow(0, 0, 1)?, true)?;
        let class = seen.class.ok_or_else(|| {
            ModelError::invalid(
                "PhotoMaker",
                "its vision network has no token for all of a picture",
            )
        })?;
        let second = self.second.forward(&class.to(&self.device)?)?;
        let second = second.to(&Device::cpu())?;
        Ok(Tensor::cat(&[&seen.embeds, &second], 1)?)
    }

    /// A prompt (1, n, c) with the person in place of one of its rows.
    pub fn fuse(&self, prompt: &Tensor, person: &Tensor, row: usize) -> Result<Tensor> {
        self.fuse.forward(prompt, person, row)
    }
}
