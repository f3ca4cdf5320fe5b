//! Small networks beside layers of the transformer that let a picture steer it (ControlNet-LLLite): each adds to what goes into
//! its layer something of that input and of what is seen of the picture at the same place.

use std::sync::Arc;

use fresco_tensor::nn::{
    Act, Conv2d, GroupNorm, LayerNorm, Linear, Padding, Value, activate, modulate,
};
use fresco_tensor::{Axes, Device, Tensor, WeightFile, repeat_to_batch};

use crate::cosmos::{BlockLayer, InputChange};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::model_patch::{PatchNetwork, PatchStore};
use crate::network::Lazy;
use crate::store::{Kernel, Walk, WeightStore};
use crate::transformer::Shapes;

/// The network in messages.
pub const WHAT: &str = "the control net";

/// What files of this kind are.
pub const KIND: &str = "a control net (LLLite) for Anima";

/// Where the network is that sees the picture.
const SEES: &str = "lllite_conditioning1";
/// The key that only these files have.
const MARK: &str = "lllite_conditioning1.conv1.weight";
/// How files say what is not in the shapes of their weights.
const DILATIONS: &str = "lllite.aspp_dilations";
const MASKED: &str = "lllite.inpaint_masked_input";

const EPS: f32 = 1e-5;
/// Pixels along a side of the square that a token stands for.
pub const CELL: usize = 16;
/// Pixels that one of the two large kernels joins along a side.
const STEP: usize = 4;

/// Recognises files of this kind.
pub fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<PatchStore>> {
    if !names.iter().any(|name| name == MARK) {
        return Ok(None);
    }
    let store = WeightStore::open(Arc::clone(file), "", device.clone());
    let said = |name: &str| {
        let found = file.metadata().iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    };
    let config = LiteConfig::detect(&store, said)?;
    PatchStore::new(KIND, WHAT, store, config, LiteControlNet::new).map(Some)
}

/// Whether a network is one that these control nets act in.
pub fn steers(store: &WeightStore) -> bool {
    store.has("llm_adapter.embed.weight") && store.has("blocks.0.self_attn.q_proj.weight")
}

/// The shape of a control net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiteConfig {
    /// Colours that it sees, and a mask.
    pub channels: usize,
    /// Channels while it looks at the picture.
    pub looking: usize,
    /// Residual blocks.
    pub residuals: usize,
    /// How far the branches of its wide view reach; none if it has no such view.
    pub reaches: Vec<usize>,
    /// Values that it has of each place in the end.
    pub seen: usize,
    /// The layers that it acts in, with the width of their input.
    pub layers: Vec<(LitePlace, usize)>,
    /// Channels inside the small networks.
    pub inner: usize,
    /// Whether the picture is grey where it is painted in.
    pub masked: bool,
}

/// A layer of the transformer.
pub type LitePlace = (usize, BlockLayer);

/// The layers of a block that it may act in, by their names in files.
const LAYERS: [(&str, BlockLayer); 5] = [
    ("self_attn_q_proj", BlockLayer::Query),
    ("self_attn_k_proj", BlockLayer::Key),
    ("self_attn_v_proj", BlockLayer::Value),
    ("cross_attn_q_proj", BlockLayer::PromptQuery),
    ("mlp_layer1", BlockLayer::Mlp),
];

fn name_of((block, layer): LitePlace) -> String {
    let known = LAYERS.iter().find(|(_, one)| *one == layer);
    let name = known.map_or("", |(name, _)| name);
    format!("lllite_dit_blocks_{block}_{name}")
}

/// The layer that the first part of a key names.
pub fn place_of(name: &str) -> Option<LitePlace> {
    let rest = name.strip_prefix("lllite_dit_blocks_")?;
    let (block, layer) = rest.split_once('_')?;
    let (_, layer) = LAYERS.iter().find(|(known, _)| *known == layer)?;
    Some((block.parse().ok()?, *layer))
}

