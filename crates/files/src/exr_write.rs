//! OpenEXR files: one part of scan lines, compressed by zlib in groups of sixteen, values of 16 or 32 bit floats.
//! Format: <https://openexr.com/en/latest/OpenEXRFileLayout.html>.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::png_write::EncodeError;

const MAGIC: [u8; 4] = [0x76, 0x2f, 0x31, 0x01];
const VERSION: u32 = 2;
/// Names of more than 31 bytes.
const LONG_NAMES: u32 = 0x400;
/// zlib over this many lines at once.
const ZIP: u8 = 3;
const LINES: usize = 16;

/// Attributes that mean something to readers, which texts of a workflow must not take over.
const RESERVED: [&str; 9] = [
    "channels",
    "chromaticities",
    "compression",
    "dataWindow",
    "displayWindow",
    "lineOrder",
    "pixelAspectRatio",
    "screenWindowCenter",
    "screenWindowWidth",
];

/// How values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    Half,
    Single,
}

impl Precision {
    fn code(self) -> u32 {
        match self {
            Self::Half => 1,
            Self::Single => 2,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Half => 2,
            Self::Single => 4,
        }
    }
}

/// A picture of linear light.
#[derive(Debug, Clone, Copy)]
pub struct ExrPicture<'a> {
    pub width: u32,
    pub height: u32,
    /// 1 is brightness, 3 red, green and blue, 4 with opacity.
    pub channels: usize,
    /// Row by row, channels together.
    pub values: &'a [f32],
    pub precision: Precision,
    /// x and y of red, green, blue and white, where they are not those of sRGB.
    pub primaries: Option<[f32; 8]>,
}

/// Encodes a picture; `text` becomes attributes of the header. Ends early when it is not `wanted` any more.
pub fn encode(
    picture: &ExrPicture<'_>,
    text: &[(String, String)],
    wanted: &dyn Fn() -> bool,
) -> Result<Vec<u8>, EncodeError> {
    // Channels stand in the order of their names.
    let names: &[(&str, usize)] = match picture.channels {
        1 => &[("Y", 0)],
        3 => &[("B", 2), ("G", 1), ("R", 0)],
        4 => &[("A", 3), ("B", 2), ("G", 1), ("R", 0)],
        other => {
            return Err(EncodeError::Encoder {
                what: format!("a picture of {other} channels cannot be an EXR"),
            });
        }
    };
    let (width, height) = (picture.width as usize, picture.height as usize);
    let fits = |n: u32| n > 0 && n < i32::MAX as u32;
    if !fits(picture.width) || !fits(picture.height) {
        return Err(EncodeError::Size {
            width: picture.width,
            height: picture.height,
        });
    }
    let stride = width * picture.channels;
    if picture.values.len() != stride * height {
        return Err(EncodeError::Data {
            got: picture.values.len(),
            want: stride * height,
        });
    }
    let mut out = header(picture, names, text);
    let table = out.len();
    let chunks = height.div_ceil(LINES);
    out.resize(table + chunks * 8, 0);
    let mut raw = Vec::with_capacity(LINES * width * names.len() * picture.precision.bytes());
    for (i, rows) in picture.values.chunks(stride * LINES).enumerate() {
        raw.clear();
        for row in rows.chunks_exact(stride) {
            if !wanted() {
                return Err(EncodeError::Stopped);
            }
            for (_, channel) in names {
                let values = row.iter().skip(*channel).step_by(picture.channels);
                match picture.precision {
                    Precision::Half => {
                        let halves = values.map(|v| half::f16::from_f32(*v));
                        raw.extend(halves.flat_map(half::f16::to_le_bytes));
                    }
                    Precision::Single => raw.extend(values.flat_map(|v| v.to_le_bytes())),
                }
            }
        }
        let offset = (out.len() as u64).to_le_bytes();
        out[table + i * 8..table + i * 8 + 8].copy_from_slice(&offset);
        let packed = compress(&raw)?;
        // What does not get smaller is stored as it is; readers tell by the size.
        let data = if packed.len() < raw.len() {
            &packed
        } else {
            &raw
        };
        out.extend(((i * LINES) as u32).to_le_bytes());
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
    }
    Ok(out)
}

