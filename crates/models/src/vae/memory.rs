//! What running an autoencoder takes beside its weights. Tables, not physics: the numbers are the reference's, because users tuned
//! their workflows to them.

use super::autoencoder::VaeFacts;

/// Autoencoders as far as their needs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaeMemory {
    /// Of pictures.
    Pictures,
    /// Of pictures, with cells of sixteen pixels or more.
    LargeCells,
    /// Of films, a piece after the other.
    Pieces,
    /// The same with cells of sixteen pixels or more.
    LargePieces,
    /// Of films: with group norms over pieces of a film.
    Grouped,
    /// With cells that are put onto channels.
    Folded,
    /// As a stack of blocks.
    Stacked,
    /// With wavelets.
    Wavelet,
    /// The small approximation.
    Small,
    Sound,
    Solids,
}

/// Bytes of a number that networks compute with.
const VALUE: u128 = 4;

/// Values that a network of sound holds for each sample of the sound, roughly.
const SOUND_VALUES: u128 = 96;

/// The dimensions that matter: height times width, and the frames before them, 1 for a picture.
fn plane_and_frames(shape: &[usize]) -> (u128, u128) {
    let from_end = |back: usize| {
        let place = shape.len().checked_sub(back);
        place.and_then(|i| shape.get(i)).map_or(1, |n| *n as u128)
    };
    let frames = if shape.len() >= 5 { from_end(3) } else { 1 };
    (from_end(2).saturating_mul(from_end(1)), frames)
}

fn bytes(numbers: &[u128]) -> u64 {
    let values = numbers.iter().fold(VALUE, |a, b| a.saturating_mul(*b));
    u64::try_from(values).unwrap_or(u64::MAX)
}

/// `max(1, slope * frames ^ power)` times as much.
fn growing(bytes: u64, frames: u128, slope: f64, power: f64) -> u64 {
    // A float becomes the largest integer where it is larger.
    (bytes as f64 * (slope * (frames as f64).powf(power)).max(1.0)).ceil() as u64
}

/// `value / 8` rounded to the nearest, halves to the even one.
fn eighths(value: u128) -> u128 {
    let (whole, rest) = (value / 8, value % 8);
    let up = rest > 4 || (rest == 4 && whole % 2 == 1);
    whole + u128::from(up)
}

impl VaeMemory {
    /// By the size of cells, and whether there are frames.
    pub(super) fn of_cells(temporal_ratio: Option<usize>, ratio: usize) -> Self {
        match (temporal_ratio, ratio) {
            (Some(_), 0..16) => Self::Pieces,
            (Some(_), _) => Self::LargePieces,
            (None, 0..16) => Self::Pictures,
            (None, _) => Self::LargeCells,
        }
    }

    /// For decoding a latent of this shape: (b, c, h, w), (b, c, t, h, w).
    fn decode(self, shape: &[usize]) -> u64 {
        let (plane, t) = plane_and_frames(shape);
        match self {
            Self::Pictures => bytes(&[2178, plane, 64]),
            Self::LargeCells => bytes(&[2178, plane, 64, 4]),
            Self::Pieces => bytes(&[if t <= 4 { 2200 } else { 7000 }, plane, 64]),
            Self::LargePieces => bytes(&[8000, plane, 256]),
            Self::Grouped => {
                let frames = t.saturating_sub(1).saturating_mul(4).saturating_add(1);
                bytes(&[2800, frames.min(8), plane, 64])
            }
            Self::Folded => bytes(&[3600, 4, plane, 256]),
            Self::Stacked => bytes(&[1000, t, plane, 384]),
            Self::Wavelet => bytes(&[50, t, plane, 512]),
            Self::Small => growing(bytes(&[50, plane, 1024]), t, 0.26, 0.65),
            Self::Sound | Self::Solids => 0,
        }
    }

    /// For encoding pixels of this shape: (b, c, h, w), (b, c, t, h, w).
    fn encode(self, shape: &[usize]) -> u64 {
        let (plane, t) = plane_and_frames(shape);
        match self {
            Self::Pictures | Self::LargeCells => bytes(&[1767, plane]),
            Self::Pieces => bytes(&[if t <= 4 { 1500 } else { 6000 }, plane]),
            Self::LargePieces => bytes(&[3300, plane]),
            Self::Grouped => bytes(&[1400, t.min(9), plane]),
            Self::Folded => bytes(&[1400, 9, plane]),
            // 1.5 * 384
            Self::Stacked => bytes(&[576, t.max(7), plane]),
            Self::Wavelet => bytes(&[50, 8, eighths(t.saturating_add(7)), plane]),
            Self::Small => growing(bytes(&[700, plane]), t, 0.11, 0.66),
            Self::Sound | Self::Solids => 0,
        }
    }
}

