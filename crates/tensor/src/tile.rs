//! Running a function over overlapping tiles and blending the results, so that large inputs fit in memory.

use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// How one dimension is tiled.
pub struct TileAxis<'a> {
    /// Longest piece of the input.
    pub tile: usize,
    /// How far neighbouring pieces reach into each other; less than `tile`.
    pub overlap: usize,
    /// Size in the output for a size in the input.
    pub size: &'a dyn Fn(f64) -> f64,
    /// Position in the output for a position in the input.
    pub position: &'a dyn Fn(f64) -> f64,
}

/// Tiles height and width of (b, c, h, w) alike; `f` enlarges each piece by `scale`.
pub fn tiled_scale<E: From<TensorError>>(
    x: &Tensor,
    tile: [usize; 2],
    overlap: usize,
    scale: f64,
    f: impl FnMut(&Tensor) -> Result<Tensor, E>,
) -> Result<Tensor, E> {
    let map = |v: f64| v * scale;
    let axes = tile.map(|tile| TileAxis {
        tile,
        overlap,
        size: &map,
        position: &map,
    });
    tiled(x, &axes, f)
}

/// Tiles the dimensions behind the first two. `f` may change the channel count; pieces are weighted down towards their
/// edges and the sum is divided by the weights. Positions run in row-major order.
pub fn tiled<E: From<TensorError>>(
    x: &Tensor,
    axes: &[TileAxis<'_>],
    mut f: impl FnMut(&Tensor) -> Result<Tensor, E>,
) -> Result<Tensor, E> {
    if x.rank() != axes.len() + 2 {
        return Err(TensorError::rank("tiled", "2 and one per axis", x.shape()).into());
    }
    let mut items = Vec::new();
    for item in 0..x.shape()[0] {
        let item = x.narrow(0, item, 1)?;
        let mut parts = Vec::new();
        tiled_each(&item, axes, &mut f, &mut |part| {
            parts.push(part);
            Ok(())
        })?;
        items.push(joined(parts, 2)?);
    }
    Ok(joined(items, 0)?)
}

fn joined(mut parts: Vec<Tensor>, dim: usize) -> Result<Tensor> {
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    Tensor::cat(&parts.iter().collect::<Vec<_>>(), dim)
}

/// Where the pieces of one dimension begin.
fn starts(size: usize, axis: &TileAxis<'_>) -> Vec<usize> {
    if size <= axis.tile {
        return vec![0];
    }
    (0..size - axis.overlap)
        .step_by(axis.tile - axis.overlap)
        .collect()
}

fn rounded(v: f64) -> usize {
    v.round_ties_even().max(0.0) as usize
}

/// What was added so far to a part of the output, along its first tiled dimension.
struct Held {
    /// Where the part begins.
    from: usize,
    /// The sum, and what it has to be divided by; the latter has one channel.
    sums: Option<(Tensor, Tensor)>,
}

impl Held {
    /// Adds a piece; the part grows to hold it. `sizes` are those of the whole output behind the channels.
    fn add(
        &mut self,
        place: &[usize],
        piece: &Tensor,
        weight: &Tensor,
        sizes: &[usize],
    ) -> Result<()> {
        let end = place[2] + piece.shape()[2];
        let outside = TensorError::invalid("tiled", "a piece is larger than its place");
        let length = end.checked_sub(self.from).filter(|_| end <= sizes[0]);
        let length = length.ok_or(outside)?;
        let room = |channels: usize, length: usize| {
            let mut shape = vec![1, channels, length];
            shape.extend_from_slice(&sizes[1..]);
            Tensor::zeros(shape)
        };
        let channels = piece.shape()[1];
        let (mut total, mut weights) = match self.sums.take() {
            Some(sums) => sums,
            None => (room(channels, length)?, room(1, length)?),
        };
        let have = total.shape()[2];
        if have < length {
            total = Tensor::cat(&[&total, &room(channels, length - have)?], 2)?;
            weights = Tensor::cat(&[&weights, &room(1, length - have)?], 2)?;
        }
        let mut place = place.to_vec();
        place[2] -= self.from;
        add_at(&mut total, &place, &piece.mul(weight)?)?;
        add_at(&mut weights, &place, weight)?;
        self.sums = Some((total, weights));
        Ok(())
    }

    /// The output up to a place, which nothing more is added to.
    fn take(&mut self, to: usize) -> Result<Option<Tensor>> {
        let Some((total, weights)) = self.sums.take() else {
            return Ok(None);
        };
        let have = total.shape()[2];
        let ready = to.saturating_sub(self.from).min(have);
        self.from += ready;
        if ready == have {
            return total.div(&weights).map(Some);
        }
        let first = total
            .narrow(2, 0, ready)?
            .div(&weights.narrow(2, 0, ready)?)?;
        let rest = |of: &Tensor| of.narrow(2, ready, have - ready);
        self.sums = Some((rest(&total)?, rest(&weights)?));
        Ok((ready > 0).then_some(first))
    }
}

/// As [`tiled`] of one item (1, c, ..), but the result is handed out in parts along its first tiled dimension, each as soon
/// as nothing more is added to it, and only what is still open is kept.
pub fn tiled_each<E: From<TensorError>>(
    x: &Tensor,
    axes: &[TileAxis<'_>],
    f: &mut impl FnMut(&Tensor) -> Result<Tensor, E>,
    sink: &mut dyn FnMut(Tensor) -> Result<(), E>,
) -> Result<(), E> {
    if x.rank() != axes.len() + 2 || axes.is_empty() {
        return Err(TensorError::rank("tiled", "2 and one per axis", x.shape()).into());
    }
    let sizes = &x.shape()[2..];
    let pairs = || sizes.iter().copied().zip(axes);
    if pairs().all(|(size, axis)| size <= axis.tile) {
        return sink(f(x)?);
    }
    if pairs().any(|(size, axis)| size > axis.tile && axis.overlap >= axis.tile) {
        let reason = "the overlap must be smaller than the tile";
        return Err(TensorError::invalid("tiled", reason).into());
    }
    let starts: Vec<Vec<usize>> = pairs().map(|(size, axis)| starts(size, axis)).collect();
    let whole: Vec<usize> = pairs()
        .map(|(size, axis)| rounded((axis.size)(size as f64)))
        .collect();
    let inner: usize = starts[1..].iter().map(Vec::len).product();
    let mut held = Held {
        from: 0,
        sums: None,
    };
    for (number, &first) in starts[0].iter().enumerate() {
        for n in 0..inner {
            let mut piece = x.clone();
            let mut place = vec![0; x.rank()];
            let mut rest = n;
            for d in (0..axes.len()).rev() {
                let start = if d == 0 {
                    first
                } else {
                    let start = starts[d][rest % starts[d].len()];
                    rest /= starts[d].len();
                    start
                };
                let length = axes[d].tile.min(sizes[d] - start);
                piece = piece.narrow(d + 2, start, length)?;
                place[d + 2] = rounded((axes[d].position)(start as f64));
            }
            // Tiles are gathered in main memory, as the reference does: the whole may not fit where the pieces do.
            let result = f(&piece)?.to(&Device::cpu())?;
            if result.rank() != x.rank() {
                return Err(TensorError::rank("tiled", "the input's", result.shape()).into());
            }
            let mut shape = result.shape().to_vec();
            shape[1] = 1;
            let weight = feathered(&shape, axes)?;
            held.add(&place, &result, &weight, &whole)?;
        }
        let next = starts[0].get(number + 1);
        let ready = next.map_or(whole[0], |next| rounded((axes[0].position)(*next as f64)));
        if let Some(part) = held.take(ready)? {
            sink(part)?;
        }
    }
    Ok(())
}

/// Ones that rise from every edge over the width of the overlap.
fn feathered(shape: &[usize], axes: &[TileAxis<'_>]) -> Result<Tensor> {
    let mut weight = Tensor::ones(shape)?;
    for (d, axis) in axes.iter().enumerate() {
        let size = shape[d + 2];
        let feather = rounded((axis.size)(axis.overlap as f64));
        if feather >= size {
            continue;
        }
        let mut profile = vec![1.0f32; size];
        for t in 0..feather {
            let a = ((t + 1) as f64 / feather as f64) as f32;
            profile[t] *= a;
            profile[size - 1 - t] *= a;
        }
        let mut along = vec![1; shape.len()];
        along[d + 2] = size;
        weight = weight.mul(&Tensor::from_vec(along, profile)?)?;
    }
    Ok(weight)
}

fn add_at(total: &mut Tensor, place: &[usize], piece: &Tensor) -> Result<()> {
    let mut old = total.clone();
    for (d, (&start, &size)) in place.iter().zip(piece.shape()).enumerate() {
        old = old.narrow(d, start, size)?;
    }
    total.paste(place, &old.add(piece)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twice(x: &Tensor) -> Result<Tensor> {
        x.repeat_interleave(2, 2)?.repeat_interleave(3, 2)
    }

    #[test]
    fn tiles_of_a_local_function_make_the_whole() {
        let x = crate::synthetic::value("t", &[2, 3, 21, 34], 1.0).unwrap();
        let whole = twice(&x).unwrap();
        for (tile, overlap) in [
            ([8, 8], 2),
            ([8, 16], 4),
            ([64, 10], 3),
            ([64, 64], 8),
            ([5, 5], 0),
        ] {
            let mut calls = 0;
            let out = tiled_scale(&x, tile, overlap, 2.0, |piece| {
                calls += 1;
                assert!(piece.shape()[2] <= tile[0] && piece.shape()[3] <= tile[1]);
                twice(piece)
            })
            .unwrap();
            assert_eq!(out.shape(), whole.shape());
            assert_eq!(calls == 2, tile == [64, 64]);
            for (a, b) in out.data().iter().zip(whole.data()) {
                assert!((a - b).abs() < 1e-6, "{tile:?} {overlap}");
            }
        }
    }

    #[test]
    fn parts_are_handed_out_in_order_and_make_the_whole() {
        let x = crate::synthetic::value("t", &[1, 2, 23, 9], 1.0).unwrap();
        let double = |v: f64| v * 2.0;
        let axes = [(6, 2), (5, 1)].map(|(tile, overlap)| TileAxis {
            tile,
            overlap,
            size: &double,
            position: &double,
        });
        // Pieces that differ, so that what is blended shows.
        let numbered = |count: &mut f32, piece: &Tensor| {
            *count += 1.0;
            Ok::<_, TensorError>(twice(piece)?.add_scalar(*count))
        };
        let mut count = 0.0;
        let whole = tiled(&x, &axes, |piece| numbered(&mut count, piece)).unwrap();
        let mut parts = Vec::new();
        count = 0.0;
        tiled_each(
            &x,
            &axes,
            &mut |piece| numbered(&mut count, piece),
            &mut |part| {
                assert!(part.shape()[2] <= 12, "{:?}", part.shape());
                parts.push(part);
                Ok(())
            },
        )
        .unwrap();
        assert!(parts.len() > 3);
        let parts = joined(parts, 2).unwrap();
        assert_eq!(parts.shape(), whole.shape());
        assert_eq!(parts.data(), whole.data());
    }

    #[test]
    fn edges_weigh_less() {
        // Constant pieces 1, 2, 3: in the overlap of two, the later piece gains weight towards its middle.
        let x = Tensor::zeros([1, 1, 1, 8]).unwrap();
        let mut n = 0.0;
        let mut next = |piece: &Tensor| {
            n += 1.0;
            Tensor::full(piece.shape(), n)
        };
        let out = tiled_scale(&x, [1, 4], 4, 1.0, &mut next);
        assert!(
            out.is_err(),
            "an overlap as long as the tile cannot advance"
        );
        let out = tiled_scale(&x, [1, 4], 2, 1.0, next).unwrap();
        let expect = [
            1.0,
            1.0,
            4.0 / 3.0,
            5.0 / 3.0,
            7.0 / 3.0,
            8.0 / 3.0,
            3.0,
            3.0,
        ];
        for (a, b) in out.data().iter().zip(expect) {
            assert!((a - b).abs() < 1e-6, "{:?}", out.data());
        }
    }

    #[test]
    fn errors_of_the_function_come_through() {
        let x = Tensor::zeros([1, 1, 9, 9]).unwrap();
        let fail = |_: &Tensor| Err(TensorError::invalid("f", "no"));
        assert_eq!(
            tiled_scale(&x, [4, 4], 1, 1.0, fail),
            Err(TensorError::invalid("f", "no"))
        );
        // A function that does not enlarge as promised is caught, not written outside.
        let lie = |x: &Tensor| x.repeat(&[1, 1, 3, 3]);
        assert!(tiled_scale(&x, [4, 4], 1, 1.0, lie).is_err());
        assert!(tiled_scale(&Tensor::scalar(0.0), [4, 4], 1, 1.0, twice).is_err());
    }
}