fn header(picture: &ExrPicture<'_>, names: &[(&str, usize)], text: &[(String, String)]) -> Vec<u8> {
    let text: Vec<&(String, String)> = text
        .iter()
        .filter(|(key, _)| (1..=255).contains(&key.len()) && !key.contains('\0'))
        .collect();
    let long = text.iter().any(|(key, _)| key.len() > 31);
    let mut out = MAGIC.to_vec();
    out.extend((VERSION | if long { LONG_NAMES } else { 0 }).to_le_bytes());
    let mut channels = Vec::new();
    for (name, _) in names {
        channels.extend(name.as_bytes());
        channels.push(0);
        channels.extend(picture.precision.code().to_le_bytes());
        channels.extend([0; 4]);
        channels.extend(1u32.to_le_bytes());
        channels.extend(1u32.to_le_bytes());
    }
    channels.push(0);
    let window: Vec<u8> = [0, 0, picture.width - 1, picture.height - 1]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    attribute(&mut out, "channels", "chlist", &channels);
    if let Some(primaries) = &picture.primaries {
        let bytes: Vec<u8> = primaries.iter().flat_map(|v| v.to_le_bytes()).collect();
        attribute(&mut out, "chromaticities", "chromaticities", &bytes);
    }
    attribute(&mut out, "compression", "compression", &[ZIP]);
    attribute(&mut out, "dataWindow", "box2i", &window);
    attribute(&mut out, "displayWindow", "box2i", &window);
    attribute(&mut out, "lineOrder", "lineOrder", &[0]);
    attribute(&mut out, "pixelAspectRatio", "float", &1f32.to_le_bytes());
    attribute(&mut out, "screenWindowCenter", "v2f", &[0; 8]);
    attribute(&mut out, "screenWindowWidth", "float", &1f32.to_le_bytes());
    for (key, value) in text {
        if !RESERVED.contains(&&**key) {
            attribute(&mut out, key, "string", value.as_bytes());
        }
    }
    out.push(0);
    out
}

fn attribute(out: &mut Vec<u8>, name: &str, kind: &str, data: &[u8]) {
    for word in [name, kind] {
        out.extend(word.as_bytes());
        out.push(0);
    }
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
}