impl VaeFacts {
    /// Bytes that decoding latents (b, c, h, w) or (b, c, t, h, w) takes.
    pub fn decode_bytes(&self, shape: &[usize]) -> u64 {
        match shape.len() {
            4 | 5 => self.memory.decode(shape),
            _ => 0,
        }
    }

    /// Bytes that encoding pictures (b, h, w, c) takes: each by itself, or all as the frames of a film.
    pub fn encode_bytes(&self, shape: &[usize]) -> u64 {
        let &[b, h, w, c] = shape else {
            return 0;
        };
        match self.temporal_ratio {
            Some(_) => self.memory.encode(&[1, c, b, h, w]),
            None => self.memory.encode(&[b, c, h, w]),
        }
    }

    /// Bytes that making or hearing so many samples takes.
    pub fn sound_bytes(&self, samples: usize) -> u64 {
        match self.memory {
            VaeMemory::Sound => bytes(&[samples as u128, SOUND_VALUES]),
            _ => 0,
        }
    }

    /// Bytes that voxels with so many cells along a side take.
    pub fn voxel_bytes(&self, cells: usize) -> u64 {
        let points = cells as u128 + 1;
        match self.memory {
            VaeMemory::Solids => bytes(&[points, points, points]),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_the_reference_says() {
        // (b, c, t, h, w) = (2, 3, 5, 7, 11): the plane has 77.
        let film = [2, 3, 5, 7, 11];
        let picture = [2, 3, 7, 11];
        let table: [(VaeMemory, &[usize], u64, u64); 8] = [
            (VaeMemory::Pictures, &picture, 2178 * 77 * 64, 1767 * 77),
            (
                VaeMemory::LargeCells,
                &picture,
                4 * 2178 * 77 * 64,
                1767 * 77,
            ),
            (
                VaeMemory::Stacked,
                &film,
                1000 * 5 * 77 * 384,
                7 * 77 * 384 * 3 / 2,
            ),
            (VaeMemory::Folded, &film, 3600 * 4 * 77 * 256, 1400 * 9 * 77),
            (VaeMemory::Grouped, &film, 2800 * 8 * 77 * 64, 1400 * 5 * 77),
            // (5 + 7) / 8 = 1.5, to the even 2.
            (VaeMemory::Wavelet, &film, 50 * 5 * 77 * 512, 50 * 16 * 77),
            (VaeMemory::LargePieces, &film, 8000 * 77 * 256, 3300 * 77),
            (VaeMemory::Pieces, &film, 7000 * 77 * 64, 6000 * 77),
        ];
        for (memory, shape, decode, encode) in table {
            assert_eq!(memory.decode(shape), decode * 4, "{memory:?}");
            assert_eq!(memory.encode(shape), encode * 4, "{memory:?}");
        }
    }

    #[test]
    fn rows_that_depend_on_length() {
        let of = |t| [1, 16, t, 4, 4];
        assert_eq!(VaeMemory::Pieces.decode(&of(4)), 4 * 2200 * 16 * 64);
        assert_eq!(VaeMemory::Pieces.encode(&of(4)), 4 * 1500 * 16);
        assert_eq!(VaeMemory::Grouped.decode(&of(1)), 4 * 2800 * 16 * 64);
        assert_eq!(VaeMemory::Grouped.decode(&of(2)), 4 * 2800 * 5 * 16 * 64);
        assert_eq!(VaeMemory::Grouped.encode(&of(100)), 4 * 1400 * 9 * 16);
        assert_eq!(VaeMemory::Stacked.encode(&of(20)), 4 * 576 * 20 * 16);
        // (1 + 7) / 8 = 1, (13 + 7) / 8 = 2.5 to 2, (21 + 7) / 8 = 3.5 to 4, 4.875 to 5.
        for (t, rounded) in [(1, 1), (13, 2), (21, 4), (32, 5)] {
            assert_eq!(VaeMemory::Wavelet.encode(&of(t)), 4 * 50 * 8 * rounded * 16);
        }
        assert_eq!(VaeMemory::Small.decode(&of(1)), 4 * 50 * 16 * 1024);
        let grown = 4.0 * 50.0 * 16.0 * 1024.0 * 0.26 * 100f64.powf(0.65);
        assert!((VaeMemory::Small.decode(&of(100)) as f64 - grown).abs() <= 1.0);
    }

    #[test]
    fn absurd_shapes_have_an_answer() {
        let shapes: [&[usize]; 5] = [&[], &[0], &[usize::MAX; 3], &[usize::MAX; 5], &[0; 7]];
        for shape in shapes {
            for memory in [VaeMemory::Grouped, VaeMemory::Wavelet, VaeMemory::Small] {
                let _ = (memory.decode(shape), memory.encode(shape));
            }
        }
        assert_eq!(VaeMemory::Pictures.decode(&[usize::MAX; 4]), u64::MAX);
    }
}
