//! The network with which Gemma 3 sees pictures: SigLIP, whose squares become fewer by taking the mean of neighbours.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, RmsNorm};

use super::layout::PROJECTION;
use super::network::Eyes;
use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::text::sequence::SeenPicture;
use crate::vision::{VisionConfig, VisionEncoder};

/// Rows of text side by side, and above each other, that a picture becomes.
const SIDE: usize = 16;
const EPS: f32 = 1e-6;

struct GemmaEyes {
    encoder: VisionEncoder,
    /// The weight is stored minus one.
    weighted: Arc<RmsNorm>,
    plain: RmsNorm,
    projection: Arc<Linear>,
    /// Rows of pictures are not scaled as those of words are, which the text network does to all.
    unscaled: f32,
}

/// The network in a file that brings one.
pub(super) fn find(store: &WeightStore, hidden: usize) -> Result<Option<Box<dyn Eyes>>> {
    if !store.has(PROJECTION) {
        return Ok(None);
    }
    let config = VisionConfig::detect(store)?;
    if !config.siglip {
        let reason = "its network for pictures is not SigLIP";
        return Err(ModelError::unsupported(store.file(), reason));
    }
    let width = config.hidden;
    let encoder = VisionEncoder::new(store, &config)?;
    let (weighted, projection) = store.build("the projection of pictures", |weights| {
        let own = weights.at("multi_modal_projector");
        Ok((
            own.rms_norm("mm_soft_emb_norm.weight", width, EPS)?,
            own.matrix("mm_input_projection", hidden, width)?,
        ))
    })?;
    Ok(Some(Box::new(GemmaEyes {
        encoder,
        weighted,
        plain: RmsNorm::new(None, EPS)?,
        projection,
        unscaled: 1.0 / (hidden as f32).sqrt(),
    })))
}

impl Eyes for GemmaEyes {
    fn see(&self, picture: &Tensor) -> Result<SeenPicture> {
        let first = picture.narrow(0, 0, 1)?;
        let squares = self.encoder.encode(&first, true)?.last;
        let config = self.encoder.config();
        let side = config.size / config.patch;
        let few = means(&squares, side, SIDE.min(side))?;
        let few = few.to(self.encoder.device())?;
        let even = self
            .plain
            .forward(&few)?
            .add(&self.weighted.forward(&few)?)?;
        let rows = self.projection.forward(&even)?.mul_scalar(self.unscaled);
        let [_, count, width] = rows.dims3()?;
        Ok(SeenPicture {
            rows: rows.reshape([count, width])?,
            grid: (SIDE.min(side), SIDE.min(side)),
            deeper: Vec::new(),
        })
    }
}

/// The mean of each group of neighbours of a grid `(1, side * side, c)` with so many groups along a side; what is left over
/// at the right and at the bottom is not looked at.
fn means(squares: &Tensor, side: usize, groups: usize) -> Result<Tensor> {
    let [_, _, width] = squares.dims3()?;
    let each = side / groups.max(1);
    let mut sums = vec![0.0; groups * groups * width];
    let used = each * groups;
    for (at, row) in squares.data().chunks_exact(width.max(1)).enumerate() {
        let (y, x) = (at / side, at % side);
        if y < used && x < used {
            let group = (y / each) * groups + x / each;
            let sum = &mut sums[group * width..][..width];
            for (sum, v) in sum.iter_mut().zip(row) {
                *sum += v;
            }
        }
    }
    let share = 1.0 / (each * each) as f32;
    for sum in &mut sums {
        *sum *= share;
    }
    Ok(Tensor::from_vec([1, groups * groups, width], sums)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_their_mean() {
        let values = (0..25).map(|v| v as f32).collect();
        let grid = Tensor::from_vec([1, 25, 1], values).expect("25 numbers");
        let few = means(&grid, 5, 2).expect("a grid");
        assert_eq!(few.data(), [3.0, 5.0, 13.0, 15.0]);
    }
}
