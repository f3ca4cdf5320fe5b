//! RGB to planes of brightness and colour differences, and back: BT.601, limited range, a colour sample for 2 x 2 pixels.
//! The arithmetic is that of the reference's scaler, whose results other programs' files have as well.

/// Fraction bits of the coefficients to YUV.
const SHIFT: u32 = 15;
const Y: [i32; 3] = [8414, 16519, 3208];
const U: [i32; 3] = [-4865, -9528, 14392];
const V: [i32; 3] = [14392, -12061, -2332];

/// Planes of one picture; samples of more than 8 bits need `u16`.
#[derive(Clone, Debug, Default)]
pub struct Planes<T> {
    pub width: usize,
    pub height: usize,
    pub y: Vec<T>,
    pub u: Vec<T>,
    pub v: Vec<T>,
}

impl<T> Planes<T> {
    /// Width and height of the colour planes.
    pub fn chroma(&self) -> (usize, usize) {
        (self.width.div_ceil(2), self.height.div_ceil(2))
    }
}

fn dot(c: [i32; 3], p: &[i32; 3]) -> i32 {
    c[0] * p[0] + c[1] * p[1] + c[2] * p[2]
}

/// Brightness with 7 bits of fraction.
fn luma(pixel: &[u8]) -> i32 {
    let p = [0, 1, 2].map(|i| i32::from(pixel[i]));
    2 * ((dot(Y, &p) + (32 << (SHIFT - 1)) + (1 << (SHIFT - 7))) >> (SHIFT - 6))
}

/// A colour difference of two neighbours with 7 bits of fraction.
fn chroma(c: [i32; 3], pair: &[i32; 3]) -> i32 {
    2 * ((dot(c, pair) + (256 << SHIFT) + (1 << (SHIFT - 6))) >> (SHIFT - 5))
}

/// Rows of colour differences: the mean of each horizontal pair.
fn chroma_rows(rgb: &[u8], width: usize, c: [i32; 3], out: &mut Vec<i32>) {
    out.clear();
    for row in rgb.chunks_exact(width * 3) {
        for pair in row.chunks(6) {
            // The last pixel of an odd row stands for both.
            let second = if pair.len() == 6 { &pair[3..] } else { pair };
            let sum = [0, 1, 2].map(|i| i32::from(pair[i]) + i32::from(second[i]));
            out.push(chroma(c, &sum));
        }
    }
}

/// Halves the rows with weights 1, 3, 3, 1; rows beyond the edge are those at the edge.
fn chroma_plane<T>(
    rows: &[i32],
    columns: usize,
    height: usize,
    out: &mut Vec<T>,
    finish: impl Fn(i32) -> T,
) {
    out.clear();
    let last = height as isize - 1;
    for y in 0..height.div_ceil(2) as isize {
        let at = |k: isize| (2 * y + k).clamp(0, last) as usize * columns;
        let taps = [at(-1), at(0), at(1), at(2)];
        out.extend((0..columns).map(|x| {
            let t = taps.map(|start| rows[start + x]);
            finish(512 * (t[0] + t[3]) + 1536 * (t[1] + t[2]))
        }));
    }
}

/// Converts pictures of one size; keeps its scratch space.
#[derive(Debug, Default)]
pub struct ToYuv {
    rows: Vec<i32>,
}

impl ToYuv {
    fn convert<T>(
        &mut self,
        rgb: &[u8],
        planes: &mut Planes<T>,
        bright: impl Fn(i32) -> T,
        color: impl Fn(i32) -> T,
    ) {
        let (width, height) = (planes.width, planes.height);
        planes.y.clear();
        planes
            .y
            .extend(rgb.chunks_exact(3).map(|p| bright(luma(p))));
        let columns = width.div_ceil(2);
        chroma_rows(rgb, width, U, &mut self.rows);
        chroma_plane(&self.rows, columns, height, &mut planes.u, &color);
        chroma_rows(rgb, width, V, &mut self.rows);
        chroma_plane(&self.rows, columns, height, &mut planes.v, &color);
    }

