//! Frames into a file while they are made: one thread makes them, another encodes.

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use fresco_files::naming::{Batch, Saved};
use fresco_graph::{Cx, NodeError};
use fresco_media::{MediaError, Sound, VideoSpec, VideoWriter};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::resize::to_u8;
use fresco_tensor::{Buffer, Tensor, with_memory};

use crate::frames::FrameSet;
use crate::save::save_error;

use super::value::media_error;

/// Frames between the two threads.
const ON_THE_WAY: usize = 2;

/// A film that is to be written.
pub(super) struct Film<'a> {
    pub(super) frames: &'a FrameSet,
    pub(super) spec: VideoSpec,
    pub(super) sound: Option<Sound>,
}

/// Writes the film under its name when it is whole. Reports each frame.
pub(super) fn save(
    cx: &Cx,
    batch: &mut Batch,
    ending: &str,
    film: &Film<'_>,
) -> Result<Saved, NodeError> {
    // What goes wrong besides writing is reported as it is.
    let mut cause = None;
    let saved = batch.save_with(ending, |file| {
        write(cx, file, film).map_err(|error| match error {
            Failure::Disk(error) => error,
            Failure::Node(error) => {
                let text = error.message().to_owned();
                cause = Some(error);
                io::Error::other(text)
            }
        })
    });
    saved.map_err(|error| cause.unwrap_or_else(|| save_error(error)))
}

enum Failure {
    Disk(io::Error),
    Node(NodeError),
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::Node(error)
    }
}

fn write(cx: &Cx, file: &mut File, film: &Film<'_>) -> Result<(), Failure> {
    let (send, frames) = sync_channel(ON_THE_WAY);
    let cancel = Cancel::current();
    let total = film.frames.shape()?[0];
    thread::scope(|scope| {
        let encoder = scope.spawn(move || {
            let encode = || encode(file, film, &frames, &cancel);
            with_memory(film.spec.memory(), encode).map_err(NodeError::from)
        });
        let mut done = 0;
        let fed = film.frames.read(&mut |batch| {
            for frame in 0..batch.dims4()?[0] {
                let rgb = bytes(&batch.narrow(0, frame, 1)?, &film.spec)?;
                // Fails when the encoder has ended, which says why.
                let sent = send.send(Some(rgb));
                sent.map_err(|_| NodeError::runtime("the encoder has ended"))?;
                done += 1;
                cx.progress(done as f64, total.max(done) as f64, None)?;
            }
            Ok(())
        });
        // Without this the encoder would finish a film of which frames are missing.
        if fed.is_err() {
            let _ = send.send(None);
        }
        drop(send);
        let encoded = encoder.join();
        let encoded = encoded.map_err(|_| NodeError::runtime("the encoder failed"))?;
        match (encoded?, fed) {
            (Err(MediaError::Io { source }), _) => Err(Failure::Disk(source)),
            (Err(MediaError::Stopped), Err(error)) => Err(error.into()),
            (Err(error), _) => Err(media_error("the video cannot be written", error).into()),
            (Ok(()), fed) => Ok(fed?),
        }
    })
}

/// None in place of a frame says that there will be no more, and that what there was is not whole.
fn encode(
    file: &mut File,
    film: &Film<'_>,
    frames: &Receiver<Option<Buffer<u8>>>,
    cancel: &Cancel,
) -> Result<(), MediaError> {
    let out = BufWriter::with_capacity(1 << 18, file);
    let mut writer = VideoWriter::new(out, film.spec.clone(), film.sound.as_ref())?;
    for frame in frames {
        match frame {
            Some(rgb) if !cancel.is_raised() => writer.frame(&rgb)?,
            _ => return Err(MediaError::Stopped),
        }
    }
    writer.finish().map(drop)
}

/// A frame as bytes of RGB: grey is shown as grey, transparency is left out.
fn bytes(frame: &Tensor, spec: &VideoSpec) -> Result<Buffer<u8>, NodeError> {
    let [_, h, w, channels] = frame.dims4()?;
    if (w, h) != (spec.width, spec.height) || channels == 0 {
        return Err(NodeError::value_error(format!(
            "a frame of {w} x {h} with {channels} channels in a video of {} x {}",
            spec.width, spec.height
        )));
    }
    let mut out = Buffer::with_room(h * w * 3)?;
    for pixel in frame.data().chunks_exact(channels) {
        let at = |i: usize| to_u8(pixel[i.min(channels - 1)]);
        out.extend(if channels == 2 {
            [at(0), at(0), at(0)]
        } else {
            [at(0), at(1), at(2)]
        });
    }
    Ok(out)
}
