//! `fresco-synth LIST OUT [FORMAT]`: writes a full-size checkpoint with made-up weights, for measurements and tests that
//! need the size of a real model but not its pictures.
//!
//! `fresco-synth ncnn PARAM BIN OUT` writes an upscale model that came as ncnn files.
//!
//! The values follow from the names (`fresco_tensor::synthetic`), so two machines write the same file. Tensors are made
//! by all threads, one after the other, and written at once: the memory needed is that of the largest tensor.

mod ncnn;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use fresco_tensor::safetensors::{Entry, SafeTensorsError, write_streamed};
use fresco_tensor::{Dtype, Stored, TensorError, synthetic};

use fresco_synth::list::{Item, Values};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fresco-synth: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    if let [command, param, bin, out] = arguments
        && command == "ncnn"
    {
        return ncnn::run(Path::new(param), Path::new(bin), Path::new(out));
    }
    let (name, out, format) = match arguments {
        [name, out] => (name, out, "F16"),
        [name, out, format] => (name, out, format.as_str()),
        _ => bail!(
            "usage: fresco-synth LIST OUT [FORMAT], or fresco-synth ncnn PARAM BIN OUT\n\
             LIST is one of {}, or a file with such a list; FORMAT is F16 (default), BF16 or F32",
            fresco_synth::list::names().collect::<Vec<_>>().join(", ")
        ),
    };
    let dtype = Dtype::parse(&format.to_uppercase())
        .filter(|d| d.is_float())
        .with_context(|| format!("{format:?} is no floating-point format"))?;
    write(&fresco_synth::list::load(name)?, Path::new(out), dtype)
}

/// What the producing function may fail with.
#[derive(Debug)]
struct Failure(anyhow::Error);

impl From<SafeTensorsError> for Failure {
    fn from(error: SafeTensorsError) -> Self {
        Self(error.into())
    }
}

impl From<TensorError> for Failure {
    fn from(error: TensorError) -> Self {
        Self(error.into())
    }
}

fn write(items: &[Item], out: &Path, dtype: Dtype) -> Result<()> {
    let entry = |item: &Item| Entry {
        name: item.name.clone(),
        dtype: match item.values {
            Values::Made => dtype,
            Values::Counted => Dtype::I64,
        },
        shape: item.shape.clone(),
    };
    let entries = items.iter().map(entry).collect();
    write_streamed(out, entries, &[], |entry| -> Result<Stored, Failure> {
        if entry.dtype == Dtype::I64 {
            let count = fresco_tensor::element_count(&entry.shape)? as i64;
            let bytes = (0..count).flat_map(i64::to_le_bytes).collect();
            return Ok(Stored::new(Dtype::I64, entry.shape.as_slice(), bytes)?);
        }
        Ok(synthetic::stored(&entry.name, &entry.shape, entry.dtype)?)
    })
    .map_err(|failure| failure.0)
}

#[cfg(test)]
mod tests {
    use fresco_tensor::open_weights;

    use super::*;

    #[test]
    fn a_small_list_is_written_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("small.txt");
        std::fs::write(
            &list,
            "a.{0-1,3}.weight 2,70000\na.0.bias 4\nids 1,3 I64arange\nscale -\n",
        )
        .unwrap();
        let out = dir.path().join("small.safetensors");
        let arguments = [list.to_str().unwrap(), out.to_str().unwrap()];
        run(&arguments.map(str::to_owned)).unwrap();
        let file = open_weights(&out).unwrap();
        assert_eq!(
            file.names(),
            [
                "a.0.bias",
                "a.0.weight",
                "a.1.weight",
                "a.3.weight",
                "ids",
                "scale"
            ]
        );
        let weight = file.read("a.3.weight").unwrap();
        let wanted = synthetic::weight("a.3.weight", &[2, 70000]).unwrap();
        assert_eq!(weight, Stored::from_f32(&wanted, Dtype::F16).unwrap());
        let ids = file.read("ids").unwrap();
        assert_eq!(ids.dtype(), Dtype::I64);
        assert_eq!(ids.to_f32().unwrap().data(), [0.0, 1.0, 2.0]);
        assert_eq!(file.read("scale").unwrap().shape(), [0usize; 0]);
        for bad in [vec!["sd15"], vec!["none", "x"], vec!["sd15", "x", "I64"]] {
            let bad: Vec<_> = bad.into_iter().map(str::to_owned).collect();
            assert!(run(&bad).is_err());
        }
    }
}
