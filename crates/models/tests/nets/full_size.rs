//! Full-size networks are known from names and shapes alone, and ask for exactly the weights they have.

use std::path::Path;
use std::sync::Arc;

use fresco_models::sd::SdConfig;
use fresco_models::sd::unet::UNetConfig;
use fresco_models::sd3::Sd3Config;
use fresco_models::{Checkpoint, ModelError, Prediction, Spacing, detect_checkpoint};
use fresco_tensor::{Dtype, Stored, Tensor, WeightError, WeightFile, WeightInfo};
use serde_json::{Value, json};

use crate::gold;

/// A file that can only be asked what is in it, but for a few numbers.
struct Names {
    tensors: Vec<(String, Vec<usize>)>,
    numbers: Vec<(&'static str, f32)>,
}

impl WeightFile for Names {
    fn path(&self) -> &Path {
        Path::new("names.safetensors")
    }

    fn names(&self) -> Vec<String> {
        let own = self.tensors.iter().map(|(name, _)| name.clone());
        let numbers = self.numbers.iter().map(|(name, _)| (*name).to_owned());
        let mut names: Vec<String> = own.chain(numbers).collect();
        names.sort();
        names
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        let own = self.tensors.iter().find(|(n, _)| n == name);
        let number = self.numbers.iter().any(|(n, _)| *n == name);
        let shape = own.map(|(_, shape)| shape.clone());
        Some(WeightInfo {
            dtype: Dtype::F16,
            shape: shape.or_else(|| number.then(Vec::new))?,
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let number = self.numbers.iter().find(|(n, _)| *n == name);
        let number = number.map(|(_, value)| Stored::from(&Tensor::scalar(*value)));
        number.ok_or_else(|| WeightError::Missing {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
        })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

/// `a.{0..2}.{x,y}` as the names it stands for.
fn expand(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return vec![pattern.to_owned()];
    };
    let (inside, after) = rest.split_once('}').unwrap();
    let choices: Vec<String> = match inside.split_once("..") {
        Some((first, last)) => {
            let number = |text: &str| text.parse::<usize>().unwrap();
            (number(first)..=number(last))
                .map(|n| n.to_string())
                .collect()
        }
        None => inside.split(',').map(str::to_owned).collect(),
    };
    let ends = expand(after);
    let all = choices.iter().flat_map(|choice| {
        let joined = ends.iter().map(move |end| format!("{before}{choice}{end}"));
        joined.collect::<Vec<_>>()
    });
    all.collect()
}

/// The names and shapes of a list, sorted.
pub(crate) fn listed(name: &str) -> Vec<(String, Vec<usize>)> {
    let lists = gold::json("shapes_sd");
    let rows = lists[name].as_array().unwrap().iter();
    let mut all: Vec<_> = rows
        .flat_map(|row| {
            let shape = gold::sizes(&row[1]);
            let names = expand(row[0].as_str().unwrap()).into_iter();
            names
                .map(move |name| (name, shape.clone()))
                .collect::<Vec<_>>()
        })
        .collect();
    all.sort();
    all
}

fn names(
    tensors: Vec<(String, Vec<usize>)>,
    numbers: &[(&'static str, f32)],
) -> Arc<dyn WeightFile> {
    let numbers = numbers.to_vec();
    Arc::new(Names { tensors, numbers })
}

fn detect(
    tensors: Vec<(String, Vec<usize>)>,
    numbers: &[(&'static str, f32)],
) -> Result<Checkpoint, ModelError> {
    detect_checkpoint(&names(tensors, numbers))
}

/// What is found asks for all of the list and nothing else.
fn same_layout(found: &Checkpoint, list: &[(String, Vec<usize>)]) {
    let mut asked = found.network.layout().unwrap().items().to_vec();
    asked.sort();
    // A 1x1 convolution is a matrix to us.
    let trimmed = |(key, shape): &(String, Vec<usize>)| {
        let mut shape = shape.clone();
        while shape.len() > 2 && shape.last() == Some(&1) {
            shape.pop();
        }
        (key.clone(), shape)
    };
    let list: Vec<_> = list.iter().map(trimmed).collect();
    let asked: Vec<_> = asked.iter().map(trimmed).collect();
    for (a, b) in asked.iter().zip(&list) {
        assert_eq!(a, b);
    }
    assert_eq!(asked.len(), list.len());
}

fn config<T: Clone + 'static>(found: &Checkpoint) -> T {
    let config = found.network.config().downcast_ref::<T>();
    config.expect("a network of this family").clone()
}

#[test]
fn sd3_in_all_sizes() {
    for (name, family, blocks, dual, positions) in [
        ("sd3_medium", "SD3", 24, 0, 192),
        ("sd35_large", "SD3.5", 38, 0, 192),
        ("sd35_medium", "SD3.5", 24, 13, 384),
    ] {
        let list = listed(name);
        let found = detect(list.clone(), &[]).unwrap();
        assert_eq!(found.family, family, "{name}");
        same_layout(&found, &list);
        let config: Sd3Config = config(&found);
        assert_eq!(config.dual.len(), blocks);
        assert_eq!(config.heads, blocks);
        assert!((0..blocks).all(|n| config.dual[n] == (n < dual)));
        assert_eq!(
            (config.positions, config.context, config.pooled),
            (positions, 4096, 2048)
        );
        let facts = found.network.facts();
        assert_eq!((facts.latent.name, facts.latent_channels), ("SD3", 16));
        let flow = Spacing::Flow {
            shift: 3.0,
            multiplier: 1000.0,
        };
        assert_eq!(facts.sampling.spacing, flow);
        assert_eq!(facts.sampling.prediction, Prediction::Flow);
    }
    let mut whole: Vec<_> = listed("sd3_medium")
        .into_iter()
        .map(|(key, shape)| (format!("model.diffusion_model.{key}"), shape))
        .collect();
    whole.push((
        "first_stage_model.decoder.conv_in.weight".to_owned(),
        vec![512, 16, 3, 3],
    ));
    let found = detect(whole, &[]).unwrap();
    assert_eq!(found.vae_prefix, Some("first_stage_model."));
}

/// A relative of SDXL by its numbers of transformer blocks.
fn relative(residuals: &[usize], depths: &[usize], middle: i64, out: &[usize]) -> UNetConfig {
    let about: Value = json!({
        "model_channels": 320, "in_channels": 4, "out_channels": 4,
        "num_res_blocks": residuals, "channel_mult": [1, 2, 4],
        "transformer_depth": depths, "transformer_depth_output": out,
        "transformer_depth_middle": middle.max(0), "context_dim": 2048,
        "num_head_channels": 64, "num_heads": -1,
        "use_linear_in_transformer": true, "adm_in_channels": 2816,
    });
    let mut config = gold::config(&about);
    config.middle.residuals = match middle {
        -2 => 0,
        -1 => 1,
        _ => 2,
    };
    config
}

fn weights_of(config: &UNetConfig) -> Vec<(String, Vec<usize>)> {
    config.weights().unwrap()
}

#[test]
fn sdxl_and_its_relatives() {
    for (name, family, architecture) in [
        ("sdxl_unet", "SDXL", "stable-diffusion-xl-v1-base"),
        (
            "sdxl_refiner_unet",
            "SDXL refiner",
            "stable-diffusion-xl-v1-refiner",
        ),
    ] {
        let list = listed(name);
        let found = detect(list.clone(), &[]).unwrap();
        assert_eq!(found.family, family);
        same_layout(&found, &list);
        let facts = found.network.facts();
        assert_eq!(facts.architecture, Some(architecture));
        assert_eq!(
            (facts.latent.name, facts.sampling.prediction),
            ("SDXL", Prediction::Eps)
        );
    }
    // SSD-1B, Vega, KOALA 700M and 1B.
    let two = [2, 2, 2];
    let one = [1, 1, 1];
    let relatives = [
        relative(&two, &[0, 0, 2, 2, 4, 4], -1, &[0, 0, 0, 1, 1, 2, 10, 4, 4]),
        relative(&two, &[0, 0, 1, 1, 2, 2], -1, &[0, 0, 0, 1, 1, 1, 2, 2, 2]),
        relative(&one, &[0, 2, 5], -2, &[0, 0, 2, 2, 5, 5]),
        relative(&one, &[0, 2, 6], 6, &[0, 0, 2, 2, 6, 6]),
    ];
    for wanted in relatives {
        let list = weights_of(&wanted);
        let found = detect(list, &[]).unwrap();
        assert_eq!(found.family, "SDXL");
        let config: SdConfig = config(&found);
        assert_eq!(config.unet, wanted);
    }
}

#[test]
fn sdxl_says_how_it_is_sampled() {
    let list = || listed("sdxl_unet");
    let sampling = |numbers: &[(&'static str, f32)]| {
        let found = detect(list(), numbers).unwrap();
        let facts = found.network.facts();
        (facts.sampling, facts.latent.name)
    };
    let (v, _) = sampling(&[("v_pred", 0.0)]);
    assert_eq!(
        (v.prediction, v.spacing),
        (Prediction::V, Spacing::Discrete)
    );
    let (zero, _) = sampling(&[("v_pred", 0.0), ("ztsnr", 0.0)]);
    assert!(zero.sigma_max() > 4000.0 && v.sigma_max() < 20.0);
    let (edm, latent) = sampling(&[("edm_mean", 0.0), ("edm_std", 0.0)]);
    assert_eq!(
        (edm.prediction, latent),
        (Prediction::Edm, "SDXL_Playground_2_5")
    );
    let (cos, latent) = sampling(&[("edm_vpred.sigma_max", 80.0), ("edm_vpred.sigma_min", 0.01)]);
    assert_eq!(
        (cos.prediction, cos.spacing),
        (Prediction::V, Spacing::ContinuousEdm)
    );
    assert!((cos.sigma_max() - 80.0).abs() < 1e-3 && (cos.sigma_min() - 0.01).abs() < 1e-5);
    assert_eq!(latent, "SDXL");
}
