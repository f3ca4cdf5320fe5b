//! Sound: dictionaries of a waveform `(batch, channels, samples)` and its sample rate.

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Map, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Output, Value, entry,
    map, wrong_kind,
};
use fresco_tensor::Tensor;

use crate::types::{as_tensor, tensor};

mod equalizer;
mod latent;
mod load;
pub(crate) mod resample;
mod save;
mod songs;

pub static NODES: &[NodeEntry] = &[
    entry::<save::SaveAudio>(),
    entry::<save::SaveAudioMp3>(),
    entry::<save::SaveAudioOpus>(),
    entry::<save::SaveAudioAdvanced>(),
    entry::<save::PreviewAudio>(),
    entry::<load::LoadAudio>(),
    entry::<load::RecordAudio>(),
    entry::<JoinAudioChannels>(),
    entry::<EmptyAudio>(),
    entry::<TrimAudioDuration>(),
    entry::<SplitAudioChannels>(),
    entry::<AudioConcat>(),
    entry::<AudioMerge>(),
    entry::<AudioAdjustVolume>(),
    entry::<latent::VaeEncodeAudio>(),
    entry::<latent::VaeDecodeAudio>(),
    entry::<latent::VaeDecodeAudioTiled>(),
    entry::<songs::TextEncodeAceStepAudio>(),
    entry::<songs::TextEncodeAceStepAudio15>(),
    entry::<songs::EmptyAceStep15LatentAudio>(),
    entry::<equalizer::AudioEqualizer3Band>(),
];

/// A dictionary with `waveform` and `sample_rate`.
#[derive(Clone, Debug)]
pub struct Audio(pub Arc<Map>);

impl Audio {
    pub fn new(waveform: Tensor, sample_rate: u32) -> Self {
        Self(Arc::new(
            map! {"waveform" => tensor(waveform), "sample_rate" => sample_rate},
        ))
    }

    /// `(batch, channels, samples)`.
    pub fn waveform(&self) -> Result<&Tensor, NodeError> {
        let waveform = self
            .0
            .get("waveform")
            .and_then(as_tensor)
            .ok_or_else(|| NodeError::failed("KeyError", "'waveform'"))?;
        waveform.dims3()?;
        Ok(waveform)
    }

    pub fn sample_rate(&self) -> Result<u32, NodeError> {
        self.0
            .get("sample_rate")
            .and_then(Value::as_int)
            .and_then(|r| u32::try_from(r).ok())
            .filter(|r| *r > 0)
            .ok_or_else(|| NodeError::value_error("the audio has no usable sample rate"))
    }
}

impl Audio {
    /// A part of the sound; what is beyond its end is left out.
    pub(crate) fn part(&self, start: f64, seconds: f64) -> Result<Self, NodeError> {
        let rate = self.sample_rate()?;
        let waveform = self.waveform()?;
        let [_, _, length] = waveform.dims3()?;
        let start = (samples(start, rate)?.max(0) as usize).min(length);
        let count = (samples(seconds, rate)?.max(0) as usize).min(length - start);
        Ok(Self::new(waveform.narrow(2, start, count)?, rate))
    }
}

impl FromValue for Audio {
    const IO: &'static str = "AUDIO";
    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::Map(m) => Ok(Self(m)),
            other => Err(wrong_kind("AUDIO", &other)),
        }
    }
}

impl From<Audio> for Value {
    fn from(audio: Audio) -> Self {
        Self::Map(audio.0)
    }
}

/// Seconds as a number of samples; half rounds to even.
fn samples(seconds: f64, rate: u32) -> Result<i64, NodeError> {
    let count = (seconds * f64::from(rate)).round_ties_even();
    if !count.is_finite() || count.abs() > 1e15 {
        return Err(NodeError::value_error(format!(
            "{seconds} seconds is not a length of sound"
        )));
    }
    Ok(count as i64)
}

/// Makes silence.
#[derive(Node)]
#[node(
    id = "EmptyAudio",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Empty Audio",
    category = "audio",
    outputs("AUDIO")
)]
pub struct EmptyAudio {
    /// Length of the sound in seconds.
    #[input(default = 60.0, min = 0.0, max = 18446744073709551615u64, step = 0.01)]
    duration: f64,
    /// Samples a second.
    #[input(default = 44100, min = 1, max = 192000)]
    sample_rate: u32,
    /// 1 for mono, 2 for stereo.
    #[input(default = 2, min = 1, max = 2)]
    channels: usize,
}

