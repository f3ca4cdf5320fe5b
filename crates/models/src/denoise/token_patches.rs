//! Cheaper self-attention: over tiles of the picture, or over fewer places.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fresco_tensor::nn::Linear;
use fresco_tensor::{Axes, Device, Generator, Stored, Tensor};

use super::guide::RunPatch;
use super::hooks::{AttnInput, AttnOutput, BlockInfo, BlockKind, Hooks};
use crate::error::Result;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// HyperTile: self-attention of the large levels sees one tile of the picture at a time.
#[derive(Clone, Copy, Debug)]
pub struct HyperTile {
    /// Pixels along the side of a tile.
    pub tile_size: usize,
    /// How many of the possible tile sizes are taken in turn.
    pub swap_size: usize,
    /// Levels below the first that are tiled too.
    pub max_depth: usize,
    /// Larger tiles on lower levels.
    pub scale_depth: bool,
}

impl RunPatch for HyperTile {
    fn install(&self, hooks: &mut Hooks, random: &Arc<Mutex<Generator>>) {
        let tiles = Arc::new(Tiles {
            rule: *self,
            random: random.clone(),
            split: Mutex::default(),
        });
        hooks.self_attention.input.push(tiles.clone());
        hooks.self_attention.output.push(tiles);
    }
}

/// How the queries of an attention were cut: tiles along both sides, and the sides.
#[derive(Clone, Copy)]
struct Split {
    tiles: (usize, usize),
    sides: (usize, usize),
}

struct Tiles {
    rule: HyperTile,
    random: Arc<Mutex<Generator>>,
    split: Mutex<Option<Split>>,
}

/// Into how many tiles of at least `least` a side is cut: one of the first possibilities by chance.
fn random_tiles(side: usize, least: usize, options: usize, random: &Mutex<Generator>) -> usize {
    let least = least.min(side).max(1);
    let counts: Vec<usize> = (least..=side)
        .filter(|n| side.is_multiple_of(*n))
        .take(options.max(1))
        .map(|n| side / n)
        .collect();
    match counts.len() {
        0 => 1,
        1 => counts[0],
        // The last possibility is never taken, as in the reference.
        n => counts[lock(random).below(n as u64 - 1) as usize],
    }
}

impl Tiles {
    fn split(&self, tokens: usize, original: &[usize]) -> Option<Split> {
        let &[_, _, rows, columns] = original else {
            return None;
        };
        let (rows, columns) = (rows as f64, columns as f64);
        let depth = (0..=self.rule.max_depth).position(|depth| {
            let scale = 2f64.powi(depth as i32);
            (rows / scale) * (columns / scale) == tokens as f64
        })?;
        let aspect = columns / rows;
        let side = |v: f64| v.sqrt().round_ties_even() as usize;
        let sides = (side(tokens as f64 * aspect), side(tokens as f64 / aspect));
        let factor = if self.rule.scale_depth { 1 << depth } else { 1 };
        let least = self.rule.tile_size.max(32) / 8 * factor;
        let swap = self.rule.swap_size;
        let tiles = (
            random_tiles(sides.0, least, swap, &self.random),
            random_tiles(sides.1, least, swap, &self.random),
        );
        (tiles.0 * tiles.1 > 1 && sides.0 * sides.1 == tokens).then_some(Split { tiles, sides })
    }
}

impl AttnInput for Tiles {
    fn kinds(&self) -> &[BlockKind] {
        &BlockKind::LEVELS
    }

