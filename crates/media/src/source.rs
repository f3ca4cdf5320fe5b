//! Any file: what it is, its pictures, its sound.

use std::io::SeekFrom;

use crate::container::{Container, Input, TrackKind};
use crate::error::{MediaError, Result};
use crate::mp4::read::Mp4;
use crate::rate::Rate;
use crate::reader::MOST_SAMPLES;
use crate::sound::decode::{self, Enough, SoundSink};
use crate::video::{self, Frame};
use crate::webm::read::Webm;

/// What a file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// As the reference's demuxers are called, `mov,mp4,m4a,3gp,3g2,mj2` say.
    pub format: String,
    pub video: Option<VideoInfo>,
    pub sound: Option<SoundInfo>,
    /// Seconds; 0 where only decoding would tell.
    pub duration: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct VideoInfo {
    pub codec: String,
    pub width: u32,
    pub height: u32,
    /// Frames a second on average.
    pub rate: Rate,
    pub frames: u64,
    pub duration: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SoundInfo {
    pub codec: String,
    pub rate: u32,
    pub channels: u16,
}

/// Which part of a file; the end does not belong to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub start: f64,
    pub end: f64,
}

impl Span {
    pub const ALL: Self = Self {
        start: 0.0,
        end: f64::INFINITY,
    };

    /// Frames just at the start belong to it, however times are rounded.
    const SLACK: f64 = 0.001;

    fn holds(self, time: f64) -> bool {
        time + Self::SLACK >= self.start && time + Self::SLACK < self.end
    }
}

enum Kind {
    Container(Box<dyn Container>),
    Sound {
        format: &'static str,
        codec: &'static str,
        decode: fn(Box<dyn Input>, &mut dyn SoundSink) -> Result<()>,
        input: Box<dyn Input>,
    },
}

pub(crate) struct Source(Kind);

impl Source {
    pub(crate) fn open(mut input: Box<dyn Input>) -> Result<Self> {
        let mut head = [0; 12];
        input.seek(SeekFrom::Start(0))?;
        let mut have = 0;
        while have < head.len() {
            match input.read(&mut head[have..])? {
                0 => break,
                count => have += count,
            }
        }
        input.seek(SeekFrom::Start(0))?;
        let sound = |format, codec, decode, input| {
            Ok(Self(Kind::Sound {
                format,
                codec,
                decode,
                input,
            }))
        };
        let is_box = |name: &[u8; 4]| head[4..8] == *name;
        if [b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"]
            .into_iter()
            .any(is_box)
        {
            return Ok(Self(Kind::Container(Box::new(Mp4::open(input)?))));
        }
        match head {
            [0x1a, 0x45, 0xdf, 0xa3, ..] => Ok(Self(Kind::Container(Box::new(Webm::open(input)?)))),
            [b'O', b'g', b'g', b'S', ..] => sound("ogg", "ogg", decode::ogg, input),
            [b'f', b'L', b'a', b'C', ..] => sound("flac", "flac", decode::flac, input),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E'] => {
                sound("wav", "pcm", decode::wav, input)
            }
            [b'I', b'D', b'3', ..] => sound("mp3", "mp3", decode::mp3, input),
            // The layer says which of the two it is.
            [0xff, second, ..] if second & 0xf6 == 0xf0 => sound("aac", "aac", decode::adts, input),
            [0xff, second, ..] if second & 0xe6 == 0xe2 => sound("mp3", "mp3", decode::mp3, input),
            _ => Err(MediaError::UnknownFormat),
        }
    }

    fn track(&self, wanted: impl Fn(&TrackKind) -> bool, what: &'static str) -> Result<usize> {
        let Kind::Container(file) = &self.0 else {
            return Err(MediaError::NoTrack { what });
        };
        file.tracks()
            .iter()
            .position(|t| wanted(&t.kind))
            .ok_or(MediaError::NoTrack { what })
    }

    fn video_track(&self) -> Result<usize> {
        self.track(|kind| matches!(kind, TrackKind::Video { .. }), "pictures")
    }

    fn sound_track(&self) -> Result<usize> {
        self.track(|kind| matches!(kind, TrackKind::Sound { .. }), "sound")
    }

    pub(crate) fn info(&mut self) -> Result<Info> {
        let video = self.video_track().ok();
        let sound = self.sound_track().ok();
        let file = match &mut self.0 {
            Kind::Sound { format, codec, .. } => {
                return Ok(Info {
                    format: (*format).to_owned(),
                    video: None,
                    sound: Some(SoundInfo {
                        codec: (*codec).to_owned(),
                        rate: 0,
                        channels: 0,
                    }),
                    duration: 0.0,
                });
            }
            Kind::Container(file) => file,
        };
        let video = video.map(|n| video_info(&mut **file, n)).transpose()?;
        let sound = sound.and_then(|n| {
            let track = &file.tracks()[n];
            let TrackKind::Sound { rate, channels } = track.kind else {
                return None;
            };
            Some(SoundInfo {
                codec: track.codec.name(),
                rate,
                channels,
            })
        });
        let duration = file.duration();
        let duration = duration.or(video.as_ref().map(|v| v.duration));
        Ok(Info {
            format: file.format().to_owned(),
            video,
            sound,
            duration: duration.unwrap_or(0.0),
        })
    }

