//! Making a picture smaller while its rows come in: every block of pixels becomes its mean.

use super::{Frame, Mode};

/// Sums of one block of pixels.
#[derive(Clone, Copy, Default)]
struct Sum {
    colour: [u64; 3],
    /// Colour weighted by alpha: what cannot be seen does not tint what can.
    weighted: [u64; 3],
    alpha: u64,
    count: u64,
}

pub(super) struct Reducer {
    /// Edge of a block.
    factor: u32,
    width: u32,
    height: u32,
    has_alpha: bool,
    mode: Mode,
    sums: Vec<Sum>,
    /// Rows that are in the sums.
    rows: u32,
    rgb: Vec<u8>,
    alpha: Vec<u8>,
}

impl Reducer {
    pub(super) fn new(width: u32, height: u32, factor: u32) -> Self {
        let across = width.div_ceil(factor);
        let pixels = across as usize * height.div_ceil(factor) as usize;
        Self {
            factor,
            width: across,
            height: 0,
            has_alpha: false,
            mode: Mode::Rgb,
            sums: vec![Sum::default(); across as usize],
            rows: 0,
            rgb: Vec::with_capacity(pixels * 3),
            alpha: Vec::new(),
        }
    }

    /// Adds rows, as wide as the picture.
    pub(super) fn push(&mut self, band: &Frame) {
        self.mode = band.mode;
        self.has_alpha = band.has_alpha();
        let row = band.width as usize;
        for y in 0..band.height as usize {
            let colours = band.rgb8()[y * row * 3..(y + 1) * row * 3].chunks_exact(3);
            let alphas = band.alpha8().map(|a| &a[y * row..(y + 1) * row]);
            let factor = self.factor as usize;
            for (x, colour) in colours.enumerate() {
                let sum = &mut self.sums[x / factor];
                let alpha = u64::from(alphas.map_or(255, |a| a[x]));
                for (i, c) in colour.iter().enumerate() {
                    sum.colour[i] += u64::from(*c);
                    sum.weighted[i] += u64::from(*c) * alpha;
                }
                sum.alpha += alpha;
                sum.count += 1;
            }
            self.rows += 1;
            if self.rows == self.factor {
                self.end_row();
            }
        }
    }

    fn end_row(&mut self) {
        for sum in &mut self.sums {
            let sum = std::mem::take(sum);
            let mean = |total: u64, of: u64| ((total + of / 2) / of.max(1)) as u8;
            for i in 0..3 {
                self.rgb.push(if sum.alpha > 0 {
                    mean(sum.weighted[i], sum.alpha)
                } else {
                    mean(sum.colour[i], sum.count)
                });
            }
            if self.has_alpha {
                self.alpha.push(mean(sum.alpha, sum.count));
            }
        }
        self.rows = 0;
        self.height += 1;
    }

    pub(super) fn finish(mut self) -> Frame {
        if self.rows > 0 {
            self.end_row();
        }
        let alpha = self.has_alpha.then_some(self.alpha);
        Frame::new(self.width, self.height, self.mode, self.rgb, alpha)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_their_mean() {
        // 3 x 3 pixels in blocks of 2: the last column and row are narrower.
        let rgb: Vec<u8> = [10, 20, 99, 30, 40, 101, 1, 3, 7]
            .into_iter()
            .flat_map(|v| [v, 0, 255])
            .collect();
        let whole = Frame::new(3, 3, Mode::Rgb, rgb, None);
        let mut reducer = Reducer::new(3, 3, 2);
        reducer.push(&whole.rows(0, 1));
        reducer.push(&whole.rows(1, 2));
        let small = reducer.finish();
        assert_eq!((small.width, small.height), (2, 2));
        let red: Vec<u8> = small.rgb8().chunks_exact(3).map(|c| c[0]).collect();
        assert_eq!(red, [25, 100, 2, 7]);
        assert!(small.rgb8().chunks_exact(3).all(|c| c[1..] == [0, 255]));
    }

    #[test]
    fn what_is_transparent_does_not_tint() {
        let rgb = vec![200, 0, 0, 0, 0, 200];
        let frame = Frame::new(2, 1, Mode::Rgba, rgb, Some(vec![255, 0]));
        let mut reducer = Reducer::new(2, 1, 2);
        reducer.push(&frame);
        let small = reducer.finish();
        assert_eq!(small.rgb8(), [200, 0, 0]);
        assert_eq!(small.alpha8(), Some(&[128][..]));
    }
}
