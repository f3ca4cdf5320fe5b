//! H.264.

use rusty_h264::{Decoder, Encoder, EncoderConfig, Preset, YuvFrame};

use super::{Frame, VideoDecoder, VideoEncoder};
use crate::container::Bytes;
use crate::error::{MediaError, Result};
use crate::packet::Packet;
use crate::rate::Rate;
use crate::yuv::{Decoded, Layout, Planes, Samples, ToYuv};

/// Quality where others write a rate factor of 23.
const QUANTIZER: u8 = 23;
/// Pictures the encoder looks ahead, which it keeps.
const LOOKAHEAD: u32 = 16;
/// Pictures that can be out of order at once.
const REORDER: usize = 16;

/// Levels: the number, macroblocks of a picture, macroblocks a second.
const LEVELS: [(u8, u64, u64); 12] = [
    (30, 1620, 40_500),
    (31, 3600, 108_000),
    (32, 5120, 216_000),
    (40, 8192, 245_760),
    (42, 8704, 522_240),
    (50, 22_080, 589_824),
    (51, 36_864, 983_040),
    (52, 36_864, 2_073_600),
    (60, 139_264, 4_177_920),
    (61, 139_264, 8_355_840),
    (62, 139_264, 16_711_680),
    (62, u64::MAX, u64::MAX),
];

fn level(width: usize, height: usize, rate: Rate) -> u8 {
    let blocks = (width.div_ceil(16) * height.div_ceil(16)) as u64;
    let speed = (blocks as f64 * rate.fps()).ceil() as u64;
    LEVELS
        .iter()
        .find(|(_, most, fastest)| blocks <= *most && speed <= *fastest)
        .map_or(62, |(level, ..)| *level)
}

pub(crate) struct H264Encoder {
    encoder: Encoder,
    to_yuv: ToYuv,
    planes: Planes<u8>,
    sets: [Vec<u8>; 2],
    /// Units that belong to the next picture.
    pending: Vec<u8>,
}

impl H264Encoder {
    pub(crate) fn new(width: usize, height: usize, rate: Rate) -> Result<Self> {
        Self::with_quantizer(width, height, rate, QUANTIZER)
    }

    /// One that keeps more or less of pictures: 0 nearly everything, 51 the least.
    pub(crate) fn with_quantizer(
        width: usize,
        height: usize,
        rate: Rate,
        quantizer: u8,
    ) -> Result<Self> {
        if !width.is_multiple_of(2) || !height.is_multiple_of(2) {
            return Err(MediaError::encode(format!(
                "H.264 needs an even width and height, and these frames are {width} x {height}: scale or crop them by one pixel"
            )));
        }
        let mut config = EncoderConfig::new(width, height);
        config.qp = quantizer;
        config.level_idc = level(width, height, rate);
        config.framerate = rate.fps() as f32;
        config.preset = Preset::Balanced;
        config.lookahead = LOOKAHEAD;
        let encoder = Encoder::new(config).map_err(|e| MediaError::encode(format!("{e:?}")))?;
        Ok(Self {
            encoder,
            to_yuv: ToYuv::default(),
            planes: Planes {
                width,
                height,
                ..Planes::default()
            },
            sets: [Vec::new(), Vec::new()],
            pending: Vec::new(),
        })
    }

    /// Packets from a stream of units with start codes. A coded picture is one unit.
    fn packets(&mut self, stream: &[u8]) -> Vec<Packet> {
        let mut packets = Vec::new();
        for unit in units(stream) {
            let kind = unit[0] & 31;
            match kind {
                7 => self.sets[0] = unit.to_vec(),
                8 => self.sets[1] = unit.to_vec(),
                // Delimiters have no place in containers.
                9 => {}
                _ => {
                    self.pending.extend((unit.len() as u32).to_be_bytes());
                    self.pending.extend(unit);
                }
            }
            if matches!(kind, 1 | 5) {
                packets.push(Packet {
                    data: std::mem::take(&mut self.pending),
                    key: kind == 5,
                });
            }
        }
        packets
    }
}

/// Units between start codes, none of them empty.
fn units(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut starts = Vec::new();
    let mut at = 0;
    while let Some(window) = stream.get(at..at + 3) {
        if window == [0, 0, 1] {
            starts.push(at + 3);
            at += 3;
        } else {
            at += 1;
        }
    }
    let ends: Vec<usize> = starts
        .iter()
        .skip(1)
        .map(|s| s - 3)
        .chain([stream.len()])
        .collect();
    starts.into_iter().zip(ends).filter_map(|(start, end)| {
        let unit = &stream[start..end];
        // The zero before a long start code, and padding.
        let length = unit.iter().rposition(|b| *b != 0)? + 1;
        Some(&unit[..length])
    })
}

