//! Palettes by median cut, and putting pictures onto them, with the results Pillow has.
//!
//! The palette decides the whole picture, so every tie must fall the same way: which box is split next (a binary heap on
//! pixel counts), which side a middle value goes to, and which of two equally near colours is taken.

use std::collections::BTreeMap;

use fresco_tensor::cancel::Cancel;

pub(super) type Color = [u8; 3];

/// Colour counts are kept for at most this many different colours; beyond it the lowest bits are dropped.
const MAX_COLORS: usize = 65536;

fn distance(a: Color, b: Color) -> u32 {
    (0..3).map(|i| u32::from(a[i].abs_diff(b[i])).pow(2)).sum()
}

/// Pillow's colour hash. It also compares colours by it, so two that collide count as one.
fn key(c: Color, dropped: u32) -> u32 {
    let [r, g, b] = c.map(|v| u32::from(v) >> dropped);
    r.wrapping_mul(463) ^ (g << 8).wrapping_mul(10069) ^ (b << 16).wrapping_mul(64997)
}

/// A colour without its dropped bits, and how many pixels have it.
type Count = (Color, u32);

/// How often each colour occurs, and how many low bits had to be dropped.
fn count(pixels: &[Color]) -> (BTreeMap<u32, Count>, u32) {
    let mut dropped = 0;
    // First colour seen under a key, in full, with its count.
    let mut counts: BTreeMap<u32, Count> = BTreeMap::new();
    let cancel = Cancel::current();
    for (at, &pixel) in pixels.iter().enumerate() {
        if at % 4096 == 0 {
            cancel.stop();
        }
        counts.entry(key(pixel, dropped)).or_insert((pixel, 0)).1 += 1;
        while counts.len() > MAX_COLORS {
            dropped += 1;
            let mut merged: BTreeMap<u32, Count> = BTreeMap::new();
            for (color, n) in counts.into_values() {
                merged.entry(key(color, dropped)).or_insert((color, 0)).1 += n;
            }
            counts = merged;
        }
    }
    for (color, _) in counts.values_mut() {
        *color = color.map(|v| v >> dropped);
    }
    (counts, dropped)
}

/// A box of colours; a leaf of the tree of cuts until it is cut itself.
struct Cut {
    colors: Vec<(u32, Count)>,
    pixels: u32,
    parts: Option<(usize, usize)>,
}

impl Cut {
    fn new(colors: Vec<(u32, Count)>) -> Self {
        let pixels = colors.iter().map(|(_, (_, n))| n).sum();
        Self {
            colors,
            pixels,
            parts: None,
        }
    }

    fn range(&self, axis: usize) -> (u8, u8) {
        let values = || self.colors.iter().map(|(_, (c, _))| c[axis]);
        (values().min().unwrap_or(0), values().max().unwrap_or(0))
    }

    /// Bright half and dark half along the axis that looks longest, or nothing for a single colour.
    fn halves(&mut self) -> Option<(Self, Self)> {
        const WEIGHTS: [u32; 3] = [77, 150, 29];
        let lengths = [0, 1, 2].map(|axis| {
            let (low, high) = self.range(axis);
            u32::from(high - low) * WEIGHTS[axis]
        });
        let longest = *lengths.iter().max().expect("three lengths");
        if longest == 0 {
            return None;
        }
        let axis = lengths
            .iter()
            .position(|l| *l == longest)
            .expect("one is the longest");
        let mut by_value: BTreeMap<u8, u32> = BTreeMap::new();
        for (_, (c, n)) in &self.colors {
            *by_value.entry(c[axis]).or_default() += n;
        }
        // From the bright end, whole values at a time, until more than half of the pixels are taken.
        let (darkest, _) = self.range(axis);
        let mut taken = 0;
        let mut limit = darkest;
        for (value, n) in by_value.iter().rev() {
            taken += n;
            limit = *value;
            if taken * 2 > self.pixels {
                break;
            }
        }
        let (bright, dark) = std::mem::take(&mut self.colors)
            .into_iter()
            .partition(|(_, (c, _))| c[axis] >= limit && (limit > darkest || c[axis] > darkest));
        Some((Self::new(bright), Self::new(dark)))
    }
}

/// A max-heap of boxes by pixel count. The standard one breaks ties differently.
struct Heap(Vec<(u32, usize)>);

impl Heap {
    fn push(&mut self, item: (u32, usize)) {
        let mut at = self.0.len();
        self.0.push(item);
        while at > 0 {
            let parent = (at - 1) / 2;
            if item.0 <= self.0[parent].0 {
                break;
            }
            self.0[at] = self.0[parent];
            at = parent;
        }
        self.0[at] = item;
    }

