//! AV1 of 10 bits.

use rav1e::prelude::*;

use super::VideoEncoder;
use crate::error::{MediaError, Result};
use crate::packet::Packet;
use crate::rate::Rate;
use crate::yuv::{Planes, ToYuv};

/// The fastest but one.
const SPEED: u8 = 9;
const KEY_INTERVAL: u64 = 240;
/// Frames the encoder looks ahead, which it keeps.
const LOOKAHEAD: usize = 10;

pub(crate) struct Av1 {
    context: Context<u16>,
    to_yuv: ToYuv,
    planes: Planes<u16>,
    bytes: Vec<u8>,
}

impl Av1 {
    pub(crate) fn new(width: usize, height: usize, rate: Rate, crf: f64) -> Result<Self> {
        let mut encoder = EncoderConfig::with_speed_preset(SPEED);
        encoder.width = width;
        encoder.height = height;
        encoder.time_base = Rational::new(rate.den.into(), rate.num.into());
        encoder.bit_depth = 10;
        encoder.chroma_sampling = ChromaSampling::Cs420;
        encoder.pixel_range = PixelRange::Limited;
        encoder.quantizer = (crf * 4.0).round().clamp(0.0, 255.0) as usize;
        encoder.min_key_frame_interval = 12;
        encoder.max_key_frame_interval = KEY_INTERVAL;
        encoder.speed_settings.rdo_lookahead_frames = LOOKAHEAD;
        let context = Config::new()
            .with_encoder_config(encoder)
            .new_context()
            .map_err(MediaError::encode)?;
        Ok(Self {
            context,
            to_yuv: ToYuv::default(),
            planes: Planes {
                width,
                height,
                ..Planes::default()
            },
            bytes: Vec::new(),
        })
    }

    fn packets(&mut self) -> Result<Vec<Packet>> {
        let mut packets = Vec::new();
        loop {
            match self.context.receive_packet() {
                Ok(p) => packets.push(Packet {
                    key: p.frame_type == FrameType::KEY,
                    data: p.data,
                }),
                Err(EncoderStatus::Encoded) => {}
                Err(EncoderStatus::NeedMoreData | EncoderStatus::LimitReached) => {
                    return Ok(packets);
                }
                Err(e) => return Err(MediaError::encode(e)),
            }
        }
    }
}

impl VideoEncoder for Av1 {
    fn push(&mut self, rgb: &[u8]) -> Result<Vec<Packet>> {
        self.to_yuv.ten(rgb, &mut self.planes);
        let mut frame = self.context.new_frame();
        let half = self.planes.chroma().0;
        let planes = [
            (&self.planes.y, self.planes.width),
            (&self.planes.u, half),
            (&self.planes.v, half),
        ];
        for (target, (source, width)) in frame.planes.iter_mut().zip(planes) {
            self.bytes.clear();
            self.bytes
                .extend(source.iter().flat_map(|s| s.to_le_bytes()));
            target.copy_from_raw_u8(&self.bytes, width * 2, 2);
        }
        let sent = self.context.send_frame(frame);
        sent.map_err(MediaError::encode)?;
        self.packets()
    }

    fn finish(&mut self) -> Result<Vec<Packet>> {
        self.context.flush();
        self.packets()
    }

    fn config(&self) -> Vec<u8> {
        self.context.container_sequence_header()
    }
}
