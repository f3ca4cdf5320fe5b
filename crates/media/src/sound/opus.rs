//! Opus in Ogg.

use rusty_opus::{Application, OpusEncoder};

use super::ogg::OggWriter;
use super::vorbis_comments;
use crate::error::{MediaError, Result};
use crate::packet::{Sound, Tags};

pub(super) const RATES: [u32; 5] = [8000, 12000, 16000, 24000, 48000];

/// What the encoder looks ahead, in samples at 48 kHz. (Others wait for speech as well, which is 192 more.)
const SKIP: u64 = 120;
/// The largest packet of 20 ms.
const LARGEST: usize = 4000;
/// Packets of a page: a second.
const PER_PAGE: usize = 50;

pub(super) fn encode(sound: &Sound, kbps: u32, tags: &Tags) -> Result<Vec<u8>> {
    if !RATES.contains(&sound.rate) || sound.channels > 2 {
        return Err(MediaError::encode(format!(
            "Opus knows no sound of {} channels and {} samples a second",
            sound.channels, sound.rate
        )));
    }
    let failed = |e: rusty_opus::Error| MediaError::encode(format!("{e:?}"));
    let channels = sound.channels;
    let mut encoder =
        OpusEncoder::new(sound.rate as i32, channels, Application::Audio).map_err(failed)?;
    encoder.bitrate_bps = (kbps * 1000) as i32;
    let step = (sound.rate / 50) as usize;
    let ratio = u64::from(48_000 / sound.rate);
    let total = sound.len() + (SKIP / ratio) as usize;
    let mut file = OggWriter::new(0x4652_4553);
    file.packets(&[head(sound)], 0, false);
    let mut comments = b"OpusTags".to_vec();
    comments.extend(vorbis_comments(tags));
    file.packets(&[comments], 0, false);

    let mut packets = Vec::new();
    let mut piece = vec![0.0; step * channels];
    let mut packet = vec![0; LARGEST];
    let count = total.div_ceil(step).max(1);
    let end = SKIP + sound.len() as u64 * ratio;
    for number in 0..count {
        let rest = sound
            .samples
            .get(number * step * channels..)
            .unwrap_or_default();
        let length = rest.len().min(piece.len());
        piece[..length].copy_from_slice(&rest[..length]);
        piece[length..].fill(0.0);
        let size = encoder.encode(&piece, step, &mut packet).map_err(failed)?;
        packets.push(packet[..size].to_vec());
        let last = number + 1 == count;
        if packets.len() == PER_PAGE || last {
            let heard = (number as u64 + 1) * 960;
            file.packets(&packets, if last { end } else { heard }, last);
            packets.clear();
        }
    }
    Ok(file.finish())
}

fn head(sound: &Sound) -> Vec<u8> {
    let mut out = b"OpusHead\x01".to_vec();
    out.push(sound.channels as u8);
    out.extend((SKIP as u16).to_le_bytes());
    out.extend(sound.rate.to_le_bytes());
    out.extend([0, 0, 0]);
    out
}
