//! People in a video who say what one or two sounds say (MultiTalk, Kong et al. 2025; InfiniteTalk, Yang et al. 2025): a
//! network in a file of its own, which each block hears after it has looked at the prompt.
//!
//! Of two speakers, tokens that look like the first one in the first frame turn their queries one way and those that look like
//! the second another, and so do the sounds' keys: each finds its own.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, attention};
use fresco_tensor::{Device, Tensor, WeightFile, repeat_to_batch};

use super::blocks::EPS;
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::model_patch::{PatchNetwork, PatchStore};
use crate::network::Lazy;
use crate::store::{Walk, WeightStore};
use crate::transformer::{Rope, Shapes, TokenGrid};

/// The network in messages.
const WHAT: &str = "the model patch";

/// What files of this kind are.
pub const KIND: &str = "a patch for Wan that lets people speak";

/// Keys that these files have.
const MARKS: [&str; 2] = [
    "audio_proj.proj1_vf.weight",
    "blocks.0.audio_cross_attn.q_linear.weight",
];

const NORM_EPS: f32 = 1e-5;
/// Pictures that a latent frame stands for.
const PICTURES: usize = 4;
/// Speakers, and what is behind them.
const CLASSES: usize = 3;
/// Where the speakers' tokens are placed, from and to, and everything else.
const FIRST: (f32, f32) = (0.0, 4.0);
const SECOND: (f32, f32) = (20.0, 24.0);
const BEHIND: f32 = 12.0;
const THETA: f64 = 10_000.0;

/// Recognises files of this kind.
pub fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<PatchStore>> {
    let has = |mark: &&str| names.iter().any(|name| name == *mark);
    if !MARKS.iter().all(has) {
        return Ok(None);
    }
    let store = WeightStore::open(Arc::clone(file), "", device.clone());
    let config = TalkConfig::detect(&store)?;
    PatchStore::new(KIND, WHAT, store, config, TalkNetwork::new).map(Some)
}

/// Whether a network is one that these patches act in.
pub fn speaks(store: &WeightStore) -> bool {
    store.has("head.modulation") && store.has("blocks.0.cross_attn.k_img.weight")
}

/// The shape of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TalkConfig {
    pub blocks: usize,
    /// Of the model's tokens.
    pub dim: usize,
    /// Values of the sound that the first frame hears, and those that each later one does.
    pub first: usize,
    pub later: usize,
    pub inner: usize,
    /// Tokens that become of them, and their width.
    pub tokens: usize,
    pub width: usize,
}

impl TalkConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (inner, first) = shapes.matrix("audio_proj.proj1.weight")?;
        let (_, later) = shapes.matrix("audio_proj.proj1_vf.weight")?;
        let (values, _) = shapes.matrix("audio_proj.proj3.weight")?;
        let width = shapes.vector("audio_proj.norm.weight")?;
        let (dim, _) = shapes.matrix("blocks.0.audio_cross_attn.q_linear.weight")?;
        if !values.is_multiple_of(width) {
            let reason = format!("{values} values are no tokens of width {width}");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            blocks: shapes.count("blocks"),
            dim,
            first,
            later,
            inner,
            tokens: values / width,
            width,
        })
    }

    /// Pictures around one whose sound it hears, for features of so many values each; none if that does not fit.
    pub fn window(&self, values: usize) -> Option<usize> {
        let window = self.first.checked_div(values)?;
        let fits = window * values == self.first && (window + PICTURES - 1) * values == self.later;
        (fits && window % 2 == 1).then_some(window)
    }
}

struct Hearing {
    norm: Arc<LayerNorm>,
    q: Arc<Linear>,
    kv: Arc<Linear>,
    out: Arc<Linear>,
}

/// The network of a patch file.
pub struct TalkNetwork {
    config: TalkConfig,
    device: Device,
    first: Arc<Linear>,
    later: Arc<Linear>,
    second: Arc<Linear>,
    third: Arc<Linear>,
    norm: Arc<LayerNorm>,
    blocks: Vec<Hearing>,
}