    /// 8 bits a sample. `rgb` has exactly `width * height` pixels of `planes`.
    pub fn eight(&mut self, rgb: &[u8], planes: &mut Planes<u8>) {
        let bright = |v: i32| ((v + 64) >> 7).clamp(0, 255) as u8;
        let color = |v: i32| ((v + (64 << 12)) >> 19).clamp(0, 255) as u8;
        self.convert(rgb, planes, bright, color);
    }

    /// 10 bits a sample.
    pub fn ten(&mut self, rgb: &[u8], planes: &mut Planes<u16>) {
        let bright = |v: i32| ((v + 16) >> 5).clamp(0, 1023) as u16;
        let color = |v: i32| ((v + (1 << 16)) >> 17).clamp(0, 1023) as u16;
        self.convert(rgb, planes, bright, color);
    }
}

/// How the colour planes of a decoded picture relate to its pixels, and what its numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Pixels a colour sample stands for: halving shifts.
    pub shift_x: u32,
    pub shift_y: u32,
    pub bits: u32,
    /// All values count, not only 16 to 235.
    pub full: bool,
    /// BT.709 instead of BT.601.
    pub bt709: bool,
}

impl Layout {
    pub const YUV420: Self = Self {
        shift_x: 1,
        shift_y: 1,
        bits: 8,
        full: false,
        bt709: false,
    };
}

/// Coefficients with 13 bits of fraction: brightness, red of V, green of U and V, blue of U.
struct ToRgb {
    offset: i32,
    y: i32,
    vr: i32,
    ug: i32,
    vg: i32,
    ub: i32,
}

impl ToRgb {
    fn new(layout: Layout) -> Self {
        let (kr, kb) = if layout.bt709 {
            (0.2126, 0.0722)
        } else {
            (0.299, 0.114)
        };
        let kg = 1.0 - kr - kb;
        let (y, c) = if layout.full {
            (1.0, 1.0)
        } else {
            (255.0 / 219.0, 255.0 / 224.0)
        };
        let bits = |v: f64| (v * 8192.0).round() as i32;
        Self {
            offset: if layout.full { 0 } else { 16 },
            y: bits(y),
            vr: bits(c * 2.0 * (1.0 - kr)),
            ug: -bits(c * 2.0 * (1.0 - kb) * kb / kg),
            vg: -bits(c * 2.0 * (1.0 - kr) * kr / kg),
            ub: bits(c * 2.0 * (1.0 - kb)),
        }
    }

    fn pixel(&self, y: i32, u: i32, v: i32) -> [u8; 3] {
        // As vector instructions of scalers do: the upper half of 16-bit products, each rounded down.
        let high = |value: i32, factor: i32| (value * 8 * factor) >> 16;
        let y = high(y - self.offset, self.y);
        let (u, v) = (u - 128, v - 128);
        [
            y + high(v, self.vr),
            y + high(u, self.ug) + high(v, self.vg),
            y + high(u, self.ub),
        ]
        .map(|value| value.clamp(0, 255) as u8)
    }
}

/// Samples of 8 or more bits, as decoders give them.
#[derive(Clone, Copy, Debug)]
pub enum Samples<'a> {
    Bytes(&'a [u8]),
    /// Two bytes a sample, the low one first.
    Pairs(&'a [u8]),
}

impl Samples<'_> {
    fn at(self, index: usize, bits: u32) -> i32 {
        match self {
            Self::Bytes(b) => i32::from(b.get(index).copied().unwrap_or(0)),
            Self::Pairs(b) => {
                let pair = b.get(2 * index..2 * index + 2).unwrap_or(&[0, 0]);
                i32::from(u16::from_le_bytes([pair[0], pair[1]]) >> (bits - 8))
            }
        }
    }
}

/// A decoded picture: planes with the samples each of their rows takes.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<'a> {
    pub width: usize,
    pub height: usize,
    pub planes: [Samples<'a>; 3],
    pub strides: [usize; 3],
    pub layout: Layout,
}