    fn apply(
        &self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let [b, n, c] = q.dims3()?;
        let split = self.split(n, at.original);
        *lock(&self.split) = split;
        let Some(Split { tiles, sides }) = split else {
            return Ok((q, k, v));
        };
        let (nh, nw) = tiles;
        let (h, w) = (sides.0 / nh, sides.1 / nw);
        let device = q.device();
        let q = q
            .reshape([b, nh, h, nw, w, c])?
            .permute(&[0, 1, 3, 2, 4, 5])?
            .reshape([b * nh * nw, h * w, c])?
            .to(&device)?;
        // Keys and values are cut in the order they are stored, not in tiles. So does the reference.
        let cut = |t: Tensor| -> Result<Tensor> {
            let [b, n, c] = t.dims3()?;
            Ok(t.reshape([b * nh * nw, n / (nh * nw), c])?.to(&device)?)
        };
        Ok((q, cut(k)?, cut(v)?))
    }
}

impl AttnOutput for Tiles {
    fn kinds(&self) -> &[BlockKind] {
        &BlockKind::LEVELS
    }

    fn apply(&self, x: Tensor, _at: &BlockInfo<'_>) -> Result<Tensor> {
        let Some(Split { tiles, sides }) = lock(&self.split).take() else {
            return Ok(x);
        };
        let (nh, nw) = tiles;
        let (h, w) = (sides.0 / nh, sides.1 / nw);
        let [parts, n, c] = x.dims3()?;
        let b = parts / (nh * nw);
        Ok(x.reshape([b, nh, nw, h, w, c])?
            .permute(&[0, 1, 3, 2, 4, 5])?
            .reshape([b, n * nh * nw, c])?
            .to(&x.device())?)
    }
}

/// Token merging (Bolya and Hoffman 2023): places that look alike ask as one in the first level's self-attention.
#[derive(Clone, Copy, Debug)]
pub struct TokenMerging {
    /// The part of all places that is merged away.
    pub ratio: f64,
}

impl RunPatch for TokenMerging {
    fn install(&self, hooks: &mut Hooks, random: &Arc<Mutex<Generator>>) {
        let merging = Arc::new(Merging {
            ratio: self.ratio,
            random: random.clone(),
            merged: Mutex::default(),
        });
        hooks.self_attention.input.push(merging.clone());
        hooks.self_attention.output.push(merging);
    }
}

struct Merging {
    ratio: f64,
    random: Arc<Mutex<Generator>>,
    merged: Mutex<Option<Merged>>,
}

/// Of each square of this side, one place stays and others may merge into it.
const STRIDE: usize = 2;

/// Which place went where. Results hold the kept places of each item, then the targets.
struct Merged {
    tokens: usize,
    targets: Vec<usize>,
    items: Vec<Item>,
}

/// What became of the places of one item.
struct Item {
    /// Places that stayed, most alike first.
    stay: Vec<usize>,
    /// Merged places, each with its target's number.
    pairs: Vec<(usize, usize)>,
}

impl Merging {
    /// One random place of every square, and all the others.
    fn choose(&self, rows: usize, columns: usize) -> (Vec<usize>, Vec<usize>) {
        let mut random = lock(&self.random);
        let mut is_target = vec![false; rows * columns];
        for y in 0..rows / STRIDE {
            for x in 0..columns / STRIDE {
                let at = random.below((STRIDE * STRIDE) as u64) as usize;
                let (dy, dx) = (at / STRIDE, at % STRIDE);
                is_target[(y * STRIDE + dy) * columns + x * STRIDE + dx] = true;
            }
        }
        (0..rows * columns).partition(|i| is_target[*i])
    }