impl TalkNetwork {
    pub fn new(weights: &Walk<'_>, config: &TalkConfig) -> Result<Self> {
        let (dim, inner, width) = (config.dim, config.inner, config.width);
        let proj = weights.at("audio_proj");
        let mut blocks = Vec::new();
        for number in 0..config.blocks {
            let weights = weights.at("blocks").at(number);
            let looks = weights.at("audio_cross_attn");
            blocks.push(Hearing {
                norm: weights.layer_norm("norm_x", dim, EPS)?,
                q: looks.linear("q_linear", dim, dim)?,
                kv: looks.linear("kv_linear", 2 * dim, width)?,
                out: looks.linear("proj", dim, dim)?,
            });
        }
        Ok(Self {
            device: weights.device().clone(),
            first: proj.linear("proj1", inner, config.first)?,
            later: proj.linear("proj1_vf", inner, config.later)?,
            second: proj.linear("proj2", inner, inner)?,
            third: proj.linear("proj3", config.tokens * width, inner)?,
            norm: proj.layer_norm("norm", width, NORM_EPS)?,
            blocks,
            config: config.clone(),
        })
    }

    /// The tokens of one speaker for each of `frames` latent frames, (frames, tokens, width). `windows` are features around each
    /// picture, (pictures, window, values).
    pub fn frame_features(&self, windows: &Tensor, frames: usize) -> Result<Tensor> {
        let [pictures, window, values] = windows.dims3()?;
        let wrong = |reason: String| ModelError::invalid("sound to speak", reason);
        if self.config.window(values) != Some(window) {
            let TalkConfig { first, later, .. } = self.config;
            return Err(wrong(format!(
                "windows of {window} times {values} values, where {first} and {later} values are heard: the audio encoder \
                 is another than the patch was made for"
            )));
        }
        if frames == 0 || pictures < 1 + (frames - 1) * PICTURES {
            return Err(wrong(format!(
                "{pictures} pictures are fewer than {frames} latent frames have"
            )));
        }
        let middle = window / 2;
        let part = |picture: usize, from: usize, to: usize| {
            let start = (picture * window + from) * values;
            &windows.data()[start..start + (to - from) * values]
        };
        let relu = then(Act::Relu);
        let first = Tensor::from_slice(part(0, 0, window)).reshape([1, self.config.first])?;
        let mut x = self.first.forward_with(&first.to(&self.device)?, relu)?;
        if frames > 1 {
            let mut rows = Tensor::zeros([frames - 1, self.config.later])?;
            for (at, row) in rows
                .data_mut()
                .chunks_exact_mut(self.config.later)
                .enumerate()
            {
                let picture = 1 + at * PICTURES;
                let last = picture + PICTURES - 1;
                let mut parts = vec![part(picture, 0, middle + 1)];
                parts.extend((picture + 1..last).map(|at| part(at, middle, middle + 1)));
                parts.push(part(last, middle, window));
                row.copy_from_slice(&parts.concat());
            }
            let rest = self.later.forward_with(&rows.to(&self.device)?, relu)?;
            x = Tensor::cat(&[&x, &rest], 0)?;
        }
        let x = self.second.forward_with(&x, relu)?;
        let x = self.third.forward(&x)?;
        let x = x.reshape([frames, self.config.tokens, self.config.width])?;
        Ok(self.norm.forward(&x)?)
    }
}

/// A patch with what it hears. Stands beside a network in [`Hooks::beside`](crate::denoise::hooks::Hooks::beside).
pub struct TalkControl {
    pub network: Arc<Lazy<PatchNetwork>>,
    /// Of each speaker, (pictures, window, values).
    pub windows: Vec<Tensor>,
    /// Where two speakers are in the first frame, each (h, w); more than zero is somebody.
    pub masks: Option<[Tensor; 2]>,
    pub strength: f32,
    /// The first latent frames, which are known: (1, c, t, h, w) as the network sees them.
    pub known: Option<Tensor>,
}

impl TalkControl {
    /// The latent with its known frames, which never have noise.
    pub(super) fn with_known(&self, x: &Tensor) -> Result<Tensor> {
        let Some(known) = &self.known else {
            return Ok(x.clone());
        };
        let (&[b, c, t, h, w], &[_, kc, kt, kh, kw]) = (x.shape(), known.shape()) else {
            let reason = format!("{:?} is not the shape of a video", x.shape());
            return Err(ModelError::invalid("latent", reason));
        };
        if kc > c || kt > t || (kh, kw) != (h, w) {
            let reason = format!(
                "its known frames have shape {:?}, which is not a beginning of {:?}",
                known.shape(),
                x.shape()
            );
            return Err(ModelError::invalid("latent", reason));
        }
        let mut x = x.clone();
        for item in 0..b {
            x.paste(&[item, 0, 0, 0, 0], known)?;
        }
        Ok(x)
    }
}

