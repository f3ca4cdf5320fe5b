//! What transformers for pictures begin and end with: centred colours, one convolution or three, the ways to enlarge.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Conv2d, Linear, activate, negative_slopes};

use super::keys::UpscaleKeys;
use super::shuffle::pixel_shuffle;
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;

/// The mean of the colours that these networks were trained with.
pub(super) const COLOURS: [f32; 3] = [0.4488, 0.4371, 0.4040];

/// Colours (b, h, w, c) less their mean, times a range.
pub(super) fn centred(x: &Tensor, range: f32) -> Result<Tensor> {
    let mut x = x.clone();
    if x.dim(3)? == COLOURS.len() {
        x = x.sub(&Tensor::from_slice(&COLOURS).to(&x.device())?)?;
    }
    Ok(if range == 1.0 { x } else { x.mul_scalar(range) })
}

/// The opposite of [`centred`].
pub(super) fn coloured(x: &Tensor, range: f32) -> Result<Tensor> {
    let x = if range == 1.0 {
        x.clone()
    } else {
        x.div_scalar(range)
    };
    if x.dim(3)? == COLOURS.len() {
        return Ok(x.add(&Tensor::from_slice(&COLOURS).to(&x.device())?)?);
    }
    Ok(x)
}

/// What follows a group of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    One,
    Three,
    Nothing,
}

impl BodyKind {
    /// By the names of a file: one convolution, three, or none.
    pub(super) fn of(keys: &UpscaleKeys, name: &str) -> Self {
        if keys.has(&format!("{name}.weight")) {
            Self::One
        } else if keys.has(&format!("{name}.0.weight")) {
            Self::Three
        } else {
            Self::Nothing
        }
    }
}

pub(super) enum Body {
    One(Arc<Conv2d>),
    Three(Arc<Conv2d>, Arc<Linear>, Arc<Conv2d>),
    Nothing,
}

impl Body {
    pub(super) fn new(
        weights: &Walk<'_>,
        name: &str,
        kind: BodyKind,
        width: usize,
    ) -> Result<Self> {
        let inner = width / 4;
        Ok(match kind {
            BodyKind::One => Self::One(weights.conv(name, width, width, 3, 1)?),
            BodyKind::Three => {
                let weights = weights.at(name);
                Self::Three(
                    weights.conv("0", inner, width, 3, 1)?,
                    weights.linear("2", inner, inner)?,
                    weights.conv("4", width, inner, 3, 1)?,
                )
            }
            BodyKind::Nothing => Self::Nothing,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::One(conv) => conv.forward(x)?,
            Self::Three(first, second, third) => {
                let leaky = then(Act::Leaky);
                let h = first.forward_with(x, leaky)?;
                third.forward(&second.forward_with(&h, leaky)?)?
            }
            Self::Nothing => x.clone(),
        })
    }
}

/// How a network enlarges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TailKind {
    /// Steps of a convolution and pixels from channels, each with its factor.
    Shuffle { width: usize, steps: Vec<usize> },
    /// One such step to the colours.
    Direct { scale: usize },
    /// Steps of doubled pixels and a convolution.
    Nearest { width: usize, steps: usize },
    /// Not at all.
    Same,
}

impl TailKind {
    /// By the names of a file whose picture has `out` channels.
    pub(super) fn of(keys: &UpscaleKeys, out: usize) -> Result<Self> {
        if keys.has("conv_before_upsample.0.weight") {
            let width = keys.shape("conv_before_upsample.0.weight", 4)?[0];
            if keys.has("conv_up1.weight") {
                let there = |i: &usize| keys.has(&format!("conv_up{i}.weight"));
                let steps = (1..=3).take_while(there).count();
                return Ok(Self::Nearest { width, steps });
            }
            let mut steps = Vec::new();
            for i in (0..10).step_by(2) {
                let name = format!("upsample.{i}.weight");
                if !keys.has(&name) {
                    break;
                }
                let rows = keys.shape(&name, 4)?[0];
                steps.push(((rows / width) as f64).sqrt().round() as usize);
            }
            if steps.contains(&0) {
                return Err(keys.refused("its last layers make no enlarged picture"));
            }
            return Ok(Self::Shuffle { width, steps });
        }
        if keys.has("upsample.0.weight") {
            let rows = keys.shape("upsample.0.weight", 4)?[0];
            let scale = ((rows / out.max(1)) as f64).sqrt().round() as usize;
            if scale == 0 {
                return Err(keys.refused("its last layer makes no enlarged picture"));
            }
            return Ok(Self::Direct { scale });
        }
        Ok(Self::Same)
    }