impl Decoded<'_> {
    /// Appends the picture as RGB; the nearest colour sample counts.
    pub fn to_rgb(&self, out: &mut Vec<u8>) {
        let Self { layout, planes, .. } = *self;
        let matrix = ToRgb::new(layout);
        for row in 0..self.height {
            let chroma = (row >> layout.shift_y) * self.strides[1];
            let chroma_v = (row >> layout.shift_y) * self.strides[2];
            for x in 0..self.width {
                let c = x >> layout.shift_x;
                let y = planes[0].at(row * self.strides[0] + x, layout.bits);
                let u = planes[1].at(chroma + c, layout.bits);
                let v = planes[2].at(chroma_v + c, layout.bits);
                out.extend(matrix.pixel(y, u, v));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `media_convert` of the goldens: rgb, y, u, v, back, and frame 0 in 10 bits.
    struct Golden(std::collections::BTreeMap<String, Vec<u8>>);

    impl Golden {
        fn read() -> Self {
            let path = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../tests/gold/media_convert.safetensors"
            );
            let file = std::fs::read(path).unwrap();
            let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            let header = std::str::from_utf8(&file[8..8 + length]).unwrap();
            let mut tensors = std::collections::BTreeMap::new();
            // `"name":{..,"data_offsets":[a,b]}`
            for entry in header.split('}').filter(|e| e.contains("data_offsets")) {
                let name = entry.split('"').nth(1).unwrap().to_owned();
                let offsets = entry.rsplit('[').next().unwrap().trim_end_matches(']');
                let mut ends = offsets
                    .split(',')
                    .map(|n| n.trim().parse::<usize>().unwrap());
                let (a, b) = (ends.next().unwrap(), ends.next().unwrap());
                tensors.insert(name, file[8 + length + a..8 + length + b].to_vec());
            }
            Self(tensors)
        }

        fn ints(&self, name: &str) -> Vec<i32> {
            let words = self.0[name].chunks_exact(4);
            words
                .map(|w| i32::from_le_bytes(w.try_into().unwrap()))
                .collect()
        }
    }

    #[test]
    fn conversions_are_those_of_the_reference() {
        let golden = Golden::read();
        let (mut eight, mut ten) = (Planes::default(), Planes::default());
        (eight.width, eight.height) = (16, 12);
        (ten.width, ten.height) = (16, 12);
        let mut to_yuv = ToYuv::default();
        let mut back = Vec::new();
        for frame in 0..2 {
            let rgb = &golden.0["rgb"][frame * 576..][..576];
            to_yuv.eight(rgb, &mut eight);
            let (y, u, v) = (&golden.0["y"], &golden.0["u"], &golden.0["v"]);
            let (y, u, v) = (
                &y[frame * 192..][..192],
                &u[frame * 48..][..48],
                &v[frame * 48..][..48],
            );
            assert_eq!(eight.y, y);
            // The reference's vector code rounds some sums of colour the other way.
            for (got, want) in [(&eight.u, u), (&eight.v, v)] {
                assert!(got.iter().zip(want).all(|(a, b)| a.abs_diff(*b) <= 1));
            }
            let decoded = Decoded {
                width: 16,
                height: 12,
                planes: [y, u, v].map(Samples::Bytes),
                strides: [16, 8, 8],
                layout: Layout::YUV420,
            };
            decoded.to_rgb(&mut back);
        }
        assert_eq!(back, golden.0["rgb_back"]);
        to_yuv.ten(&golden.0["rgb"][..576], &mut ten);
        let wide = |p: &[u16]| p.iter().map(|v| i32::from(*v)).collect::<Vec<_>>();
        assert_eq!(wide(&ten.y), golden.ints("y10"));
        assert_eq!(wide(&ten.u), golden.ints("u10"));
        assert_eq!(wide(&ten.v), golden.ints("v10"));
    }

    #[test]
    fn odd_sizes_have_a_colour_sample_for_the_rest() {
        let mut planes = Planes {
            width: 3,
            height: 3,
            ..Planes::default()
        };
        ToYuv::default().eight(&[200; 27], &mut planes);
        assert_eq!((planes.y.len(), planes.u.len()), (9, 4));
        assert!(planes.u.iter().all(|v| *v == 128));
    }
}