    fn pop(&mut self) -> Option<usize> {
        let last = self.0.pop()?;
        let Some(&top) = self.0.first() else {
            return Some(last.1);
        };
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= self.0.len() {
                break;
            }
            if child + 1 < self.0.len() && self.0[child].0 < self.0[child + 1].0 {
                child += 1;
            }
            if last.0 > self.0[child].0 {
                break;
            }
            self.0[at] = self.0[child];
            at = child;
        }
        self.0[at] = last;
        Some(top.1)
    }
}

/// Up to 256 colours that stand for all of a picture's.
pub(super) struct Palette {
    pub(super) colors: Vec<Color>,
}

impl Palette {
    /// Cuts the colours of a picture into at most `size` boxes and averages each.
    pub(super) fn new(pixels: &[Color], size: usize) -> Self {
        let (counts, dropped) = count(pixels);
        let mut cuts = vec![Cut::new(counts.into_iter().collect())];
        let mut heap = Heap(Vec::new());
        heap.push((cuts[0].pixels, 0));
        for _ in 1..size {
            let halves = loop {
                let Some(next) = heap.pop() else { break None };
                if let Some(halves) = cuts[next].halves() {
                    break Some((next, halves));
                }
            };
            let Some((next, (bright, dark))) = halves else {
                break;
            };
            let first = cuts.len();
            cuts[next].parts = Some((first, first + 1));
            heap.push((bright.pixels, first));
            heap.push((dark.pixels, first + 1));
            cuts.extend([bright, dark]);
        }

        // Leaves from bright to dark are the palette's order.
        let mut boxes = BTreeMap::new();
        let mut number = 0;
        let mut open = vec![0];
        while let Some(i) = open.pop() {
            if let Some((bright, dark)) = cuts[i].parts {
                open.extend([dark, bright]);
            } else if !cuts[i].colors.is_empty() {
                boxes.extend(cuts[i].colors.iter().map(|(k, _)| (*k, number)));
                number += 1;
            }
        }

        let mut sums = vec![([0u64; 3], 0u64); number];
        for &pixel in pixels {
            let (sum, n) = &mut sums[boxes[&key(pixel, dropped)]];
            for (s, v) in sum.iter_mut().zip(pixel) {
                *s += u64::from(v);
            }
            *n += 1;
        }
        let colors = sums
            .iter()
            .map(|(sum, n)| sum.map(|s| (0.5 + s as f64 / *n as f64) as u8))
            .collect();
        Self { colors }
    }

    /// A finder for any colours.
    pub(super) fn nearest(&self) -> Nearest<'_> {
        Nearest {
            colors: &self.colors,
            cells: vec![u16::MAX; 64 * 64 * 64],
        }
    }
}

/// Nearest palette colours, decided once per cell of four values a side, from the cell's lowest corner.
pub(super) struct Nearest<'a> {
    colors: &'a [Color],
    cells: Vec<u16>,
}

impl Nearest<'_> {
    pub(super) fn of(&mut self, color: Color) -> Color {
        let [r, g, b] = color.map(|v| usize::from(v >> 2));
        let cell = &mut self.cells[r + g * 64 + b * 64 * 64];
        if *cell == u16::MAX {
            let corner = color.map(|v| v & !3);
            let near = self
                .colors
                .iter()
                .enumerate()
                .min_by_key(|(_, c)| distance(**c, corner));
            *cell = near.map_or(0, |(i, _)| i as u16);
        }
        self.colors[usize::from(*cell)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_colors_are_kept() {
        let pixels = [[10, 20, 30], [200, 100, 0], [10, 20, 30], [0, 0, 255]];
        let palette = Palette::new(&pixels, 16);
        // Bright to dark along green, which weighs most.
        assert_eq!(palette.colors, [[200, 100, 0], [10, 20, 30], [0, 0, 255]]);
    }

    #[test]
    fn one_color_is_the_mean() {
        let palette = Palette::new(&[[0, 0, 0], [255, 255, 255], [10, 255, 0]], 1);
        assert_eq!(palette.colors, [[88, 170, 85]]);
    }

    #[test]
    fn more_colors_than_can_be_counted_still_work() {
        let pixels: Vec<Color> = (0..80_000u32)
            .map(|i| [(i % 256) as u8, (i / 256 % 256) as u8, (i / 401) as u8])
            .collect();
        let (counts, dropped) = count(&pixels);
        assert!(dropped == 1 && counts.len() <= MAX_COLORS);
        assert_eq!(Palette::new(&pixels, 8).colors.len(), 8);
    }

    #[test]
    fn cells_decide_from_their_corner() {
        let palette = Palette::new(&[[0, 0, 0], [6, 6, 6]], 2);
        let mut nearest = palette.nearest();
        // 3 is as near to 6 as to 0, but its cell starts at 0.
        assert_eq!(nearest.of([3, 3, 3]), [0, 0, 0]);
        assert_eq!(nearest.of([4, 4, 4]), [6, 6, 6]);
    }
}
