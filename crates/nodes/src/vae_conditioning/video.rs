//! Video models that start from pictures: Hunyuan, Cosmos, LTX, Kandinsky.

use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_models::ltx2::NO_TOKEN;
use fresco_tensor::{Buffer, Crop, ResizeMethod, Tensor};

use super::{
    Pair, begin_with, check_batch, check_video, frame_mask, latent_frames, masked, put_frames,
    repeat_batch,
};
use crate::ltx2::InContext;
use crate::types::{Conditioning, Image, Latent, as_tensor, tensor};
use crate::vae::{Vae, first, fit, fit_by};
use crate::vision::VisionOutput;
use crate::wan::wan21;

/// Starts a Hunyuan video from a picture.
#[derive(Node)]
#[node(id = "HunyuanImageToVideo", v3, module = "comfy_extras.nodes_hunyuan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("LATENT").named("latent")))]
pub(super) struct HunyuanImageToVideo {
    positive: Conditioning,
    vae: Vae,
    #[input(default = 848, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 53, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    /// How the picture reaches the model.
    #[input(choices = ["v1 (concat)", "v2 (replace)", "custom"])]
    guidance_type: String,
    #[input(optional)]
    start_image: Option<Image>,
}
impl Node for HunyuanImageToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        check_batch(self.batch_size)?;
        check_video(self.width, self.height, self.length)?;
        let (h, w) = (self.height / 8, self.width / 8);
        let frames = latent_frames(self.length, 4);
        let mut samples = Tensor::zeros([self.batch_size, 16, frames, h, w])?;
        let mut positive = self.positive;
        let mut noise_mask = None;
        if let Some(start) = &self.start_image {
            let start = fit(&first(&start.0, self.length)?, self.width, self.height)?;
            let encoded = self.vae.encode_rgb(&start, cx)?;
            let known = latent_frames(start.dim(0)?, 4);
            let mask = frame_mask(frames, encoded.dim(3)?, encoded.dim(4)?, known)?;
            positive = match self.guidance_type.as_str() {
                "v2 (replace)" => {
                    put_frames(&mut samples, 0, &encoded)?;
                    noise_mask = Some(mask);
                    positive.set("guiding_frame_index", 0)
                }
                "custom" => positive.set("ref_latent", tensor(encoded)),
                _ => positive
                    .set("concat_latent_image", tensor(encoded))
                    .set("concat_mask", tensor(mask)),
            };
        }
        let mut latent = Latent::new(samples);
        if let Some(mask) = noise_mask {
            latent = latent.with_tensor("noise_mask", mask);
        }
        Ok(NodeOutput::slots(vec![positive.into(), latent.into()]))
    }
}
/// Starts a Hunyuan 1.5 video from a picture.
#[derive(Node)]
#[node(id = "HunyuanVideo15ImageToVideo", v3, module = "comfy_extras.nodes_hunyuan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct HunyuanVideo15ImageToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    #[input(default = 848, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 33, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(optional)]
    start_image: Option<Image>,
    #[input(optional)]
    clip_vision_output: Option<VisionOutput>,
}
impl Node for HunyuanVideo15ImageToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        check_batch(self.batch_size)?;
        check_video(self.width, self.height, self.length)?;
        let (h, w) = (self.height / 16, self.width / 16);
        let frames = latent_frames(self.length, 4);
        let samples = Tensor::zeros([self.batch_size, 32, frames, h, w])?;
        let mut pair = Pair {
            positive: self.positive,
            negative: self.negative,
        };
        if let Some(start) = &self.start_image {
            let start = fit(&first(&start.0, self.length)?, self.width, self.height)?;
            let mut beside = Tensor::zeros(samples.shape().to_vec())?;
            put_frames(&mut beside, 0, &self.vae.encode_rgb(&start, cx)?)?;
            let mask = frame_mask(frames, h, w, latent_frames(start.dim(0)?, 4))?;
            pair = pair
                .set_tensor("concat_latent_image", &beside)
                .set_tensor("concat_mask", &mask);
        }
        pair.set_vision(self.clip_vision_output)
            .with_latent(samples)
    }
}
/// Prepares a Hunyuan 1.5 latent for the enlarging model.
#[derive(Node)]
#[node(id = "HunyuanVideo15SuperResolution", v3, module = "comfy_extras.nodes_hunyuan", category = "sd", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct HunyuanVideo15SuperResolution {
    positive: Conditioning,
    negative: Conditioning,
    latent: Latent,
    /// More leaves the model more freedom to change the video.
    #[input(default = 0.7, min = 0.0, max = 1.0, step = 0.01)]
    noise_augmentation: f64,
    #[input(optional)]
    vae: Option<Vae>,
    #[input(optional)]
    start_image: Option<Image>,
    #[input(optional)]
    clip_vision_output: Option<VisionOutput>,
}
impl Node for HunyuanVideo15SuperResolution {
    fn run(self, cx: &Cx) -> NodeResult {
        let low = self.latent.samples()?;
        let &[b, c, t, h, w] = low.shape() else {
            return Err(NodeError::value_error("a video latent has five dimensions"));
        };
        // Picture, its mask, the small video, its mask.
        let mut beside = Tensor::zeros([b, 2 * c + 2, t, h, w])?;
        beside.paste(&[0, c + 1, 0, 0, 0], low)?;
        let ones = Tensor::ones([b, 1, t, h, w])?;
        beside.paste(&[0, 2 * c + 1, 0, 0, 0], &ones)?;
        if let Some(start) = &self.start_image {
            let Some(vae) = &self.vae else {
                return Err(NodeError::value_error("a start image needs a VAE"));
            };
            check_video(w * 16, h * 16, start.0.dim(0)?)?;
            let encoded = vae.encode_rgb(&fit(&start.0, w * 16, h * 16)?, cx)?;
            let count = encoded.dim(2)?.min(t);
            let encoded = encoded.narrow(2, 0, count)?.expand(&[b, c, count, h, w])?;
            beside.paste(&[0, 0, 0, 0, 0], &encoded)?;
            beside.paste(&[0, c + 1, 0, 0, 0], &ones.narrow(2, 0, 1)?)?;
        }
        let pair = Pair {
            positive: self.positive,
            negative: self.negative,
        }
        .set_tensor("concat_latent_image", &beside)
        .set("noise_augmentation", self.noise_augmentation)
        .set_vision(self.clip_vision_output);
        Ok(NodeOutput::slots(vec![
            pair.positive.into(),
            pair.negative.into(),
            self.latent.into(),
        ]))
    }
}
/// Encodes pictures followed by some grey ones, as the model saw them in training, and drops what those became.
fn encode_padded(
    vae: &Vae,
    images: &Tensor,
    size: (usize, usize),
    length: usize,
    padding: usize,
    cx: &Cx,
) -> Result<Tensor, NodeError> {
    let pixels = fit(&first(images, length)?, size.0, size.1)?;
    let known = latent_frames(pixels.dim(0)?, 8);
    let padded = length.min((known + padding) * 8 - 7);
    let encoded = vae.encode_rgb(&begin_with(&pixels, padded)?, cx)?;
    Ok(encoded.narrow(2, 0, known.min(encoded.dim(2)?))?)
}