/// Bytes of even places before those of odd ones, each as the difference to the one before: floats then have long runs.
fn compress(raw: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let mut bytes: Vec<u8> = raw.iter().step_by(2).copied().collect();
    bytes.extend(raw.iter().skip(1).step_by(2));
    let mut before = 0u8;
    for (i, byte) in bytes.iter_mut().enumerate() {
        let this = *byte;
        if i > 0 {
            *byte = this.wrapping_sub(before).wrapping_add(128);
        }
        before = this;
    }
    let failed = |e: std::io::Error| EncodeError::Encoder {
        what: e.to_string(),
    };
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(4));
    encoder.write_all(&bytes).map_err(failed)?;
    encoder.finish().map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Reads back what this module writes: header attributes, then values by channel name.
    fn decode(bytes: &[u8]) -> (Vec<(String, Vec<u8>)>, Vec<u8>) {
        assert_eq!(bytes[..4], MAGIC);
        let mut at = 8;
        let word = |at: &mut usize| {
            let end = *at + bytes[*at..].iter().position(|b| *b == 0).unwrap();
            let word = String::from_utf8(bytes[*at..end].to_vec()).unwrap();
            *at = end + 1;
            word
        };
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let mut attributes = Vec::new();
        loop {
            let name = word(&mut at);
            if name.is_empty() {
                break;
            }
            let _ = word(&mut at);
            let size = number(at);
            attributes.push((name, bytes[at + 4..at + 4 + size].to_vec()));
            at += 4 + size;
        }
        let find = |name: &str| &attributes.iter().find(|(n, _)| n == name).unwrap().1;
        let window = find("dataWindow");
        let side = |i: usize| u32::from_le_bytes(window[i..i + 4].try_into().unwrap()) as usize + 1;
        let (width, height) = (side(8), side(12));
        let names = find("channels").len() / 18;
        let size = if find("channels")[2] == 1 { 2 } else { 4 };
        let mut data = Vec::new();
        for chunk in 0..height.div_ceil(LINES) {
            let place = u64::from_le_bytes(bytes[at + chunk * 8..][..8].try_into().unwrap());
            let place = place as usize;
            assert_eq!(number(place), chunk * LINES);
            let packed = &bytes[place + 8..place + 8 + number(place + 4)];
            let lines = LINES.min(height - chunk * LINES);
            let raw = lines * width * names * size;
            if packed.len() == raw {
                data.extend(packed);
                continue;
            }
            let mut shuffled = Vec::new();
            flate2::read::ZlibDecoder::new(packed)
                .read_to_end(&mut shuffled)
                .unwrap();
            for i in 1..shuffled.len() {
                shuffled[i] = shuffled[i].wrapping_add(shuffled[i - 1]).wrapping_sub(128);
            }
            let half = shuffled.len().div_ceil(2);
            data.extend((0..raw).map(|i| shuffled[if i % 2 == 0 { i / 2 } else { half + i / 2 }]));
        }
        (attributes, data)
    }

    #[test]
    fn values_come_back() {
        let (width, height) = (5, 19);
        for channels in [1, 3, 4] {
            let values: Vec<f32> = (0..width * height * channels)
                .map(|i| i as f32 / 64.0 - 1.0)
                .collect();
            for precision in [Precision::Half, Precision::Single] {
                let picture = ExrPicture {
                    width: width as u32,
                    height: height as u32,
                    channels,
                    values: &values,
                    precision,
                    primaries: None,
                };
                let text = [("prompt".to_owned(), "{}".to_owned())];
                let bytes = encode(&picture, &text, &|| true).unwrap();
                let (attributes, data) = decode(&bytes);
                assert!(attributes.iter().any(|(n, v)| n == "prompt" && v == b"{}"));
                // Line by line, the last channel of the picture first: names are in alphabetical order.
                let size = precision.bytes();
                for y in 0..height {
                    for c in 0..channels {
                        for x in 0..width {
                            let at = ((y * channels + c) * width + x) * size;
                            let found = match precision {
                                Precision::Half => {
                                    half::f16::from_le_bytes(data[at..at + 2].try_into().unwrap())
                                        .to_f32()
                                }
                                Precision::Single => {
                                    f32::from_le_bytes(data[at..at + 4].try_into().unwrap())
                                }
                            };
                            let wanted = values[(y * width + x) * channels + channels - 1 - c];
                            assert!((found - wanted).abs() <= wanted.abs() / 1000.0);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_key_of_the_format_is_not_written_twice() {
        let picture = ExrPicture {
            width: 1,
            height: 1,
            channels: 1,
            values: &[0.5],
            precision: Precision::Single,
            primaries: Some([0.1; 8]),
        };
        let text = ["dataWindow", "x", &"k".repeat(40), &"k".repeat(300), ""]
            .map(|key| (key.to_owned(), "v".to_owned()));
        let bytes = encode(&picture, &text, &|| true).unwrap();
        let (attributes, _) = decode(&bytes);
        let count = |name: &str| attributes.iter().filter(|(n, _)| n == name).count();
        assert_eq!(
            (count("dataWindow"), count("x"), count("chromaticities")),
            (1, 1, 1)
        );
        assert_eq!((count(&"k".repeat(40)), count(&"k".repeat(300))), (1, 0));
        assert_eq!(bytes[5] & 4, 4);
    }

    #[test]
    fn wrong_sizes_are_told() {
        let picture = |width, channels, values| ExrPicture {
            width,
            height: 1,
            channels,
            values,
            precision: Precision::Half,
            primaries: None,
        };
        for (width, channels) in [(0, 1), (2, 1), (1, 2)] {
            assert!(encode(&picture(width, channels, &[0.0]), &[], &|| true).is_err());
        }
    }
}
