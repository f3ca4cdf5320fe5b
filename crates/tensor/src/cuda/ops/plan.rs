//! Tiles of products: how wide, and how the last ones are cut so that no multiprocessor waits.

use crate::cuda::launches::PixelBoxes;
use crate::cuda::tuned::{self, TileCost};

/// Multiprocessors that clusters of a size can have at once, of so many.
fn in_clusters(multiprocessors: usize, size: usize) -> usize {
    multiprocessors * tuned::in_clusters(size) / tuned::H200_MULTIPROCESSORS
}

/// How blocks make tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// One after the other. Those after the first `full` may be cut in parts along K.
    Loop,
    /// So many blocks for each.
    Once(usize),
}

/// Tiles of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TilePlan {
    pub(super) width: usize,
    pub(super) tiles: usize,
    pub(super) full: usize,
    pub(super) parts: usize,
    pub(super) work: Work,
}

/// The kernels that a product may have.
#[derive(Clone, Copy, Default)]
pub(super) struct KernelCosts<'a> {
    pub(super) loops: &'a [TileCost],
    pub(super) once: &'a [(TileCost, &'a [usize])],
}

impl TilePlan {
    /// Whole tiles and parts.
    pub(super) fn blocks(&self) -> usize {
        let parts = self.full + (self.tiles - self.full) * self.parts;
        match self.work {
            Work::Loop => parts,
            Work::Once(size) => parts * size,
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Width, parts and the way for measurements.
    pub(super) static FORCED: std::cell::Cell<Option<(usize, usize, Work)>> = const { std::cell::Cell::new(None) };
}

/// The cheapest tiles for so many tiles of rows, columns and steps along K.
pub(super) fn cut(
    offers: KernelCosts<'_>,
    row_tiles: usize,
    columns: usize,
    steps: usize,
    multiprocessors: usize,
) -> TilePlan {
    let slots = multiprocessors.max(1);
    #[cfg(test)]
    if let Some((width, parts, work)) = FORCED.get() {
        let tiles = row_tiles * columns.div_ceil(width);
        let full = if parts > 1 {
            tiles - tiles % slots
        } else {
            tiles
        };
        return TilePlan {
            width,
            tiles,
            full,
            parts,
            work,
        };
    }
    let mut best: Option<(f64, TilePlan)> = None;
    let mut offer = |time: f64, cut: TilePlan| {
        if best.is_none_or(|(least, _)| time < least) {
            best = Some((time, cut));
        }
    };
    for (cost, sizes) in offers.once {
        let width = cost.width;
        let tiles = row_tiles * columns.div_ceil(width);
        for &size in *sizes {
            if tiles * size > in_clusters(slots, size) || size > steps {
                continue;
            }
            let meeting = if size > 1 { tuned::CLUSTER_SUMS } else { 0.0 };
            let time = steps.div_ceil(size) as f64 * cost.step + cost.each + cost.once + meeting;
            let cut = TilePlan {
                width,
                tiles,
                full: tiles,
                parts: 1,
                work: Work::Once(size),
            };
            offer(time, cut);
        }
    }
    for cost in offers.loops {
        let width = cost.width;
        let tiles = row_tiles * columns.div_ceil(width);
        let whole = steps as f64 * cost.step + cost.each;
        let of = |full: usize, parts: usize| TilePlan {
            width,
            tiles,
            full,
            parts,
            work: Work::Loop,
        };
        offer(
            tiles.div_ceil(slots) as f64 * whole + cost.once,
            of(tiles, 1),
        );
        let rest = tiles % slots;
        if rest == 0 {
            continue;
        }
        let most = (slots / rest)
            .min(steps / tuned::LEAST_PART_STEPS)
            .min(tuned::MOST_PARTS);
        for parts in 2..=most {
            let bytes = (rest * parts * 128 * cost.width * 8) as f64;
            let part = steps.div_ceil(parts) as f64 * cost.step + cost.each;
            let whole = (tiles / slots) as f64 * whole + cost.once;
            let time = whole + part + tuned::ADDING_PARTS + bytes / tuned::ADDED_BYTES;
            offer(time, of(tiles - rest, parts));
        }
    }
    best.map_or(
        TilePlan {
            width: 128,
            tiles: 0,
            full: 0,
            parts: 1,
            work: Work::Loop,
        },
        |(_, cut)| cut,
    )
}

/// Rows of a tile as pixels: boxes of 2^wlog x 2^hlog pixels in as many pictures as make 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Boxes {
    height: usize,
    width: usize,
    count: usize,
    pub(super) wlog: u32,
    pub(super) hlog: u32,
    /// Results over each pixel: one, or four.
    phases: u32,
}

impl Boxes {
    /// A matrix is a picture of one row.
    pub(super) fn rows(rows: usize) -> Self {
        Self {
            height: 1,
            width: rows,
            count: 1,
            wlog: 7,
            hlog: 0,
            phases: 1,
        }
    }

