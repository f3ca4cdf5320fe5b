//! Savers of films.

use std::fs::File;
use std::io;

use fresco_files::dirs::DirType;
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, map};
use fresco_media::{MediaError, Rate, Tags, VideoCodec, VideoSpec, copy_mp4, usable_film_rate};

use super::write::{self, Film};
use super::{FilmFile, Video, to_sound};
use crate::audio::{Audio, resample};
use crate::frames::FrameSet;
use crate::save::{Presence, begin, entry_of, metadata_text, metadata_text_always, save_error};

/// Saves a batch of pictures as a WebM video without sound.
#[derive(Node)]
#[node(
    id = "SaveWEBM",
    v3,
    module = "comfy_extras.nodes_video",
    category = "image/video",
    output_node,
    experimental
)]
pub(super) struct SaveWebm {
    /// The frames of the video.
    images: FrameSet,
    #[input(default = "ComfyUI")]
    filename_prefix: String,
    /// The coder: av1 makes smaller files and takes longer than vp9.
    #[input(choices = ["vp9", "av1"])]
    codec: String,
    #[input(default = 24.0, min = 0.01, max = 1000.0, step = 0.01)]
    fps: f64,
    /// Higher is smaller and looks worse.
    #[input(default = 32.0, min = 0, max = 63.0, step = 1)]
    crf: f64,
}

impl Node for SaveWebm {
    fn run(self, cx: &Cx) -> NodeResult {
        let [_, height, width, _] = filled(&self.images)?;
        let rate = Rate::from_fps(self.fps)
            .ok_or_else(|| NodeError::value_error(format!("{} is not a frame rate", self.fps)))?;
        let codec = match self.codec.as_str() {
            "av1" => VideoCodec::Av1 { crf: self.crf },
            _ => VideoCodec::Vp9 { crf: self.crf },
        };
        let film = Film {
            frames: &self.images,
            spec: VideoSpec {
                width,
                height,
                rate,
                codec,
                tags: metadata_text_always(cx),
            },
            sound: None,
        };
        let mut batch = begin(cx, DirType::Output, &self.filename_prefix, width, height)?;
        let saved = write::save(cx, &mut batch, "webm", &film)?;
        let entries = vec![entry_of(&saved, DirType::Output)];
        Ok(NodeOutput::ui(
            map! {"images" => entries, "animated" => vec![true]},
        ))
    }
}

/// The size of frames of which there is at least one.
fn filled(frames: &FrameSet) -> Result<[usize; 4], NodeError> {
    let shape = frames.shape()?;
    if shape.contains(&0) {
        return Err(NodeError::value_error(format!(
            "there is nothing to save in {} frames of {} x {} pixels",
            shape[0], shape[2], shape[1]
        )));
    }
    Ok(shape)
}

/// Saves a video as MP4, with the workflow inside.
#[derive(Node)]
#[node(
    id = "SaveVideo",
    v3,
    module = "comfy_extras.nodes_video",
    display = "Save Video",
    category = "image/video",
    output_node
)]
pub(super) struct SaveVideo {
    /// The video to save.
    video: Video,
    #[input(default = "video/ComfyUI")]
    filename_prefix: String,
    /// The container of the file; auto chooses.
    #[input(choices = ["auto", "mp4"], default = "auto")]
    format: String,
    /// The coder of the pictures; auto chooses.
    #[input(choices = ["auto", "h264"], default = "auto")]
    codec: String,
}

impl Node for SaveVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        if !matches!(self.format.as_str(), "auto" | "mp4") {
            return Err(NodeError::value_error(
                "Only MP4 format is supported for now",
            ));
        }
        if !matches!(self.codec.as_str(), "auto" | "h264") {
            return Err(NodeError::value_error(
                "Only H264 codec is supported for now",
            ));
        }
        let (width, height) = self.video.size()?;
        let mut batch = begin(cx, DirType::Output, &self.filename_prefix, width, height)?;
        let tags = film_tags(cx);
        let saved = match &self.video {
            Video::File(film) if can_be_copied(film, &self.codec)? => {
                let source = File::open(&film.path);
                let copy = |out: &mut File| copy_mp4(&mut source?, out, &tags).map_err(as_io);
                batch.save_with("mp4", copy).map_err(save_error)?
            }
            video => {
                let frames = video.frames();
                let rate = video.rate()?;
                let count = filled(&frames)?[0];
                let audio = video.audio()?;
                let sound = audio.map(|a| film_sound(&a, rate, count)).transpose()?;
                let film = Film {
                    frames: &frames,
                    spec: VideoSpec {
                        width,
                        height,
                        rate,
                        codec: VideoCodec::H264,
                        tags,
                    },
                    sound,
                };
                write::save(cx, &mut batch, "mp4", &film)?
            }
        };
        let entries = vec![entry_of(&saved, DirType::Output)];
        Ok(NodeOutput::ui(
            map! {"images" => entries, "animated" => vec![true]},
        ))
    }
}

/// Whether the file can be taken as it is, but for the texts in it.
fn can_be_copied(film: &FilmFile, codec: &str) -> Result<bool, NodeError> {
    let same = codec == "auto" || film.video()?.codec == codec;
    Ok(film.is_whole() && film.info.format.contains("mp4") && same)
}

/// A full disk stays one.
fn as_io(error: MediaError) -> io::Error {
    match error {
        MediaError::Io { source } => source,
        other => io::Error::other(other),
    }
}

/// Prompt and workflow in the order of the reference: the prompt last.
fn film_tags(cx: &Cx) -> Tags {
    let mut tags = metadata_text(cx, Presence::NotEmpty);
    if let Some(at) = tags.iter().position(|(key, _)| key == "prompt") {
        let prompt = tags.remove(at);
        tags.push(prompt);
    }
    tags
}

/// The sound of a film: as long as its frames, at a rate that the coder knows.
fn film_sound(audio: &Audio, rate: Rate, frames: usize) -> Result<fresco_media::Sound, NodeError> {
    let given = audio.sample_rate()?;
    let usable = usable_film_rate(given);
    let waveform = resample::resample(audio.waveform()?, given, usable)?;
    let mut sound = to_sound(&waveform, usable, 2)?;
    let most = (rate.time_of(frames as u64) * f64::from(usable)).ceil() as usize;
    sound.samples.truncate(most * sound.channels.max(1));
    Ok(sound)
}