impl VideoEncoder for H264Encoder {
    fn push(&mut self, rgb: &[u8]) -> Result<Vec<Packet>> {
        self.to_yuv.eight(rgb, &mut self.planes);
        let frame = YuvFrame {
            width: self.planes.width,
            height: self.planes.height,
            y: std::mem::take(&mut self.planes.y),
            u: std::mem::take(&mut self.planes.u),
            v: std::mem::take(&mut self.planes.v),
        };
        let coded = self.encoder.try_encode(&frame);
        (self.planes.y, self.planes.u, self.planes.v) = (frame.y, frame.u, frame.v);
        let coded = coded.map_err(|e| MediaError::encode(format!("{e:?}")))?;
        Ok(self.packets(&coded))
    }

    fn finish(&mut self) -> Result<Vec<Packet>> {
        let coded = self.encoder.try_flush();
        let coded = coded.map_err(|e| MediaError::encode(format!("{e:?}")))?;
        Ok(self.packets(&coded))
    }

    fn config(&self) -> Vec<u8> {
        let [sequence, picture] = &self.sets;
        let profile = sequence.get(1..4).unwrap_or(&[100, 0, 30]);
        let mut out = vec![1, profile[0], profile[1], profile[2], 0xff, 0xe1];
        out.extend((sequence.len() as u16).to_be_bytes());
        out.extend(sequence);
        out.push(1);
        out.extend((picture.len() as u16).to_be_bytes());
        out.extend(picture);
        if profile[0] == 100 {
            // 4:2:0, 8 bits, no further sets.
            out.extend([0xfd, 0xf8, 0xf8, 0]);
        }
        out
    }
}

pub(crate) struct H264Decoder {
    decoder: Decoder,
    /// Bytes of the size before each unit.
    width: usize,
    /// Sets to be decoded before the first picture.
    sets: Vec<u8>,
    waiting: Vec<Frame>,
}

impl H264Decoder {
    pub(crate) fn new(config: &[u8]) -> Result<Self> {
        let mut b = Bytes(config);
        b.take(4)?;
        let width = usize::from(b.u8()? & 3) + 1;
        let mut sets = Vec::new();
        for mask in [31, 255] {
            for _ in 0..b.u8()? & mask {
                let size = b.u16()?.into();
                sets.extend([0, 0, 0, 1]);
                sets.extend(b.take(size)?);
            }
        }
        Ok(Self {
            decoder: Decoder::new(),
            width,
            sets,
            waiting: Vec::new(),
        })
    }

    fn flush(&mut self) -> Vec<Frame> {
        let mut frames = std::mem::take(&mut self.waiting);
        frames.sort_by(|a, b| a.time.total_cmp(&b.time));
        frames
    }
}

impl VideoDecoder for H264Decoder {
    fn push(&mut self, data: &[u8], time: f64, key: bool) -> Result<Vec<Frame>> {
        let mut stream = std::mem::take(&mut self.sets);
        let mut b = Bytes(data);
        let mut restarts = false;
        while !b.0.is_empty() {
            let size = b
                .take(self.width)?
                .iter()
                .fold(0usize, |size, byte| size << 8 | usize::from(*byte));
            let unit = b.take(size)?;
            restarts |= unit.first().is_some_and(|kind| kind & 31 == 5);
            stream.extend([0, 0, 0, 1]);
            stream.extend(unit);
        }
        let decoded = self.decoder.decode(&stream).map_err(|e| match e {
            rusty_h264::DecodeError::Unsupported(what) => {
                MediaError::unsupported(format!("H.264 with {what}"))
            }
            other => MediaError::damaged(format!("a picture cannot be decoded ({other:?})")),
        })?;
        // Nothing before a restart is shown after it.
        let mut frames = if key && restarts {
            self.flush()
        } else {
            Vec::new()
        };
        if let Some(picture) = decoded {
            let mut rgb = Vec::with_capacity(picture.width * picture.height * 3);
            let half = picture.width.div_ceil(2);
            Decoded {
                width: picture.width,
                height: picture.height,
                planes: [&picture.y, &picture.u, &picture.v].map(|p| Samples::Bytes(p)),
                strides: [picture.width, half, half],
                layout: Layout::YUV420,
            }
            .to_rgb(&mut rgb);
            self.waiting.push(Frame {
                width: picture.width as u32,
                height: picture.height as u32,
                rgb,
                time,
            });
        }
        while self.waiting.len() > REORDER {
            let first = (0..self.waiting.len())
                .min_by(|a, b| self.waiting[*a].time.total_cmp(&self.waiting[*b].time));
            frames.extend(first.map(|i| self.waiting.remove(i)));
        }
        Ok(frames)
    }

    fn finish(&mut self) -> Result<Vec<Frame>> {
        Ok(self.flush())
    }
}