    fn merge(&self, q: &Tensor, at: &BlockInfo<'_>) -> Result<Option<(Tensor, Merged)>> {
        // Choosing is done in main memory, wherever the network runs.
        let (q, device) = (&q.to(&Device::cpu())?, q.device());
        let [b, n, c] = q.dims3()?;
        let &[_, _, rows, columns] = at.original else {
            return Ok(None);
        };
        let count = (n as f64 * self.ratio) as usize;
        if n != rows * columns || count == 0 || rows == 1 || columns == 1 {
            return Ok(None);
        }
        let (targets, sources) = self.choose(rows, columns);
        let count = count.min(sources.len());
        let length = q.norm(&[2], Axes::Keep)?.map(|v| v.max(f32::MIN_POSITIVE));
        let unit = q.div(&length)?;
        let mut out = Vec::with_capacity(b);
        let mut items = Vec::with_capacity(b);
        for item in 0..b {
            let unit = unit.narrow(0, item, 1)?.reshape([n, c])?;
            let kept = Stored::from(&unit.index_select(0, &targets)?);
            let scores = Linear::new(&kept, None, &Device::cpu())?
                .forward(&unit.index_select(0, &sources)?)?;
            // The most alike first; equal ones in their order.
            let mut edges: Vec<(f32, usize, usize)> = scores
                .data()
                .chunks_exact(targets.len())
                .enumerate()
                .map(|(source, row)| {
                    let best =
                        (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
                    (row[best], source, best)
                })
                .collect();
            edges.sort_by(|a, b| b.0.total_cmp(&a.0));
            let (gone, stay) = edges.split_at(count);
            let pairs: Vec<(usize, usize)> = gone.iter().map(|e| (sources[e.1], e.2)).collect();
            let stay: Vec<usize> = stay.iter().map(|e| sources[e.1]).collect();
            let values = q.narrow(0, item, 1)?.reshape([n, c])?;
            let mut sums = values.index_select(0, &targets)?;
            let mut shares = vec![1.0f32; targets.len()];
            for (from, to) in &pairs {
                let (row, data) = (&values.data()[from * c..(from + 1) * c], sums.data_mut());
                for (s, v) in data[to * c..(to + 1) * c].iter_mut().zip(row) {
                    *s += v;
                }
                shares[*to] += 1.0;
            }
            for (row, share) in sums.data_mut().chunks_exact_mut(c).zip(&shares) {
                for v in row {
                    *v /= share;
                }
            }
            let kept = values.index_select(0, &stay)?;
            out.push(Tensor::cat(&[&kept, &sums], 0)?);
            items.push(Item { stay, pairs });
        }
        let merged = Merged {
            tokens: n,
            targets,
            items,
        };
        let out: Vec<&Tensor> = out.iter().collect();
        Ok(Some((Tensor::stack(&out, 0)?.to(&device)?, merged)))
    }
}

impl AttnInput for Merging {
    fn kinds(&self) -> &[BlockKind] {
        &BlockKind::LEVELS
    }

    fn apply(
        &self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: &BlockInfo<'_>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let made = self.merge(&q, at)?;
        let (q, merged) = match made {
            Some((q, merged)) => (q, Some(merged)),
            None => (q, None),
        };
        *lock(&self.merged) = merged;
        Ok((q, k, v))
    }
}

impl AttnOutput for Merging {
    fn kinds(&self) -> &[BlockKind] {
        &BlockKind::LEVELS
    }

