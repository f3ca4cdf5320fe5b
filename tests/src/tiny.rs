//! A checkpoint of the SD1 layout that is small enough to make in a test: every part is there, only narrower.
//!
//! The weights are the synthetic ones of the golden files: reproducible, and nothing needs to be downloaded.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::Result;
use serde_json::{Map, json};

/// Shapes by key.
pub type Keys = BTreeMap<String, Vec<usize>>;

/// Sizes of the small model.
#[derive(Clone, Debug)]
pub struct Tiny {
    /// Latent channels the UNet takes: 4, 9 for inpainting, 8 for instruct-pix2pix.
    pub in_channels: usize,
    pub channels: usize,
    pub levels: Vec<usize>,
    /// Whether a level has attention.
    pub attention: Vec<bool>,
    /// Width of the text.
    pub context: usize,
    pub text_layers: usize,
    pub vae_channels: usize,
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            in_channels: 4,
            channels: 32,
            levels: vec![1, 2, 4],
            attention: vec![true, true, false],
            context: 64,
            text_layers: 2,
            vae_channels: 32,
        }
    }
}

struct Listing<'a> {
    keys: &'a mut Keys,
    prefix: &'a str,
}

impl Listing<'_> {
    fn put(&mut self, key: &str, shape: &[usize]) {
        self.keys
            .insert(format!("{}{key}", self.prefix), shape.to_vec());
    }

    fn linear(&mut self, key: &str, from: usize, to: usize, bias: bool) {
        self.put(&format!("{key}.weight"), &[to, from]);
        if bias {
            self.put(&format!("{key}.bias"), &[to]);
        }
    }

    fn conv(&mut self, key: &str, from: usize, to: usize, side: usize) {
        self.put(&format!("{key}.weight"), &[to, from, side, side]);
        self.put(&format!("{key}.bias"), &[to]);
    }

    fn norm(&mut self, key: &str, width: usize) {
        self.put(&format!("{key}.weight"), &[width]);
        self.put(&format!("{key}.bias"), &[width]);
    }

    fn unet_res(&mut self, key: &str, from: usize, to: usize, time: usize) {
        self.norm(&format!("{key}.in_layers.0"), from);
        self.conv(&format!("{key}.in_layers.2"), from, to, 3);
        self.linear(&format!("{key}.emb_layers.1"), time, to, true);
        self.norm(&format!("{key}.out_layers.0"), to);
        self.conv(&format!("{key}.out_layers.3"), to, to, 3);
        if from != to {
            self.conv(&format!("{key}.skip_connection"), from, to, 1);
        }
    }

    fn transformer(&mut self, key: &str, width: usize, context: usize) {
        self.norm(&format!("{key}.norm"), width);
        self.conv(&format!("{key}.proj_in"), width, width, 1);
        let block = format!("{key}.transformer_blocks.0");
        for (name, from) in [("attn1", width), ("attn2", context)] {
            self.linear(&format!("{block}.{name}.to_q"), width, width, false);
            self.linear(&format!("{block}.{name}.to_k"), from, width, false);
            self.linear(&format!("{block}.{name}.to_v"), from, width, false);
            self.linear(&format!("{block}.{name}.to_out.0"), width, width, true);
        }
        self.linear(&format!("{block}.ff.net.0.proj"), width, width * 8, true);
        self.linear(&format!("{block}.ff.net.2"), width * 4, width, true);
        for norm in ["norm1", "norm2", "norm3"] {
            self.norm(&format!("{block}.{norm}"), width);
        }
        self.conv(&format!("{key}.proj_out"), width, width, 1);
    }

    fn vae_res(&mut self, key: &str, from: usize, to: usize) {
        self.norm(&format!("{key}.norm1"), from);
        self.conv(&format!("{key}.conv1"), from, to, 3);
        self.norm(&format!("{key}.norm2"), to);
        self.conv(&format!("{key}.conv2"), to, to, 3);
        if from != to {
            self.conv(&format!("{key}.nin_shortcut"), from, to, 1);
        }
    }

    fn vae_middle(&mut self, key: &str, width: usize) {
        self.vae_res(&format!("{key}.block_1"), width, width);
        self.norm(&format!("{key}.attn_1.norm"), width);
        for name in ["q", "k", "v", "proj_out"] {
            self.conv(&format!("{key}.attn_1.{name}"), width, width, 1);
        }
        self.vae_res(&format!("{key}.block_2"), width, width);
    }
}

