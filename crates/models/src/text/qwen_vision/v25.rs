//! The network of Qwen 2.5 VL: most layers look only within windows of the picture.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear, Mask, RmsNorm};
use fresco_tensor::{Device, Tensor};

use super::{MERGED, Squares, grid_rope, layers, matrix, merged_order};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk, WeightStore};
use crate::text::decoder::Eyes;
use crate::text::sequence::SeenPicture;
use crate::transformer::{
    Attention, AttentionLayers, HeadNorm, Heads, Mlp, MlpLayers, QkvLayers, Rope,
};

const EPS: f32 = 1e-6;
/// Pixels along the side of a window.
const WINDOW: usize = 112;

/// Sizes of the network.
#[derive(Debug, Clone, PartialEq)]
pub struct Vision25Config {
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Channels of the text network.
    pub out: usize,
    pub squares: Squares,
    /// Layers that look at the whole picture.
    pub full: Vec<usize>,
}

impl Vision25Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let (hidden, row) = matrix(store, "visual.patch_embed.proj.weight")?;
        let (inner, _) = matrix(store, "visual.blocks.0.mlp.gate_proj.weight")?;
        let (out, _) = matrix(store, "visual.merger.mlp.2.weight")?;
        let layers = layers(store);
        let side = (row / 6).isqrt();
        if 6 * side * side != row || side == 0 {
            let reason = format!("{row} values are no square of a picture");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        Ok(Self {
            hidden,
            inner,
            layers,
            // Heads of 80 channels, as the published sizes have.
            heads: if hidden.is_multiple_of(80) {
                hidden / 80
            } else {
                16
            },
            out,
            squares: Squares {
                side,
                frames: 2,
                pixels: (3136, 12_845_056),
                mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
                deviation: [0.268_629_55, 0.261_302_6, 0.275_777_1],
            },
            full: (7..layers).step_by(8).collect(),
        })
    }

    /// Merged cells along the side of a window.
    fn window(&self) -> usize {
        (WINDOW / self.squares.side / MERGED).max(1)
    }

    /// Numbers of the merged cells of a grid, window by window, and how many each window has.
    pub fn windows(&self, rows: usize, columns: usize) -> (Vec<usize>, Vec<usize>) {
        let side = self.window();
        let (mut order, mut sizes) = (Vec::with_capacity(rows * columns), Vec::new());
        for top in (0..rows).step_by(side) {
            for left in (0..columns).step_by(side) {
                let before = order.len();
                for row in top..rows.min(top + side) {
                    let line = left..columns.min(left + side);
                    order.extend(line.map(|column| row * columns + column));
                }
                sizes.push(order.len() - before);
            }
        }
        (order, sizes)
    }
}

struct Block {
    norms: [Arc<RmsNorm>; 2],
    attention: Attention,
    mlp: Mlp,
}

/// Windows of equal size run together: the rows in that order, how to bring them back, and counts by size.
struct Grouped {
    order: Vec<usize>,
    back: Vec<usize>,
    /// Windows, and squares in each.
    groups: Vec<(usize, usize)>,
}

impl Grouped {
    /// Windows with so many squares each, one after the other.
    fn new(sizes: &[usize]) -> Self {
        let mut lengths: Vec<usize> = sizes.to_vec();
        lengths.sort_unstable();
        lengths.dedup();
        let (mut order, mut groups) = (Vec::new(), Vec::new());
        for length in lengths {
            let mut start = 0;
            let mut count = 0;
            for &size in sizes {
                if size == length {
                    order.extend(start..start + size);
                    count += 1;
                }
                start += size;
            }
            groups.push((count, length));
        }
        let mut back = vec![0; order.len()];
        for (at, from) in order.iter().enumerate() {
            back[*from] = at;
        }
        Self {
            order,
            back,
            groups,
        }
    }

    /// Attention within each window.
    fn attend(&self, [q, k, v]: [&Tensor; 3], attention: &Attention) -> Result<Tensor> {
        let [_, n, c] = q.dims3()?;
        let sorted = |x: &Tensor| -> Result<Tensor> {
            if self.groups.len() == 1 {
                return Ok(x.clone());
            }
            Ok(x.index_select(1, &self.order)?)
        };
        let (q, k, v) = (sorted(q)?, sorted(k)?, sorted(v)?);
        let mut parts = Vec::new();
        let mut start = 0;
        for &(count, length) in &self.groups {
            let rows = count * length;
            let part = |x: &Tensor| x.narrow(1, start, rows)?.reshape([count, length, c]);
            let found = attention.attend([part(&q)?, part(&k)?, part(&v)?], Mask::None)?;
            parts.push(found.reshape([1, rows, c])?);
            start += rows;
        }
        if parts.len() == 1 {
            return Ok(parts.swap_remove(0));
        }
        let all = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?;
        debug_assert_eq!(all.shape(), [1, n, c]);
        Ok(all.index_select(1, &self.back)?)
    }
}

