//! The layers. Frames are (t, h, w, c).

use crate::vae::autoencoder::Side;
use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    Act, Conv3d, GroupNorm, Linear, Mask, RmsNorm, activate, upsample_nearest,
};

use super::config::{ReplicatedLevel, Resample};
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::QkvLayers;
use crate::vae::cells::CellAttention;
use crate::vae::kl::Check;

const KERNEL: [usize; 3] = [3, 3, 3];
/// Frames before its own that a convolution sees.
const REACH: usize = 2;
const GROUPS: usize = 32;
const GROUP_EPS: f32 = 1e-6;
/// What keeps a vector of zeros from a division by zero: far below every other.
const RMS_EPS: f32 = 1e-26;

/// What convolutions keep from one piece of a film to the next, in the order in which they run.
#[derive(Default)]
pub(crate) struct Carry {
    kept: Vec<Option<Tensor>>,
    at: usize,
    later: bool,
    more: bool,
}

impl Carry {
    /// Begins a piece: the number of it, and whether another follows.
    pub(super) fn begin(&mut self, number: usize, more: bool) {
        self.at = 0;
        self.later = number > 0;
        self.more = more;
    }

    /// Whether the first frame of the film is in this piece.
    fn is_first(&self) -> bool {
        !self.later
    }

    /// The frames with what a convolution sees before and around them: the two frames before, and the outermost cells again.
    fn framed(&mut self, x: &Tensor) -> Result<Tensor> {
        let place = self.at;
        self.at += 1;
        if self.kept.len() <= place {
            self.kept.resize(place + 1, None);
        }
        let [t, h, w, c] = x.dims4()?;
        let mut all = Tensor::zeros_on(&x.device(), [REACH + t, h + 2, w + 2, c])?;
        let before = self.kept[place].take();
        all.paste(&[REACH, 1, 1, 0], x)?;
        for (from, to) in [(0, 0), (w - 1, w + 1)] {
            all.paste(&[REACH, 1, to, 0], &x.narrow(2, from, 1)?)?;
        }
        for (from, to) in [(0, 0), (h - 1, h + 1)] {
            let row = x.narrow(1, from, 1)?;
            let (left, right) = (row.narrow(2, 0, 1)?, row.narrow(2, w - 1, 1)?);
            all.paste(&[REACH, to, 0, 0], &Tensor::cat(&[&left, &row, &right], 2)?)?;
        }
        if let Some(before) = before {
            all.paste(&[0, 0, 0, 0], &before)?;
        } else {
            let first = all.narrow(0, REACH, 1)?;
            for frame in 0..REACH {
                all.paste(&[frame, 0, 0, 0], &first)?;
            }
        }
        if self.more {
            self.kept[place] = Some(all.narrow(0, t, REACH)?.to_keep()?);
        }
        Ok(all)
    }
}

/// A convolution over three frames, rows and columns.
pub(crate) struct Replicated(Arc<Conv3d>);

impl Replicated {
    pub(crate) fn new(weights: &Walk<'_>, name: &str, out: usize, input: usize) -> Result<Self> {
        Ok(Self(weights.conv3d(name, out, input, KERNEL)?))
    }

    pub(crate) fn forward(&self, x: &Tensor, carry: &mut Carry) -> Result<Tensor> {
        self.strided(x, carry, 1, 1)
    }

    /// Plus what goes around it.
    fn forward_and(&self, x: Tensor, carry: &mut Carry, around: &Tensor) -> Result<Tensor> {
        let framed = carry.framed(&x)?;
        drop(x);
        Ok(self.0.inside(&framed, (1, 1), Some(around))?)
    }

    /// Every so many frames, and every so many rows and columns.
    fn strided(
        &self,
        x: &Tensor,
        carry: &mut Carry,
        frames: usize,
        cells: usize,
    ) -> Result<Tensor> {
        Ok(self.0.inside(&carry.framed(x)?, (frames, cells), None)?)
    }
}

/// Of each group of channels over all frames that it sees, or of the channels of each cell.
pub(crate) enum Norm {
    Group(Arc<GroupNorm>),
    Cell(Arc<RmsNorm>),
}

impl Norm {
    pub(crate) fn new(
        weights: &Walk<'_>,
        name: &str,
        channels: usize,
        grouped: bool,
    ) -> Result<Self> {
        if grouped {
            let norm = weights.group_norm(name, channels, GROUPS, GROUP_EPS)?;
            return Ok(Self::Group(norm));
        }
        let norm = weights.channel_norm(&format!("{name}.gamma"), channels, RMS_EPS)?;
        Ok(Self::Cell(norm))
    }

    pub(crate) fn forward(&self, x: &Tensor, act: Act) -> Result<Tensor> {
        match self {
            Self::Group(norm) => {
                let [t, h, w, c] = x.dims4()?;
                let made = norm.forward(&x.reshape([1, t * h, w, c])?, act)?;
                Ok(made.reshape([t, h, w, c])?)
            }
            Self::Cell(norm) => Ok(activate(norm.forward(x)?, act)),
        }
    }
}

