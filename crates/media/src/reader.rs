//! Reading media files through the process that decodes.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{MediaError, Result};
use crate::ffmpeg::Ffmpeg;
use crate::packet::Sound;
use crate::sound::decode::Enough;
use crate::source::{Info, Span};
use crate::video::Frame;
use crate::worker::{self, COMMAND, Message, Request};

/// How often whoever waits is asked whether the answer is still wanted.
const LOOK: Duration = Duration::from_millis(100);
/// Silence after which the process is given up.
const PATIENCE: Duration = Duration::from_mins(1);
/// Samples of all channels that are taken from one file: hours.
pub(crate) const MOST_SAMPLES: usize = 1 << 29;

/// Who decodes.
#[derive(Clone, Debug, Default)]
enum Place {
    /// This process. For tests, and for programs that are not the server.
    #[default]
    Here,
    /// A process of its own, started from this program.
    Process(PathBuf),
}

/// Reads media files. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    place: Place,
    ffmpeg: Option<Ffmpeg>,
}

/// What the sink of frames says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    More,
    Enough,
}

impl Reader {
    /// Decodes in this process, without its limits.
    pub fn here() -> Self {
        Self::default()
    }

    /// Starts `program`, which runs [`worker::main`](crate::worker::main) for [`COMMAND`].
    pub fn in_process(program: PathBuf) -> Self {
        Self {
            place: Place::Process(program),
            ffmpeg: None,
        }
    }

    /// Has a system ffmpeg read what the built-in decoders cannot.
    pub fn with_ffmpeg(mut self, ffmpeg: Option<Ffmpeg>) -> Self {
        self.ffmpeg = ffmpeg;
        self
    }

    pub fn ffmpeg(&self) -> Option<&Ffmpeg> {
        self.ffmpeg.as_ref()
    }

    /// What is in the file. `stop` is asked several times a second whether nobody wants to know any more.
    pub fn info(&self, path: &Path, stop: &dyn Fn() -> bool) -> Result<Info> {
        let mut found = None;
        let told = self.ask(path, Request::Info, stop, &mut |message| {
            if let Message::Info(info) = message {
                found = Some(info);
            }
            Ok(Enough::No)
        });
        match (told, &self.ffmpeg) {
            (Ok(()), _) => found.ok_or(MediaError::WorkerEnded {
                how: "it said nothing".into(),
            }),
            (Err(MediaError::Stopped), _) => Err(MediaError::Stopped),
            (Err(_), Some(ffmpeg)) => ffmpeg.info(path, stop),
            (Err(e), None) => Err(e),
        }
    }

    /// The frames of a span, one after the other.
    pub fn frames(
        &self,
        path: &Path,
        span: Span,
        stop: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(Frame) -> Result<Next>,
    ) -> Result<()> {
        let mut any = false;
        let mut give = |frame: Frame| {
            any = true;
            sink(frame)
        };
        let told = self.ask(path, Request::Frames(span), stop, &mut |message| {
            let Message::Frame { width, height, rgb } = message else {
                return Ok(Enough::No);
            };
            let time = 0.0;
            let frame = Frame {
                width,
                height,
                rgb,
                time,
            };
            Ok(match give(frame)? {
                Next::More => Enough::No,
                Next::Enough => Enough::Yes,
            })
        });
        match (told, &self.ffmpeg) {
            (
                Err(
                    MediaError::Told(_)
                    | MediaError::Unsupported { .. }
                    | MediaError::UnknownFormat,
                ),
                Some(ffmpeg),
            ) if !any => ffmpeg.frames(path, span, stop, sink),
            (told, _) => told,
        }
    }

    /// The sound of a span.
    pub fn sound(&self, path: &Path, span: Span, stop: &dyn Fn() -> bool) -> Result<Sound> {
        let mut sound = Sound::default();
        let told = self.ask(path, Request::Sound(span), stop, &mut |message| {
            let Message::Sound {
                rate,
                channels,
                samples,
            } = message
            else {
                return Ok(Enough::No);
            };
            add(&mut sound, rate, channels as usize, &samples)?;
            Ok(Enough::No)
        });
        match (told, &self.ffmpeg) {
            (Ok(()), _) if sound.channels == 0 => Err(MediaError::NoTrack { what: "sound" }),
            (Ok(()), _) => Ok(sound),
            (Err(MediaError::Stopped), _) => Err(MediaError::Stopped),
            (Err(_), Some(ffmpeg)) => ffmpeg.sound(path, span, stop),
            (Err(e), None) => Err(e),
        }
    }

