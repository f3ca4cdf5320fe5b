//! The shape of the network, read from keys and shapes.

use crate::error::{ModelError, Result};
use crate::store::{Layout, WeightStore};
use crate::vae::Vae;
use crate::vae::autoencoder::{AutoencoderConfig, FrameOrder, VaeFacts};

use super::model::{CausalVae, WHAT};

/// One entry of a list of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CausalStep {
    Residual {
        input: usize,
        out: usize,
    },
    /// Halves or doubles height and width, and the number of frames where `frames` says so.
    Resample {
        input: usize,
        out: usize,
        frames: bool,
    },
}

/// Blocks one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CausalLevel {
    pub steps: Vec<CausalStep>,
    /// Channels in and out of the way around them, which resizes what went in, where there is one.
    pub around: Option<(usize, usize)>,
}

impl CausalLevel {
    /// Whether it changes the size, and the number of frames.
    pub(super) fn resamples(&self) -> (bool, bool) {
        let mut found = (false, false);
        for step in &self.steps {
            if let CausalStep::Resample { frames, .. } = step {
                found = (true, found.1 || *frames);
            }
        }
        found
    }
}

/// The encoder or the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CausalHalf {
    /// Channels of the first convolution, in and out.
    pub first: (usize, usize),
    pub levels: Vec<CausalLevel>,
    /// Channels of the blocks at the bottom, and of the last convolution's input.
    pub middle: usize,
    pub last: usize,
    /// Channels that come out.
    pub out: usize,
}

/// The shape of the network. Files with one half only load too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CausalConfig {
    pub encoder: Option<CausalHalf>,
    pub decoder: Option<CausalHalf>,
    /// Whether each level has a list of its own.
    pub nested: bool,
    /// Whether kernels have no dimension for time: such networks know single pictures only.
    pub flat: bool,
    /// Pixels along a side of the square that is one place of the first convolution.
    pub patch: usize,
}

/// Channels of 2x2 pixels of three colours each.
const PATCHED: usize = 12;

/// Entries that a list may have.
const MOST: usize = 256;

/// Rows and columns of a kernel.
fn pair(store: &WeightStore, key: &str) -> Result<(usize, usize)> {
    match store.shape(key) {
        Some(&[out, input, ..]) => Ok((input, out)),
        Some(found) => Err(ModelError::Shape {
            file: store.file().to_owned(),
            key: key.to_owned(),
            expected: "a convolution".to_owned(),
            found: found.to_vec(),
        }),
        None => Err(ModelError::Missing {
            file: store.file().to_owned(),
            key: key.to_owned(),
        }),
    }
}

impl CausalStep {
    fn detect(store: &WeightStore, entry: &str) -> Result<Option<Self>> {
        let residual = format!("{entry}.residual.2.weight");
        if store.has(&residual) {
            let (input, out) = pair(store, &residual)?;
            return Ok(Some(Self::Residual { input, out }));
        }
        let resample = format!("{entry}.resample.1.weight");
        if store.has(&resample) {
            let (input, out) = pair(store, &resample)?;
            let frames = store.has(&format!("{entry}.time_conv.weight"));
            return Ok(Some(Self::Resample { input, out, frames }));
        }
        Ok(None)
    }
}

/// The entries of a list under a name.
fn steps(store: &WeightStore, list: &str) -> Result<Vec<CausalStep>> {
    let mut found = Vec::new();
    while let Some(step) = CausalStep::detect(store, &format!("{list}.{}", found.len()))? {
        found.push(step);
        if found.len() > MOST {
            let reason = format!("{list} has too many entries");
            return Err(ModelError::unsupported(store.file(), reason));
        }
    }
    Ok(found)
}

/// The levels of a half whose list is called so.
fn levels(store: &WeightStore, half: &str, list: &str) -> Result<Vec<CausalLevel>> {
    let flat = steps(store, &format!("{half}.{list}"))?;
    if !flat.is_empty() {
        return Ok(vec![CausalLevel {
            steps: flat,
            around: None,
        }]);
    }
    let mut found: Vec<CausalLevel> = Vec::new();
    loop {
        let steps = steps(store, &format!("{half}.{list}.{}.{list}", found.len()))?;
        let ends = |step: &CausalStep| match *step {
            CausalStep::Residual { input, out } | CausalStep::Resample { input, out, .. } => {
                (input, out)
            }
        };
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
            return Ok(found);
        };
        let mut level = CausalLevel {
            around: Some((ends(first).0, ends(last).1)),
            steps,
        };
        // The way around the last level of a decoder would change nothing but channels, and there is none.
        if half == "decoder" && !level.resamples().0 {
            level.around = None;
        }
        found.push(level);
        if found.len() > MOST {
            let reason = format!("{half}.{list} has too many entries");
            return Err(ModelError::unsupported(store.file(), reason));
        }
    }
}

