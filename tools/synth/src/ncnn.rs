//! `fresco-synth ncnn PARAM BIN OUT`: upscale models that come as ncnn files, with the names that they have elsewhere.
//!
//! Packages ship Real-ESRGAN that way. The text file lists layers; the other has the numbers of each layer that has any,
//! one after the other.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fresco_tensor::safetensors::{Entry, write_streamed};
use fresco_tensor::{Dtype, Stored};

use crate::Failure;

/// The first line of the text file.
const MAGIC: &str = "7767517";
/// What stands before numbers of two bytes; before those of four stands nothing but zeros.
const HALF: u32 = 0x0130_6B47;

/// A layer that has numbers.
#[derive(Debug, PartialEq, Eq)]
enum Layer {
    /// Channels that come out, the side of the kernel, and how many numbers it has.
    Conv {
        out: usize,
        side: usize,
        count: usize,
    },
    /// Slopes for negative values.
    Slopes(usize),
}

/// The layers with numbers of a text file.
fn layers(text: &str) -> Result<Vec<Layer>> {
    let mut lines = text.lines();
    if lines.next().map(str::trim) != Some(MAGIC) {
        bail!("the first line is not {MAGIC}: this is no ncnn file");
    }
    let mut found = Vec::new();
    for line in lines.skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |key: usize| -> Option<usize> {
            let start = format!("{key}=");
            words
                .iter()
                .find_map(|word| word.strip_prefix(&start)?.parse().ok())
        };
        let need = |key: usize| number(key).with_context(|| format!("no {key}= in {line:?}"));
        match words.first() {
            Some(&"Convolution") => {
                if number(5) != Some(1) {
                    bail!("a convolution without a bias is of no model that is known: {line:?}");
                }
                found.push(Layer::Conv {
                    out: need(0)?,
                    side: need(1)?,
                    count: need(6)?,
                });
            }
            Some(&"PReLU") => found.push(Layer::Slopes(need(0)?)),
            Some(
                &("InnerProduct"
                | "Deconvolution"
                | "ConvolutionDepthWise"
                | "BatchNorm"
                | "Scale"),
            ) => {
                bail!("this layer is of no model that is known: {line:?}");
            }
            _ => {}
        }
    }
    Ok(found)
}

/// What the layers are called in other files, in their order.
fn names(layers: &[Layer]) -> Result<Vec<String>> {
    if layers.iter().any(|layer| matches!(layer, Layer::Slopes(_))) {
        // Compact: a sequence.
        return Ok((0..layers.len()).map(|i| format!("body.{i}")).collect());
    }
    // ESRGAN: the first, blocks of three times five, and five at the end.
    let Some(blocks) = layers.len().checked_sub(6).filter(|n| n.is_multiple_of(15)) else {
        bail!(
            "{} convolutions are of no model that is known",
            layers.len()
        );
    };
    let mut names = vec!["conv_first".to_owned()];
    for block in 0..blocks / 15 {
        for rdb in 1..=3 {
            names.extend((1..=5).map(|conv| format!("body.{block}.rdb{rdb}.conv{conv}")));
        }
    }
    names.extend(["conv_body", "conv_up1", "conv_up2", "conv_hr", "conv_last"].map(str::to_owned));
    Ok(names)
}

/// Reads numbers from the front of the bytes that are left.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let (now, rest) = self
            .0
            .split_at_checked(count)
            .context("the file ends too early")?;
        self.0 = rest;
        Ok(now)
    }

    fn singles(&mut self, shape: Vec<usize>, count: usize) -> Result<Stored> {
        let bytes = self.take(count * 4)?.to_vec();
        Ok(Stored::new(Dtype::F32, shape, bytes)?)
    }

    /// Numbers with a word before them that says their format.
    fn tagged(&mut self, shape: Vec<usize>, count: usize) -> Result<Stored> {
        let tag: [u8; 4] = self.take(4)?.try_into()?;
        match u32::from_le_bytes(tag) {
            0 => self.singles(shape, count),
            HALF => {
                let bytes = self.take((count * 2).next_multiple_of(4))?[..count * 2].to_vec();
                Ok(Stored::new(Dtype::F16, shape, bytes)?)
            }
            other => bail!("numbers of the format {other:#x} are not known"),
        }
    }
}

