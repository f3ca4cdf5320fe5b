//! MP3.

use rusty_mp3::{Error, Mp3Encoder, Mp3EncoderConfig, vbr_quality_index};

use crate::error::{MediaError, Result};
use crate::packet::{Sound, Tags};

pub(super) const RATES: [u32; 9] = [8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000];

pub(super) fn encode(sound: &Sound, kbps: Option<u32>, tags: &Tags) -> Result<Vec<u8>> {
    if !RATES.contains(&sound.rate) || sound.channels > 2 {
        return Err(MediaError::encode(format!(
            "MP3 knows no sound of {} channels and {} samples a second",
            sound.channels, sound.rate
        )));
    }
    let mut encoder = Mp3Encoder::new(Mp3EncoderConfig {
        bitrate_kbps: kbps.unwrap_or(320),
        vbr_quality: kbps.is_none().then(|| vbr_quality_index(0.0)),
    });
    let pushed = encoder.push_pcm_f32(&sound.samples, sound.channels as u16, sound.rate);
    pushed.map_err(MediaError::encode)?;
    encoder.finish();
    let mut out = id3(tags);
    loop {
        match encoder.next_packet() {
            Ok(packet) => out.extend(packet),
            Err(Error::Eof | Error::Again) => return Ok(out),
            Err(e) => return Err(MediaError::encode(e)),
        }
    }
}

/// Seven bits a byte.
fn syncsafe(size: usize) -> [u8; 4] {
    [21, 14, 7, 0].map(|shift| (size >> shift) as u8 & 0x7f)
}

/// ID3 version 2.4 with user texts.
fn id3(tags: &Tags) -> Vec<u8> {
    let mut frames = Vec::new();
    let mut frame = |name: &[u8; 4], content: &[u8]| {
        frames.extend(name);
        frames.extend(syncsafe(content.len()));
        frames.extend([0, 0]);
        frames.extend(content);
    };
    for (key, value) in tags {
        // 3: in UTF-8.
        let content = [&[3], key.as_bytes(), &[0], value.as_bytes()].concat();
        // Sizes have 28 bits.
        if content.len() < 1 << 27 {
            frame(b"TXXX", &content);
        }
    }
    frame(b"TSSE", b"\x03Fresco");
    let mut out = b"ID3\x04\0\0".to_vec();
    out.extend(syncsafe(frames.len()));
    out.extend(frames);
    out
}
