//! The process that decodes: it reads one file, which it has as its standard input, and says what is in it on its standard
//! output. It can open nothing else, and what it may take of the machine is limited, so a file that makes a decoder go wrong
//! ends this process and nothing more.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::process::ExitCode;

use crate::error::{MediaError, Result};
use crate::rate::Rate;
use crate::sound::decode::{Enough, SoundSink};
use crate::source::{Info, SoundInfo, Source, Span, VideoInfo};
use crate::video::Frame;

/// The hidden command of the program that runs [`main`].
pub const COMMAND: &str = "decode-media";

/// Memory the process may map. Frames of 8K in all the copies that a decoder keeps are below that.
const MEMORY: u64 = 4 << 30;
/// Seconds of computing: hours of film.
const SECONDS: u64 = 4 * 3600;
/// Standard streams, and what the runtime opens.
const FILES: u64 = 16;

/// What is asked of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Request {
    Info,
    Frames(Span),
    Sound(Span),
}

impl Request {
    /// As arguments of the command.
    pub(crate) fn words(self) -> Vec<String> {
        let span = |word: &str, span: Span| {
            vec![
                word.to_owned(),
                span.start.to_string(),
                span.end.to_string(),
            ]
        };
        match self {
            Self::Info => vec!["info".to_owned()],
            Self::Frames(s) => span("frames", s),
            Self::Sound(s) => span("sound", s),
        }
    }

    fn parse(words: &[String]) -> Option<Self> {
        let span = || {
            let start = words.get(1)?.parse().ok()?;
            let end = words.get(2)?.parse().ok()?;
            Some(Span { start, end })
        };
        match words.first()?.as_str() {
            "info" => Some(Self::Info),
            "frames" => span().map(Self::Frames),
            "sound" => span().map(Self::Sound),
            _ => None,
        }
    }
}

/// What the process says. Sizes of frames and sound come with each, because files may change them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Info(Info),
    Frame {
        width: u32,
        height: u32,
        rgb: Vec<u8>,
    },
    Sound {
        rate: u32,
        channels: u32,
        samples: Vec<f32>,
    },
    End,
    Failed(String),
}

/// A message may not be larger: a frame of 16384 x 16384.
const LARGEST: u64 = 3 << 28;

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u32).to_le_bytes());
    out.extend(value.as_bytes());
}

/// Reads the parts of a message.
struct Parts<'a>(&'a [u8]);

impl Parts<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn f64(&mut self) -> Option<f64> {
        self.take().map(f64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let size = self.u32()? as usize;
        let (head, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        String::from_utf8(head.to_vec()).ok()
    }
}

impl Message {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut head = Vec::new();
        let (kind, body): (u8, &[u8]) = match self {
            Self::Info(info) => {
                info_bytes(info, &mut head);
                (b'I', &[])
            }
            Self::Frame { width, height, rgb } => {
                head.extend(width.to_le_bytes());
                head.extend(height.to_le_bytes());
                (b'F', rgb)
            }
            Self::Sound {
                rate,
                channels,
                samples,
            } => {
                head.extend(rate.to_le_bytes());
                head.extend(channels.to_le_bytes());
                head.extend(samples.iter().flat_map(|s| s.to_le_bytes()));
                (b'S', &[])
            }
            Self::End => (b'Z', &[]),
            Self::Failed(why) => (b'E', why.as_bytes()),
        };
        out.write_all(&[kind])?;
        out.write_all(&((head.len() + body.len()) as u64).to_le_bytes())?;
        out.write_all(&head)?;
        out.write_all(body)
    }

    /// None at the end of the stream. What the process says is believed no more than a file.
    pub(crate) fn read(input: &mut impl Read) -> Result<Option<Self>> {
        let ended = || MediaError::WorkerEnded {
            how: "its answer is cut off".into(),
        };
        let mut head = [0; 9];
        if input.read_exact(&mut head).is_err() {
            return Ok(None);
        }
        let [kind, size @ ..] = head;
        let size = u64::from_le_bytes(size);
        if size > LARGEST {
            return Err(MediaError::TooLarge {
                what: "a frame".into(),
            });
        }
        let mut sizes = [0; 8];
        let rest = if matches!(kind, b'F' | b'S') {
            input.read_exact(&mut sizes).map_err(|_| ended())?;
            size.checked_sub(8).ok_or_else(ended)?
        } else {
            size
        };
        let mut body = Vec::with_capacity(rest as usize);
        input.take(rest).read_to_end(&mut body)?;
        if body.len() as u64 != rest {
            return Err(ended());
        }
        let mut parts = Parts(&sizes);
        let (first, second) = (parts.u32().unwrap_or(0), parts.u32().unwrap_or(0));
        Ok(Some(match kind {
            b'I' => Self::Info(read_info(&body).ok_or_else(ended)?),
            b'F' if body.len() as u64 == u64::from(first) * u64::from(second) * 3 => Self::Frame {
                width: first,
                height: second,
                rgb: body,
            },
            b'S' => Self::Sound {
                rate: first,
                channels: second,
                samples: body
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect(),
            },
            b'Z' => Self::End,
            b'E' => Self::Failed(String::from_utf8_lossy(&body).into_owned()),
            _ => return Err(ended()),
        }))
    }
}

fn info_bytes(info: &Info, out: &mut Vec<u8>) {
    text(out, &info.format);
    out.extend(info.duration.to_le_bytes());
    match &info.video {
        None => out.extend(0u32.to_le_bytes()),
        Some(video) => {
            out.extend(1u32.to_le_bytes());
            text(out, &video.codec);
            for value in [video.width, video.height, video.rate.num, video.rate.den] {
                out.extend(value.to_le_bytes());
            }
            out.extend(video.frames.to_le_bytes());
            out.extend(video.duration.to_le_bytes());
        }
    }
    match &info.sound {
        None => out.extend(0u32.to_le_bytes()),
        Some(sound) => {
            out.extend(1u32.to_le_bytes());
            text(out, &sound.codec);
            out.extend(sound.rate.to_le_bytes());
            out.extend(u32::from(sound.channels).to_le_bytes());
        }
    }
}