/// The inputs of the two Cosmos nodes.
struct Cosmos {
    vae: Vae,
    size: (usize, usize),
    length: usize,
    start: Option<Image>,
    end: Option<Image>,
}

impl Cosmos {
    /// `(1, 16, frames, h, w)` with what is known filled in, and the mask of what is not; no mask if nothing is known.
    fn latent(&self, ratio: usize, cx: &Cx) -> Result<(Tensor, Option<Tensor>), NodeError> {
        let (width, height) = self.size;
        check_video(width, height, self.length)?;
        let (h, w) = (height / 8, width / 8);
        let frames = latent_frames(self.length, ratio);
        let mut samples = Tensor::zeros([1, 16, frames, h, w])?;
        if self.start.is_none() && self.end.is_none() {
            return Ok((samples, None));
        }
        let mut mask = Tensor::ones([1, 1, frames, h, w])?;
        let known = |t: &Tensor| Tensor::zeros([1, 1, t.shape()[2], h, w]);
        if let Some(start) = &self.start {
            let part = encode_padded(&self.vae, &start.0, self.size, self.length, 1, cx)?;
            put_frames(&mut samples, 0, &part)?;
            put_frames(&mut mask, 0, &known(&part)?)?;
        }
        if let Some(end) = &self.end {
            let part = encode_padded(&self.vae, &end.0, self.size, self.length, 0, cx)?;
            let at = frames.saturating_sub(part.shape()[2]);
            put_frames(&mut samples, at, &part)?;
            put_frames(&mut mask, at, &known(&part)?)?;
        }
        Ok((samples, Some(mask)))
    }
}

