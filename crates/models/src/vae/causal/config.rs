//! The shape of the network, read from keys and shapes.

use crate::error::{ModelError, Result};
use crate::store::{Layout, WeightStore};

use super::model::{CausalVae, WHAT};

/// One entry of the flat list of a half's blocks.
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

/// The encoder or the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CausalHalf {
    /// Channels of the first convolution, in and out.
    pub first: (usize, usize),
    pub steps: Vec<CausalStep>,
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
}

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

impl CausalHalf {
    fn detect(store: &WeightStore, half: &str, list: &str) -> Result<Option<Self>> {
        let first = format!("{half}.conv1.weight");
        if !store.has(&first) {
            return Ok(None);
        }
        let mut steps = Vec::new();
        while let Some(step) = CausalStep::detect(store, &format!("{half}.{list}.{}", steps.len()))?
        {
            steps.push(step);
            if steps.len() > MOST {
                let reason = format!("{half}.{list} has too many entries");
                return Err(ModelError::unsupported(store.file(), reason));
            }
        }
        let (last, out) = pair(store, &format!("{half}.head.2.weight"))?;
        Ok(Some(Self {
            first: pair(store, &first)?,
            steps,
            middle: pair(store, &format!("{half}.middle.0.residual.2.weight"))?.0,
            last,
            out,
        }))
    }

    /// Doublings of the size, and of the number of frames.
    fn doublings(&self) -> (u32, u32) {
        let mut found = (0, 0);
        for step in &self.steps {
            if let CausalStep::Resample { frames, .. } = step {
                found.0 += 1;
                found.1 += u32::from(*frames);
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
        if store.has("decoder.upsamples.0.upsamples.0.residual.2.weight")
            || store.has("encoder.downsamples.0.downsamples.0.residual.2.weight")
        {
            let reason = "this is the autoencoder of Wan 2.2, which this version does not run";
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let found = Self {
            encoder: CausalHalf::detect(store, "encoder", "downsamples")?,
            decoder: CausalHalf::detect(store, "decoder", "upsamples")?,
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
        match (&self.decoder, &self.encoder) {
            (Some(decoder), _) => decoder.out,
            (None, Some(encoder)) => encoder.first.0,
            (None, None) => 0,
        }
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        1 << self.half().map_or(0, |half| half.doublings().0)
    }

    /// Frames for one latent frame after the first.
    pub fn temporal_ratio(&self) -> usize {
        1 << self.half().map_or(0, |half| half.doublings().1)
    }

    fn layout(&self) -> Result<Layout> {
        Layout::of(|weights| CausalVae::walk(weights, self))
    }

    /// Whether a store has every weight in its shape.
    pub fn verify(&self, store: &WeightStore) -> Result<()> {
        self.layout()?.verify(store, WHAT)
    }

    /// Every weight with its shape.
    pub fn weights(&self) -> Result<Vec<(String, Vec<usize>)>> {
        Ok(self.layout()?.items().to_vec())
    }
}
