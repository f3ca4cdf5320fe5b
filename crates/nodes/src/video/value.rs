//! A film on a link: frames and sound in memory, or a file of which nothing is read before it is needed.

use std::path::PathBuf;
use std::sync::Arc;

use fresco_graph::{Cx, FromValue, NodeError, Opaque, Pieces, Value, wrong_kind};
use fresco_media::{Info, MediaError, Next, Rate, Reader, Sound, Span, VideoInfo};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::{Buffer, Tensor, with_memory};

use crate::audio::Audio;
use crate::frames::{FrameSet, FrameSink, FrameStream};
use crate::types::add_tensor;

/// A film.
#[derive(Clone)]
pub enum Video {
    Frames(FilmFrames),
    File(FilmFile),
}

/// Frames, sound and a rate.
#[derive(Clone)]
pub struct FilmFrames {
    pub images: FrameSet,
    pub audio: Option<Audio>,
    /// Frames a second as an exact fraction; see [`exact_fraction`].
    pub frame_rate: (i128, i128),
}

/// A part of a file.
#[derive(Clone)]
pub struct FilmFile {
    pub path: PathBuf,
    pub span: Span,
    pub info: Arc<Info>,
    reader: Reader,
}

impl Opaque for Video {
    fn describe(&self) -> String {
        match self {
            Self::Frames(film) => match film.images.shape() {
                Ok(shape) => format!("video{shape:?}"),
                Err(_) => "video".to_owned(),
            },
            Self::File(film) => format!("video {}", film.path.display()),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Frames(film) => match &film.images {
                FrameSet::Tensor(t) => t.len() as u64 * 4,
                FrameSet::Stream(_) => 0,
            },
            Self::File(_) => 0,
        }
    }

    fn pieces(&self, pieces: &mut Pieces) {
        if let Self::Frames(film) = self {
            if let FrameSet::Tensor(t) = &film.images {
                add_tensor(pieces, t);
            }
            if let Some(audio) = &film.audio {
                pieces.add_value(&Value::Map(audio.0.clone()));
            }
        }
    }
}

impl FromValue for Video {
    const IO: &'static str = "VIDEO";
    fn from_value(value: Value) -> Result<Self, String> {
        let found = value.downcast::<Self>().cloned();
        found.ok_or_else(|| wrong_kind("VIDEO", &value))
    }
}

impl From<Video> for Value {
    fn from(video: Video) -> Self {
        Self::object(video)
    }
}

/// Whether the running node was told to stop, as readers ask it.
pub(crate) fn stop() -> impl Fn() -> bool {
    let cancel = Cancel::current();
    move || cancel.is_raised()
}

/// A failure to read or write a media file, with its name.
pub(crate) fn media_error(what: &str, error: MediaError) -> NodeError {
    let kind = match &error {
        MediaError::Stopped => return NodeError::Interrupted,
        MediaError::Io { source } if source.kind() == std::io::ErrorKind::NotFound => {
            "FileNotFoundError"
        }
        MediaError::Io { .. } | MediaError::Start { .. } => "OSError",
        MediaError::Encode { .. } => "ValueError",
        _ => "av.error.InvalidDataError",
    };
    let mut text = format!("{what}: {error}");
    let mut cause = std::error::Error::source(&error);
    while let Some(c) = cause {
        text = format!("{text}: {c}");
        cause = c.source();
    }
    NodeError::failed(kind, text)
}

/// Who reads media files here.
pub(crate) fn reader(cx: &Cx) -> Reader {
    let found = cx.resources.get::<Reader>();
    found.map_or_else(Reader::here, |reader| (*reader).clone())
}

impl FilmFile {
    /// Looks into the file; frames are not decoded.
    pub fn open(path: PathBuf, reader: Reader) -> Result<Self, NodeError> {
        let info = reader.info(&path, &stop());
        let info = info.map_err(|e| media_error(&path.display().to_string(), e))?;
        if info.video.is_none() {
            return Err(NodeError::value_error(format!(
                "{} holds no video",
                path.display()
            )));
        }
        Ok(Self {
            path,
            span: Span::ALL,
            info: Arc::new(info),
            reader,
        })
    }

    pub fn video(&self) -> Result<&VideoInfo, NodeError> {
        let video = self.info.video.as_ref();
        video.ok_or_else(|| NodeError::value_error("the file holds no video"))
    }

    pub fn is_whole(&self) -> bool {
        self.span == Span::ALL
    }

    /// Seconds of the part.
    pub fn duration(&self) -> Result<f64, NodeError> {
        let whole = self.video()?.duration;
        Ok((self.span.end.min(whole) - self.span.start).max(0.0))
    }

    fn expected_frames(&self) -> Result<usize, NodeError> {
        let video = self.video()?;
        if self.is_whole() {
            return Ok(video.frames as usize);
        }
        Ok((self.duration()? * video.rate.fps()).round() as usize)
    }

    fn failed(&self, error: MediaError) -> NodeError {
        media_error(&self.path.display().to_string(), error)
    }

    pub fn audio(&self) -> Result<Option<Audio>, NodeError> {
        let Some(said) = &self.info.sound else {
            return Ok(None);
        };
        let seconds = self.duration()?.min(1e6);
        let bytes =
            seconds * f64::from(said.rate.max(48_000)) * f64::from(said.channels.max(1)) * 8.0;
        let read = || self.reader.sound(&self.path, self.span, &stop());
        match with_memory(bytes as u64, read)? {
            Ok(sound) => Ok(Some(to_audio(&sound)?)),
            // A track without a packet, or none within the span.
            Err(MediaError::NoTrack { .. }) => Ok(None),
            Err(e) => Err(self.failed(e)),
        }
    }
}

