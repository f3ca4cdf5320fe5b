//! Fewer colours, with or without dithering.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::{Buffer, Tensor, resize::to_u8};

use super::palette::{Color, Nearest, Palette};
use crate::types::Image;

/// Reduces a picture to a few colours.
#[derive(Node)]
#[node(
    id = "ImageQuantize",
    v3,
    module = "comfy_extras.nodes_post_processing",
    category = "image/postprocessing",
    outputs("IMAGE")
)]
pub(crate) struct ImageQuantize {
    image: Image,
    /// How many colours the result has.
    #[input(default = 256, min = 1, max = 256, step = 1)]
    colors: i64,
    /// How the missing colours are hinted at.
    #[input(choices = ["none", "floyd-steinberg", "bayer-2", "bayer-4", "bayer-8", "bayer-16"])]
    dither: String,
}

impl Node for ImageQuantize {
    fn run(self, cx: &Cx) -> NodeResult {
        let [b, h, w, c] = self.image.0.dims4()?;
        if c != 3 || h * w == 0 {
            return Err(NodeError::value_error(format!(
                "needs a picture of three channels, got shape {:?}",
                self.image.0.shape()
            )));
        }
        if !(1..=256).contains(&self.colors) {
            return Err(NodeError::value_error(format!(
                "colors must be between 1 and 256, got {}",
                self.colors
            )));
        }
        let dither = Dither::parse(&self.dither)?;
        let mut out = Buffer::with_room(b * h * w * 3)?;
        let cancel = Cancel::current();
        for picture in self.image.0.data().chunks_exact(h * w * 3) {
            cx.check_interrupt()?;
            let mut pixels: Buffer<Color> = Buffer::with_room(h * w)?;
            for row in picture.chunks_exact(w * 3) {
                cancel.stop();
                let colours = row.chunks_exact(3);
                pixels.extend(colours.map(|p| [to_u8(p[0]), to_u8(p[1]), to_u8(p[2])]));
            }
            let palette = Palette::new(&pixels, self.colors as usize);
            match dither {
                Dither::None => {
                    let mut nearest = palette.nearest();
                    for row in pixels.chunks_mut(w) {
                        cancel.stop();
                        for p in row.iter_mut() {
                            *p = nearest.of(*p);
                        }
                    }
                }
                Dither::FloydSteinberg => diffuse(&mut pixels, w, &mut palette.nearest()),
                Dither::Bayer(n) => ordered(&mut pixels, w, n, &palette),
            }
            for row in pixels.chunks(w) {
                cancel.stop();
                out.extend(row.as_flattened().iter().map(|v| f32::from(*v) / 255.0));
            }
        }
        Ok(NodeOutput::one(Image(Tensor::from_buffer(
            [b, h, w, 3],
            out,
        )?)))
    }
}

#[derive(Clone, Copy)]
enum Dither {
    None,
    FloydSteinberg,
    /// The side of the pattern, as a power of two.
    Bayer(u32),
}

impl Dither {
    fn parse(name: &str) -> Result<Self, NodeError> {
        Ok(match name {
            "none" => Self::None,
            "floyd-steinberg" => Self::FloydSteinberg,
            "bayer-2" => Self::Bayer(1),
            "bayer-4" => Self::Bayer(2),
            "bayer-8" => Self::Bayer(3),
            "bayer-16" => Self::Bayer(4),
            other => {
                let message = format!("unknown dithering {other:?}");
                return Err(NodeError::value_error(message));
            }
        })
    }
}