impl CausalHalf {
    fn detect(store: &WeightStore, half: &str, list: &str) -> Result<Option<Self>> {
        let first = format!("{half}.conv1.weight");
        if !store.has(&first) {
            return Ok(None);
        }
        let (last, out) = pair(store, &format!("{half}.head.2.weight"))?;
        Ok(Some(Self {
            first: pair(store, &first)?,
            levels: levels(store, half, list)?,
            middle: pair(store, &format!("{half}.middle.0.residual.2.weight"))?.0,
            last,
            out,
        }))
    }

    /// Doublings of the size, and of the number of frames.
    fn doublings(&self) -> (u32, u32) {
        let mut found = (0, 0);
        for level in &self.levels {
            for step in &level.steps {
                if let CausalStep::Resample { frames, .. } = step {
                    found.0 += 1;
                    found.1 += u32::from(*frames);
                }
            }
        }
        found
    }
}

impl CausalConfig {
    /// Whether a store has such an autoencoder.
    pub fn is_in(store: &WeightStore) -> bool {
        ["decoder", "encoder"]
            .iter()
            .any(|half| store.has(&format!("{half}.middle.0.residual.0.gamma")))
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let encoder = CausalHalf::detect(store, "encoder", "downsamples")?;
        let decoder = CausalHalf::detect(store, "decoder", "upsamples")?;
        let nested = store.has("decoder.upsamples.0.upsamples.0.residual.2.weight")
            || store.has("encoder.downsamples.0.downsamples.0.residual.2.weight");
        let kernel = ["decoder.conv1.weight", "encoder.conv1.weight"];
        let kernel = kernel.iter().find_map(|key| store.shape(key));
        let pixels = match (&decoder, &encoder) {
            (Some(decoder), _) => decoder.out,
            (None, Some(encoder)) => encoder.first.0,
            (None, None) => 0,
        };
        let found = Self {
            encoder,
            decoder,
            nested,
            flat: kernel.is_some_and(|shape| shape.len() == 4),
            patch: if nested && pixels == PATCHED { 2 } else { 1 },
        };
        let half = found.half().ok_or_else(|| {
            ModelError::unsupported(
                store.file(),
                "this is not an autoencoder: decoder.conv1.weight is missing",
            )
        })?;
        // The sizes of results are made of these.
        let (size, frames) = half.doublings();
        if size > 6 || frames > 4 {
            let reason = format!("{size} halvings of the size and {frames} of the frames");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(found)
    }

    fn half(&self) -> Option<&CausalHalf> {
        self.decoder.as_ref().or(self.encoder.as_ref())
    }

    pub fn latent_channels(&self) -> usize {
        match (&self.decoder, &self.encoder) {
            (Some(decoder), _) => decoder.first.0,
            (None, Some(encoder)) => encoder.out / 2,
            (None, None) => 0,
        }
    }

    /// Channels of a picture: three, or four with how opaque it is.
    pub fn picture_channels(&self) -> usize {
        let pixels = match (&self.decoder, &self.encoder) {
            (Some(decoder), _) => decoder.out,
            (None, Some(encoder)) => encoder.first.0,
            (None, None) => 0,
        };
        pixels / (self.patch * self.patch)
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        self.patch << self.half().map_or(0, |half| half.doublings().0)
    }

    /// Whether it knows single pictures only: the one with levels of their own that sees pixels as they are.
    pub fn is_still(&self) -> bool {
        self.flat || (self.nested && self.patch == 1)
    }

    /// Frames for one latent frame after the first; none where there is only one.
    pub fn temporal_ratio(&self) -> Option<usize> {
        let doublings = self.half().map_or(0, |half| half.doublings().1);
        (!self.is_still()).then_some(1 << doublings)
    }

    fn layout(&self) -> Result<Layout> {
        Layout::of(|weights| CausalVae::walk(weights, self))
    }

    /// Every weight with its shape.
    pub fn weights(&self) -> Result<Vec<(String, Vec<usize>)>> {
        Ok(self.layout()?.items().to_vec())
    }
}

impl AutoencoderConfig for CausalConfig {
    fn facts(&self) -> VaeFacts {
        let channels = self.latent_channels();
        let facts = match self.temporal_ratio() {
            Some(frames) => VaeFacts::film(channels, self.ratio(), frames),
            None => VaeFacts::pictures(channels, self.ratio()),
        };
        VaeFacts {
            picture_channels: self.picture_channels(),
            frames: FrameOrder::OneByOne,
            ..facts
        }
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        self.layout()?.verify(store, WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(CausalVae::new(store)?.into())
    }
}