    fn ask(
        &self,
        path: &Path,
        request: Request,
        stop: &dyn Fn() -> bool,
        give: &mut dyn FnMut(Message) -> Result<Enough>,
    ) -> Result<()> {
        let file = File::open(path)?;
        match &self.place {
            Place::Here => worker::answer(file, request, &mut |message| {
                if stop() {
                    return Err(MediaError::Stopped);
                }
                give(message)
            }),
            Place::Process(program) => {
                let mut command = Command::new(program);
                command.arg(COMMAND).args(request.words()).stdin(file);
                let mut ended = false;
                let worker = Worker::start(command, Message::read)?;
                worker.run(stop, &mut |message| match message {
                    Message::End => {
                        ended = true;
                        Ok(Enough::Yes)
                    }
                    Message::Failed(why) => Err(MediaError::Told(why)),
                    message => {
                        let enough = give(message)?;
                        ended |= enough == Enough::Yes;
                        Ok(enough)
                    }
                })?;
                if ended {
                    return Ok(());
                }
                Err(MediaError::WorkerEnded {
                    how: "a damaged file, or one that takes more memory than is allowed".into(),
                })
            }
        }
    }
}

pub(crate) fn add(sound: &mut Sound, rate: u32, channels: usize, samples: &[f32]) -> Result<()> {
    if sound.channels == 0 {
        (sound.rate, sound.channels) = (rate, channels);
    }
    if (sound.rate, sound.channels) != (rate, channels) {
        return Err(MediaError::unsupported(
            "sound that changes its rate or channels",
        ));
    }
    if sound.samples.len() + samples.len() > MOST_SAMPLES {
        return Err(MediaError::TooLarge {
            what: "its sound".into(),
        });
    }
    sound.samples.extend(samples);
    Ok(())
}

/// A process whose output is read, and which ends with this value.
pub(crate) struct Worker<M> {
    child: Child,
    messages: Receiver<Result<M>>,
}

impl<M: Send + 'static> Worker<M> {
    /// `read` gives one message after the other, and none at the end.
    pub(crate) fn start(
        mut command: Command,
        mut read: impl FnMut(&mut BufReader<Box<dyn Read + Send>>) -> Result<Option<M>> + Send + 'static,
    ) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command
            .spawn()
            .map_err(|source| MediaError::Start { program, source })?;
        // Two messages on their way: the decoder works while a frame is used, and no more than that is kept.
        let (send, messages) = sync_channel(2);
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                let mut out =
                    BufReader::with_capacity(1 << 16, Box::new(out) as Box<dyn Read + Send>);
                loop {
                    let message = match read(&mut out) {
                        Ok(Some(message)) => Ok(message),
                        Ok(None) => break,
                        Err(e) => Err(e),
                    };
                    let failed = message.is_err();
                    if send.send(message).is_err() || failed {
                        break;
                    }
                }
            });
        }
        Ok(Self { child, messages })
    }

    /// Hands out messages until the process ends or somebody has enough.
    pub(crate) fn run(
        self,
        stop: &dyn Fn() -> bool,
        give: &mut dyn FnMut(M) -> Result<Enough>,
    ) -> Result<()> {
        let mut last = Instant::now();
        loop {
            if stop() {
                return Err(MediaError::Stopped);
            }
            match self.messages.recv_timeout(LOOK) {
                Ok(message) => {
                    if give(message?)? == Enough::Yes {
                        return Ok(());
                    }
                    last = Instant::now();
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) if last.elapsed() > PATIENCE => {
                    return Err(MediaError::WorkerStuck {
                        seconds: PATIENCE.as_secs(),
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl<M> Drop for Worker<M> {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
