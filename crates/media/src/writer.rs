//! Films into files, one frame after the other.

use std::io::{self, Seek, Write};

use crate::error::{MediaError, Result};
use crate::mp4::write::Mp4Writer;
use crate::packet::{Packet, Sound, Tags};
use crate::rate::Rate;
use crate::sound;
use crate::video::{self, VideoCodec, VideoEncoder};
use crate::webm::write::{WebmTrack, WebmWriter};

/// What is written.
#[derive(Clone, Debug)]
pub struct VideoSpec {
    pub width: usize,
    pub height: usize,
    pub rate: Rate,
    pub codec: VideoCodec,
    pub tags: Tags,
}

impl VideoSpec {
    /// Bytes that encoding takes at most: pictures that the encoder keeps, and what it knows of their parts.
    pub fn memory(&self) -> u64 {
        let pixels = (self.width as u64).saturating_mul(self.height as u64);
        let each = match self.codec {
            VideoCodec::H264 => 100,
            VideoCodec::Vp9 { .. } => 60,
            VideoCodec::Av1 { .. } => 240,
        };
        pixels.saturating_mul(each) + (16 << 20)
    }
}

enum Muxer<W> {
    Mp4(Mp4Writer<W>),
    Webm(WebmWriter<W>),
}

/// Encodes frames as they come: H.264 into MP4, VP9 and AV1 into WebM. Nothing but what the encoder looks ahead is kept.
pub struct VideoWriter<W> {
    spec: VideoSpec,
    encoder: Box<dyn VideoEncoder>,
    muxer: Option<Muxer<W>>,
    frames: u64,
}

impl<W: Write + Seek> VideoWriter<W> {
    /// Sound goes into MP4 only.
    pub fn new(out: W, spec: VideoSpec, sound: Option<&Sound>) -> Result<Self> {
        let encoder = video::encoder(spec.codec, spec.width, spec.height, spec.rate)?;
        let muxer = match spec.codec {
            VideoCodec::H264 => {
                let coded = sound.map(sound::aac::encode).transpose()?;
                let size = (spec.width as u16, spec.height as u16);
                Muxer::Mp4(Mp4Writer::new(out, spec.rate, size, coded)?)
            }
            VideoCodec::Vp9 { .. } | VideoCodec::Av1 { .. } => {
                let config = encoder.config();
                let track = WebmTrack {
                    codec: match spec.codec {
                        VideoCodec::Av1 { .. } => "V_AV1",
                        _ => "V_VP9",
                    },
                    config: &config,
                    size: (spec.width as u32, spec.height as u32),
                    rate: spec.rate,
                    tags: &spec.tags,
                };
                Muxer::Webm(WebmWriter::new(out, &track)?)
            }
        };
        Ok(Self {
            spec,
            encoder,
            muxer: Some(muxer),
            frames: 0,
        })
    }

    /// The next frame: rows of RGB from the top.
    pub fn frame(&mut self, rgb: &[u8]) -> Result<()> {
        if rgb.len() != self.spec.width * self.spec.height * 3 {
            return Err(MediaError::encode(format!(
                "a frame has {} bytes where {} x {} pixels have {}",
                rgb.len(),
                self.spec.width,
                self.spec.height,
                self.spec.width * self.spec.height * 3
            )));
        }
        self.frames += 1;
        let packets = self.encoder.push(rgb)?;
        self.write(&packets)
    }

    fn write(&mut self, packets: &[Packet]) -> Result<()> {
        for packet in packets {
            match &mut self.muxer {
                Some(Muxer::Mp4(file)) => file.picture(packet)?,
                Some(Muxer::Webm(file)) => file.picture(packet)?,
                None => return Err(io::Error::other("the file is finished").into()),
            }
        }
        Ok(())
    }

    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Ends the file; without a frame there is none.
    pub fn finish(mut self) -> Result<W> {
        if self.frames == 0 {
            return Err(MediaError::encode("a video needs at least one frame"));
        }
        let packets = self.encoder.finish()?;
        self.write(&packets)?;
        match self.muxer.take() {
            Some(Muxer::Mp4(file)) => Ok(file.finish(&self.encoder.config(), &self.spec.tags)?),
            Some(Muxer::Webm(file)) => Ok(file.finish()?),
            None => Err(io::Error::other("the file is finished").into()),
        }
    }
}
