//! A system ffmpeg, for files that the built-in decoders do not read. It is looked for only where the user asked for it.

use std::env;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{MediaError, Result};
use crate::packet::Sound;
use crate::rate::Rate;
use crate::reader::{Next, Worker, add};
use crate::sound::decode::Enough;
use crate::source::{Info, SoundInfo, Span, VideoInfo};
use crate::video::Frame;

/// The two programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ffmpeg {
    program: PathBuf,
    probe: PathBuf,
}

/// Bytes of sound that are read at once.
const PIECE: usize = 1 << 16;

impl Ffmpeg {
    /// Looks through the folders where programs are.
    pub fn find(path: Option<&std::ffi::OsStr>) -> Option<Self> {
        let folders = env::split_paths(path?);
        let name = |name: &str| format!("{name}{}", env::consts::EXE_SUFFIX);
        folders
            .map(|folder| Self {
                program: folder.join(name("ffmpeg")),
                probe: folder.join(name("ffprobe")),
            })
            .find(|found| found.program.is_file() && found.probe.is_file())
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Reads one file and nothing else: playlists and the like may name others.
    fn command(program: &Path, path: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .args([
                "-hide_banner",
                "-loglevel",
                "error",
                "-protocol_whitelist",
                "file,pipe",
            ])
            .arg("-i")
            .arg(path)
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn info(&self, path: &Path, stop: &dyn Fn() -> bool) -> Result<Info> {
        let mut command = Self::command(&self.probe, path);
        command.args([
            "-of",
            "default=noprint_wrappers=0",
            "-show_entries",
            "format=format_name,duration:stream=codec_type,codec_name,width,height,avg_frame_rate,nb_frames,duration,sample_rate,channels",
        ]);
        let mut text = String::new();
        let worker = Worker::start(command, |out| {
            let mut all = String::new();
            out.take(1 << 20).read_to_string(&mut all)?;
            Ok((!all.is_empty()).then_some(all))
        })?;
        worker.run(stop, &mut |part: String| {
            text.push_str(&part);
            Ok(Enough::No)
        })?;
        read_probe(&text).ok_or(MediaError::UnknownFormat)
    }

    fn span(command: &mut Command, span: Span) {
        // Behind the input: exact, by decoding.
        if span.start > 0.0 {
            command.args(["-ss", &span.start.to_string()]);
        }
        if span.end.is_finite() {
            command.args(["-t", &(span.end - span.start).to_string()]);
        }
    }

    pub(crate) fn frames(
        &self,
        path: &Path,
        span: Span,
        stop: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(Frame) -> Result<Next>,
    ) -> Result<()> {
        let info = self.info(path, stop)?;
        let video = info.video.ok_or(MediaError::NoTrack { what: "pictures" })?;
        let size = video.width as usize * video.height as usize * 3;
        if size == 0 || size > 3 << 28 {
            return Err(MediaError::TooLarge {
                what: format!("a frame of {} x {}", video.width, video.height),
            });
        }
        let mut command = Self::command(&self.program, path);
        Self::span(&mut command, span);
        command.args([
            "-map",
            "0:v:0",
            "-fps_mode",
            "passthrough",
            "-autorotate",
            "0",
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-",
        ]);
        let worker = Worker::start(command, move |out| read_piece(out, size, true))?;
        worker.run(stop, &mut |rgb| {
            let frame = Frame {
                width: video.width,
                height: video.height,
                rgb,
                time: 0.0,
            };
            Ok(match sink(frame)? {
                Next::More => Enough::No,
                Next::Enough => Enough::Yes,
            })
        })
    }

    pub(crate) fn sound(&self, path: &Path, span: Span, stop: &dyn Fn() -> bool) -> Result<Sound> {
        let info = self.info(path, stop)?;
        let said = info.sound.ok_or(MediaError::NoTrack { what: "sound" })?;
        let mut command = Self::command(&self.program, path);
        Self::span(&mut command, span);
        command.args(["-map", "0:a:0", "-f", "f32le", "-"]);
        let channels = usize::from(said.channels.max(1));
        let piece = PIECE / channels * channels * 4;
        let worker = Worker::start(command, move |out| read_piece(out, piece, false))?;
        let mut sound = Sound::default();
        worker.run(stop, &mut |bytes| {
            let samples: Vec<f32> = bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            add(&mut sound, said.rate, channels, &samples)?;
            Ok(Enough::No)
        })?;
        if sound.channels == 0 {
            return Err(MediaError::damaged("no sound in it"));
        }
        Ok(sound)
    }
}

/// So many bytes, or what is left; none at the end. Where only whole pieces count, what is left does not.
fn read_piece(
    out: &mut BufReader<Box<dyn Read + Send>>,
    size: usize,
    whole: bool,
) -> Result<Option<Vec<u8>>> {
    let mut data = Vec::with_capacity(size);
    out.take(size as u64).read_to_end(&mut data)?;
    let complete = data.len() == size || (!whole && !data.is_empty());
    Ok(complete.then_some(data))
}

/// `[STREAM]`, lines of `key=value`, `[/STREAM]`.
fn read_probe(text: &str) -> Option<Info> {
    let mut info = Info {
        format: String::new(),
        video: None,
        sound: None,
        duration: 0.0,
    };
    for section in text.split('[').filter(|s| !s.starts_with('/')) {
        let value = |key: &str| {
            section
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .filter(|v| *v != "N/A")
        };
        if section.starts_with("FORMAT]") {
            value("format_name")?.clone_into(&mut info.format);
            info.duration = value("duration")
                .and_then(|d| d.parse().ok())
                .unwrap_or(0.0);
            continue;
        }
        let codec = value("codec_name").unwrap_or("unknown").to_owned();
        let number = |key: &str| value(key).and_then(|v| v.parse::<u64>().ok());
        match value("codec_type") {
            Some("video") if info.video.is_none() => {
                let rate = value("avg_frame_rate").and_then(|r| {
                    let (num, den) = r.split_once('/')?;
                    Rate::new(num.parse().ok()?, den.parse().ok()?)
                });
                info.video = Some(VideoInfo {
                    codec,
                    width: u32::try_from(number("width")?).ok()?,
                    height: u32::try_from(number("height")?).ok()?,
                    rate: rate.unwrap_or(Rate { num: 1, den: 1 }),
                    frames: number("nb_frames").unwrap_or(0),
                    duration: value("duration")
                        .and_then(|d| d.parse().ok())
                        .unwrap_or(0.0),
                });
            }
            Some("audio") if info.sound.is_none() => {
                info.sound = Some(SoundInfo {
                    codec,
                    rate: u32::try_from(number("sample_rate")?).ok()?,
                    channels: u16::try_from(number("channels")?).ok()?,
                });
            }
            _ => {}
        }
    }
    let duration = info.duration;
    if let Some(video) = &mut info.video {
        if video.duration <= 0.0 {
            video.duration = duration;
        }
        if video.frames == 0 {
            video.frames = (video.duration * video.rate.fps()).round() as u64;
        }
    }
    (info.video.is_some() || info.sound.is_some()).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ffprobe_says_is_understood() {
        let text = "[STREAM]\ncodec_name=mpeg4\ncodec_type=video\nwidth=64\nheight=48\navg_frame_rate=25/1\nduration=N/A\nnb_frames=N/A\n[/STREAM]\n[STREAM]\ncodec_name=mp3\ncodec_type=audio\nsample_rate=44100\nchannels=2\n[/STREAM]\n[FORMAT]\nformat_name=avi\nduration=2.000000\n[/FORMAT]\n";
        let info = read_probe(text).unwrap();
        let video = info.video.unwrap();
        assert_eq!((video.frames, video.width, video.rate.num), (50, 64, 25));
        assert_eq!(info.sound.unwrap().rate, 44_100);
        assert_eq!(info.format, "avi");
        assert_eq!(read_probe("[FORMAT]\nformat_name=x\n[/FORMAT]"), None);
    }
}