/// Starts a Cosmos video from pictures, or ends it with them.
#[derive(Node)]
#[node(
    id = "CosmosImageToVideoLatent",
    v3,
    module = "comfy_extras.nodes_cosmos",
    category = "conditioning/inpaint",
    outputs("LATENT")
)]
pub(super) struct CosmosImageToVideoLatent {
    vae: Vae,
    #[input(default = 1280, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 704, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 121, min = 1, max = 16384, step = 8)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(optional)]
    start_image: Option<Image>,
    #[input(optional)]
    end_image: Option<Image>,
}
impl Node for CosmosImageToVideoLatent {
    fn run(self, cx: &Cx) -> NodeResult {
        let cosmos = Cosmos {
            vae: self.vae,
            size: (self.width, self.height),
            length: self.length,
            start: self.start_image,
            end: self.end_image,
        };

        let (samples, mask) = cosmos.latent(8, cx)?;
        let Some(mask) = mask else {
            let samples = repeat_batch(&samples, self.batch_size)?;
            return Ok(NodeOutput::one(Latent::new(samples)));
        };
        Ok(NodeOutput::one(masked(
            repeat_batch(&samples, self.batch_size)?,
            repeat_batch(&mask, self.batch_size)?,
        )))
    }
}
/// Starts a Cosmos-Predict2 video from pictures, or ends it with them.
#[derive(Node)]
#[node(
    id = "CosmosPredict2ImageToVideoLatent",
    v3,
    module = "comfy_extras.nodes_cosmos",
    category = "conditioning/inpaint",
    outputs("LATENT")
)]
pub(super) struct CosmosPredict2ImageToVideoLatent {
    vae: Vae,
    #[input(default = 848, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 93, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(optional)]
    start_image: Option<Image>,
    #[input(optional)]
    end_image: Option<Image>,
}
impl Node for CosmosPredict2ImageToVideoLatent {
    fn run(self, cx: &Cx) -> NodeResult {
        let cosmos = Cosmos {
            vae: self.vae,
            size: (self.width, self.height),
            length: self.length,
            start: self.start_image,
            end: self.end_image,
        };

        let (samples, mask) = cosmos.latent(4, cx)?;
        let Some(mask) = mask else {
            let samples = repeat_batch(&samples, self.batch_size)?;
            return Ok(NodeOutput::one(Latent::new(samples)));
        };
        // What is unknown stands for the middle of the model's own latent space.
        let known = mask.rsub_scalar(1.0);
        let samples = wan21::from_model(&samples)?
            .mul(&mask)?
            .add(&samples.mul(&known)?)?;
        Ok(NodeOutput::one(masked(
            repeat_batch(&samples, self.batch_size)?,
            repeat_batch(&mask, self.batch_size)?,
        )))
    }
}
/// Starts a Kandinsky video from a picture.
#[derive(Node)]
#[node(id = "Kandinsky5ImageToVideo", v3, module = "comfy_extras.nodes_kandinsky5", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent"), Output::new("LATENT").named("cond_latent")))]
pub(super) struct Kandinsky5ImageToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    #[input(default = 768, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 512, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 121, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(optional)]
    start_image: Option<Image>,
}
impl Node for Kandinsky5ImageToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        check_batch(self.batch_size)?;
        check_video(self.width, self.height, self.length)?;
        let (h, w) = (self.height / 8, self.width / 8);
        let frames = latent_frames(self.length, 4);
        let samples = Tensor::zeros([self.batch_size, 16, frames, h, w])?;
        let mut pair = Pair {
            positive: self.positive,
            negative: self.negative,
        };
        let mut known = Map::new();
        if let Some(start) = &self.start_image {
            let start = fit(&first(&start.0, self.length)?, self.width, self.height)?;
            let encoded = self.vae.encode_rgb(&start, cx)?;
            let mask = frame_mask(frames, h, w, latent_frames(start.dim(0)?, 4))?;
            pair = pair
                .set_tensor("time_dim_replace", &encoded)
                .set_tensor("concat_mask", &mask);
            known.insert("samples".into(), tensor(encoded));
        }
        Ok(NodeOutput::slots(vec![
            pair.positive.into(),
            pair.negative.into(),
            Latent::new(samples).into(),
            known.into(),
        ]))
    }
}
/// Starts an LTX video from a picture.
#[derive(Node)]
#[node(id = "LTXVImgToVideo", v3, module = "comfy_extras.nodes_lt", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct LTXVImgToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    image: Image,
    #[input(default = 768, min = 64, max = 16384, step = 32)]
    width: usize,
    #[input(default = 512, min = 64, max = 16384, step = 32)]
    height: usize,
    #[input(default = 97, min = 9, max = 16384, step = 8)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    /// How closely the video keeps to the picture.
    #[input(default = 1.0, min = 0.0, max = 1.0)]
    strength: f64,
}
impl Node for LTXVImgToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        check_batch(self.batch_size)?;
        check_video(self.width, self.height, self.length)?;
        let pixels = fit(&self.image.0, self.width, self.height)?;
        let encoded = self.vae.encode_rgb(&pixels, cx)?;
        let frames = latent_frames(self.length, 8);
        let shape = [
            self.batch_size,
            128,
            frames,
            self.height / 32,
            self.width / 32,
        ];
        let mut samples = Tensor::zeros(shape)?;
        put_frames(&mut samples, 0, &encoded)?;
        let mut mask = Tensor::ones([self.batch_size, 1, frames, 1, 1])?;
        let held = (1.0 - self.strength) as f32;
        let part = Tensor::full([1, 1, encoded.dim(2)?, 1, 1], held)?;
        put_frames(&mut mask, 0, &part)?;
        Ok(NodeOutput::slots(vec![
            self.positive.into(),
            self.negative.into(),
            masked(samples, mask),
        ]))
    }
}
/// At most so many latent frames of a guide are kept outside the video; the rest replaces frames of it.
const PREFIX_FRAMES: usize = 2;
const TOO_LONG: &str = "Conditioning frames exceed the length of the latent sequence.";