impl Node for EmptyAudio {
    fn run(self, _: &Cx) -> NodeResult {
        let count = samples(self.duration, self.sample_rate)?.max(0) as usize;
        let waveform = Tensor::zeros([1, self.channels, count])?;
        Ok(NodeOutput::one(Audio::new(waveform, self.sample_rate)))
    }
}

/// Cuts a piece out of a sound.
#[derive(Node)]
#[node(
    id = "TrimAudioDuration",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Trim Audio Duration",
    category = "audio",
    outputs("AUDIO")
)]
pub struct TrimAudioDuration {
    audio: Audio,
    /// Where to start, in seconds; negative counts from the end.
    #[input(default = 0.0, min = -18446744073709551615i128, max = 18446744073709551615u64, step = 0.01)]
    start_index: f64,
    /// Seconds to keep.
    #[input(default = 60.0, min = 0.0, step = 0.01)]
    duration: f64,
}

impl Node for TrimAudioDuration {
    fn run(self, _: &Cx) -> NodeResult {
        let waveform = self.audio.waveform()?;
        let rate = self.audio.sample_rate()?;
        let [_, _, length] = waveform.dims3()?;
        let length = length as i64;
        let offset = samples(self.start_index, rate)?;
        let start = if self.start_index < 0.0 {
            length + offset
        } else {
            offset
        };
        let start = start.min(length - 1).max(0);
        let end = start
            .saturating_add(samples(self.duration, rate)?)
            .clamp(0, length);
        if start >= end {
            return Err(NodeError::value_error(
                "AudioTrim: Start time must be less than end time and be within the audio length.",
            ));
        }
        let cut = waveform.narrow(2, start as usize, (end - start) as usize)?;
        Ok(NodeOutput::one(Audio::new(cut, rate)))
    }
}

/// Splits stereo into its two sides.
#[derive(Node)]
#[node(id = "SplitAudioChannels", v3, module = "comfy_extras.nodes_audio", display = "Split Audio Channels",
       category = "audio", outputs(Output::new("AUDIO").named("left"), Output::new("AUDIO").named("right")))]
pub struct SplitAudioChannels {
    audio: Audio,
}

impl Node for SplitAudioChannels {
    fn run(self, _: &Cx) -> NodeResult {
        let waveform = self.audio.waveform()?;
        let rate = self.audio.sample_rate()?;
        if waveform.dim(1)? != 2 {
            return Err(NodeError::value_error(
                "AudioSplit: Input audio has only one channel.",
            ));
        }
        let side = |i| -> Result<Value, NodeError> {
            Ok(Audio::new(waveform.narrow(1, i, 1)?, rate).into())
        };
        Ok(NodeOutput::slots(vec![side(0)?, side(1)?]))
    }
}

/// Makes stereo of two sounds; the shorter one ends in silence.
#[derive(Node)]
#[node(
    id = "JoinAudioChannels",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Join Audio Channels",
    category = "audio",
    outputs(Output::new("AUDIO").named("audio"))
)]
pub struct JoinAudioChannels {
    /// Heard on the left.
    audio_left: Audio,
    /// Heard on the right.
    audio_right: Audio,
}

impl Node for JoinAudioChannels {
    fn run(self, _: &Cx) -> NodeResult {
        let (left, right, rate) = same_rate(&self.audio_left, &self.audio_right)?;
        let longest = left.dims3()?[2].max(right.dims3()?[2]);
        // Of sound that is not mono the first channel counts.
        let side = |t: Tensor| -> Result<Tensor, NodeError> {
            let [batch, _, length] = t.dims3()?;
            let first = t.narrow(1, 0, 1)?;
            let silence = Tensor::zeros([batch, 1, longest - length])?;
            Ok(Tensor::cat(&[&first, &silence], 2)?)
        };
        let joined = Tensor::cat(&[&side(left)?, &side(right)?], 1)?;
        Ok(NodeOutput::one(Audio::new(joined, rate)))
    }
}

