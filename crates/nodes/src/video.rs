//! Films: frames, frame rate and sound, and the files that hold them.

use fresco_graph::{
    Args, Cx, Map, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Output, Validator, Value,
    Verdict, entry,
};
use fresco_media::Span;

use crate::audio::Audio;
use crate::frames::FrameSet;
use crate::load;

mod join;
mod save;
mod value;
mod write;

pub use value::{FilmFile, FilmFrames, Video, exact_fraction};
pub(crate) use value::{media_error, reader, stop, to_audio, to_sound};

pub static NODES: &[NodeEntry] = &[
    entry::<save::SaveWebm>(),
    entry::<save::SaveVideo>(),
    entry::<CreateVideo>(),
    entry::<GetVideoComponents>(),
    entry::<LoadVideo>(),
    entry::<VideoSlice>(),
    entry::<join::ConcatenateVideo>(),
    entry::<join::VideoTrim>(),
];

/// Puts frames and sound together into a video.
#[derive(Node)]
#[node(
    id = "CreateVideo",
    v3,
    module = "comfy_extras.nodes_video",
    display = "Create Video",
    category = "image/video",
    outputs("VIDEO")
)]
pub struct CreateVideo {
    /// The frames.
    images: FrameSet,
    #[input(default = 30.0, min = 1.0, max = 120.0, step = 1.0)]
    fps: f64,
    /// Sound to go with them.
    #[input(optional)]
    audio: Option<Audio>,
}

impl Node for CreateVideo {
    fn run(self, _: &Cx) -> NodeResult {
        let frame_rate = exact_fraction(self.fps)
            .filter(|(n, _)| *n > 0)
            .ok_or_else(|| NodeError::value_error(format!("{} is not a frame rate", self.fps)))?;
        let video = Video::Frames(FilmFrames {
            images: self.images,
            audio: self.audio,
            frame_rate,
        });
        Ok(NodeOutput::one(video))
    }
}

/// Frames of a file that take more than this as numbers are read when somebody wants them.
const KEPT_ON_DISK: u64 = 1 << 29;

/// Takes a video apart into frames, sound and frame rate.
#[derive(Node)]
#[node(id = "GetVideoComponents", v3, module = "comfy_extras.nodes_video", display = "Get Video Components",
       category = "image/video", outputs(Output::new("IMAGE").named("images"), Output::new("AUDIO").named("audio"),
       Output::new("FLOAT").named("fps")))]
pub struct GetVideoComponents {
    video: Video,
}

impl Node for GetVideoComponents {
    fn run(self, _: &Cx) -> NodeResult {
        let mut images = self.video.frames();
        let size = images.shape()?.iter().map(|n| *n as u64).product::<u64>();
        if size.saturating_mul(4) <= KEPT_ON_DISK {
            images = FrameSet::Tensor(images.to_tensor()?);
        }
        Ok(NodeOutput::slots(vec![
            images.into(),
            self.video.audio()?.into(),
            self.video.fps()?.into(),
        ]))
    }
}

/// Loads a video. Its frames are decoded when somebody needs them.
#[derive(Node)]
#[node(
    id = "LoadVideo",
    v3,
    module = "comfy_extras.nodes_video",
    display = "Load Video",
    category = "image/video",
    outputs("VIDEO")
)]
pub struct LoadVideo {
    /// The video in the input directory.
    #[input(listed = "input/video", video_upload = true)]
    file: String,
}

impl Node for LoadVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let path = load::resolve(cx, &self.file)?;
        Ok(NodeOutput::one(Video::File(FilmFile::open(
            path,
            reader(cx),
        )?)))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        load::file_time(cx, &args, "file")
    }

    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &["file"],
        all: false,
        input_types: false,
    });
    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(load::file_verdict(cx, &args, "file", "video"))
    }
}

/// Cuts a piece out of a video, with its sound.
#[derive(Node)]
#[node(
    id = "Video Slice",
    v3,
    module = "comfy_extras.nodes_video",
    display = "Trim Video",
    category = "image/video",
    outputs("VIDEO")
)]
pub struct VideoSlice {
    video: Video,
    /// Where to start, in seconds; negative counts from the end.
    #[input(default = 0.0, min = -100000.0, max = 100000.0, step = 0.001)]
    start_time: f64,
    /// Seconds to keep; 0 keeps all to the end.
    #[input(default = 0.0, min = 0.0, step = 0.001)]
    duration: f64,
    /// Fail when the video is too short, instead of giving less.
    #[input(default = false)]
    strict_duration: bool,
}

/// Differences below this are those of rounding.
const ROUNDING: f64 = 1e-4;

impl Node for VideoSlice {
    fn run(self, _: &Cx) -> NodeResult {
        let length = self.video.duration()?;
        let start = if self.start_time < 0.0 {
            (length + self.start_time).max(0.0)
        } else {
            self.start_time
        };
        let wanted = if self.duration > 0.0 {
            self.duration
        } else {
            (length - start).max(0.0)
        };
        let impossible = |why: &str| {
            Err(NodeError::value_error(format!(
                "cannot take {wanted} s from {start} s on out of a video of {length} s: {why}"
            )))
        };
        if !start.is_finite() || !wanted.is_finite() || start + ROUNDING >= length || wanted <= 0.0
        {
            return impossible("nothing would be left");
        }
        let missing = start + wanted - length;
        // Half a frame is no difference.
        if self.strict_duration && missing > 0.5 / self.video.fps()? {
            return impossible("it is too short");
        }
        Ok(NodeOutput::one(slice(self.video, start, wanted)?))
    }
}

fn slice(video: Video, start: f64, wanted: f64) -> Result<Video, NodeError> {
    match video {
        Video::File(mut film) => {
            let from = film.span.start + start;
            film.span = Span {
                start: from,
                end: (from + wanted).min(film.span.end),
            };
            Ok(Video::File(film))
        }
        Video::Frames(mut film) => {
            let fps = film.frame_rate.0 as f64 / film.frame_rate.1 as f64;
            let first = (start * fps).round() as usize;
            let count = ((wanted * fps).round() as usize).max(1);
            film.images = film.images.narrow(first, count)?;
            if let Some(audio) = &film.audio {
                film.audio = Some(audio.part(start, wanted)?);
            }
            Ok(Video::Frames(film))
        }
    }
}

#[cfg(test)]
mod tests;