/// Floyd and Steinberg's error diffusion: 7/16 to the right, 3, 5 and 1/16 to the three pixels below.
///
/// As in Pillow, the slot right of a row's end receives pieces of the blue channel's errors for all three channels; that
/// shows in the last column of the next row.
fn diffuse(pixels: &mut [Color], w: usize, nearest: &mut Nearest<'_>) {
    // What falls on the row below, by column, one ahead: slot x + 1 belongs to column x.
    let mut below = vec![[0i32; 3]; w + 1];
    let cancel = Cancel::current();
    for row in pixels.chunks_exact_mut(w) {
        cancel.stop();
        let mut right = [0i32; 3];
        let mut last = [0i32; 3];
        // Sums for the slot before the current one, and the error of the previous pixel.
        let mut under = [0i32; 3];
        let mut previous = [0i32; 3];
        for (x, pixel) in row.iter_mut().enumerate() {
            let wanted: [i32; 3] = std::array::from_fn(|k| {
                let error = (right[k] + below[x + 1][k]) / 16;
                (i32::from(pixel[k]) + error).clamp(0, 255)
            });
            let found = nearest.of(wanted.map(|v| v as u8));
            for k in 0..3 {
                let error = wanted[k] - i32::from(found[k]);
                below[x][k] = 3 * error + under[k];
                under[k] = 5 * error + previous[k];
                previous[k] = error;
                right[k] = 7 * error;
                last[k] = error;
            }
            *pixel = found;
        }
        below[w] = [under[2], previous[2], last[2]];
    }
}

/// Ordered dithering with Bayer's matrix of side 2^n.
fn ordered(pixels: &mut [Color], w: usize, n: u32, palette: &Palette) {
    let spread = (512.0 / palette.colors.len() as f64) as f32;
    let side = 1usize << n;
    let pattern: Vec<f32> = bayer(n).iter().map(|m| spread * m + 0.5).collect();
    let mut nearest = palette.nearest();
    let cancel = Cancel::current();
    for (i, pixel) in pixels.iter_mut().enumerate() {
        if i % w == 0 {
            cancel.stop();
        }
        let offset = pattern[i / w % side * side + i % w % side];
        *pixel = nearest.of(pixel.map(|v| (f32::from(v) + offset).clamp(0.0, 255.0) as u8));
    }
}

/// Bayer's matrix around zero, row by row.
fn bayer(n: u32) -> Vec<f32> {
    if n == 0 {
        return vec![0.0];
    }
    let q = 4f32.powi(n as i32);
    let half = 1usize << (n - 1);
    let inner = bayer(n - 1);
    let mut out = Vec::with_capacity(4 * half * half);
    for y in 0..2 * half {
        for x in 0..2 * half {
            let shift = match (y / half, x / half) {
                (0, 0) => -1.5,
                (0, _) => 0.5,
                (_, 0) => 1.5,
                _ => -0.5,
            };
            out.push((q * inner[y % half * half + x % half] + shift) / q);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_tensor::synthetic::{Mapping, fnv1a64, input};

    /// Made with Pillow 13.0.0: `quantize(n)`, then `quantize(palette=.., dither=..)`, of 300x300 pixels of noise, which
    /// is more colours than are counted in full.
    #[test]
    fn noise_comes_out_as_in_pillow() {
        let noise = input("palette.noise", &[300 * 300, 3], Mapping::Q8).unwrap();
        let pixels: Vec<Color> = noise
            .data()
            .chunks_exact(3)
            .map(|p| [0, 1, 2].map(|k| (p[k] * 255.0).round() as u8))
            .collect();
        let hash = |colors: &[Color]| fnv1a64(colors.as_flattened());
        let many = Palette::new(&pixels, 256);
        assert_eq!(hash(&many.colors), 0x0fa7_5f17_b132_c4c3);

        let palette = Palette::new(&pixels, 16);
        assert_eq!(hash(&palette.colors), 0x0566_0857_7250_b8b1);
        let mut nearest = palette.nearest();
        let out: Vec<Color> = pixels.iter().map(|p| nearest.of(*p)).collect();
        assert_eq!(hash(&out), 0x8bfd_e9c4_3a10_2760);
        let mut out = pixels.clone();
        diffuse(&mut out, 300, &mut nearest);
        assert_eq!(hash(&out), 0x7a65_6014_c8c9_d623, "dithered");
    }
}