fn read_info(body: &[u8]) -> Option<Info> {
    let mut parts = Parts(body);
    let format = parts.text()?;
    let duration = parts.f64()?;
    let video = if parts.u32()? == 0 {
        None
    } else {
        Some(VideoInfo {
            codec: parts.text()?,
            width: parts.u32()?,
            height: parts.u32()?,
            rate: Rate::new(parts.u32()?.into(), parts.u32()?.into())?,
            frames: parts.u64()?,
            duration: parts.f64()?,
        })
    };
    let sound = if parts.u32()? == 0 {
        None
    } else {
        Some(SoundInfo {
            codec: parts.text()?,
            rate: parts.u32()?,
            channels: parts.u32()? as u16,
        })
    };
    Some(Info {
        format,
        video,
        sound,
        duration,
    })
}

/// Answers a request, message by message.
pub(crate) fn answer(
    file: File,
    request: Request,
    give: &mut dyn FnMut(Message) -> Result<Enough>,
) -> Result<()> {
    let mut source = Source::open(Box::new(BufReader::with_capacity(1 << 16, file)))?;
    match request {
        Request::Info => give(Message::Info(source.info()?)).map(drop),
        Request::Frames(span) => source.frames(span, &mut |frame: Frame| {
            give(Message::Frame {
                width: frame.width,
                height: frame.height,
                rgb: frame.rgb,
            })
        }),
        Request::Sound(span) => source.sound(span, &mut Forward(give)),
    }
}

struct Forward<'a>(&'a mut dyn FnMut(Message) -> Result<Enough>);

impl SoundSink for Forward<'_> {
    fn samples(&mut self, rate: u32, channels: usize, samples: &[f32]) -> Result<Enough> {
        (self.0)(Message::Sound {
            rate,
            channels: channels as u32,
            samples: samples.to_vec(),
        })
    }
}

/// The whole life of the process; `words` are the arguments behind [`COMMAND`].
pub fn main(words: &[String]) -> ExitCode {
    limit();
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let done = match (Request::parse(words), standard_input()) {
        (Some(request), Ok(file)) => answer(file, request, &mut |message| {
            message.write(&mut out)?;
            Ok(Enough::No)
        }),
        (None, _) => Err(MediaError::Told("this is not a request".into())),
        (_, Err(e)) => Err(e.into()),
    };
    let last = match done {
        Ok(()) => Message::End,
        Err(e) => Message::Failed(full_text(&e)),
    };
    let told = last.write(&mut out).and_then(|()| out.flush());
    if told.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// An error with its causes.
pub(crate) fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        text = format!("{text}: {c}");
        cause = c.source();
    }
    text
}

#[cfg(unix)]
fn standard_input() -> io::Result<File> {
    use std::os::fd::AsFd as _;
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

#[cfg(windows)]
fn standard_input() -> io::Result<File> {
    use std::os::windows::io::AsHandle as _;
    Ok(File::from(io::stdin().as_handle().try_clone_to_owned()?))
}

/// What cannot be limited stays as it is: the process is still one of its own.
#[cfg(unix)]
fn limit() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let to = |most: u64| Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    for (resource, most) in [
        (Resource::As, MEMORY),
        (Resource::Cpu, SECONDS),
        (Resource::Nofile, FILES),
        // It writes no files, and leaves none behind when it crashes.
        (Resource::Fsize, 0),
        (Resource::Core, 0),
    ] {
        let _ = setrlimit(resource, to(most));
    }
}

#[cfg(not(unix))]
fn limit() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_over_as_they_were() {
        let info = Info {
            format: "matroska,webm".into(),
            video: Some(VideoInfo {
                codec: "vp9".into(),
                width: 3,
                height: 5,
                rate: Rate { num: 24, den: 1 },
                frames: 7,
                duration: 0.3,
            }),
            sound: Some(SoundInfo {
                codec: "opus".into(),
                rate: 48_000,
                channels: 2,
            }),
            duration: 0.3,
        };
        let messages = [
            Message::Info(info),
            Message::Frame {
                width: 2,
                height: 1,
                rgb: vec![1, 2, 3, 4, 5, 6],
            },
            Message::Sound {
                rate: 8000,
                channels: 1,
                samples: vec![0.5, -0.25],
            },
            Message::Failed("no".into()),
            Message::End,
        ];
        let mut pipe = Vec::new();
        for message in &messages {
            message.write(&mut pipe).unwrap();
        }
        let mut rest = pipe.as_slice();
        for message in &messages {
            assert_eq!(Message::read(&mut rest).unwrap().as_ref(), Some(message));
        }
        assert_eq!(Message::read(&mut rest).unwrap(), None);
        // Whatever is cut off, nothing is taken for whole.
        for cut in 0..pipe.len() {
            let mut rest = &pipe[..cut];
            while let Ok(Some(_)) = Message::read(&mut rest) {}
        }
        let spans = [
            Request::Info,
            Request::Frames(Span::ALL),
            Request::Sound(Span {
                start: 0.25,
                end: 1.5,
            }),
        ];
        for request in spans {
            assert_eq!(Request::parse(&request.words()), Some(request));
        }
    }

    #[test]
    fn a_frame_that_lies_about_its_size_is_refused() {
        let mut pipe = vec![b'F'];
        pipe.extend(11u64.to_le_bytes());
        pipe.extend([9, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3]);
        assert!(Message::read(&mut pipe.as_slice()).is_err());
    }
}
