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
        items.push(tile_item(&item, axes, &mut f)?);
    }
    Ok(Tensor::cat(&items.iter().collect::<Vec<_>>(), 0)?)
}

fn tile_item<E: From<TensorError>>(
    x: &Tensor,
    axes: &[TileAxis<'_>],
    f: &mut impl FnMut(&Tensor) -> Result<Tensor, E>,
) -> Result<Tensor, E> {
    let sizes = &x.shape()[2..];
    if sizes
        .iter()
        .zip(axes)
        .all(|(&size, axis)| size <= axis.tile)
    {
        return f(x);
    }
    let stuck =
        |(&size, axis): (&usize, &TileAxis<'_>)| size > axis.tile && axis.overlap >= axis.tile;
    if sizes.iter().zip(axes).any(stuck) {
        let reason = "the overlap must be smaller than the tile";
        return Err(TensorError::invalid("tiled", reason).into());
    }
    let starts: Vec<Vec<usize>> = sizes
        .iter()
        .zip(axes)
        .map(|(&size, axis)| {
            if size <= axis.tile {
                return vec![0];
            }
            (0..size - axis.overlap)
                .step_by(axis.tile - axis.overlap)
                .collect()
        })
        .collect();
    let rounded = |v: f64| v.round_ties_even().max(0.0) as usize;
    let mut sums: Option<(Tensor, Tensor)> = None;
    for n in 0..starts.iter().map(Vec::len).product() {
        let mut piece = x.clone();
        let mut place = vec![0; x.rank()];
        let mut rest = n;
        for d in (0..axes.len()).rev() {
            let start = starts[d][rest % starts[d].len()];
            rest /= starts[d].len();
            let length = axes[d].tile.min(sizes[d] - start);
            piece = piece.narrow(d + 2, start, length)?;
            place[d + 2] = rounded((axes[d].position)(start as f64));
        }
        // Tiles are gathered in main memory, as the reference does: the whole may not fit where the pieces do.
        let result = f(&piece)?.to(&Device::cpu())?;
        if result.rank() != x.rank() {
            return Err(TensorError::rank("tiled", "the input's", result.shape()).into());
        }
        let weight = feathered(result.shape(), axes, rounded)?;
        let (total, weights) = if let Some(sums) = &mut sums {
            sums
        } else {
            let mut shape = vec![1, result.shape()[1]];
            let out = sizes.iter().zip(axes);
            shape.extend(out.map(|(&size, axis)| rounded((axis.size)(size as f64))));
            sums.insert((Tensor::zeros(shape.clone())?, Tensor::zeros(shape)?))
        };
        add_at(total, &place, &result.mul(&weight)?)?;
        add_at(weights, &place, &weight)?;
    }
    let (total, weights) =
        sums.ok_or_else(|| TensorError::invalid("tiled", "there is nothing to tile"))?;
    Ok(total.div(&weights)?)
}

/// Ones that rise from every edge over the width of the overlap.
fn feathered(
    shape: &[usize],
    axes: &[TileAxis<'_>],
    rounded: impl Fn(f64) -> usize,
) -> Result<Tensor> {
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
