//! VP9.

use rusty_vp9::{DecodedFrame, Error, Vp9Decoder, Vp9Encoder, Vp9EncoderConfig};

use super::{Frame, VideoDecoder, VideoEncoder};
use crate::error::{MediaError, Result};
use crate::packet::Packet;
use crate::rate::Rate;
use crate::yuv::{Decoded, Layout, Planes, Samples, ToYuv};

/// Frames from one that needs no others to the next.
const KEY_INTERVAL: u64 = 128;
const SPEED: u32 = 4;

pub(crate) struct Vp9 {
    encoder: Vp9Encoder,
    config: Vp9EncoderConfig,
    to_yuv: ToYuv,
    planes: Planes<u8>,
    frames: u64,
}

impl Vp9 {
    pub(crate) fn new(width: usize, height: usize, rate: Rate, crf: f64) -> Self {
        let config = Vp9EncoderConfig {
            crf: Some(crf.round().clamp(0.0, 63.0) as u32),
            fps: Some(rate.fps()),
            speed: Some(SPEED),
            ..Vp9EncoderConfig::default()
        };
        Self {
            encoder: Vp9Encoder::default(),
            config,
            to_yuv: ToYuv::default(),
            planes: Planes {
                width,
                height,
                ..Planes::default()
            },
            frames: 0,
        }
    }

    fn packets(&mut self) -> Result<Vec<Packet>> {
        let mut packets = Vec::new();
        loop {
            match self.encoder.next_packet() {
                Ok(p) => packets.push(Packet {
                    data: p.data,
                    key: p.keyframe,
                }),
                Err(Error::Again | Error::Eof) => return Ok(packets),
                Err(e) => return Err(MediaError::encode(e)),
            }
        }
    }
}

impl VideoEncoder for Vp9 {
    fn push(&mut self, rgb: &[u8]) -> Result<Vec<Packet>> {
        let mut packets = Vec::new();
        if self.frames.is_multiple_of(KEY_INTERVAL) {
            packets = self.finish()?;
            // A new encoder begins with a frame that needs no others.
            self.encoder = Vp9Encoder::default();
            let configured = self.encoder.configure(&self.config);
            configured.map_err(MediaError::encode)?;
        }
        self.frames += 1;
        self.to_yuv.eight(rgb, &mut self.planes);
        let Planes {
            width,
            height,
            y,
            u,
            v,
        } = &self.planes;
        let half = width.div_ceil(2);
        self.encoder
            .push_frame(
                [y, u, v],
                [*width, half, half],
                *width as u32,
                *height as u32,
            )
            .map_err(MediaError::encode)?;
        packets.extend(self.packets()?);
        Ok(packets)
    }

    fn finish(&mut self) -> Result<Vec<Packet>> {
        self.encoder.flush();
        self.packets()
    }

    fn config(&self) -> Vec<u8> {
        Vec::new()
    }
}

#[derive(Default)]
pub(crate) struct Vp9Reader {
    decoder: Vp9Decoder,
    time: f64,
}

fn to_frame(picture: &DecodedFrame, time: f64) -> Result<Frame> {
    let (width, height) = (picture.width as usize, picture.height as usize);
    let [y, u, v] = picture.planes.as_slice() else {
        return Err(MediaError::damaged("a picture without colours"));
    };
    let wide = picture.bit_depth > 8;
    let samples = |p| {
        if wide {
            Samples::Pairs(p)
        } else {
            Samples::Bytes(p)
        }
    };
    let strides =
        |i: usize| picture.strides.get(i).copied().unwrap_or(0) / if wide { 2 } else { 1 };
    let mut rgb = Vec::with_capacity(width * height * 3);
    Decoded {
        width,
        height,
        planes: [samples(y), samples(u), samples(v)],
        strides: [strides(0), strides(1), strides(2)],
        layout: Layout {
            shift_x: picture.subsampling_x,
            shift_y: picture.subsampling_y,
            bits: picture.bit_depth,
            ..Layout::YUV420
        },
    }
    .to_rgb(&mut rgb);
    Ok(Frame {
        width: picture.width,
        height: picture.height,
        rgb,
        time,
    })
}

impl Vp9Reader {
    fn frames(&mut self) -> Result<Vec<Frame>> {
        let mut frames = Vec::new();
        loop {
            match self.decoder.next_frame() {
                Ok(picture) => frames.push(to_frame(&picture, self.time)?),
                Err(Error::Again | Error::Eof) => return Ok(frames),
                Err(e) => return Err(MediaError::damaged(e.to_string())),
            }
        }
    }
}

impl VideoDecoder for Vp9Reader {
    fn push(&mut self, data: &[u8], time: f64, _: bool) -> Result<Vec<Frame>> {
        self.time = time;
        let pushed = self.decoder.push(data, None);
        pushed.map_err(|e| MediaError::damaged(e.to_string()))?;
        self.frames()
    }

    fn finish(&mut self) -> Result<Vec<Frame>> {
        self.decoder.flush();
        self.frames()
    }
}