impl Tiny {
    /// Keys of the network that removes noise, without a prefix.
    pub fn unet(&self) -> Keys {
        let mut keys = Keys::new();
        let mut list = Listing {
            keys: &mut keys,
            prefix: "",
        };
        let time = self.channels * 4;
        list.linear("time_embed.0", self.channels, time, true);
        list.linear("time_embed.2", time, time, true);
        list.conv("input_blocks.0.0", self.in_channels, self.channels, 3);
        let mut width = self.channels;
        let mut skips = vec![width];
        for (level, mult) in self.levels.iter().enumerate() {
            let key = format!("input_blocks.{}", skips.len());
            list.unet_res(&format!("{key}.0"), width, self.channels * mult, time);
            width = self.channels * mult;
            if self.attention[level] {
                list.transformer(&format!("{key}.1"), width, self.context);
            }
            skips.push(width);
            if level + 1 < self.levels.len() {
                let key = format!("input_blocks.{}.0.op", skips.len());
                list.conv(&key, width, width, 3);
                skips.push(width);
            }
        }
        list.unet_res("middle_block.0", width, width, time);
        list.transformer("middle_block.1", width, self.context);
        list.unet_res("middle_block.2", width, width, time);
        let mut block = 0;
        for (level, mult) in self.levels.iter().enumerate().rev() {
            for part in 0..2 {
                let skip = skips.pop().expect("an output block for each input block");
                let key = format!("output_blocks.{block}");
                list.unet_res(
                    &format!("{key}.0"),
                    width + skip,
                    self.channels * mult,
                    time,
                );
                width = self.channels * mult;
                let mut next = 1;
                if self.attention[level] {
                    list.transformer(&format!("{key}.1"), width, self.context);
                    next = 2;
                }
                if level > 0 && part == 1 {
                    list.conv(&format!("{key}.{next}.conv"), width, width, 3);
                }
                block += 1;
            }
        }
        list.norm("out.0", width);
        list.conv("out.2", width, 4, 3);
        keys
    }

    /// Keys of a control net for the network that removes noise, as in the original's files.
    pub fn control(&self) -> Keys {
        let half = self.unet().into_iter();
        let half = half.filter(|(key, _)| !key.starts_with("out"));
        let mut keys: Keys = half
            .map(|(key, shape)| (format!("control_model.{key}"), shape))
            .collect();
        let mut list = Listing {
            keys: &mut keys,
            prefix: "control_model.",
        };
        let mut at = 3;
        let widths = [16, 16, 32, 32, 96, 96, 256, self.channels];
        for (place, width) in widths.into_iter().enumerate() {
            list.conv(&format!("input_hint_block.{}", place * 2), at, width, 3);
            at = width;
        }
        let mut skips = vec![self.channels];
        for (level, mult) in self.levels.iter().enumerate() {
            let last = level + 1 == self.levels.len();
            skips.extend(std::iter::repeat_n(
                self.channels * mult,
                2 - usize::from(last),
            ));
        }
        for (number, width) in skips.iter().enumerate() {
            list.conv(&format!("zero_convs.{number}.0"), *width, *width, 1);
        }
        let inner = skips[skips.len() - 1];
        list.conv("middle_block_out.0", inner, inner, 1);
        keys
    }

    /// Keys of the autoencoder, without a prefix.
    pub fn vae(&self) -> Keys {
        const MULTS: [usize; 4] = [1, 1, 2, 2];
        let mut keys = Keys::new();
        let mut list = Listing {
            keys: &mut keys,
            prefix: "",
        };
        let base = self.vae_channels;
        list.conv("encoder.conv_in", 3, base, 3);
        let mut width = base;
        for (level, mult) in MULTS.iter().enumerate() {
            let key = format!("encoder.down.{level}");
            list.vae_res(&format!("{key}.block.0"), width, base * mult);
            width = base * mult;
            if level < 3 {
                list.conv(&format!("{key}.downsample.conv"), width, width, 3);
            }
        }
        list.vae_middle("encoder.mid", width);
        list.norm("encoder.norm_out", width);
        list.conv("encoder.conv_out", width, 8, 3);
        list.conv("quant_conv", 8, 8, 1);
        list.conv("post_quant_conv", 4, 4, 1);
        list.conv("decoder.conv_in", 4, width, 3);
        list.vae_middle("decoder.mid", width);
        for (level, mult) in MULTS.iter().enumerate().rev() {
            let key = format!("decoder.up.{level}");
            for block in 0..2 {
                list.vae_res(&format!("{key}.block.{block}"), width, base * mult);
                width = base * mult;
            }
            if level > 0 {
                list.conv(&format!("{key}.upsample.conv"), width, width, 3);
            }
        }
        list.norm("decoder.norm_out", width);
        list.conv("decoder.conv_out", width, 3, 3);
        keys
    }