/// A patch during one pass.
pub(super) struct Talking {
    network: Arc<PatchNetwork>,
    strength: f32,
    /// (frames, tokens of all speakers, width).
    heard: Tensor,
    /// For each token of the first frame and each class, its share of the class.
    classes: Option<Vec<[f32; CLASSES]>>,
}

impl Talking {
    pub(super) fn new(control: &TalkControl, grid: TokenGrid, dim: usize) -> Result<Self> {
        let network = control.network.get()?;
        let patch = network.of::<TalkNetwork>()?;
        if patch.config.dim != dim {
            let own = patch.config.dim;
            let reason = format!("it is for models of width {own}, and this one is {dim} wide");
            return Err(ModelError::invalid("model patch", reason));
        }
        let each = control.windows.iter();
        let heard = each.map(|windows| patch.frame_features(windows, grid[0]));
        let heard = heard.collect::<Result<Vec<_>>>()?;
        if heard.is_empty() {
            return Err(ModelError::invalid("sound to speak", "there is none"));
        }
        let heard = Tensor::cat(&heard.iter().collect::<Vec<_>>(), 1)?;
        let classes = match (&control.masks, control.windows.len()) {
            (Some(masks), 2) => Some(classes(masks, grid[1], grid[2])?),
            _ => None,
        };
        Ok(Self {
            heard,
            classes,
            strength: control.strength,
            network,
        })
    }

    /// Where tokens are between the speakers, for each item; none if there is one only. `q` and `k` are those of the block's
    /// look at the video itself.
    pub(super) fn places(
        &self,
        q: &Tensor,
        k: &Tensor,
        heads: usize,
    ) -> Result<Option<Vec<Vec<f64>>>> {
        let Some(classes) = &self.classes else {
            return Ok(None);
        };
        let [b, n, dim] = q.dims3()?;
        let (frame, head) = (classes.len(), dim / heads.max(1));
        if head < CLASSES || frame > n {
            return Err(ModelError::invalid("masks of speakers", "they do not fit"));
        }
        // How much of each class a token sees in the first frame, by an attention whose values say the class.
        let values = Tensor::from_fn([frame, dim], |at| {
            let (token, channel) = (at / dim, at % dim % head);
            classes[token].get(channel).copied().unwrap_or(0.0)
        })?;
        let values = repeat_to_batch(&values.unsqueeze(0)?, b)?.to(&q.device())?;
        let k = k.narrow(1, 0, frame)?;
        let seen = attention(q, &k, &values, heads, Mask::None, None)?;
        let seen = seen.to(&Device::cpu())?;
        let share = |token: &[f32]| -> [f32; CLASSES] {
            let of = |class: usize| token.chunks_exact(head).map(|h| h[class]).sum::<f32>();
            std::array::from_fn(|class| of(class) / heads as f32)
        };
        let all: Vec<[f32; CLASSES]> = seen.data().chunks_exact(dim).map(share).collect();
        Ok(Some(all.chunks_exact(n).map(placed).collect()))
    }

    /// Tokens (rows, tokens, dim) with what a block hears. `joined` is (b, n, dim).
    pub(super) fn hear(
        &self,
        number: usize,
        x: Tensor,
        joined: [usize; 3],
        heads: usize,
        places: Option<&[Vec<f64>]>,
    ) -> Result<Tensor> {
        let patch = self.network.of::<TalkNetwork>()?;
        let Some(block) = patch.blocks.get(number) else {
            return Ok(x);
        };
        let [b, n, dim] = joined;
        let [frames, sounds, _] = self.heard.dims3()?;
        let frame = n / frames.max(1);
        let tokens = x.reshape(joined)?.narrow(1, 0, frames * frame)?;
        let q = block.norm.forward(&tokens.to(&patch.device)?)?;
        let mut q = block.q.forward(&q)?;
        let kv = block.kv.forward(&self.heard)?;
        let (mut k, v) = (kv.narrow(2, 0, dim)?, kv.narrow(2, dim, dim)?);
        if let Some(places) = places {
            let head = [dim / heads.max(1)];
            let turned = |x: &Tensor, at: &[f64]| -> Result<Tensor> {
                let rope = Rope::new(at, &head, THETA)?.to(&patch.device)?;
                rope.interleaved(x, heads)
            };
            let items = places.iter().enumerate().take(b);
            let items = items.map(|(item, at)| {
                let at = at.get(..frames * frame).unwrap_or(at);
                turned(&q.narrow(0, item, 1)?, at)
            });
            let items = items.collect::<Result<Vec<_>>>()?;
            q = Tensor::cat(&items.iter().collect::<Vec<_>>(), 0)?;
            let middle = |(from, to): (f32, f32)| f64::from(f32::midpoint(from, to));
            let own = |at: usize| middle(if at < sounds / 2 { FIRST } else { SECOND });
            k = turned(&k, &(0..sounds).map(own).collect::<Vec<_>>())?;
        }
        let q = q.reshape([b * frames, frame, dim])?;
        let (k, v) = (
            repeat_to_batch(&k, b * frames)?,
            repeat_to_batch(&v, b * frames)?,
        );
        let seen = attention(&q, &k, &v, heads, Mask::None, None)?;
        let made = block.out.forward(&seen)?.mul_scalar(self.strength);
        let made = made.reshape([b, frames * frame, dim])?.to(&x.device())?;
        let mut all = made;
        let rest = n - frames * frame;
        if rest > 0 {
            let nothing = Tensor::zeros([b, rest, dim])?.to(&x.device())?;
            all = Tensor::cat(&[&all, &nothing], 1)?;
        }
        Ok(x.add(&all.reshape(x.shape().to_vec())?)?)
    }
}