/// Norm, activation, convolution, twice.
pub(crate) struct Residual {
    norm1: Norm,
    conv1: Replicated,
    norm2: Norm,
    conv2: Replicated,
    shortcut: Option<Arc<Linear>>,
}

impl Residual {
    pub(crate) fn new(
        weights: &Walk<'_>,
        (input, out): (usize, usize),
        grouped: bool,
    ) -> Result<Self> {
        Ok(Self {
            norm1: Norm::new(weights, "norm1", input, grouped)?,
            conv1: Replicated::new(weights, "conv1.conv", out, input)?,
            norm2: Norm::new(weights, "norm2", out, grouped)?,
            conv2: Replicated::new(weights, "conv2.conv", out, out)?,
            shortcut: (input != out)
                .then(|| weights.linear("nin_shortcut.conv", out, input))
                .transpose()?,
        })
    }

    pub(crate) fn forward(&self, x: Tensor, carry: &mut Carry) -> Result<Tensor> {
        let h = self
            .conv1
            .forward(&self.norm1.forward(&x, Act::Silu)?, carry)?;
        let h = self.norm2.forward(&h, Act::Silu)?;
        let x = match &self.shortcut {
            Some(shortcut) => shortcut.forward(&x)?,
            None => x,
        };
        self.conv2.forward_and(h, carry, &x)
    }
}

/// Attention of every cell of all frames to every other.
struct Attention {
    norm: Norm,
    cells: CellAttention,
}

