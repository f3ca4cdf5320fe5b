//! What goes into the network: the sequence, where its tokens are, and the two noise levels.

use fresco_tensor::{Generator, Tensor};

use super::config::{MiniMaxConfig, PATCH};
use super::model::{MiniMaxNetwork, Segment, Sequence, Tokens};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, HookPoints, OWN_APART};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    BesideLatent, BesideShift, CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts,
    NetworkInput, names, pack_parts, unpack_parts,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{PatchOrder, video_from_tokens, video_to_tokens};

/// How far schedules are shifted, of pictures and of sound.
const SHIFT: BesideShift = BesideShift {
    first: 12.0,
    beside: 3.0,
};
/// How clean given pictures are.
const GIVEN: f32 = 0.999;
/// Places between frames, and frames of the latent frames of a clip.
const STEP: f64 = 5.0 / 3.0;
const CLIP: [f64; 5] = [1.0, 4.0, 4.0, 4.0, 4.0];
/// Places of a picture along its sides.
const SIDE: f64 = 32.0;

/// Names in conditionings: latents that are given, what each of them is, and kinds of words.
pub const LATENTS: &str = "minimax_latents";
pub const KINDS: &str = "minimax_kinds";
pub const TAGS: &str = "minimax_word_tags";

/// What a given latent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A picture of the video to be made, at this frame.
    Frame(usize),
    /// A picture to be like.
    Image,
    /// A video to be like.
    Video,
    /// The sound of the video that follows.
    Soundtrack,
    /// A sound to be like.
    Sound,
}

impl Kind {
    /// As it is written in a conditioning.
    pub fn word(self) -> String {
        match self {
            Self::Frame(at) => format!("frame:{at}"),
            Self::Image => "image".to_owned(),
            Self::Video => "video".to_owned(),
            Self::Soundtrack => "soundtrack".to_owned(),
            Self::Sound => "sound".to_owned(),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "image" => Self::Image,
            "video" => Self::Video,
            "soundtrack" => Self::Soundtrack,
            "sound" => Self::Sound,
            other => Self::Frame(other.strip_prefix("frame:")?.parse().ok()?),
        })
    }
}

/// Latent frames of a video of so many frames.
pub fn latent_frames(frames: usize) -> usize {
    let (clips, rest) = (frames / 17, frames % 17);
    clips * 5 + rest.div_ceil(4)
}

/// Frames of a video of so many latent frames.
fn whole_frames(latent: usize) -> usize {
    let (clips, rest) = (latent / CLIP.len(), latent % CLIP.len());
    clips * 17 + (4 * rest).saturating_sub(3)
}

/// Latent frames of the sound of a video of so many latent frames: 40 a second, beside 24 frames.
fn silence(latent: usize) -> usize {
    let seconds = whole_frames(latent) as f64 / 24.0;
    (seconds * 40.0).round_ties_even().max(1.0) as usize
}

/// The sequence as it grows.
#[derive(Default)]
struct Build {
    segments: Vec<Segment>,
    places: Vec<f32>,
    tags: Vec<usize>,
    labels: Vec<usize>,
    pictures: Vec<Tensor>,
    sound: Vec<Tensor>,
}

impl Build {
    fn add(&mut self, of: Tokens, places: Vec<[f64; 3]>, label: usize) {
        let count = places.len();
        let tag = match of {
            Tokens::Pictures => 0,
            Tokens::Words => 1,
            Tokens::Sound => 2,
        };
        self.segments.push(Segment { of, count });
        self.places
            .extend(places.iter().flatten().map(|v| *v as f32));
        self.tags.extend(std::iter::repeat_n(tag, count));
        self.labels.extend(std::iter::repeat_n(label, count));
    }
}

/// Places along a side of a picture of h by w cells.
fn side(length: usize, area: f64) -> Vec<f64> {
    let share = length as f64 / area;
    let count = length / PATCH;
    let place = |i: usize| ((1.0 - share) / 2.0 + i as f64 * share / count as f64) * SIDE;
    (0..count).map(place).collect()
}

/// Rows and columns of a latent (b, c, t, h, w).
fn grid(latent: &Tensor) -> Result<[Vec<f64>; 2]> {
    let &[_, _, _, h, w] = latent.shape() else {
        let reason = format!("{:?} is not the shape of a video", latent.shape());
        return Err(ModelError::invalid("latent", reason));
    };
    if h * w == 0 {
        return Err(ModelError::invalid("latent", "it has no cells"));
    }
    // What does not make whole squares is filled up from the other side.
    let (h, w) = (h.next_multiple_of(PATCH), w.next_multiple_of(PATCH));
    let area = ((h * w) as f64).sqrt();
    Ok([side(h, area), side(w, area)])
}