impl Block {
    fn new(weights: &Walk<'_>, config: &Vision25Config) -> Result<Self> {
        let hidden = config.hidden;
        let heads = Heads::new(config.heads, hidden / config.heads, HeadNorm::None);
        let qkv = QkvLayers::Joined("qkv");
        let layers = AttentionLayers::new(qkv, "proj", hidden, heads);
        let gated = MlpLayers::Gated(["gate_proj", "up_proj", "down_proj"]);
        Ok(Self {
            norms: [
                weights.rms_norm("norm1.weight", hidden, EPS)?,
                weights.rms_norm("norm2.weight", hidden, EPS)?,
            ],
            attention: Attention::new(&weights.at("attn"), &layers)?,
            mlp: Mlp::new(
                &weights.at("mlp"),
                gated,
                (hidden, config.inner),
                Bias::With,
            )?,
        })
    }

    fn forward(&self, x: &Tensor, rope: &Rope, windows: Option<&Grouped>) -> Result<Tensor> {
        let attention = &self.attention;
        let qkv = attention.qkv(&self.norms[0].forward(x)?)?;
        let seen = match windows {
            Some(windows) => {
                let [q, k, v] = qkv.heads(rope)?;
                windows.attend([&q, &k, &v], attention)?
            }
            None => qkv.attend(rope, Mask::None)?,
        };
        let x = attention.add(&seen, x)?;
        self.mlp
            .add(&self.mlp.inner(&self.norms[1].forward(&x)?)?, &x)
    }
}

/// The network that sees pictures of Qwen 2.5 VL.
pub struct Vision25 {
    config: Vision25Config,
    device: Device,
    patch_embed: Arc<Linear>,
    blocks: Vec<Block>,
    ln_q: Arc<RmsNorm>,
    merger: [Arc<Linear>; 2],
}

impl Vision25 {
    pub fn new(store: &WeightStore, config: &Vision25Config) -> Result<Self> {
        store.build("the network that sees pictures", |weights| {
            Self::walk(weights, config)
        })
    }

    fn walk(weights: &Walk<'_>, config: &Vision25Config) -> Result<Self> {
        let visual = weights.at("visual");
        let hidden = config.hidden;
        let row = 3 * config.squares.frames * config.squares.side.pow(2);
        let blocks = (0..config.layers).map(|i| Block::new(&visual.at("blocks").at(i), config));
        let merger = visual.at("merger");
        let joined = hidden * MERGED * MERGED;
        Ok(Self {
            patch_embed: visual.matrix("patch_embed.proj", hidden, row)?,
            blocks: blocks.collect::<Result<_>>()?,
            ln_q: merger.rms_norm("ln_q.weight", hidden, EPS)?,
            merger: [
                merger.linear("mlp.0", joined, joined)?,
                merger.linear("mlp.2", config.out, joined)?,
            ],
            device: weights.device().clone(),
            config: config.clone(),
        })
    }
}

impl Eyes for Vision25 {
    /// Rows stay window by window, as published code leaves them.
    fn see(&self, picture: &Tensor) -> Result<SeenPicture> {
        let config = &self.config;
        let (squares, (rows, columns)) = config.squares.cut(picture)?;
        let (cell_rows, cell_columns) = (rows / MERGED, columns / MERGED);
        let (order, sizes) = config.windows(cell_rows, cell_columns);
        let each = MERGED * MERGED;
        let row = squares.dim(1)?;
        let cells = squares.reshape([cell_rows * cell_columns, each * row])?;
        let cells = cells.index_select(0, &order)?.to(&self.device)?;
        let places: Vec<(usize, usize)> = merged_order(rows, columns).collect();
        let places = order
            .iter()
            .flat_map(|cell| &places[cell * each..(cell + 1) * each]);
        let rope = grid_rope(places.copied(), config.hidden / config.heads)?.to(&self.device)?;
        let sizes: Vec<usize> = sizes.iter().map(|cells| cells * each).collect();
        let windows = Grouped::new(&sizes);
        let squares = cells.reshape([1, rows * columns, row])?;
        let mut x = self.patch_embed.forward(&squares)?;
        for (i, block) in self.blocks.iter().enumerate() {
            let windows = (!config.full.contains(&i)).then_some(&windows);
            x = block.forward(&x, &rope, windows)?;
        }
        let x = self.ln_q.forward(&x)?;
        let x = x.reshape([cell_rows * cell_columns, each * config.hidden])?;
        let x = self.merger[0].forward_with(&x, then(Act::Gelu))?;
        Ok(SeenPicture {
            rows: self.merger[1].forward(&x)?,
            grid: (cell_rows, cell_columns),
            deeper: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_one_size_are_grouped() {
        let grouped = Grouped::new(&[4, 2, 4]);
        assert_eq!(grouped.groups, [(1, 2), (2, 4)]);
        assert_eq!(grouped.order, [4, 5, 0, 1, 2, 3, 6, 7, 8, 9]);
        let there: Vec<usize> = grouped.back.iter().map(|at| grouped.order[*at]).collect();
        assert_eq!(there, (0..10).collect::<Vec<_>>());
    }
}