/// Both waveforms at the higher of the two rates.
fn same_rate(first: &Audio, second: &Audio) -> Result<(Tensor, Tensor, u32), NodeError> {
    let (a, b) = (first.waveform()?, second.waveform()?);
    let (ra, rb) = (first.sample_rate()?, second.sample_rate()?);
    Ok(match ra.cmp(&rb) {
        std::cmp::Ordering::Equal => (a.clone(), b.clone(), ra),
        std::cmp::Ordering::Greater => (a.clone(), resample::resample(b, rb, ra)?, ra),
        std::cmp::Ordering::Less => (resample::resample(a, ra, rb)?, b.clone(), rb),
    })
}

/// Puts one sound behind the other.
#[derive(Node)]
#[node(
    id = "AudioConcat",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Audio Concat",
    category = "audio",
    outputs("AUDIO")
)]
pub struct AudioConcat {
    /// The first sound.
    audio1: Audio,
    /// The sound that is put behind or before it.
    audio2: Audio,
    /// Where the second sound goes.
    #[input(choices = ["after", "before"], default = "after")]
    direction: String,
}

impl Node for AudioConcat {
    fn run(self, _: &Cx) -> NodeResult {
        let (a, b, rate) = same_rate(&self.audio1, &self.audio2)?;
        let stereo = |t: Tensor| -> Result<Tensor, NodeError> {
            Ok(if t.dim(1)? == 1 {
                t.repeat(&[1, 2, 1])?
            } else {
                t
            })
        };
        let (a, b) = (stereo(a)?, stereo(b)?);
        let joined = match self.direction.as_str() {
            "before" => Tensor::cat(&[&b, &a], 2)?,
            _ => Tensor::cat(&[&a, &b], 2)?,
        };
        Ok(NodeOutput::one(Audio::new(joined, rate)))
    }
}

/// Mixes two sounds; the result has the length of the first and never clips.
#[derive(Node)]
#[node(
    id = "AudioMerge",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Audio Merge",
    category = "audio",
    outputs("AUDIO")
)]
pub struct AudioMerge {
    /// The sound whose length the result has.
    audio1: Audio,
    /// The sound that is mixed in.
    audio2: Audio,
    /// How the two are combined.
    #[input(choices = ["add", "mean", "subtract", "multiply"])]
    merge_method: String,
}

impl Node for AudioMerge {
    fn run(self, _: &Cx) -> NodeResult {
        let (a, b, rate) = same_rate(&self.audio1, &self.audio2)?;
        let [_, _, length] = a.dims3()?;
        let [batch, channels, have] = b.dims3()?;
        let b = if have > length {
            b.narrow(2, 0, length)?
        } else {
            let silence = Tensor::zeros([batch, channels, length - have])?;
            Tensor::cat(&[&b, &silence], 2)?
        };
        let mixed = match self.merge_method.as_str() {
            "add" => a.add(&b)?,
            "mean" => a.add(&b)?.div_scalar(2.0),
            "subtract" => a.sub(&b)?,
            "multiply" => a.mul(&b)?,
            other => {
                return Err(NodeError::value_error(format!(
                    "unknown merge method {other:?}"
                )));
            }
        };
        let peak = mixed.data().iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let mixed = if peak > 1.0 {
            mixed.div_scalar(peak)
        } else {
            mixed
        };
        Ok(NodeOutput::one(Audio::new(mixed, rate)))
    }
}

/// Makes a sound louder or softer.
#[derive(Node)]
#[node(
    id = "AudioAdjustVolume",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Audio Adjust Volume",
    category = "audio",
    outputs("AUDIO")
)]
pub struct AudioAdjustVolume {
    audio: Audio,
    /// Decibels: 6 doubles, -6 halves, 0 changes nothing.
    #[input(default = 1, min = -100, max = 100)]
    volume: i64,
}

impl Node for AudioAdjustVolume {
    fn run(self, _: &Cx) -> NodeResult {
        if self.volume == 0 {
            return Ok(NodeOutput::one(self.audio));
        }
        let gain = 10f64.powf(self.volume as f64 / 20.0) as f32;
        let louder = self.audio.waveform()?.mul_scalar(gain);
        let rate = self.audio.sample_rate()?;
        Ok(NodeOutput::one(Audio::new(louder, rate)))
    }
}