/// Every tensor with its name.
fn tensors(text: &str, bytes: &[u8]) -> Result<Vec<(String, Stored)>> {
    let layers = layers(text)?;
    let mut numbers = Numbers(bytes);
    let mut found = Vec::new();
    for (name, layer) in names(&layers)?.into_iter().zip(&layers) {
        match *layer {
            Layer::Slopes(count) => {
                let slopes = numbers.singles(vec![count], count)?;
                found.push((format!("{name}.weight"), slopes));
            }
            Layer::Conv { out, side, count } => {
                let per_input = out.checked_mul(side * side).filter(|n| *n > 0);
                let input = per_input
                    .filter(|n| count.is_multiple_of(*n))
                    .map(|n| count / n);
                let input = input.with_context(|| format!("{name} has {count} numbers"))?;
                let weight = numbers.tagged(vec![out, input, side, side], count)?;
                found.push((format!("{name}.weight"), weight));
                found.push((format!("{name}.bias"), numbers.singles(vec![out], out)?));
            }
        }
    }
    if !numbers.0.is_empty() {
        bail!("{} bytes are left over", numbers.0.len());
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

pub(crate) fn run(param: &Path, bin: &Path, out: &Path) -> Result<()> {
    let read = |path: &Path| format!("cannot read {}", path.display());
    let text = std::fs::read_to_string(param).with_context(|| read(param))?;
    let bytes = std::fs::read(bin).with_context(|| read(bin))?;
    let found = tensors(&text, &bytes)?;
    let entries = found.iter().map(|(name, value)| Entry {
        name: name.clone(),
        dtype: value.dtype(),
        shape: value.shape().to_vec(),
    });
    write_streamed(
        out,
        entries.collect(),
        &[],
        |entry| -> Result<Stored, Failure> {
            let value = found.iter().find(|(name, _)| *name == entry.name);
            let value = value
                .with_context(|| format!("no {}", entry.name))
                .map_err(Failure)?;
            Ok(value.1.clone())
        },
    )
    .map_err(|failure| failure.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "7767517\n3 4\nInput data 0 1 data\nConvolution c 1 1 data a 0=2 1=1 4=0 5=1 6=6\n\
                        PReLU p 1 1 a b 0=2\nConvolution d 1 1 b c 0=3 1=1 5=1 6=6\nPixelShuffle s 1 1 c d 0=1\n";

    fn bytes() -> Vec<u8> {
        let singles =
            |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
        let mut bytes = HALF.to_le_bytes().to_vec();
        bytes.extend([0x00, 0x3c].repeat(6));
        bytes.extend(singles(&[1.0, 2.0]));
        bytes.extend(singles(&[0.1, 0.2]));
        bytes.extend([0; 4]);
        bytes.extend(singles(&[5.0; 6]));
        bytes.extend(singles(&[0.0; 3]));
        bytes
    }

    #[test]
    fn layers_are_read_in_order() {
        let found = tensors(TEXT, &bytes()).unwrap();
        let shown: Vec<_> = found
            .iter()
            .map(|(name, value)| {
                (
                    name.as_str(),
                    value.shape().to_vec(),
                    value.to_f32().unwrap().data()[0],
                )
            })
            .collect();
        let expected = [
            ("body.0.bias", vec![2], 1.0),
            ("body.0.weight", vec![2, 3, 1, 1], 1.0),
            ("body.1.weight", vec![2], 0.1),
            ("body.2.bias", vec![3], 0.0),
            ("body.2.weight", vec![3, 2, 1, 1], 5.0),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let whole = bytes();
        assert!(tensors(TEXT, &whole[..whole.len() - 1]).is_err());
        assert!(tensors(TEXT, &[whole.as_slice(), &[0]].concat()).is_err());
        assert!(tensors("1\n", &whole).is_err());
        assert!(tensors(&TEXT.replace("PReLU", "Scale"), &whole).is_err());
        let convs = TEXT.replace("PReLU p 1 1 a b 0=2\n", "");
        assert!(tensors(&convs, &whole).is_err());
    }
}
