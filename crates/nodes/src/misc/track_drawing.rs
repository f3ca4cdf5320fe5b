//! Drawing tracks onto the frames they belong to.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::{Buffer, Tensor, element_count, resize::to_u8};

use super::tracks::Tracks;
use crate::image::unsigned;
use crate::types::Image;

/// Draws tracks as dots with fading tails.
#[derive(Node)]
#[node(
    id = "WanMoveVisualizeTracks",
    v3,
    module = "comfy_extras.nodes_wanmove",
    category = "conditioning/video_models",
    outputs("IMAGE")
)]
pub(super) struct WanMoveVisualizeTracks {
    images: Image,
    /// Length of the tails in frames.
    #[input(default = 24, min = 1, max = 1024)]
    line_resolution: i64,
    /// Radius of the dots in pixels.
    #[input(default = 12, min = 1, max = 128)]
    circle_size: i64,
    /// How opaque the drawing is: 1 hides what is below.
    #[input(default = 0.75, min = 0.0, max = 1.0, step = 0.01)]
    opacity: f64,
    /// Width of the tails in pixels.
    #[input(default = 16, min = 1, max = 128)]
    line_width: i64,
    #[input(optional)]
    tracks: Option<Tracks>,
}

const COLORS: [[u8; 3]; 5] = [
    [102, 153, 255],
    [0, 255, 255],
    [255, 255, 0],
    [255, 102, 204],
    [0, 255, 0],
];

/// Points further out than this are moved here; tails are drawn pixel by pixel and must end.
const FAR: f32 = 32_768.0;
/// The largest dot or line, a little above what the widgets allow.
const MAX_SIZE: usize = 1024;

impl Node for WanMoveVisualizeTracks {
    fn run(self, cx: &Cx) -> NodeResult {
        let Some(tracks) = &self.tracks else {
            return Ok(NodeOutput::one(self.images));
        };
        let [count, height, width, channels] = self.images.0.dims4()?;
        let [frames, points, axes] = tracks.path()?.dims3()?;
        let visibility = tracks.visibility()?;
        if channels != 3 || axes != 2 || count == 0 {
            return Err(NodeError::value_error(format!(
                "needs RGB pictures and tracks in the plane, got shapes {:?} and {:?}",
                self.images.0.shape(),
                tracks.path()?.shape()
            )));
        }
        let radius = unsigned("circle_size", self.circle_size)?;
        let line = unsigned("line_width", self.line_width)?;
        let tail = unsigned("line_resolution", self.line_resolution)?;
        if radius.max(line) > MAX_SIZE {
            return Err(NodeError::value_error(format!(
                "dots and lines may have at most {MAX_SIZE} pixels"
            )));
        }
        // Fewer pictures than frames: the batch starts over.
        let total = frames / count * count;
        if total == 0 {
            return Err(NodeError::runtime(format!(
                "{count} pictures are more than the {frames} frames of the tracks"
            )));
        }
        let path = tracks.path()?.data();
        let at = |frame: usize, point: usize| -> [i64; 2] {
            let from = (frame * points + point) * 2;
            [path[from], path[from + 1]].map(|v| v.clamp(-FAR, FAR) as i64)
        };
        let columns = visibility.dim(1)?;
        if visibility.shape().len() != 2 || columns == 0 || visibility.shape()[0] < total {
            return Err(NodeError::value_error(format!(
                "visibility of shape {:?} does not fit {frames} frames",
                visibility.shape()
            )));
        }
        let visible = |frame: usize, point: usize| {
            visibility.data()[frame * columns + point.min(columns - 1)] != 0.0
        };

        let mut out = Buffer::with_room(element_count(&[total, height, width, 3])?)?;
        for frame in 0..total {
            cx.check_interrupt()?;
            let mut dots = Layer::new(width, height)?;
            let mut tails = Layer::new(width, height)?;
            for point in (0..points).filter(|p| visible(frame, *p)) {
                cx.check_interrupt()?;
                let color = COLORS[point % COLORS.len()];
                dots.dot(
                    at(frame, point),
                    radius,
                    color,
                    (255.0 * self.opacity) as u8,
                );
                let trail: Vec<[i64; 2]> = (frame.saturating_sub(tail)..=frame)
                    .rev()
                    .map(|f| at(f, point))
                    .collect();
                tails.tail(&trail, line, color, self.opacity);
            }
            let picture = self.images.0.select(0, frame % count)?;
            for (i, pixel) in picture.data().chunks_exact(3).enumerate() {
                let mut rgb = [pixel[0], pixel[1], pixel[2]].map(|v| f64::from(to_u8(v)));
                for layer in [&dots, &tails] {
                    let [color @ .., alpha] = layer.pixels[i];
                    let alpha = f64::from(alpha) / 255.0;
                    for (v, c) in rgb.iter_mut().zip(color) {
                        *v = f64::from(c) * alpha + *v * (1.0 - alpha);
                    }
                }
                out.extend(rgb.map(|v| f32::from(v as u8) / 255.0));
            }
        }
        let out = Tensor::from_buffer([total, height, width, 3], out)?;
        Ok(NodeOutput::one(Image(out)))
    }
}