/// Positions of guide tokens in the conditioning, `(1, 3, tokens)`.
fn guide_positions(conditioning: &Conditioning) -> Option<&Tensor> {
    conditioning
        .0
        .iter()
        .find_map(|c| c.options.get("keyframe_idxs"))
        .and_then(as_tensor)
}

/// Latent frames that are guides already: as many as there are different times.
fn guide_frames(conditioning: &Conditioning) -> usize {
    let Some(positions) = guide_positions(conditioning) else {
        return 0;
    };
    let tokens = positions.shape().get(2).copied().unwrap_or(0);
    let mut times: Vec<u32> = positions
        .data()
        .iter()
        .take(tokens)
        .map(|v| v.to_bits())
        .collect();
    times.sort_unstable();
    times.dedup();
    times.len()
}

/// How many pictures and pixels a latent cell stands for, and by what the sides of a guide are divided.
#[derive(Clone, Copy)]
struct Scale {
    time: usize,
    space: usize,
    smaller: usize,
}

/// Where the cell of a row or column begins, as a network takes it: it adds half a cell. Cells of smaller guides stand for
/// as many more pixels.
fn place(at: f32, space: usize, smaller: usize, token: usize, (h, w): (usize, usize)) -> f32 {
    let (row, column) = (token / w % h, token % w);
    if !row.is_multiple_of(smaller) || !column.is_multiple_of(smaller) {
        return NO_TOKEN;
    }
    let space = space as f32;
    at * space + space * (smaller - 1) as f32 / 2.0
}

/// A guide's cells spread over frames of the video's size.
fn spread(guide: &Tensor, smaller: usize, (h, w): (usize, usize)) -> Result<Tensor, NodeError> {
    if smaller == 1 {
        return Ok(guide.clone());
    }
    let &[batch, channels, frames, rows, columns] = guide.shape() else {
        return Err(NodeError::value_error("a video latent has five dimensions"));
    };
    let mut all = Tensor::zeros([batch, channels, frames, h, w])?;
    let (source, target) = (guide.data(), all.data_mut());
    for plane in 0..batch * channels * frames {
        for row in 0..rows.min(h.div_ceil(smaller)) {
            for column in 0..columns.min(w.div_ceil(smaller)) {
                target[(plane * h + row * smaller) * w + column * smaller] =
                    source[(plane * rows + row) * columns + column];
            }
        }
    }
    Ok(all)
}

/// The conditioning with the pixel positions of a guide's tokens added.
fn add_positions(
    conditioning: Conditioning,
    guide: &Tensor,
    frame: usize,
    Scale {
        time,
        space,
        smaller,
    }: Scale,
) -> Result<Conditioning, NodeError> {
    let &[batch, _, t, h, w] = guide.shape() else {
        return Err(NodeError::value_error("a video latent has five dimensions"));
    };
    let tokens = t * h * w;
    let mut values = Buffer::with_room(3 * tokens)?;
    for axis in 0..3 {
        for token in 0..tokens {
            let position = match axis {
                // The very first latent frame holds a single picture, all others `time` of them.
                0 if frame == 0 => (token / (h * w) * time + 1).saturating_sub(time),
                0 => token / (h * w) * time + frame,
                1 => token / w % h,
                _ => token % w,
            };
            let position = position as f32;
            values.push(match axis {
                0 => position,
                _ => place(position, space, smaller, token, (h, w)),
            });
        }
    }
    let mut positions = repeat_batch(&Tensor::from_buffer([1, 3, tokens], values)?, batch)?;
    if let Some(earlier) = guide_positions(&conditioning) {
        positions = Tensor::cat(&[earlier, &positions], 2)?;
    }
    Ok(conditioning.set("keyframe_idxs", tensor(positions)))
}