/// Places of one frame at a time.
fn frame([rows, columns]: &[Vec<f64>; 2], at: f64) -> Vec<[f64; 3]> {
    let places = rows
        .iter()
        .flat_map(|row| columns.iter().map(move |column| [at, *row, *column]));
    places.collect()
}

/// Places of all frames from a time on, and where they end.
fn frames(grid: &[Vec<f64>; 2], count: usize, from: f64) -> (Vec<[f64; 3]>, f64) {
    let mut at = from;
    let mut places = Vec::new();
    for number in 0..count {
        places.extend(frame(grid, at));
        at += STEP * CLIP[number % CLIP.len()];
    }
    (places, at)
}

/// Places of sound (b, c, ears, frames): one ear after the other, at the sides of a picture.
fn ears(sound: &Tensor, columns: &[f64], from: f64) -> Result<Vec<[f64; 3]>> {
    let [_, _, ears, count] = sound.dims4()?;
    let ends = [columns.first(), columns.last()];
    let mut places = Vec::new();
    for ear in 0..ears {
        let at = ends[ear.min(1)].copied().unwrap_or(0.0);
        places.extend((0..count).map(|j| [from + j as f64, 0.0, at]));
    }
    Ok(places)
}

/// Tokens of sound, (1, ears * frames, c).
fn sound_tokens(sound: &Tensor) -> Result<Tensor> {
    let [b, c, ears, count] = sound.dims4()?;
    Ok(sound
        .permute(&[0, 2, 3, 1])?
        .reshape([b, ears * count, c])?)
}

fn picture_tokens(latent: &Tensor) -> Result<Tensor> {
    Ok(video_to_tokens(latent, PATCH, PatchOrder::ChannelFirst)?.0)
}

impl BesideShift {
    /// The noise level of what is beside for that of the first.
    fn beside_level(self, level: f32) -> f32 {
        let level = f64::from(level);
        let plain = level / (self.first + level * (1.0 - self.first));
        (self.beside * plain / (1.0 + (self.beside - 1.0) * plain)) as f32
    }
}

/// Numbers of what tokens are told: the video's time, the sound's, that of given pictures and that of given sound.
const VIDEO: usize = 0;
const SOUND: usize = 1;
const KEPT: usize = 2;
const KEPT_SOUND: usize = 3;

conds! {
    /// What the network is told besides the latent.
    struct MiniMaxConds<'a> {
        words: &'a Tensor = names::PROMPT,
        tags: Option<&'a Tensor> = TAGS,
        latents: &'a [Tensor] = LATENTS,
        kinds: Option<&'a str> = KINDS,
    }
}

impl DiffusionNetwork for MiniMaxNetwork {
    type Config = MiniMaxConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, OWN_APART])]);

    fn facts(config: &MiniMaxConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::MINIMAX,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: config.pass(),
            sampling: ModelSampling::flow(SHIFT.first, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &MiniMaxConfig) -> Result<Self> {
        Self::layers(weights, config)
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let Some(shapes) = input.hooks.parts.as_deref() else {
            let reason = "this model samples a video together with its sound: make the latent with \
                          EmptyMiniMaxH3LatentAV or MiniMaxH3ImageToVideo";
            return Err(ModelError::invalid("latent", reason));
        };
        let parts = unpack_parts(input.x, shapes)?;
        let [video, sound] = parts.as_slice() else {
            return Err(ModelError::invalid(
                "latent",
                "a video and its sound are wanted",
            ));
        };
        let mut made = Vec::new();
        for item in 0..video.dim(0)? {
            let level = input.timesteps.get(item).copied().unwrap_or(0.0) / 1000.0;
            let one = |x: &Tensor| x.narrow(0, item, 1);
            let out = self.item(&one(video)?, &one(sound)?, level, item, input)?;
            made.push(pack_parts(&out)?);
        }
        Ok(Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?)
    }

    fn encode(config: &MiniMaxConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        if let Some(tags) = args.cond.tensors.get(TAGS) {
            conds.insert(TAGS, CondValue::Regular(tags.clone()));
        }
        if let (Some(list), Some(kinds)) =
            (args.cond.lists.get(LATENTS), args.cond.words.get(KINDS))
        {
            conds.insert(LATENTS, CondValue::List(list.clone()));
            conds.insert(KINDS, CondValue::Word(kinds.clone()));
        }
        Ok(conds)
    }

    fn beside(config: &MiniMaxConfig) -> Option<BesideLatent> {
        Some(BesideLatent {
            // Both ears.
            values: 2 * config.sound,
            rows_first: true,
            shift: Some(SHIFT),
            silence: Some(silence),
        })
    }
}

