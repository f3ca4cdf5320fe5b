//! Coders of pictures. Each takes RGB and gives one packet for each picture, in the order they are shown.

mod av1;
mod h264;
mod vp9;

use crate::container::{Codec, Track};
use crate::error::{MediaError, Result};
use crate::packet::Packet;
use crate::rate::Rate;

/// What a film is encoded with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VideoCodec {
    H264,
    /// Smaller is better; 0 to 63.
    Vp9 {
        crf: f64,
    },
    /// 10 bits a sample.
    Av1 {
        crf: f64,
    },
}

pub(crate) trait VideoEncoder: Send {
    /// Takes one picture of RGB; packets may come later.
    fn push(&mut self, rgb: &[u8]) -> Result<Vec<Packet>>;
    fn finish(&mut self) -> Result<Vec<Packet>>;
    /// What a decoder needs first; known when the first packet came.
    fn config(&self) -> Vec<u8>;
}

pub(crate) fn encoder(
    codec: VideoCodec,
    width: usize,
    height: usize,
    rate: Rate,
) -> Result<Box<dyn VideoEncoder>> {
    if width == 0 || height == 0 || width > 16_384 || height > 16_384 {
        return Err(MediaError::encode(format!(
            "frames of {width} x {height}: sides are 1 to 16384 pixels"
        )));
    }
    Ok(match codec {
        VideoCodec::H264 => Box::new(h264::H264Encoder::new(width, height, rate)?),
        VideoCodec::Vp9 { crf } => Box::new(vp9::Vp9::new(width, height, rate, crf)),
        VideoCodec::Av1 { crf } => Box::new(av1::Av1::new(width, height, rate, crf)?),
    })
}

/// A picture, rows of RGB from the top, as it looks after it was a frame of H.264: `quantizer` is 0 for nearly the same, 51 for
/// the least that is kept.
pub fn through_h264(rgb: &[u8], width: usize, height: usize, quantizer: u8) -> Result<Vec<u8>> {
    if width == 0 || height == 0 || rgb.len() != width * height * 3 {
        return Err(MediaError::encode(format!(
            "{} bytes are no picture of {width} x {height}",
            rgb.len()
        )));
    }
    let rate = Rate::new(1, 1).ok_or_else(|| MediaError::encode("a rate of one frame a second"))?;
    let mut encoder = h264::H264Encoder::with_quantizer(width, height, rate, quantizer.min(51))?;
    let mut packets = encoder.push(rgb)?;
    packets.extend(encoder.finish()?);
    let mut decoder = h264::H264Decoder::new(&encoder.config())?;
    let mut frames = Vec::new();
    for packet in &packets {
        frames.extend(decoder.push(&packet.data, 0.0, packet.key)?);
    }
    frames.extend(decoder.finish()?);
    let same = |frame: &Frame| (frame.width as usize, frame.height as usize) == (width, height);
    let frame = frames.into_iter().find(same);
    let lost = || MediaError::encode(format!("a frame of {width} x {height} did not come back"));
    frame.map(|frame| frame.rgb).ok_or_else(lost)
}

/// A decoded picture as RGB.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    pub width: u32,
    pub height: u32,
    pub rgb: Vec<u8>,
    /// Seconds.
    pub time: f64,
}

/// Takes packets in the order of the file and gives pictures in the order they are shown.
pub(crate) trait VideoDecoder {
    fn push(&mut self, data: &[u8], time: f64, key: bool) -> Result<Vec<Frame>>;
    fn finish(&mut self) -> Result<Vec<Frame>>;
}

pub(crate) fn decoder(track: &Track) -> Result<Box<dyn VideoDecoder>> {
    match track.codec {
        Codec::H264 => Ok(Box::new(h264::H264Decoder::new(&track.config)?)),
        Codec::Vp9 => Ok(Box::new(vp9::Vp9Reader::default())),
        other => Err(MediaError::unsupported(format!(
            "video in {}",
            other.name()
        ))),
    }
}