/// Places of one item's tokens: each with the class that it sees most, and there the further the more it sees.
fn placed(shares: &[[f32; CLASSES]]) -> Vec<f64> {
    let range = |class: usize| {
        let all = shares.iter().map(|share| share[class]);
        let least = all.clone().fold(f32::INFINITY, f32::min);
        (least, all.fold(f32::NEG_INFINITY, f32::max))
    };
    let ranges = [range(0), range(1)];
    let place = |share: &[f32; CLASSES]| -> f64 {
        let mut most = 0;
        for class in 1..CLASSES {
            if share[class] > share[most] {
                most = class;
            }
        }
        let between = |class: usize, (from, to): (f32, f32)| {
            let (least, greatest) = ranges[class];
            (share[class] - least) / (greatest - least + 1e-8) * (to - from) + from
        };
        f64::from(match most {
            0 => between(0, FIRST),
            1 => between(1, SECOND),
            _ => BEHIND,
        })
    };
    shares.iter().map(place).collect()
}

/// Masks of two speakers as shares of tokens: each class sums to one, one that nobody has to zero.
fn classes(masks: &[Tensor; 2], rows: usize, columns: usize) -> Result<Vec<[f32; CLASSES]>> {
    let sampled = |mask: &Tensor| -> Result<Vec<bool>> {
        let &[h, w] = mask.shape() else {
            let reason = format!("{:?} is not the shape of a mask", mask.shape());
            return Err(ModelError::invalid("masks of speakers", reason));
        };
        if h == 0 || w == 0 {
            return Err(ModelError::invalid("masks of speakers", "one is empty"));
        }
        let at = |row: usize, column: usize| (row * h / rows) * w + column * w / columns;
        let all = (0..rows).flat_map(|row| (0..columns).map(move |column| at(row, column)));
        Ok(all.map(|at| mask.data()[at] > 0.0).collect())
    };
    let (first, second) = (sampled(&masks[0])?, sampled(&masks[1])?);
    let who = first.iter().zip(&second).map(|(a, b)| [*a, *b, !a && !b]);
    let who: Vec<[bool; CLASSES]> = who.collect();
    let count = |class: usize| who.iter().filter(|token| token[class]).count().max(1) as f32;
    let counts: [f32; CLASSES] = std::array::from_fn(count);
    let share = |token: &[bool; CLASSES]| -> [f32; CLASSES] {
        std::array::from_fn(|class| f32::from(u8::from(token[class])) / counts[class])
    };
    Ok(who.iter().map(share).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stand_with_the_speaker_they_look_like() {
        let shares = [
            [0.9, 0.1, 0.0],
            [0.5, 0.2, 0.1],
            [0.0, 0.6, 0.2],
            [0.1, 0.1, 0.7],
        ];
        let places = placed(&shares);
        let wanted = [4.0, 4.0 * 0.5 / 0.9, 24.0, 12.0];
        for (place, wanted) in places.iter().zip(wanted) {
            assert!((place - wanted).abs() < 1e-4, "{places:?}");
        }
    }

    #[test]
    fn masks_become_shares_of_tokens() {
        let left = Tensor::from_vec([2, 4], vec![1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]).unwrap();
        let none = Tensor::zeros([3, 5]).unwrap();
        let shares = classes(&[left, none], 1, 2).unwrap();
        assert_eq!(shares, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]);
        let empty = Tensor::zeros([0, 5]).unwrap();
        assert!(classes(&[empty.clone(), empty], 1, 2).is_err());
    }
}