impl MiniMaxNetwork {
    /// One video (1, c, t, h, w) with its sound (1, c, ears, frames): where noise is left of data.
    fn item(
        &self,
        video: &Tensor,
        carried: &Tensor,
        level: f32,
        item: usize,
        input: &NetworkInput<'_>,
    ) -> Result<[Tensor; 2]> {
        let conds = MiniMaxConds::read(input.conds)?;
        let words = conds.words;
        let words = words.narrow(0, item, 1)?;
        let shift = input.hooks.beside::<BesideShift>().last();
        let shift = shift.copied().unwrap_or(SHIFT);
        let sound_level = shift.beside_level(level);
        let scale = shift.scale();
        // Sound is carried so that one level does for both.
        let share = if level > 0.0 {
            sound_level / level
        } else {
            1.0 / scale
        };
        let sound = carried.mul_scalar(share);
        let times = [
            1.0 - level,
            1.0 - sound_level,
            (1.0 - level).max(GIVEN),
            1.0,
        ];
        let mut build = Build::default();
        let count = words.dim(1)?;
        let places = (0..count).map(|i| [i as f64, 0.0, 0.0]).collect();
        build.add(Tokens::Words, places, VIDEO);
        if let Some(tags) = conds.tags {
            let tags = tags.narrow(0, item.min(tags.dim(0)? - 1), 1)?;
            for (tag, own) in build.tags.iter_mut().zip(tags.data()) {
                *tag = usize::from(*own != 0.0);
            }
        }
        let target = grid(video)?;
        let mut from = count as f64;
        let seed = input.hooks.seed;
        add_references(&mut build, &mut from, &target, (item, seed), &conds)?;
        build.add(Tokens::Sound, ears(&sound, &target[1], from)?, SOUND);
        build.sound.push(sound_tokens(&sound)?);
        let (places, _) = frames(&target, video.dim(2)?, from);
        build.add(Tokens::Pictures, places, VIDEO);
        build.pictures.push(picture_tokens(video)?);
        let join = |list: &[Tensor]| Tensor::cat(&list.iter().collect::<Vec<_>>(), 1);
        let (pictures, sounds) = (join(&build.pictures)?, join(&build.sound)?);
        let sequence = Sequence {
            words: &words,
            pictures: &pictures,
            sound: &sounds,
            segments: &build.segments,
            places: &build.places,
            tags: &build.tags,
            times: &times,
            labels: &build.labels,
        };
        let (out, out_sound) = self.pass(&sequence, input.hooks)?;
        let last = |x: &Tensor, count: usize| x.narrow(1, x.shape()[1] - count, count);
        let &[_, _, t, h, w] = video.shape() else {
            return Err(ModelError::invalid("latent", "it is not a video"));
        };
        let size = [t, h.div_ceil(PATCH), w.div_ceil(PATCH)];
        let own = last(&out, size.iter().product())?;
        let own = video_from_tokens(&own, size, PATCH, PatchOrder::ChannelFirst, (h, w))?;
        let [_, c, ears, frames] = sound.dims4()?;
        let heard = last(&out_sound, ears * frames)?;
        let heard = heard
            .reshape([1, ears, frames, c])?
            .permute(&[0, 3, 1, 2])?;
        // Its answer leads to the data; the level that is carried is the video's.
        let heard = heard.mul_scalar(-(1.0 + (scale - 1.0) * sound_level));
        let heard = sound.mul_scalar(1.0 - scale).add(&heard)?;
        Ok([own.mul_scalar(-1.0), heard])
    }
}

