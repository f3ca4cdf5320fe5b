//! Videos in which points follow tracks.

use fresco_graph::{Cx, Node, NodeError, NodeResult, Output, Value};
use fresco_tensor::{Tensor, resize_to_batch};

use super::image::{FromStart, given_start};
use super::latent_shape;
use super::latents::wan21;
use crate::misc::tracks::{Tracks, parse};
use crate::types::{Conditioning, Image};
use crate::vae::{Vae, first, fit};
use crate::vae_conditioning::{Pair, begin_with};
use crate::vision::VisionOutput;

/// Points a track has for the model; shorter tracks end invisible.
const POINTS: usize = 121;

/// One point at one time, relative to the middle of the picture in halves of its shorter side.
#[derive(Clone, Copy, Default)]
struct Spot {
    x: f32,
    y: f32,
    seen: bool,
}

/// The spots of all tracks for each picture: times by tracks.
fn spots(
    tracks: &[Vec<Value>],
    width: usize,
    height: usize,
    length: usize,
) -> Result<Vec<Vec<Spot>>, NodeError> {
    let short = width.min(height) as f32;
    let mut table = vec![Vec::new(); POINTS];
    for track in tracks {
        for (i, row) in table.iter_mut().enumerate() {
            let (mut x, mut y, seen) = (0.0, 0.0, i < track.len());
            if let Some(point) = track.get(i) {
                let axis = |key: &str| {
                    let value = point.get(key).and_then(Value::as_f64);
                    value.ok_or_else(|| NodeError::failed("KeyError", format!("'{key}'")))
                };
                (x, y) = (axis("x")? as f32, axis("y")? as f32);
            }
            row.push(Spot {
                x: (x - width as f32 / 2.0) / short * 2.0,
                y: (y - height as f32 / 2.0) / short * 2.0,
                seen,
            });
        }
    }
    // The first point is the first picture's; the other 120 are spread over the rest.
    let rest = length - 1;
    let mut out = vec![table[0].clone()];
    if rest > 0 {
        let common = gcd(POINTS - 1, rest);
        let (a, b) = ((POINTS - 1) / common, rest / common);
        let mut k = 1;
        while k < (POINTS - 1) * b {
            out.push(table[1 + k / b].clone());
            k += a;
        }
        // A step of one takes them from the second on and leaves the last picture without.
        while out.len() < length {
            out.push(table[POINTS - 1].clone());
        }
    }
    Ok(out)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Evenly spaced from `-end` to `end`.
fn spread(i: usize, count: usize, end: f32) -> f32 {
    if count < 2 {
        return -end;
    }
    let step = 2.0 * end / (count - 1) as f32;
    if i < count / 2 {
        -end + step * i as f32
    } else {
        end - step * (count - 1 - i) as f32
    }
}

/// The value of channel `plane` at `(x, y)` in -1..1 over its whole area, zero outside.
fn sample(plane: &[f32], h: usize, w: usize, x: f32, y: f32) -> f32 {
    let px = ((x + 1.0) * w as f32 - 1.0) / 2.0;
    let py = ((y + 1.0) * h as f32 - 1.0) / 2.0;
    let (x0, y0) = (px.floor(), py.floor());
    let at = |x: f32, y: f32| {
        let inside = x >= 0.0 && y >= 0.0 && x < w as f32 && y < h as f32;
        if inside {
            plane[y as usize * w + x as usize]
        } else {
            0.0
        }
    };
    let (fx, fy) = (px - x0, py - y0);
    at(x0, y0) * (1.0 - fx) * (1.0 - fy)
        + at(x0 + 1.0, y0) * fx * (1.0 - fy)
        + at(x0, y0 + 1.0) * (1.0 - fx) * fy
        + at(x0 + 1.0, y0 + 1.0) * fx * fy
}

/// Carries what the first latent frame shows at the start of each track along the track. Gives the mask `(t, h, w)` of
/// what is carried and the video latent `(c, t, h, w)`.
fn carry(
    spots: &[Vec<Spot>],
    video: &Tensor,
    temperature: f32,
    most: usize,
    cx: &Cx,
) -> Result<(Tensor, Tensor), NodeError> {
    let [c, t, h, w] = video.dims4()?;
    let short = h.min(w) as f32;
    let (reach_x, reach_y) = (w as f32 / short, h as f32 / short);
    let tracks = spots[0].len();
    // What each track carries.
    let carried: Vec<Vec<f32>> = spots[0]
        .iter()
        .map(|s| {
            let (x, y) = (
                (s.x / reach_x).clamp(-1.0, 1.0),
                (s.y / reach_y).clamp(-1.0, 1.0),
            );
            (0..c)
                .map(|k| sample(&video.data()[k * t * h * w..][..h * w], h, w, x, y))
                .collect()
        })
        .collect();
    let mut mask = Tensor::ones([t, h, w])?;
    let mut out = video.clone();
    for frame in 1..t {
        cx.check_interrupt()?;
        // The mean place over the four pictures of this latent frame.
        let group = &spots[(frame - 1) * 4 + 1..=frame * 4];
        let places: Vec<(f32, f32, f32)> = (0..tracks)
            .map(|n| {
                let seen = group.iter().filter(|s| s[n].seen).count() as f32;
                let sum = |f: fn(&Spot) -> f32| -> f32 {
                    group.iter().filter(|s| s[n].seen).map(|s| f(&s[n])).sum()
                };
                let mean = |total: f32| total / (seen + 1e-5);
                (mean(sum(|s| s.x)), mean(sum(|s| s.y)), seen.min(1.0))
            })
            .collect();
        for row in 0..h {
            let gy = spread(row, h, reach_y);
            for column in 0..w {
                let gx = spread(column, w, reach_x);
                let mut weights: Vec<(f32, usize)> = places
                    .iter()
                    .enumerate()
                    .map(|(n, (x, y, seen))| {
                        let distance = (x - gx).powi(2) + (y - gy).powi(2);
                        ((-distance * temperature).exp() * seen, n)
                    })
                    .collect();
                weights.sort_by(|a, b| b.0.total_cmp(&a.0));
                weights.truncate(most);
                let total: f32 = weights.iter().map(|(weight, _)| weight).sum();
                mask.data_mut()[(frame * h + row) * w + column] = total;
                let open = 1.0 - total.clamp(0.0, 1.0);
                let place = (frame * h + row) * w + column;
                let planes = out.data_mut().chunks_exact_mut(t * h * w);
                for (k, plane) in planes.enumerate() {
                    let value = &mut plane[place];
                    let moved: f32 = weights
                        .iter()
                        .map(|(weight, n)| weight * carried[*n][k])
                        .sum();
                    *value = moved + *value * open;
                }
            }
        }
    }
    Ok((mask, out))
}

/// Makes a Wan video in which points of the first picture follow tracks.
#[derive(Node)]
#[node(id = "WanTrackToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanTrackToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    /// A list of tracks, each a list of points with x and y.
    #[input(default = "[]", multiline = true)]
    tracks: String,
    #[input(default = 832, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 81, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    /// Higher keeps the influence of a track closer to it.
    #[input(default = 220.0, min = 1.0, max = 1000.0, step = 0.1)]
    temperature: f64,
    /// How many tracks may act on one place.
    #[input(default = 2, min = 1, max = 10)]
    topk: usize,
    start_image: Image,
    #[input(optional)]
    clip_vision_output: Option<VisionOutput>,
}
impl Node for WanTrackToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let pair = Pair {
            positive: self.positive,
            negative: self.negative,
        };
        let tracks = parse(&self.tracks);
        if tracks.is_empty() {
            return FromStart {
                pair,
                vae: self.vae,
                size,
                batch: self.batch_size,
                start: Some(self.start_image),
                vision: self.clip_vision_output,
            }
            .run(cx);
        }
        let shape = latent_shape(self.batch_size, 16, size, 8)?;
        let spots = spots(&tracks, self.width, self.height, self.length)?;
        let start = fit(
            &first(&self.start_image.0, self.batch_size)?,
            self.width,
            self.height,
        )?;
        let start = resize_to_batch(&start, self.batch_size)?;
        let (mut masks, mut videos) = (Vec::new(), Vec::new());
        for i in 0..self.batch_size {
            let picture = begin_with(&start.narrow(0, i, 1)?, self.length)?;
            let latent = wan21::to_model(&self.vae.encode_rgb(&picture, cx)?)?;
            if spots.len() < (latent.dim(2)? - 1) * 4 + 1 {
                return Err(NodeError::value_error("the length must be 4n + 1 frames"));
            }
            let video = latent.select(0, 0)?;
            let (mask, video) = carry(&spots, &video, self.temperature as f32, self.topk, cx)?;
            let [t, h, w] = mask.dims3()?;
            let open = mask.rsub_scalar(1.0).reshape([1, 1, t, h, w])?;
            masks.push(open.expand(&[1, 4, t, h, w])?);
            videos.push(wan21::from_model(&video.unsqueeze(0)?)?);
        }
        let join = |list: &[Tensor]| Tensor::cat(&list.iter().collect::<Vec<_>>(), 0);
        pair.set_tensor("concat_mask", &join(&masks)?)
            .set_tensor("concat_latent_image", &join(&videos)?)
            .set_vision(self.clip_vision_output)
            .with_latent(Tensor::zeros(shape)?)
    }
}
/// Moves what is under each track's start along the track, in place of what is there, as far as `strength` says.
fn follow(
    video: &Tensor,
    tracks: &Tracks,
    (width, height, length): (usize, usize, usize),
    strength: f32,
) -> Result<Tensor, NodeError> {
    let &[batch, c, t, h, w] = video.shape() else {
        return Err(NodeError::value_error("a video latent has five dimensions"));
    };
    let path = first(tracks.path()?, length)?;
    let [pictures, points, axes] = path.dims3()?;
    let seen = tracks.visibility()?.clone();
    if axes != 2 || seen.rank() != 2 {
        return Err(NodeError::value_error(
            "tracks have the form (frames, points, 2)",
        ));
    }
    let seen = first(&seen, pictures)?.expand(&[pictures, points])?;
    // The cell of a track in a latent frame, if it is in the picture and visible then.
    let cell = |point: usize, frame: usize| {
        let picture = frame * 4;
        if picture >= pictures || seen.data()[picture * points + point] == 0.0 {
            return None;
        }
        let at = &path.data()[(picture * points + point) * 2..][..2];
        let (x, y) = (at[0], at[1]);
        let inside = x >= 0.0 && y >= 0.0 && x < width as f32 && y < height as f32;
        let (row, column) = ((y / 8.0) as usize, (x / 8.0) as usize);
        (inside && row < h && column < w).then_some((row, column))
    };
    let mut out = video.clone();
    let source = video.data();
    let target = out.data_mut();
    for b in 0..batch {
        for point in 0..points {
            // A track that starts unseen is taken to start in the last row and column, as the reference's indices have it.
            let (sy, sx) = cell(point, 0).unwrap_or((h - 1, w - 1));
            for frame in 1..t {
                let Some((y, x)) = cell(point, frame) else {
                    continue;
                };
                for k in 0..c {
                    let plane = (b * c + k) * t * h * w;
                    let from = source[plane + sy * w + sx];
                    let place = plane + (frame * h + y) * w + x;
                    target[place] = source[place] + (from - source[place]) * strength;
                }
            }
        }
    }
    Ok(out)
}