    /// Keys of the text encoder, without a prefix.
    pub fn text(&self) -> Keys {
        let mut keys = Keys::new();
        let mut list = Listing {
            keys: &mut keys,
            prefix: "text_model.",
        };
        let width = self.context;
        list.put("embeddings.token_embedding.weight", &[49408, width]);
        list.put("embeddings.position_embedding.weight", &[77, width]);
        for layer in 0..self.text_layers {
            let key = format!("encoder.layers.{layer}");
            for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                list.linear(&format!("{key}.self_attn.{name}"), width, width, true);
            }
            list.norm(&format!("{key}.layer_norm1"), width);
            list.norm(&format!("{key}.layer_norm2"), width);
            list.linear(&format!("{key}.mlp.fc1"), width, width * 4, true);
            list.linear(&format!("{key}.mlp.fc2"), width * 4, width, true);
        }
        list.norm("final_layer_norm", width);
        keys
    }

    /// Keys of a whole checkpoint.
    pub fn checkpoint(&self) -> Keys {
        let parts = [
            ("model.diffusion_model.", self.unet()),
            ("first_stage_model.", self.vae()),
            ("cond_stage_model.transformer.", self.text()),
        ];
        let prefixed = |(prefix, keys): (&'static str, Keys)| {
            keys.into_iter()
                .map(move |(key, shape)| (format!("{prefix}{key}"), shape))
        };
        parts.into_iter().flat_map(prefixed).collect()
    }

    /// Writes the checkpoint into `models/checkpoints` below a base folder.
    pub fn write(&self, base: &Path, name: &str) -> Result<()> {
        let folder = base.join("models/checkpoints");
        std::fs::create_dir_all(&folder)?;
        write(&folder.join(name), &self.checkpoint())
    }
}

/// One synthetic weight, element by element: FNV-1a of the name seeds splitmix64, 24 bits become one exact f32, and the
/// rank and the last part of the name say scale and offset.
pub(crate) fn synthetic<'a>(name: &str, shape: &'a [usize]) -> impl Iterator<Item = f32> + 'a {
    let seed = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    let (offset, scale) = match shape {
        [] => (1.0, 0.1),
        [_] if [".weight", ".scale", ".gamma"]
            .iter()
            .any(|end| name.ends_with(end)) =>
        {
            (1.0, 0.1)
        }
        [_] => (0.0, 0.02),
        _ => {
            let fan_in: usize = shape[1..].iter().product();
            (0.0, (3.0 / fan_in as f64).sqrt() as f32)
        }
    };
    (1..=shape.iter().product::<usize>() as u64).map(move |i| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let unit = (z >> 40) as f32 * (1.0 / 8_388_608.0) - 1.0;
        unit * scale + offset
    })
}

/// A number format: its name in a safetensors file, and the bytes of a number.
pub type Format = (&'static str, u64);
pub const F32: Format = ("F32", 4);
pub const F16: Format = ("F16", 2);
pub const BF16: Format = ("BF16", 2);
pub const F8: Format = ("F8_E4M3", 1);

/// The header of a safetensors file with these shapes, and how many bytes follow it.
fn header(
    keys: &Keys,
    format: impl Fn(&str) -> Format,
    metadata: &[(&str, String)],
) -> Result<(Vec<u8>, u64)> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        let pairs = metadata.iter();
        let pairs: Map<String, _> = pairs
            .map(|(key, text)| ((*key).to_owned(), json!(text)))
            .collect();
        header.insert("__metadata__".to_owned(), pairs.into());
    }
    let mut at = 0;
    for (key, shape) in keys {
        let (dtype, size) = format(key);
        let end = at + shape.iter().product::<usize>() as u64 * size;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
        header.insert(key.clone(), entry);
        at = end;
    }
    let header = serde_json::to_vec(&header)?;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    Ok((bytes, at))
}

/// Writes a file of these shapes whose weights are a hole: it takes no room on the disk, however large it says it is.
pub fn write_hollow(path: &Path, keys: &Keys, format: Format) -> Result<()> {
    write_hollow_in(path, keys, |_| format)
}

/// The same with a number format for each tensor.
pub fn write_hollow_in(path: &Path, keys: &Keys, format: impl Fn(&str) -> Format) -> Result<()> {
    write_hollow_with(path, keys, format, &[])
}

/// The same with what the file says about itself.
pub fn write_hollow_with(
    path: &Path,
    keys: &Keys,
    format: impl Fn(&str) -> Format,
    metadata: &[(&str, String)],
) -> Result<()> {
    let (header, length) = header(keys, format, metadata)?;
    let mut file = File::create(path)?;
    file.write_all(&header)?;
    file.set_len(header.len() as u64 + length)?;
    Ok(())
}

/// The keys of a golden network, some of them with another shape.
pub fn golden(name: &str, changed: &[(&str, &[usize])]) -> Result<Keys> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gold");
    let about: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json")))?)?;
    let mut keys: Keys = serde_json::from_value(about["keys"].clone())?;
    for (key, shape) in changed {
        keys.insert((*key).to_owned(), shape.to_vec());
    }
    Ok(keys)
}

/// Writes synthetic weights of these shapes as a safetensors file of f32.
pub fn write(path: &Path, keys: &Keys) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&header(keys, |_| F32, &[])?.0)?;
    for (key, shape) in keys {
        for value in synthetic(key, shape) {
            out.write_all(&value.to_le_bytes())?;
        }
    }
    out.flush()?;
    Ok(())
}