impl FrameStream for FilmFile {
    fn shape(&self) -> [usize; 4] {
        let (frames, video) = (self.expected_frames(), self.info.video.as_ref());
        let (w, h) = video.map_or((0, 0), |v| (v.width as usize, v.height as usize));
        [frames.unwrap_or(0), h, w, 3]
    }

    fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), NodeError> {
        // Frames on their way, and the one that is looked at.
        let [_, h, w, _] = self.shape();
        let on_the_way = (h * w * 3 * 4) as u64;
        let mut failure = None;
        let read = with_memory(on_the_way, || {
            self.reader
                .frames(&self.path, self.span, &stop(), &mut |frame| {
                    let shape = [1, frame.height as usize, frame.width as usize, 3];
                    let values = frame.rgb.iter().map(|b| f32::from(*b) / 255.0);
                    let made = Buffer::collect(values)
                        .and_then(|v| Tensor::from_buffer(shape, v))
                        .map_err(NodeError::from)
                        .and_then(|t| sink(&t));
                    Ok(match made {
                        Ok(()) => Next::More,
                        Err(e) => {
                            failure = Some(e);
                            Next::Enough
                        }
                    })
                })
        })?;
        match failure {
            Some(e) => Err(e),
            None => read.map_err(|e| self.failed(e)),
        }
    }
}

/// Sound of one item.
pub(crate) fn to_audio(sound: &Sound) -> Result<Audio, NodeError> {
    let (channels, length) = (sound.channels.max(1), sound.len());
    let mut values: Buffer<f32> = Buffer::with_room(channels * length)?;
    for channel in 0..channels {
        values.extend(
            sound
                .samples
                .iter()
                .skip(channel)
                .step_by(channels)
                .take(length)
                .copied(),
        );
    }
    let waveform = Tensor::from_buffer([1, channels, length], values)?;
    Ok(Audio::new(waveform, sound.rate))
}

/// A batch of sound as the samples of a file: items one after the other, at most so many channels.
pub(crate) fn to_sound(waveform: &Tensor, rate: u32, most: usize) -> Result<Sound, NodeError> {
    let [batch, channels, length] = waveform.dims3()?;
    let kept = channels.min(most);
    let mut samples: Buffer<f32> = Buffer::with_room(batch * kept * length)?;
    let data = waveform.data();
    for item in 0..batch {
        for moment in 0..length {
            let at = |channel: usize| data[(item * channels + channel) * length + moment];
            samples.extend((0..kept).map(at));
        }
    }
    Ok(Sound {
        rate,
        channels: kept,
        samples: samples.into_vec(),
    })
}

impl Video {
    /// Width and height.
    pub fn size(&self) -> Result<(usize, usize), NodeError> {
        match self {
            Self::Frames(film) => {
                let [_, h, w, _] = film.images.shape()?;
                Ok((w, h))
            }
            Self::File(film) => {
                let video = film.video()?;
                Ok((video.width as usize, video.height as usize))
            }
        }
    }

    /// Frames a second.
    pub fn fps(&self) -> Result<f64, NodeError> {
        match self {
            Self::Frames(film) => Ok(film.frame_rate.0 as f64 / film.frame_rate.1 as f64),
            Self::File(film) => Ok(film.video()?.rate.fps()),
        }
    }

    pub fn duration(&self) -> Result<f64, NodeError> {
        match self {
            Self::Frames(film) => Ok(film.images.shape()?[0] as f64 / self.fps()?),
            Self::File(film) => film.duration(),
        }
    }

    pub fn frames(&self) -> FrameSet {
        match self {
            Self::Frames(film) => film.images.clone(),
            Self::File(film) => FrameSet::Stream(Arc::new(film.clone())),
        }
    }

    pub fn audio(&self) -> Result<Option<Audio>, NodeError> {
        match self {
            Self::Frames(film) => Ok(film.audio.clone()),
            Self::File(film) => film.audio(),
        }
    }

    /// The rate as it is written into files.
    pub fn rate(&self) -> Result<Rate, NodeError> {
        let fps = self.fps()?;
        Rate::from_fps(fps)
            .ok_or_else(|| NodeError::value_error(format!("{fps} is not a frame rate")))
    }
}

/// A float as the fraction it is exactly, in lowest terms; none for what no fraction is.
pub fn exact_fraction(value: f64) -> Option<(i128, i128)> {
    if !value.is_finite() || value.abs() >= 1e18 {
        return None;
    }
    let (mut numerator, mut denominator) = (value, 1i128);
    // Doubling is exact, so this ends at the last bit of the mantissa.
    while numerator.fract() != 0.0 {
        if denominator > 1 << 80 {
            return None;
        }
        numerator *= 2.0;
        denominator *= 2;
    }
    Some((numerator as i128, denominator))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact() {
        assert_eq!(exact_fraction(30.0), Some((30, 1)));
        assert_eq!(
            exact_fraction(23.976),
            Some((210_895_126_300_459, 8_796_093_022_208))
        );
        assert_eq!(exact_fraction(f64::NAN), None);
        assert_eq!(exact_fraction(f64::MIN_POSITIVE), None);
    }

    #[test]
    fn sound_changes_its_layout_and_back() {
        let waveform = Tensor::from_vec([1, 2, 3], vec![1., 2., 3., 4., 5., 6.]).unwrap();
        let sound = to_sound(&waveform, 8000, 2).unwrap();
        assert_eq!(sound.samples, [1., 4., 2., 5., 3., 6.]);
        let back = to_audio(&sound).unwrap();
        assert_eq!(back.waveform().unwrap().data(), waveform.data());
        assert_eq!(to_sound(&waveform, 8000, 1).unwrap().samples, [1., 2., 3.]);
    }
}