impl LiteConfig {
    /// From shapes, and from what a file says of itself.
    pub fn detect<'a>(store: &WeightStore, said: impl Fn(&str) -> Option<&'a str>) -> Result<Self> {
        let shapes = Shapes(store);
        let first = store.shape(MARK).unwrap_or_default();
        let &[half, channels, ..] = first else {
            return Err(shapes.unsupported(format!("{MARK} has shape {first:?}")));
        };
        let seen = shapes.vector(&format!("{SEES}.out_norm.weight"))?;
        let mut layers = Vec::new();
        for key in store.keys() {
            let Some(name) = key.strip_suffix(".down.weight") else {
                continue;
            };
            let Some(place) = place_of(name) else {
                let reason = format!("it acts in a layer that is not known: {name:?}");
                return Err(shapes.unsupported(reason));
            };
            layers.push((place, shapes.matrix(key)?));
        }
        layers.sort_unstable();
        let Some((_, (inner, _))) = layers.first().copied() else {
            let reason =
                "there are no layers that it acts in (files of the first version have other names)";
            return Err(shapes.unsupported(reason));
        };
        let branches = shapes.count(&format!("{SEES}.aspp.branches"));
        Ok(Self {
            channels,
            looking: half.saturating_mul(2),
            residuals: shapes.count(&format!("{SEES}.resblocks")),
            reaches: reaches(branches, said(DILATIONS)).map_err(|e| shapes.unsupported(e))?,
            seen,
            layers: layers
                .into_iter()
                .map(|(place, (_, width))| (place, width))
                .collect(),
            inner,
            masked: said(MASKED).is_some_and(|said| said.eq_ignore_ascii_case("true")),
        })
    }

    /// Whether it wants to be told where to paint.
    pub fn paints(&self) -> bool {
        self.channels == 4
    }
}

/// How far branches reach: as the file says, or one, two, four and eight pixels.
fn reaches(branches: usize, said: Option<&str>) -> Result<Vec<usize>, String> {
    let list = said.filter(|_| branches > 0).unwrap_or("1,2,4,8");
    let parts = list.split(',').map(str::trim).filter(|one| !one.is_empty());
    let known: Option<Vec<usize>> = parts
        .map(|one| one.parse().ok().filter(|n| (1..=MOST_REACH).contains(n)))
        .collect();
    match known {
        _ if branches == 0 => Ok(Vec::new()),
        Some(known) if known.len() == branches => Ok(known),
        _ => Err(format!("{branches} branches that reach {list:?} pixels")),
    }
}

/// Pixels that a branch may reach.
const MOST_REACH: usize = 256;