/// Lets an LTX video pass through a picture or a short clip at a given frame.
#[derive(Node)]
#[node(id = "LTXVAddGuide", v3, module = "comfy_extras.nodes_lt", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct LTXVAddGuide {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    latent: Latent,
    /// A picture, or a clip of 8n + 1 frames.
    image: Image,
    /// The frame at which the guide starts; negative counts from the end.
    #[input(default = 0, min = -9999, max = 9999)]
    frame_idx: i64,
    /// How closely the video keeps to the guide.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    strength: f64,
    /// What a LoRA says about pictures that it goes by. The guide is then seen whole, beside the video.
    #[input(optional)]
    iclora_parameters: Option<InContext>,
}
impl Node for LTXVAddGuide {
    fn run(self, cx: &Cx) -> NodeResult {
        let samples = self.latent.samples()?;
        let &[batch, _, length, h, w] = samples.shape() else {
            return Err(NodeError::value_error("a video latent has five dimensions"));
        };
        let space = self.vae.ratio()?;
        let time = self.vae.0.temporal_ratio().unwrap_or(1).max(1);
        let mut mask = match self.latent.tensor("noise_mask") {
            Some(mask) => mask.clone(),
            None => Tensor::ones([batch, 1, length, 1, 1])?,
        };

        let smaller = self.iclora_parameters.map_or(1, |p| p.smaller);
        if !w.is_multiple_of(smaller) || !h.is_multiple_of(smaller) {
            let (width, height, step) = (w * space, h * space, space * smaller);
            return Err(NodeError::value_error(format!(
                "the LoRA's references are {smaller} times smaller than the video, whose width and height must be multiples \
                 of {step}, not {width} and {height}"
            )));
        }
        let count = self.image.0.dim(0)?.saturating_sub(1) / time * time + 1;
        check_video(w * space, h * space, count)?;
        let pixels = fit_by(
            &first(&self.image.0, count)?,
            w * space / smaller,
            h * space / smaller,
            ResizeMethod::Bilinear,
            Crop::Disabled,
        )?;
        let guide = spread(&self.vae.encode_rgb(&pixels, cx)?, smaller, (h, w))?;
        let guide_length = guide.dim(2)?;

        let own = length.saturating_sub(guide_frames(&self.positive));
        let mut frame = if self.frame_idx >= 0 {
            self.frame_idx as usize
        } else {
            let whole = own.saturating_sub(1) * time + 1;
            whole.saturating_sub(self.frame_idx.unsigned_abs() as usize)
        };
        if count > 1 && frame != 0 {
            frame = (frame - 1) / time * time + 1;
        }
        let at = frame.div_ceil(time);
        if at + guide_length > length {
            return Err(NodeError::failed("AssertionError", TOO_LONG));
        }

        // References are beside the video; other guides are part of it.
        let prefix = match self.iclora_parameters {
            Some(_) => guide_length,
            None => guide_length.min(PREFIX_FRAMES),
        };
        let head = guide.narrow(2, 0, prefix)?;
        if self.iclora_parameters.is_none() {
            let ones = Tensor::ones([1, 1, prefix, 1, 1])?;
            put_frames(&mut mask, at, &ones)?;
        }
        let scale = Scale {
            time,
            space,
            smaller,
        };
        let positive = add_positions(self.positive, &head, frame, scale)?;
        let negative = add_positions(self.negative, &head, frame, scale)?;
        let held = (1.0 - self.strength) as f32;
        let mut head_shape = mask.shape().to_vec();
        head_shape[2] = prefix;
        let mut mask = Tensor::cat(&[&mask, &Tensor::full(head_shape, held)?], 2)?;
        let mut samples = Tensor::cat(&[samples, &repeat_to(&head, batch)?], 2)?;

        if guide_length > prefix {
            let rest = guide.narrow(2, prefix, guide_length - prefix)?;
            put_frames(&mut samples, at + prefix, &rest)?;
            let part = Tensor::full([1, 1, guide_length - prefix, 1, 1], held)?;
            put_frames(&mut mask, at + prefix, &part)?;
        }
        Ok(NodeOutput::slots(vec![
            positive.into(),
            negative.into(),
            masked(samples, mask),
        ]))
    }
}

/// One guide for every item of a batch.
fn repeat_to(t: &Tensor, batch: usize) -> Result<Tensor, NodeError> {
    if t.dim(0)? == 1 {
        repeat_batch(t, batch)
    } else {
        Ok(t.clone())
    }
}
