//! Sound as plain numbers, and the files of it.

use std::io::SeekFrom;

use crate::container::{Codec, Input, read_exact};
use crate::error::{MediaError, Result};

/// A WAV file up to its samples.
pub(crate) struct Wav {
    pub(crate) rate: u32,
    pub(crate) channels: u16,
    pub(crate) codec: Codec,
    /// Bytes of samples.
    pub(crate) size: u64,
}

pub(crate) fn open(input: &mut dyn Input) -> Result<Wav> {
    let end = input.seek(SeekFrom::End(0))?;
    input.seek(SeekFrom::Start(12))?;
    let mut format = None;
    loop {
        let head = read_exact(input, 8, "a chunk")
            .map_err(|_| MediaError::damaged("it has no samples"))?;
        let size = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
        match &head[..4] {
            b"fmt " => format = Some(read_format(&read_exact(input, size.min(64), "a chunk")?)?),
            b"data" => {
                let (codec, channels, rate) =
                    format.ok_or_else(|| MediaError::damaged("samples of no known format"))?;
                let left = end - input.stream_position()?;
                // Writers that stream leave the size open.
                return Ok(Wav {
                    rate,
                    channels,
                    codec,
                    size: size.min(left),
                });
            }
            _ => {
                input.seek(SeekFrom::Current((size + size % 2) as i64))?;
                continue;
            }
        }
        let skip = size.saturating_sub(64) + size % 2;
        input.seek(SeekFrom::Current(skip as i64))?;
    }
}

fn read_format(data: &[u8]) -> Result<(Codec, u16, u32)> {
    let word = |at: usize| {
        let pair = data.get(at..at + 2);
        pair.map(|p| u16::from_le_bytes([p[0], p[1]]))
            .ok_or_else(|| MediaError::damaged("its format ends early"))
    };
    let mut kind = word(0)?;
    let (channels, bits) = (word(2)?, word(14)?);
    let rate = u32::from(word(4)?) | u32::from(word(6)?) << 16;
    if kind == 0xfffe {
        kind = word(24)?;
    }
    if channels == 0 || channels > 64 || rate == 0 || rate > 1_000_000 {
        return Err(MediaError::damaged(format!(
            "{channels} channels at {rate} samples a second"
        )));
    }
    let float = match kind {
        1 => false,
        3 => true,
        other => {
            return Err(MediaError::unsupported(format!("WAV of kind {other}")));
        }
    };
    let codec = Codec::Pcm {
        bits,
        float,
        big: false,
    };
    Ok((codec, channels, rate))
}

/// Appends whole samples from bytes as floats.
pub(crate) fn to_floats(
    data: &[u8],
    bits: u16,
    float: bool,
    big: bool,
    out: &mut Vec<f32>,
) -> Result<()> {
    let width = usize::from(bits.div_ceil(8));
    let known = if float {
        matches!(bits, 32 | 64)
    } else {
        matches!(bits, 8 | 16 | 24 | 32)
    };
    if !known {
        return Err(MediaError::unsupported(format!("samples of {bits} bits")));
    }
    for sample in data.chunks_exact(width) {
        let mut bytes = [0u8; 8];
        for (i, byte) in sample.iter().enumerate() {
            // The highest byte last, at the end.
            let at = if big { 7 - i } else { 8 - width + i };
            bytes[at] = *byte;
        }
        let word = i64::from_le_bytes(bytes);
        out.push(match (float, bits) {
            (true, 32) => f32::from_bits((word >> 32) as u32),
            (true, _) => f64::from_bits(word as u64) as f32,
            // Bytes have their zero in the middle, except in the big form.
            (false, 8) if !big => (f32::from(sample[0]) - 128.0) / 128.0,
            (false, _) => (word as f64 / 2f64.powi(63)) as f32,
        });
    }
    Ok(())
}