    /// Every frame of a span in the order they are shown, until the sink has enough.
    pub(crate) fn frames(
        &mut self,
        span: Span,
        sink: &mut dyn FnMut(Frame) -> Result<Enough>,
    ) -> Result<()> {
        let number = self.video_track()?;
        let Kind::Container(file) = &mut self.0 else {
            return Err(MediaError::NoTrack { what: "pictures" });
        };
        let mut decoder = video::decoder(&file.tracks()[number])?;
        file.start(number)?;
        file.seek(span.start)?;
        let mut give = |frames: Vec<Frame>| {
            for frame in frames {
                if span.holds(frame.time) && sink(frame)? == Enough::Yes {
                    return Ok(Enough::Yes);
                }
            }
            Ok::<_, MediaError>(Enough::No)
        };
        while let Some(packet) = file.next_packet()? {
            // Nothing after one that needs no others is shown before it.
            if packet.key && packet.time >= span.end {
                break;
            }
            let frames = decoder.push(&packet.data, packet.time, packet.key)?;
            if give(frames)? == Enough::Yes {
                return Ok(());
            }
        }
        give(decoder.finish()?)?;
        Ok(())
    }

    /// The sound of a span.
    pub(crate) fn sound(self, span: Span, sink: &mut dyn SoundSink) -> Result<()> {
        let mut sink = SpanSink {
            sink,
            span,
            heard: 0,
        };
        match self {
            Self(Kind::Sound { decode, input, .. }) => decode(input, &mut sink),
            container => {
                let number = container.sound_track()?;
                let Kind::Container(mut file) = container.0 else {
                    return Err(MediaError::NoTrack { what: "sound" });
                };
                decode::track(&mut *file, number, &mut sink)
            }
        }
    }
}

fn video_info(file: &mut dyn Container, number: usize) -> Result<VideoInfo> {
    let track = file.tracks()[number].clone();
    let TrackKind::Video { width, height } = track.kind else {
        return Err(MediaError::NoTrack { what: "pictures" });
    };
    let mut duration = track.duration.or(file.duration());
    let mut frames = track.count;
    if frames.is_none()
        && let (Some(seconds), Some(rate)) = (duration, track.rate)
    {
        frames = Some((seconds * rate.fps()).round() as u64);
    }
    let mut rate = track.rate;
    if frames.is_none() || duration.is_none() || rate.is_none() {
        let (count, last) = count_packets(file, number)?;
        let step = if count > 1 {
            last / (count - 1) as f64
        } else {
            1.0
        };
        frames = frames.or(Some(count));
        duration = duration.or(Some(last + step));
        let seconds = duration.unwrap_or(1.0).max(1e-3);
        rate = rate.or_else(|| Rate::from_fps(count as f64 / seconds));
    }
    Ok(VideoInfo {
        codec: track.codec.name(),
        width,
        height,
        rate: rate.unwrap_or(Rate { num: 1, den: 1 }),
        frames: frames.unwrap_or(0),
        duration: duration.unwrap_or(0.0),
    })
}

/// How many there are, and when the last is shown.
fn count_packets(file: &mut dyn Container, number: usize) -> Result<(u64, f64)> {
    file.start(number)?;
    let (mut count, mut last) = (0, 0.0f64);
    while let Some(packet) = file.next_packet()? {
        count += 1;
        last = last.max(packet.time);
    }
    Ok((count, last))
}

/// Leaves out what is not in the span.
struct SpanSink<'a> {
    sink: &'a mut dyn SoundSink,
    span: Span,
    /// Samples of one channel.
    heard: u64,
}

impl SoundSink for SpanSink<'_> {
    fn announce(&mut self, rate: u32, channels: usize, moments: u64) -> Result<()> {
        let at = |seconds: f64| (seconds * f64::from(rate)).round() as u64;
        let wanted = moments.min(at(self.span.end));
        let kept = wanted.saturating_sub(at(self.span.start));
        if kept.saturating_mul(channels as u64) > MOST_SAMPLES as u64 {
            return Err(MediaError::TooLarge {
                what: "its sound".into(),
            });
        }
        Ok(())
    }

    fn samples(&mut self, rate: u32, channels: usize, samples: &[f32]) -> Result<Enough> {
        let at = |seconds: f64| (seconds * f64::from(rate)).round() as u64;
        let count = (samples.len() / channels) as u64;
        let (first, end) = (at(self.span.start), at(self.span.end));
        let from = first.saturating_sub(self.heard).min(count);
        let to = end.saturating_sub(self.heard).min(count);
        self.heard += count;
        if from < to {
            let kept = &samples[from as usize * channels..to as usize * channels];
            if self.sink.samples(rate, channels, kept)? == Enough::Yes {
                return Ok(Enough::Yes);
            }
        }
        Ok(if self.heard >= end {
            Enough::Yes
        } else {
            Enough::No
        })
    }
}
