//! AAC, the sound of films.

use rusty_aac::{AacEncoder, AacEncoderConfig, Error, audio_specific_config_bytes};

use crate::error::{MediaError, Result};
use crate::packet::{CodedSound, Sound};

pub(super) const RATES: [u32; 12] = [
    8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000,
];

/// Samples of a packet, and those before the first that is to be heard.
const STEP: u32 = 1024;
const BITS_A_SECOND: u32 = 128_000;

/// Always in stereo, as the reference does it; of more than two channels the first two count.
pub(crate) fn encode(sound: &Sound) -> Result<CodedSound> {
    if !RATES.contains(&sound.rate) {
        return Err(MediaError::encode(format!(
            "AAC knows no sound of {} samples a second",
            sound.rate
        )));
    }
    let config = AacEncoderConfig {
        bitrate_bps: BITS_A_SECOND,
        ..AacEncoderConfig::default()
    };
    let mut encoder = AacEncoder::new(config);
    let mut stereo = Vec::new();
    for piece in sound.samples.chunks(sound.channels.max(1) << 14) {
        stereo.clear();
        for moment in piece.chunks_exact(sound.channels.max(1)) {
            stereo.push(moment[0]);
            stereo.push(*moment.get(1).unwrap_or(&moment[0]));
        }
        encoder
            .push_pcm(&stereo, 2, sound.rate)
            .map_err(MediaError::encode)?;
    }
    encoder.finish();
    let mut packets = Vec::new();
    loop {
        match encoder.next_packet() {
            Ok(packet) => packets.push(packet.data),
            Err(Error::Eof | Error::Again) => break,
            Err(e) => return Err(MediaError::encode(e)),
        }
    }
    Ok(CodedSound {
        rate: sound.rate,
        channels: 2,
        step: STEP,
        skip: STEP,
        length: sound.len() as u64,
        config: audio_specific_config_bytes(sound.rate, 2),
        packets,
    })
}
