//! Golden files of networks: weights are made from their names, results are compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fresco_models::sd::unet::{First, Heads, Middle, Stage, UNetConfig};
use fresco_models::{UnitOrder, WeightStore};
use fresco_tensor::{
    Device, SafeTensors, Stored, Tensor, WeightError, WeightFile, WeightInfo, synthetic,
};
use serde_json::Value;

fn path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../../tests/gold").join(name)
}

pub(crate) fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(path(&format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) struct Gold {
    pub(crate) about: Value,
    file: SafeTensors,
}

impl Gold {
    pub(crate) fn open(name: &str) -> Self {
        Self {
            about: json(name),
            file: SafeTensors::open(path(&format!("{name}.safetensors"))).unwrap(),
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        self.file.tensor(name).unwrap()
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        self.file.bytes(name).unwrap()
    }

    /// The weights of the network, by key.
    pub(crate) fn weights(&self) -> BTreeMap<String, Stored> {
        let keys = self.about["keys"].as_object().unwrap();
        keys.iter()
            .map(|(key, shape)| {
                let weight = synthetic::weight(key, &sizes(shape)).unwrap();
                (key.clone(), Stored::from(&weight))
            })
            .collect()
    }

    pub(crate) fn store(&self) -> Arc<WeightStore> {
        store(self.weights())
    }
}

pub(crate) fn store(weights: BTreeMap<String, Stored>) -> Arc<WeightStore> {
    let units = units(|start| weights.keys().any(|key| key.starts_with(start)));
    WeightStore::from_stored("test", weights, Device::cpu()).with_units(units)
}

/// The order of a network's units, by how some of its keys start.
pub(crate) fn units(has: impl Fn(&str) -> bool) -> &'static UnitOrder {
    if has("vision_model.") {
        &fresco_models::vision::UNITS
    } else if has("decoder.") {
        &fresco_models::vae::names::UNITS
    } else {
        &fresco_models::sd::UNITS
    }
}

pub(crate) fn sizes(value: &Value) -> Vec<usize> {
    let list = value.as_array().unwrap();
    list.iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

/// Weights of the second scheme: waves by position and by place among the sorted keys.
pub(crate) fn waves(mut layout: Vec<(String, Vec<usize>)>) -> BTreeMap<String, Stored> {
    layout.sort();
    let made = layout.into_iter().enumerate().map(|(n, (key, shape))| {
        let fan: usize = shape.iter().skip(1).product();
        let last = key.rsplit('.').next().unwrap();
        let wave = |j: usize| (0.37 * j as f64 + n as f64).sin();
        let value = Tensor::from_fn(shape.clone(), |j| {
            if shape.len() >= 2 && fan > 1 {
                (wave(j) / (fan as f64).sqrt()) as f32
            } else {
                let base = f64::from(u8::from(matches!(last, "weight" | "scale" | "gamma")));
                (0.05 * wave(j) + base) as f32
            }
        });
        (key, Stored::from(&value.unwrap()))
    });
    made.collect()
}

/// Held by tests that set switches of the whole process, and by those that compare bits.
pub(crate) fn switches() -> MutexGuard<'static, ()> {
    static SWITCHES: Mutex<()> = Mutex::new(());
    SWITCHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Inputs of the second scheme.
pub(crate) fn wave(shape: &[usize], f: f64) -> Tensor {
    Tensor::from_fn(shape, |j| (f * j as f64 + 0.5).sin() as f32).unwrap()
}

/// Compares with a result of the second scheme: the first and last values, mean and deviation.
pub(crate) fn assert_summary(found: &Tensor, expected: &Value, what: &str) {
    assert_eq!(found.shape(), sizes(&expected["shape"]), "{what}");
    let numbers = |name: &str| -> Vec<f64> {
        let list = expected[name].as_array().unwrap();
        list.iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let data = found.data();
    let n = data.len() as f64;
    let mean = data.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let square = |v: &f32| (f64::from(*v) - mean).powi(2);
    let std = (data.iter().map(square).sum::<f64>() / (n - 1.0)).sqrt();
    let expected_std = expected["std"].as_f64().unwrap();
    let near = |a: f64, b: f64| {
        assert!(
            (a - b).abs() <= 1e-4 * expected_std.max(b.abs()),
            "{what}: {a} and not {b}"
        );
    };
    let (first, last) = (numbers("first"), numbers("last"));
    for (a, b) in data.iter().zip(&first) {
        near(f64::from(*a), *b);
    }
    for (a, b) in data[data.len() - last.len()..].iter().zip(&last) {
        near(f64::from(*a), *b);
    }
    near(mean, expected["mean"].as_f64().unwrap());
    near(std, expected_std);
}

/// Relative L2 distance.
pub(crate) fn distance(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.shape(), expected.shape());
    let pairs = found.data().iter().zip(expected.data());
    let (mut off, mut size) = (0.0, 0.0);
    for (&a, &b) in pairs {
        off += (f64::from(a) - f64::from(b)).powi(2);
        size += f64::from(b).powi(2);
    }
    (off / size).sqrt()
}

pub(crate) fn assert_near(found: &Tensor, expected: &Tensor, what: &str) {
    let off = distance(found, expected);
    assert!(off <= 1e-5, "{what}: relative distance {off:e}");
}

/// The configuration a golden file was made with.
pub(crate) fn config(about: &Value) -> UNetConfig {
    let get = |name: &str| about[name].as_u64().map(|n| n as usize);
    let base = get("model_channels").unwrap();
    let residuals = sizes(&about["num_res_blocks"]);
    let mult = sizes(&about["channel_mult"]);
    let mut depths = sizes(&about["transformer_depth"]).into_iter();
    let stage = |first, channels, depth, up| Stage {
        first,
        channels,
        depth,
        up,
    };
    let mut input = vec![stage(First::Conv, base, 0, false)];
    for (level, &m) in mult.iter().enumerate() {
        for _ in 0..residuals[level] {
            input.push(stage(
                First::Residual,
                base * m,
                depths.next().unwrap(),
                false,
            ));
        }
        if level + 1 < mult.len() {
            input.push(stage(First::Down, base * m, 0, false));
        }
    }
    let mut output = Vec::new();
    if let Some(list) = about["transformer_depth_output"].as_array() {
        let mut depths = list.iter().rev().map(|n| n.as_u64().unwrap() as usize);
        for (level, &m) in mult.iter().enumerate().rev() {
            for n in 0..=residuals[level] {
                let up = level > 0 && n == residuals[level];
                let depth = depths.next().unwrap();
                output.push(stage(First::Residual, base * m, depth, up));
            }
        }
    }
    let heads = match about["num_head_channels"].as_i64() {
        Some(width) if width > 0 => Heads::Width(width as usize),
        _ => Heads::Count(get("num_heads").unwrap()),
    };
    UNetConfig {
        in_channels: get("in_channels").unwrap_or(4),
        out_channels: get("out_channels").unwrap_or(4),
        model_channels: base,
        context_dim: get("context_dim"),
        adm: get("adm_in_channels"),
        linear_projection: about["use_linear_in_transformer"].as_bool().unwrap(),
        heads,
        input,
        middle: Middle {
            residuals: 2,
            depth: get("transformer_depth_middle").unwrap(),
        },
        output,
        timed: false,
    }
}

/// A weight file that is not on disk.
pub(crate) struct MemoryFile(pub(crate) BTreeMap<String, Stored>);

impl MemoryFile {
    pub(crate) fn new(weights: BTreeMap<String, Stored>) -> Self {
        Self(weights)
    }
}

impl WeightFile for MemoryFile {
    fn path(&self) -> &Path {
        Path::new("memory.safetensors")
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.0.get(name).map(|stored| WeightInfo {
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        self.0
            .get(name)
            .cloned()
            .ok_or_else(|| WeightError::Missing {
                path: self.path().to_path_buf(),
                name: name.to_owned(),
            })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}