/// As many groups as go into the channels, of eight, four, two and one.
fn groups(channels: usize) -> usize {
    let fits = |groups: &usize| channels.is_multiple_of(*groups);
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// A convolution, its norm, and the activation.
struct ConvNorm {
    conv: Arc<Conv2d>,
    norm: Arc<GroupNorm>,
}

impl ConvNorm {
    fn new(
        weights: &Walk<'_>,
        names: (&str, &str),
        kernel: Kernel,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let norm = weights.group_norm(names.1, kernel.out, groups(kernel.out), EPS)?;
        let padding = Padding::Same(padding);
        Ok(Self {
            conv: weights.conv_with(names.0, kernel, stride, padding)?,
            norm,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.normed(self.conv.forward(x)?)
    }

    fn normed(&self, x: Tensor) -> Result<Tensor> {
        Ok(self.norm.forward_owned(x, Act::Silu)?)
    }
}

/// Norm, activation, convolution, twice.
struct Residual {
    norms: [Arc<GroupNorm>; 2],
    convs: [Arc<Conv2d>; 2],
}

impl Residual {
    fn new(weights: &Walk<'_>, channels: usize) -> Result<Self> {
        let norm = |name: &str| weights.group_norm(name, channels, groups(channels), EPS);
        let conv = |name: &str| weights.conv(name, channels, channels, 3, 1);
        Ok(Self {
            norms: [norm("norm1")?, norm("norm2")?],
            convs: [conv("conv1")?, conv("conv2")?],
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.convs[0].forward(&self.norms[0].forward(x, Act::Silu)?)?;
        let h = self.convs[1].forward(&self.norms[1].forward_owned(h, Act::Silu)?)?;
        Ok(x.add(&h)?)
    }
}

/// The same places seen from near and far, and all of them at once.
struct WideView {
    branches: Vec<(usize, ConvNorm)>,
    all: ConvNorm,
    join: ConvNorm,
}

impl WideView {
    fn new(weights: &Walk<'_>, channels: usize, reaches: &[usize]) -> Result<Self> {
        let kernel = |input: usize, side: usize| Kernel {
            out: channels,
            input,
            side,
            bias: true,
        };
        let point = |name: &str, input: usize| {
            let weights = weights.at(name);
            ConvNorm::new(&weights, ("0", "1"), kernel(input, 1), 1, 0)
        };
        let mut branches = Vec::new();
        for (number, reach) in reaches.iter().enumerate() {
            let weights = weights.at("branches").at(number);
            let side = if *reach == 1 { 1 } else { 3 };
            let kernel = kernel(channels, side);
            let looked = ConvNorm::new(&weights, ("0", "1"), kernel, 1, side / 2)?;
            branches.push((*reach, looked));
        }
        Ok(Self {
            branches,
            all: point("global_conv", channels)?,
            join: point("proj", channels * (reaches.len() + 1))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        let mut parts = Vec::new();
        for (reach, looked) in &self.branches {
            parts.push(looked.normed(spaced(&looked.conv, x, *reach)?)?);
        }
        let all = x.mean(&[1, 2], Axes::Keep)?;
        let all = self.all.forward(&all)?;
        parts.push(all.expand(&[b, h, w, c])?);
        let parts: Vec<&Tensor> = parts.iter().collect();
        self.join.forward(&Tensor::cat(&parts, 3)?)
    }
}

/// A convolution whose kernel sees every `step`-th pixel: that of each of the pictures that such pixels make.
fn spaced(conv: &Conv2d, x: &Tensor, step: usize) -> Result<Tensor> {
    if step == 1 {
        return Ok(conv.forward(x)?);
    }
    let [b, h, w, c] = x.dims4()?;
    let (rows, columns) = (h.div_ceil(step), w.div_ceil(step));
    let x = lengthened(&lengthened(x, 1, rows * step)?, 2, columns * step)?;
    let apart = x.reshape([b, rows, step, columns, step, c])?;
    let apart = apart.permute(&[0, 2, 4, 1, 3, 5])?;
    let made = conv.forward(&apart.reshape([b * step * step, rows, columns, c])?)?;
    let out = made.dim(3)?;
    let made = made.reshape([b, step, step, rows, columns, out])?;
    let made = made.permute(&[0, 3, 1, 4, 2, 5])?;
    let made = made.reshape([b, rows * step, columns * step, out])?;
    Ok(made.narrow(1, 0, h)?.narrow(2, 0, w)?)
}

/// With zeros at the end of a dimension.
fn lengthened(x: &Tensor, dim: usize, len: usize) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    shape[dim] = len - shape[dim];
    if shape[dim] == 0 {
        return Ok(x.clone());
    }
    let zeros = Tensor::zeros_on(&x.device(), shape)?;
    Ok(Tensor::cat(&[x, &zeros], dim)?)
}

/// The small network of one layer.
struct Lite {
    down: Arc<Linear>,
    mid: Arc<Linear>,
    film: Arc<Linear>,
    up: Arc<Linear>,
    /// Which layer it is, in the values of places.
    depth: Arc<Value>,
}

impl Lite {
    fn new(weights: &Walk<'_>, config: &LiteConfig, width: usize) -> Result<Self> {
        let (inner, seen) = (config.inner, config.seen);
        Ok(Self {
            down: weights.linear("down", inner, width)?,
            mid: weights.linear("mid", inner, inner + seen)?,
            film: weights.linear("cond_to_film", 2 * inner, seen)?,
            up: weights.linear("up", width, inner)?,
            depth: weights.value("depth_embed", &[seen])?,
        })
    }

    /// What it adds to an input (b, n, c); `seen` is (b, n, values).
    fn forward(&self, x: &Tensor, seen: &Tensor) -> Result<Tensor> {
        let depth = self.depth.at(&x.device())?;
        let seen = seen.add(&depth)?;
        let inner = self.down.forward_with(x, then(Act::Silu))?;
        let mixed = self.mid.forward(&Tensor::cat(&[&seen, &inner], 2)?)?;
        let film = self.film.forward(&seen)?;
        let width = mixed.dim(2)?;
        let (scale, shift) = (film.narrow(2, 0, width)?, film.narrow(2, width, width)?);
        let mixed = modulate(mixed, &scale, Some(&shift))?;
        Ok(self.up.forward(&activate(mixed, Act::Silu))?)
    }
}

/// The network of a control file.
pub struct LiteControlNet {
    config: LiteConfig,
    device: Device,
    first: [ConvNorm; 3],
    residuals: Vec<Residual>,
    wide: Option<WideView>,
    proj: Arc<Conv2d>,
    norm: Arc<LayerNorm>,
    layers: Vec<(LitePlace, Lite)>,
}

impl LiteControlNet {
    pub fn new(weights: &Walk<'_>, config: &LiteConfig) -> Result<Self> {
        let sees = weights.at(SEES);
        let (half, whole) = (config.looking / 2, config.looking);
        let kernel = |out: usize, input: usize, side: usize| Kernel {
            out,
            input,
            side,
            bias: true,
        };
        let large = |names, out, input| {
            let kernel = kernel(out, input, STEP);
            ConvNorm::new(&sees, names, kernel, STEP, 0)
        };
        let first = [
            large(("conv1", "norm1"), half, config.channels)?,
            ConvNorm::new(&sees, ("conv2", "norm2"), kernel(half, half, 3), 1, 1)?,
            large(("conv3", "norm3"), whole, half)?,
        ];
        let residual = |number| Residual::new(&sees.at("resblocks").at(number), whole);
        let wide = (!config.reaches.is_empty())
            .then(|| WideView::new(&sees.at("aspp"), whole, &config.reaches));
        let mut layers = Vec::new();
        for (place, width) in &config.layers {
            let weights = weights.at(name_of(*place));
            layers.push((*place, Lite::new(&weights, config, *width)?));
        }
        Ok(Self {
            first,
            residuals: (0..config.residuals).map(residual).collect::<Result<_>>()?,
            wide: wide.transpose()?,
            proj: sees.conv("proj", config.seen, whole, 1, 1)?,
            norm: sees.layer_norm("out_norm", config.seen, EPS)?,
            layers,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    pub fn config(&self) -> &LiteConfig {
        &self.config
    }

    /// What is seen of pictures (b, h, w, channels) in -1..1, whose sides are multiples of [`CELL`]: (b, places, values).
    pub fn see(&self, picture: &Tensor) -> Result<Tensor> {
        let [b, h, w, c] = picture.dims4()?;
        if c != self.config.channels || !h.is_multiple_of(CELL) || !w.is_multiple_of(CELL) {
            let reason = format!(
                "it sees pictures of {} channels whose sides are multiples of {CELL}, and this one is {w}x{h} with {c}",
                self.config.channels
            );
            return Err(ModelError::invalid("control net", reason));
        }
        let mut x = picture.to(&self.device)?;
        for one in &self.first {
            x = one.forward(&x)?;
        }
        for one in &self.residuals {
            x = one.forward(&x)?;
        }
        if let Some(wide) = &self.wide {
            x = wide.forward(&x)?;
        }
        let x = self.proj.forward(&x)?;
        let places = h / CELL * (w / CELL);
        Ok(self
            .norm
            .forward(&x.reshape([b, places, self.config.seen])?)?)
    }

    /// What is added to the input (b, n, c) of a layer; none where it does not act.
    pub fn layer(&self, place: LitePlace, x: &Tensor, seen: &Tensor) -> Result<Option<Tensor>> {
        let Ok(at) = self
            .layers
            .binary_search_by_key(&place, |(place, _)| *place)
        else {
            return Ok(None);
        };
        let lite = &self.layers[at].1;
        if x.dim(2)? != self.config.layers[at].1 || x.dim(1)? != seen.dim(1)? {
            let reason = format!(
                "its layer takes {} values of {} places, and the model has {:?}: it was made for another model",
                self.config.layers[at].1,
                seen.dim(1)?,
                x.shape()
            );
            return Err(ModelError::invalid("control net", reason));
        }
        Ok(Some(lite.forward(x, seen)?))
    }
}

/// A control net with the picture it sees. Stands beside a network in [`Hooks::beside`](crate::denoise::hooks::Hooks::beside).
pub struct LiteControl {
    pub network: Arc<Lazy<PatchNetwork>>,
    /// (1, h, w, channels) in -1..1.
    pub picture: Tensor,
    pub strength: f32,
    /// Noise levels at which it acts, from the largest to the smallest.
    pub from: f64,
    pub to: f64,
}

/// A control net during one pass.
struct Running {
    network: Arc<PatchNetwork>,
    seen: Tensor,
    strength: f32,
}

impl LiteControl {
    /// What it does in a pass over so many items at a noise level; none where it does not act.
    pub fn start(&self, items: usize, sigma: f32) -> Result<Option<Box<dyn InputChange>>> {
        let sigma = f64::from(sigma);
        if self.strength == 0.0 || sigma > self.from || sigma < self.to {
            return Ok(None);
        }
        let network = self.network.get()?;
        let seen = network.of::<LiteControlNet>()?.see(&self.picture)?;
        Ok(Some(Box::new(Running {
            seen: repeat_to_batch(&seen, items)?,
            network,
            strength: self.strength,
        })))
    }
}

impl InputChange for Running {
    fn changed(&self, block: usize, layer: BlockLayer, x: &Tensor) -> Result<Option<Tensor>> {
        let network = self.network.of::<LiteControlNet>()?;
        let here = x.to(&network.device)?;
        let Some(add) = network.layer((block, layer), &here, &self.seen)? else {
            return Ok(None);
        };
        let add = add.mul_scalar(self.strength).to(&x.device())?;
        Ok(Some(x.add(&add)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_known_by_their_names() {
        let place = (12, BlockLayer::PromptQuery);
        assert_eq!(name_of(place), "lllite_dit_blocks_12_cross_attn_q_proj");
        for (_, layer) in LAYERS {
            assert_eq!(place_of(&name_of((3, layer))), Some((3, layer)));
        }
        for other in [
            "lllite_dit_blocks_0_self_attn_output_proj",
            "lllite_dit_blocks_x_mlp_layer1",
            "lllite_unet_input_blocks_4_1",
        ] {
            assert_eq!(place_of(other), None, "{other}");
        }
    }

    #[test]
    fn branches_reach_as_the_file_says() {
        assert!(reaches(0, Some("1,2")).unwrap().is_empty());
        assert_eq!(reaches(4, None).unwrap(), [1, 2, 4, 8]);
        assert_eq!(reaches(2, Some("1, 6,")).unwrap(), [1, 6]);
        for bad in [Some("1,2,3"), Some("1,0"), Some("1,x"), Some("1,999999999")] {
            assert!(reaches(2, bad).is_err(), "{bad:?}");
        }
        assert_eq!([groups(64), groups(12), groups(6), groups(5)], [8, 4, 2, 1]);
    }
}
