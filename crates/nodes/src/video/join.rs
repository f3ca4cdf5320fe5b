//! Films one after the other.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_tensor::Tensor;

use super::{FilmFrames, Video, VideoSlice, exact_fraction};
use crate::audio::{Audio, resample::resample};
use crate::frames::{FrameSet, FrameSink, FrameStream};

/// Frames of several films, which are read when somebody wants them.
struct Row(Vec<FrameSet>, [usize; 4]);

impl FrameStream for Row {
    fn shape(&self) -> [usize; 4] {
        self.1
    }

    fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), NodeError> {
        self.0.iter().try_for_each(|set| set.read(sink))
    }
}

/// Puts videos one behind the other.
#[derive(Node)]
#[node(
    id = "ConcatenateVideo",
    v3,
    module = "comfy_extras.nodes_video",
    display = "ConcatenateVideo",
    category = "image/video",
    outputs(Output::new("VIDEO")),
    input_is_list
)]
pub(super) struct ConcatenateVideo {
    /// All of the same size; the rate is that of the first.
    videos: Vec<Video>,
    /// The coder of the result; auto keeps what fits.
    #[input(choices = ["auto"], default = "auto")]
    codec: Vec<String>,
    /// Sound for all of it, in place of that of the parts.
    #[input(optional)]
    complete_audio: Option<Vec<Audio>>,
}

/// The sounds of films one after the other, each as long as its film; none where no film has one.
fn sounds(videos: &[Video]) -> Result<Option<Audio>, NodeError> {
    let mut parts = Vec::with_capacity(videos.len());
    for video in videos {
        parts.push((video.audio()?, video.duration()?));
    }
    let Some(first) = parts.iter().find_map(|(audio, _)| audio.as_ref()) else {
        return Ok(None);
    };
    let rate = first.sample_rate()?;
    let mut lines = Vec::new();
    for (audio, seconds) in &parts {
        let wanted = (seconds * f64::from(rate)).round().max(0.0) as usize;
        let line = match audio {
            None => Tensor::zeros([1, 2, wanted])?,
            Some(audio) => {
                let wave = resample(audio.waveform()?, audio.sample_rate()?, rate)?;
                let wave = wave.narrow(0, 0, 1)?;
                let channels = wave.dim(1)?;
                let wave = if channels == 1 {
                    wave.repeat(&[1, 2, 1])?
                } else {
                    wave.narrow(1, 0, 2)?
                };
                let have = wave.dim(2)?.min(wanted);
                let silence = Tensor::zeros([1, 2, wanted - have])?;
                Tensor::cat(&[&wave.narrow(2, 0, have)?, &silence], 2)?
            }
        };
        lines.push(line);
    }
    let joined = Tensor::cat(&lines.iter().collect::<Vec<_>>(), 2)?;
    Ok(Some(Audio::new(joined, rate)))
}

impl Node for ConcatenateVideo {
    fn run(self, _: &Cx) -> NodeResult {
        // There is one way only: frames are encoded when the film is saved.
        let _ = &self.codec;
        let Some(first) = self.videos.first() else {
            return Err(NodeError::value_error("there is no video to begin with"));
        };
        let (size, fps) = (first.size()?, first.fps()?);
        let frame_rate = exact_fraction(fps)
            .filter(|(n, _)| *n > 0)
            .ok_or_else(|| NodeError::value_error(format!("{fps} is not a frame rate")))?;
        let mut count = 0;
        let mut sets = Vec::with_capacity(self.videos.len());
        for (number, video) in self.videos.iter().enumerate() {
            let (width, height) = video.size()?;
            if (width, height) != size {
                return Err(NodeError::value_error(format!(
                    "video {} is {width} x {height}, the first is {} x {}: scale them to one size first",
                    number + 1,
                    size.0,
                    size.1
                )));
            }
            let frames = video.frames();
            count += frames.shape()?[0];
            sets.push(frames);
        }
        let audio = match self.complete_audio.and_then(|list| list.into_iter().next()) {
            Some(audio) => Some(audio),
            None => sounds(&self.videos)?,
        };
        let row = Row(sets, [count, size.1, size.0, 3]);
        Ok(NodeOutput::one(Video::Frames(FilmFrames {
            images: FrameSet::Stream(Arc::new(row)),
            audio,
            frame_rate,
        })))
    }
}

/// Cuts a piece out of a video, as it was chosen in the editor.
#[derive(Node)]
#[node(
    id = "VideoTrim",
    v3,
    module = "comfy_extras.nodes_video",
    display = "Trim Video (Advanced)",
    category = "image/video",
    outputs(Output::new("VIDEO").named("video"))
)]
pub(super) struct VideoTrim {
    video: Video,
    /// Where the piece begins and ends, in seconds: `start_time` with `end_time` or `duration`.
    #[input(ty = "VIDEO_EDIT")]
    trim: Value,
    /// Fail when the video is too short, instead of giving less.
    #[input(optional, default = false)]
    strict_duration: Option<bool>,
}

/// A number of seconds under one of these names; none where nothing is said.
fn seconds(trim: &Value, names: &[&str]) -> Result<Option<f64>, NodeError> {
    let mut found = names.iter().filter_map(|name| trim.get(name));
    let Some(value) = found.find(|value| !matches!(value, Value::Null)) else {
        return Ok(None);
    };
    let number = value.as_f64().filter(|n| n.is_finite());
    let wrong = || NodeError::value_error(format!("trim: {names:?} is not a number of seconds"));
    number.map(Some).ok_or_else(wrong)
}

impl Node for VideoTrim {
    fn run(self, cx: &Cx) -> NodeResult {
        if self.trim.as_map().is_none() {
            return Err(NodeError::value_error(
                "trim is not a choice of the editor: start_time with end_time or duration is needed",
            ));
        }
        let start = seconds(&self.trim, &["start_time", "start"])?.unwrap_or(0.0);
        let end = seconds(&self.trim, &["end_time", "end"])?;
        let duration = match (seconds(&self.trim, &["duration"])?, end) {
            (Some(duration), _) => duration,
            (None, Some(end)) if end > start => end - start,
            (None, Some(end)) => {
                return Err(NodeError::value_error(format!(
                    "trim: a piece from {start} s to {end} s is empty"
                )));
            }
            (None, None) => 0.0,
        };
        let slice = VideoSlice {
            video: self.video,
            start_time: start,
            duration,
            strict_duration: self.strict_duration.unwrap_or(false),
        };
        slice.run(cx)
    }
}