impl Attention {
    fn new(weights: &Walk<'_>, channels: usize, grouped: bool) -> Result<Self> {
        let qkv = QkvLayers::Apart(["q", "k", "v"]);
        Ok(Self {
            norm: Norm::new(weights, "norm", channels, grouped)?,
            cells: CellAttention::new(weights, qkv, "proj_out", channels)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [t, h, w, c] = x.dims4()?;
        let normed = self.norm.forward(x, Act::None)?;
        let normed = normed.reshape([1, t * h * w, c])?;
        let seen = self.cells.attend(normed, Mask::None)?;
        self.cells.add(&seen, x)
    }
}

/// The blocks at the bottom.
pub(super) struct Middle {
    first: Residual,
    attention: Attention,
    last: Residual,
}

impl Middle {
    pub(super) fn new(weights: &Walk<'_>, channels: usize, grouped: bool) -> Result<Self> {
        let same = (channels, channels);
        Ok(Self {
            first: Residual::new(&weights.at("block_1"), same, grouped)?,
            attention: Attention::new(&weights.at("attn_1"), channels, grouped)?,
            last: Residual::new(&weights.at("block_2"), same, grouped)?,
        })
    }

    /// Sees all frames at once.
    pub(super) fn forward(&self, x: Tensor, check: Check<'_>) -> Result<Tensor> {
        let x = self.first.forward(x, &mut Carry::default())?;
        check()?;
        let x = self.attention.forward(&x)?;
        check()?;
        self.last.forward(x, &mut Carry::default())
    }
}

/// What changes the size, and where it says so the number of frames.
enum Resized {
    /// A convolution that leaves out.
    Stride { conv: Replicated, time: bool },
    /// Cells again, then a convolution.
    Enlarge { conv: Replicated, time: bool },
    /// Cells onto channels, and with what went in averaged.
    Fold {
        conv: Replicated,
        time: bool,
        to: usize,
    },
    /// Channels to cells, and with what went in repeated.
    Unfold {
        conv: Replicated,
        time: bool,
        to: usize,
    },
}

/// The blocks of one size and what changes it.
pub(super) struct Level {
    blocks: Vec<Residual>,
    resized: Option<Resized>,
}

impl Level {
    pub(super) fn new(
        weights: &Walk<'_>,
        level: &ReplicatedLevel,
        grouped: bool,
        side: Side,
    ) -> Result<Self> {
        let list = weights.at("block");
        let blocks = level.blocks.iter().enumerate();
        let blocks = blocks.map(|(number, sizes)| Residual::new(&list.at(number), *sizes, grouped));
        let resized = level.resample.map(|resample| -> Result<Resized> {
            let Resample {
                input,
                rows,
                to,
                time,
            } = resample;
            let name = side.pick("downsample.conv.conv", "upsample.conv.conv");
            let conv = Replicated::new(weights, name, rows, input)?;
            Ok(match (grouped, side) {
                (true, Side::Encoder) => Resized::Stride { conv, time },
                (true, Side::Decoder) => Resized::Enlarge { conv, time },
                (false, Side::Encoder) => Resized::Fold { conv, time, to },
                (false, Side::Decoder) => Resized::Unfold { conv, time, to },
            })
        });
        Ok(Self {
            blocks: blocks.collect::<Result<_>>()?,
            resized: resized.transpose()?,
        })
    }

    pub(super) fn forward(
        &self,
        mut x: Tensor,
        carry: &mut Carry,
        check: Check<'_>,
    ) -> Result<Tensor> {
        for block in &self.blocks {
            check()?;
            x = block.forward(x, carry)?;
        }
        match &self.resized {
            Some(resized) => resized.forward(x, carry),
            None => Ok(x),
        }
    }
}

impl Resized {
    fn forward(&self, x: Tensor, carry: &mut Carry) -> Result<Tensor> {
        match self {
            Self::Stride { conv, time } => conv.strided(&x, carry, if *time { 2 } else { 1 }, 2),
            Self::Enlarge { conv, time } => {
                let enlarged = enlarged(&x, *time, carry.is_first())?;
                conv.forward(&enlarged, carry)
            }
            Self::Fold { conv, time, to } => {
                let first = carry.is_first();
                let made = conv.forward(&x, carry)?;
                let made = in_parts(&made, *time && first, |part, alone| {
                    let folded = folded(part, *time && !alone)?;
                    if *time && alone {
                        return Ok(Tensor::cat(&[&folded, &folded], 3)?);
                    }
                    Ok(folded)
                })?;
                let beside = in_parts(&x, *time && first, |part, alone| {
                    averaged(&folded(part, *time && !alone)?, *to)
                })?;
                Ok(made.add(&beside)?)
            }
            Self::Unfold { conv, time, to } => {
                let first = carry.is_first();
                let made = conv.forward(&x, carry)?;
                let made = in_parts(&made, *time && first, |part, alone| {
                    let cells = unfolded(part, *time && !alone)?;
                    // Of a frame that stays one there are twice as many.
                    Ok(cells.narrow(3, 0, *to)?)
                })?;
                let beside = in_parts(&x, *time && first, |part, alone| {
                    let twice = *time && !alone;
                    let wide = *to * if twice { 8 } else { 4 };
                    let channels = part.dim(3)?.max(1);
                    if !wide.is_multiple_of(channels) {
                        let reason = format!("{channels} channels cannot become {wide}");
                        return Err(ModelError::invalid("VAE decode", reason));
                    }
                    unfolded(&part.repeat_interleave(3, wide / channels)?, twice)
                })?;
                Ok(made.add(&beside)?)
            }
        }
    }
}

/// The first frame by itself where asked, and the others.
fn in_parts(
    x: &Tensor,
    apart: bool,
    f: impl Fn(&Tensor, bool) -> Result<Tensor>,
) -> Result<Tensor> {
    if !apart {
        return f(x, false);
    }
    let frames = x.dim(0)?;
    let first = f(&x.narrow(0, 0, 1)?, true)?;
    if frames == 1 {
        return Ok(first);
    }
    let rest = f(&x.narrow(0, 1, frames - 1)?, false)?;
    Ok(Tensor::cat(&[&first, &rest], 0)?)
}

/// Twice the size by repeating, and twice the frames where asked, but for the very first one.
fn enlarged(x: &Tensor, time: bool, first: bool) -> Result<Tensor> {
    let [t, h, w, _] = x.dims4()?;
    let large = upsample_nearest(x, 2 * h, 2 * w)?;
    if !time {
        return Ok(large);
    }
    let mut places: Vec<usize> = (0..t).flat_map(|frame| [frame, frame]).collect();
    if first {
        places.remove(0);
    }
    Ok(large.index_select(0, &places)?)
}

/// Two rows and columns, and where asked two frames, onto channels: the offset counts before the channel.
fn folded(x: &Tensor, time: bool) -> Result<Tensor> {
    let [t, h, w, c] = x.dims4()?;
    let each = if time { 2 } else { 1 };
    if !t.is_multiple_of(each) || h % 2 != 0 || w % 2 != 0 {
        let reason = format!("{t} frames of {w}x{h} cannot be halved");
        return Err(ModelError::invalid("VAE encode", reason));
    }
    let (t, h, w) = (t / each, h / 2, w / 2);
    let cells = x.reshape([t, each, h, 2, w, 2, c])?;
    let cells = cells.permute(&[0, 2, 4, 1, 3, 5, 6])?;
    Ok(cells.reshape([t, h, w, each * 4 * c])?)
}

/// The reverse of [`folded`].
fn unfolded(x: &Tensor, time: bool) -> Result<Tensor> {
    let [t, h, w, channels] = x.dims4()?;
    let each = if time { 2 } else { 1 };
    let c = channels / (each * 4);
    let cells = x.reshape([t, h, w, each, 2, 2, c])?;
    let cells = cells.permute(&[0, 3, 1, 4, 2, 5, 6])?;
    Ok(cells.reshape([t * each, 2 * h, 2 * w, c])?)
}

/// So many channels, each the mean of some that are next to each other.
pub(super) fn averaged(x: &Tensor, wanted: usize) -> Result<Tensor> {
    let [t, h, w, c] = x.dims4()?;
    if wanted == 0 || !c.is_multiple_of(wanted) {
        let reason = format!("{c} channels cannot become {wanted}");
        return Err(ModelError::invalid("VAE encode", reason));
    }
    let each = c / wanted;
    let groups = x.reshape([t, h, w, wanted, each])?;
    let mut sum = groups.select(4, 0)?;
    for number in 1..each {
        sum = sum.add(&groups.select(4, number)?)?;
    }
    Ok(sum.mul_scalar(1.0 / each as f32))
}