    fn apply(&self, x: Tensor, _at: &BlockInfo<'_>) -> Result<Tensor> {
        let Some(merged) = lock(&self.merged).take() else {
            return Ok(x);
        };
        let (x, device) = (x.to(&Device::cpu())?, x.device());
        let [b, n, c] = x.dims3()?;
        let mut out = Tensor::zeros([b, merged.tokens, c])?;
        let data = out.data_mut();
        for (item, Item { stay, pairs }) in merged.items.iter().enumerate() {
            let rows = &x.data()[item * n * c..(item + 1) * n * c];
            let (kept, targets) = rows.split_at(stay.len() * c);
            let out = &mut data[item * merged.tokens * c..(item + 1) * merged.tokens * c];
            let mut put = |to: usize, row: &[f32]| out[to * c..(to + 1) * c].copy_from_slice(row);
            for (to, row) in merged.targets.iter().zip(targets.chunks_exact(c)) {
                put(*to, row);
            }
            for (to, row) in stay.iter().zip(kept.chunks_exact(c)) {
                put(*to, row);
            }
            for (to, target) in pairs {
                put(*to, &targets[target * c..(target + 1) * c]);
            }
        }
        Ok(out.to(&device)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> BlockInfo<'static> {
        BlockInfo {
            kind: BlockKind::INPUT,
            number: 1,
            index: 0,
            heads: 1,
            size: [1, 8, 16],
            original: &[2, 4, 8, 16],
            sigma: 1.0,
            cond_or_uncond: &[1, 0],
        }
    }

    fn random() -> Arc<Mutex<Generator>> {
        Arc::new(Mutex::new(Generator::new(1)))
    }

    fn tokens() -> Tensor {
        Tensor::from_fn([2, 128, 3], |i| (i as f32 * 0.37).sin()).unwrap()
    }

    fn installed(patch: &dyn RunPatch) -> Hooks {
        let mut hooks = Hooks::default();
        patch.install(&mut hooks, &random());
        hooks
    }

    #[test]
    fn tiles_are_put_together_again() {
        let rule = HyperTile {
            tile_size: 32,
            swap_size: 1,
            max_depth: 0,
            scale_depth: false,
        };
        let hooks = installed(&rule);
        let (q, k, _) = hooks.self_attention.input[0]
            .apply(tokens(), tokens(), tokens(), &info())
            .unwrap();
        // 16 and 8 cells in tiles of 4.
        assert_eq!(q.shape(), [2 * 8, 16, 3]);
        assert_eq!(k.shape(), [2 * 8, 16, 3]);
        let back = hooks.self_attention.output[0].apply(q, &info()).unwrap();
        assert_eq!(back.data(), tokens().data());
        // Another level is left alone.
        let small = tokens().narrow(1, 0, 32).unwrap();
        let (q, ..) = hooks.self_attention.input[0]
            .apply(small.clone(), small.clone(), small, &info())
            .unwrap();
        assert_eq!(q.shape(), [2, 32, 3]);
        assert_eq!(
            hooks.self_attention.output[0]
                .apply(q, &info())
                .unwrap()
                .shape(),
            [2, 32, 3]
        );
    }

    #[test]
    fn tile_counts_divide_the_side() {
        let random = random();
        for side in 0..40 {
            for least in [1, 4, 100] {
                let count = random_tiles(side, least, 3, &random);
                assert!(side == 0 || side % count == 0, "{side} {least}: {count}");
            }
        }
    }

    #[test]
    fn merged_places_get_what_their_target_got() {
        let hooks = installed(&TokenMerging { ratio: 0.5 });
        let (q, k, _) = hooks.self_attention.input[0]
            .apply(tokens(), tokens(), tokens(), &info())
            .unwrap();
        assert_eq!((q.shape(), k.shape()), (&[2, 64, 3][..], &[2, 128, 3][..]));
        let numbered = Tensor::from_fn([2, 64, 1], |i| i as f32).unwrap();
        let back = hooks.self_attention.output[0]
            .apply(numbered, &info())
            .unwrap();
        assert_eq!(back.shape(), [2, 128, 1]);
        // Every row of the result is used: 32 places that stayed, and 32 targets.
        for item in 0..2 {
            let mut seen = [0; 64];
            for v in &back.data()[item * 128..(item + 1) * 128] {
                seen[*v as usize - item * 64] += 1;
            }
            assert!(seen[..32].iter().all(|n| *n == 1), "{seen:?}");
            assert!(seen[32..].iter().all(|n| *n >= 1), "{seen:?}");
        }
        let all = installed(&TokenMerging { ratio: 1.0 });
        let (q, ..) = all.self_attention.input[0]
            .apply(tokens(), tokens(), tokens(), &info())
            .unwrap();
        assert_eq!(q.shape(), [2, 32, 3]);
        let none = installed(&TokenMerging { ratio: 0.0 });
        let (q, ..) = none.self_attention.input[0]
            .apply(tokens(), tokens(), tokens(), &info())
            .unwrap();
        assert_eq!(q.data(), tokens().data());
    }
}