/// Makes a Wan video in which what is under tracks moves along them.
#[derive(Node)]
#[node(id = "WanMoveTrackToVideo", v3, module = "comfy_extras.nodes_wanmove", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanMoveTrackToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    /// How much of what is there gives way.
    #[input(default = 1.0, min = 0.0, max = 100.0, step = 0.01)]
    strength: f64,
    #[input(default = 832, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 81, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    start_image: Image,
    #[input(optional)]
    tracks: Option<Tracks>,
    #[input(optional)]
    clip_vision_output: Option<VisionOutput>,
}
impl Node for WanMoveTrackToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let shape = latent_shape(self.batch_size, 16, size, 8)?;
        let (beside, mask) = given_start(
            &self.vae,
            &self.start_image.0,
            self.width,
            self.height,
            self.length,
            cx,
        )?;
        let moved = match &self.tracks {
            Some(tracks) if self.strength > 0.0 => {
                follow(&beside, tracks, size, self.strength as f32)?
            }
            _ => beside,
        };
        Pair {
            positive: self.positive,
            negative: self.negative,
        }
        .set_tensor("concat_latent_image", &moved)
        .set_tensor("concat_mask", &mask)
        .set_vision(self.clip_vision_output)
        .with_latent(Tensor::zeros(shape)?)
    }
}