    pub(super) fn scale(&self) -> usize {
        match self {
            Self::Shuffle { steps, .. } => steps.iter().product(),
            Self::Direct { scale } => *scale,
            Self::Nearest { steps, .. } => 1 << steps,
            Self::Same => 1,
        }
    }
}

pub(super) struct Tail {
    kind: TailKind,
    before: Option<Arc<Conv2d>>,
    ups: Vec<Arc<Conv2d>>,
    hr: Option<Arc<Conv2d>>,
    last: Option<Arc<Conv2d>>,
}

impl Tail {
    pub(super) fn new(
        weights: &Walk<'_>,
        kind: &TailKind,
        embed: usize,
        out: usize,
    ) -> Result<Self> {
        let mut tail = Self {
            kind: kind.clone(),
            before: None,
            ups: Vec::new(),
            hr: None,
            last: None,
        };
        match kind {
            TailKind::Shuffle { width, steps } => {
                tail.before = Some(weights.conv("conv_before_upsample.0", *width, embed, 3, 1)?);
                for (i, scale) in steps.iter().enumerate() {
                    let name = format!("upsample.{}", 2 * i);
                    tail.ups
                        .push(weights.conv(&name, width * scale * scale, *width, 3, 1)?);
                }
                tail.last = Some(weights.conv("conv_last", out, *width, 3, 1)?);
            }
            TailKind::Direct { scale } => {
                let conv = weights.conv("upsample.0", out * scale * scale, embed, 3, 1)?;
                tail.ups.push(conv);
            }
            TailKind::Nearest { width, steps } => {
                tail.before = Some(weights.conv("conv_before_upsample.0", *width, embed, 3, 1)?);
                for i in 1..=*steps {
                    tail.ups
                        .push(weights.conv(&format!("conv_up{i}"), *width, *width, 3, 1)?);
                }
                tail.hr = Some(weights.conv("conv_hr", *width, *width, 3, 1)?);
                tail.last = Some(weights.conv("conv_last", out, *width, 3, 1)?);
            }
            TailKind::Same => tail.last = Some(weights.conv("conv_last", out, embed, 3, 1)?),
        }
        Ok(tail)
    }

    /// From features (b, h, w, c) to colours.
    pub(super) fn forward(&self, x: Tensor) -> Result<Tensor> {
        let mut x = x;
        if let Some(before) = &self.before {
            // The slope that libraries take when nobody says one.
            let slope = Tensor::scalar(0.01).to(&x.device())?;
            x = negative_slopes(before.forward(&x)?, &slope)?;
        }
        for (i, up) in self.ups.iter().enumerate() {
            x = match &self.kind {
                TailKind::Nearest { .. } => {
                    let [_, h, w, _] = x.dims4()?;
                    up.upsampled(&x, (2 * h, 2 * w), then(Act::Leaky))?
                }
                TailKind::Shuffle { steps, .. } => pixel_shuffle(&up.forward(&x)?, steps[i])?,
                TailKind::Direct { scale } => pixel_shuffle(&up.forward(&x)?, *scale)?,
                TailKind::Same => x,
            };
        }
        if let Some(hr) = &self.hr {
            x = activate(hr.forward(&x)?, Act::Leaky);
        }
        Ok(match &self.last {
            Some(last) => last.forward(&x)?,
            None => x,
        })
    }
}