    /// As few boxes as possible, as square as possible. `deep`: whether they may reach over several pictures.
    pub(super) fn pictures([count, height, width]: [usize; 3], deep: bool) -> Self {
        let shapes = (0..=7_u32).flat_map(|wlog| (0..=7 - wlog).map(move |hlog| (wlog, hlog)));
        let all = shapes
            .filter(|(wlog, hlog)| deep || wlog + hlog == 7)
            .map(|(wlog, hlog)| Self {
                height,
                width,
                count,
                wlog,
                hlog,
                phases: 1,
            });
        let halo = |b: &Self| ((2 << b.wlog) + 2) * ((2 << b.hlog) + 2) * b.deep();
        all.min_by_key(|boxes| (boxes.tiles(), halo(boxes)))
            .unwrap_or_else(|| Self::rows(width))
    }

    /// The same for each of the four pixels over one, in a picture of twice the height and width.
    pub(super) fn doubled(self) -> Self {
        Self { phases: 4, ..self }
    }

    /// Pictures that a box reaches over.
    pub(super) fn deep(&self) -> u32 {
        128 >> (self.wlog + self.hlog)
    }

    pub(super) fn tiles(&self) -> usize {
        self.width.div_ceil(1 << self.wlog)
            * self.height.div_ceil(1 << self.hlog)
            * self.count.div_ceil(self.deep() as usize)
            * self.phases as usize
    }

    /// Pixels across, lines, and pictures.
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.width, self.height, self.count]
    }

    pub(super) fn parameters(&self) -> PixelBoxes {
        PixelBoxes {
            out_height: self.height as i32,
            out_width: self.width as i32,
            out_count: self.count as i32,
            wlog: self.wlog as i32,
            hlog: self.hlog as i32,
            phases: self.phases as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::tuned::{HOPPER, HOPPER_ONCE};

    #[test]
    fn small_pictures_share_boxes() {
        let boxes = Boxes::pictures([2, 8, 8], true);
        assert_eq!(
            (boxes.wlog, boxes.hlog, boxes.deep(), boxes.tiles()),
            (3, 3, 2, 1)
        );
        let boxes = Boxes::pictures([2, 64, 64], true);
        assert_eq!((boxes.tiles(), boxes.deep()), (64, 1));
        assert!(Boxes::pictures([5, 37, 45], false).tiles() <= 5 * 3 * 5);
    }

    #[test]
    fn the_last_wave_is_full() {
        let loops = KernelCosts {
            loops: &HOPPER,
            ..KernelCosts::default()
        };
        let all = KernelCosts {
            loops: &HOPPER,
            once: &HOPPER_ONCE,
        };
        // Few tiles with a long sum are cut.
        let few = cut(loops, 1, 1280, 180, 132);
        assert!(few.full == 0 && few.parts > 4, "{few:?}");
        assert!(few.blocks() <= 132);
        // Among blocks of clusters, where there are those.
        let few = cut(all, 1, 1280, 180, 132);
        assert!(few.parts == 1, "{few:?}");
        assert!(matches!(few.work, Work::Once(size) if size > 4), "{few:?}");
        assert!((64..=132).contains(&few.blocks()));
        // Whole waves are not.
        let waves = cut(all, 64, 320, 5, 132);
        assert_eq!((waves.width, waves.parts), (160, 1));
        // Many are made one after the other.
        assert_eq!(cut(all, 256, 320, 5, 132).work, Work::Loop);
        // A short sum is not.
        assert_eq!(cut(loops, 2, 320, 2, 132).parts, 1);
        assert_eq!(cut(all, 0, 320, 2, 132).blocks(), 0);
    }
}