/// Pictures, videos and sounds that the conditioning brings.
fn add_references(
    build: &mut Build,
    from: &mut f64,
    target: &[Vec<f64>; 2],
    (item, seed): (usize, u64),
    conds: &MiniMaxConds<'_>,
) -> Result<()> {
    let latents = conds.latents;
    let words = conds.kinds.unwrap_or_default();
    let kinds: Option<Vec<Kind>> = words.split_whitespace().map(Kind::parse).collect();
    let kinds = kinds.filter(|kinds| kinds.len() == latents.len());
    let Some(kinds) = kinds else {
        let reason = format!("{} latents are given, said to be {words:?}", latents.len());
        return Err(ModelError::invalid("conditioning", reason));
    };
    // Given pictures are told to be almost clean, so a little noise is put in, always the same.
    let kept = |latent: &Tensor| -> Result<Tensor> {
        let latent = latent.narrow(0, item.min(latent.dim(0)? - 1), 1)?;
        let noise = Generator::new(seed).randn(latent.shape())?;
        let noise = noise.mul_scalar(1.0 - GIVEN);
        Ok(latent.mul_scalar(GIVEN).add(&noise)?)
    };
    let start = *from;
    let mut soundtrack: Option<&Tensor> = None;
    for (latent, kind) in latents.iter().zip(kinds) {
        match kind {
            Kind::Frame(at) => {
                let latent = kept(latent)?;
                let places = frame(target, start + STEP * at as f64);
                build.add(Tokens::Pictures, places, KEPT);
                build
                    .pictures
                    .push(picture_tokens(&latent.narrow(2, 0, 1)?)?);
            }
            Kind::Image => {
                let latent = kept(latent)?;
                build.add(Tokens::Pictures, frame(&grid(&latent)?, *from), KEPT);
                build
                    .pictures
                    .push(picture_tokens(&latent.narrow(2, 0, 1)?)?);
                *from += 1.0;
            }
            Kind::Soundtrack => soundtrack = Some(latent),
            Kind::Video => {
                let latent = kept(latent)?;
                let own = grid(&latent)?;
                let mut end = *from;
                if let Some(sound) = soundtrack.take() {
                    let sound = sound.narrow(0, 0, 1)?;
                    build.add(Tokens::Sound, ears(&sound, &own[1], *from)?, KEPT_SOUND);
                    build.sound.push(sound_tokens(&sound)?);
                    end = *from + sound.dim(3)? as f64;
                }
                let (places, last) = frames(&own, latent.dim(2)?, *from);
                build.add(Tokens::Pictures, places, KEPT);
                build.pictures.push(picture_tokens(&latent)?);
                *from = end.max(last);
            }
            Kind::Sound => {
                let sound = latent.narrow(0, 0, 1)?;
                build.add(Tokens::Sound, ears(&sound, &target[1], *from)?, KEPT_SOUND);
                build.sound.push(sound_tokens(&sound)?);
                *from += sound.dim(3)? as f64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_video_without_sound_gets_silence_of_its_length() {
        for (frames, sound) in [(1, 2), (5, 8), (22, 37), (124, 207)] {
            let latent = latent_frames(frames);
            assert_eq!((whole_frames(latent), silence(latent)), (frames, sound));
        }
    }

    #[test]
    fn frames_and_levels() {
        assert_eq!(
            (latent_frames(22), latent_frames(5), latent_frames(124)),
            (7, 2, 37)
        );
        let level = SHIFT.beside_level(0.5);
        // 0.5 is 1/13 without a shift.
        assert!((level - (3.0 / 13.0) / (1.0 + 2.0 / 13.0)).abs() < 1e-6);
        assert_eq!(SHIFT.beside_level(1.0), 1.0);
        for kind in [Kind::Frame(7), Kind::Image, Kind::Soundtrack] {
            assert_eq!(Kind::parse(&kind.word()), Some(kind));
        }
        assert_eq!(Kind::parse("frame:x"), None);
    }

    #[test]
    fn places_of_a_picture() {
        let latent = Tensor::zeros([1, 4, 7, 4, 6]).unwrap();
        let [rows, columns] = grid(&latent).unwrap();
        let area = 24.0f64.sqrt();
        assert!((rows[0] - (1.0 - 4.0 / area) / 2.0 * 32.0).abs() < 1e-9);
        assert_eq!((rows.len(), columns.len()), (2, 3));
        let (_, end) = frames(&[rows, columns], 7, 9.0);
        assert!((end - (9.0 + 5.0 / 3.0 * 22.0)).abs() < 1e-9);
        assert!(grid(&Tensor::zeros([1, 4, 1, 0, 4]).unwrap()).is_err());
        let odd = grid(&Tensor::zeros([1, 4, 1, 3, 4]).unwrap()).unwrap();
        assert_eq!(odd.map(|side| side.len()), [2, 2]);
    }
}