/// What is drawn over a frame. Later strokes replace earlier ones, they do not mix.
struct Layer {
    width: usize,
    height: usize,
    pixels: Buffer<[u8; 4]>,
}

impl Layer {
    fn new(width: usize, height: usize) -> Result<Self, NodeError> {
        Ok(Self {
            width,
            height,
            pixels: Buffer::filled(width * height, [0; 4])?,
        })
    }

    fn set(&mut self, x: i64, y: i64, [r, g, b]: [u8; 3], alpha: u8) {
        if let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y))
            && x < self.width
            && y < self.height
        {
            self.pixels[y * self.width + x] = [r, g, b, alpha];
        }
    }

    /// A disc: the pixels within a circle whose outline is rounded along rows or along columns, as Pillow draws it.
    fn dot(&mut self, [x, y]: [i64; 2], radius: usize, color: [u8; 3], alpha: u8) {
        let r = radius as i64;
        let reach: Vec<i64> = (0..=r)
            .map(|d| ((r * r - d * d) as f64).sqrt().round() as i64)
            .collect();
        for dy in -r..=r {
            for dx in -r..=r {
                let (across, down) = (dx.unsigned_abs() as usize, dy.unsigned_abs() as usize);
                if across as i64 <= reach[down] || down as i64 <= reach[across] {
                    self.set(x + dx, y + dy, color, alpha);
                }
            }
        }
    }

    /// A line that grows thinner and fainter from the first point to the last.
    fn tail(&mut self, points: &[[i64; 2]], width: usize, color: [u8; 3], opacity: f64) {
        let lengths: Vec<f64> = points
            .windows(2)
            .map(|p| {
                let [dx, dy] = [0, 1].map(|k| (p[1][k] - p[0][k]) as f64);
                (dx * dx + dy * dy).sqrt()
            })
            .collect();
        let total: f64 = lengths.iter().sum();
        if total == 0.0 {
            return;
        }
        let mut done = 0.0;
        for (p, length) in points.windows(2).zip(lengths) {
            let steps = (length as i64).max(1);
            for i in 0..steps {
                let ratio = (done + i as f64 / steps as f64 * length) / total;
                let [x, y] = [0, 1].map(|k| {
                    let (from, to) = (p[0][k], p[1][k]);
                    (from as f64 + ((to - from) * i) as f64 / steps as f64) as i64
                });
                let thickness = ((width as f64 * (1.0 - ratio)) as i64).max(1);
                let alpha = (255.0 * (1.0 - ratio) * opacity) as u8;
                for row in y - (thickness - 1) / 2..=y + thickness / 2 {
                    self.set(x, row, color, alpha);
                    self.set(x + 1, row, color, alpha);
                }
            }
            done += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_discs_look_like_pillows() {
        let rows = |radius: usize| -> Vec<usize> {
            let mut layer = Layer::new(9, 9).unwrap();
            layer.dot([4, 4], radius, [1, 2, 3], 200);
            layer
                .pixels
                .chunks(9)
                .map(|row| row.iter().filter(|p| p[3] > 0).count())
                .collect()
        };
        assert_eq!(rows(1), [0, 0, 0, 1, 3, 1, 0, 0, 0]);
        assert_eq!(rows(3), [0, 3, 5, 7, 7, 7, 5, 3, 0]);
    }
}
