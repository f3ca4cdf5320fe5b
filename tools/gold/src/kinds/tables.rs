//! Goldens without a network of their own: what full-size files are detected as, formats of latents, what goes into
//! networks beside the latent, and passes of a network that another golden describes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use fresco_models::denoise::{Reuse, ReuseRule, SeenPicture};
use fresco_models::detect::{TEXT_KINDS, detect_checkpoint};
use fresco_models::flux::schedule;
use fresco_models::preview;
use fresco_models::sd::unclip;
use fresco_models::{LatentFormat, ModelError, ModelSampling, Prediction, Spacing};
use fresco_tensor::{Device, Dtype, Stored, Tensor, WeightError, WeightFile, WeightInfo};
use serde_json::Value;

use super::Kind;
use crate::golden::{Golden, sizes};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::own(
        "detection of full-size files",
        |golden| golden.about["networks"].is_object(),
        detection,
    ),
    Kind::own(
        "formats of latents",
        |golden| formats(golden).is_some(),
        latent_formats,
    ),
    Kind::own(
        "vector of what a vision network saw",
        |golden| golden.has("sqrt_acp"),
        seen,
    ),
    Kind::own(
        "numbers of image families",
        |golden| {
            golden
                .tensors()
                .iter()
                .any(|name| name.starts_with("sampling/"))
        },
        numbers,
    ),
    Kind::own(
        "layers of another golden's network",
        |golden| described(golden).is_some(),
        layers,
    ),
];

/// A file that can only be asked what is in it.
struct Names(Vec<(String, Vec<usize>)>);

impl WeightFile for Names {
    fn path(&self) -> &Path {
        Path::new("names.safetensors")
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        let at = self
            .0
            .binary_search_by(|(n, _)| n.as_str().cmp(name))
            .ok()?;
        Some(WeightInfo {
            dtype: Dtype::F16,
            shape: self.0[at].1.clone(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        Err(WeightError::Missing {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
        })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

/// `a.{0..2}.{x,y}` as the names it stands for.
fn expand(pattern: &str) -> Result<Vec<String>> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return Ok(vec![pattern.to_owned()]);
    };
    let (inside, after) = rest
        .split_once('}')
        .context("a bracket that does not end")?;
    let mut choices = Vec::new();
    for part in inside.split(',') {
        match part.split_once("..") {
            Some((first, last)) => {
                let (first, last): (usize, usize) = (first.parse()?, last.parse()?);
                choices.extend((first..=last).map(|n| n.to_string()));
            }
            None => choices.push(part.to_owned()),
        }
    }
    let ends = expand(after)?;
    Ok(choices
        .iter()
        .flat_map(|choice| ends.iter().map(move |end| format!("{before}{choice}{end}")))
        .collect())
}

/// The lists of keys of full-size files: beside the goldens, or those of this repository.
fn lists(golden: &Golden) -> Result<Value> {
    let own = golden.folder.join("shapes/full_size.json");
    let ours = Path::new("tests/gold/shapes/full_size.json").to_path_buf();
    let path = if own.is_file() { own } else { ours };
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// What is different in a file that is named after another one: the list it is of, and keys that it has more or fewer.
fn variant(name: &str) -> (&str, &'static [(&'static str, &'static [usize])]) {
    match name {
        "flux_fill" => ("flux_dev", &[("img_in.weight", &[3072, 384])]),
        "qwen_image_edit_2511" => ("qwen_image", &[("__index_timestep_zero__", &[0])]),
        "chroma_radiance_x0" => ("chroma_radiance", &[("__x0__", &[0])]),
        "pixart_alpha" => ("pixart_alpha", &[("pos_embed", &[1, 4096, 1152])]),
        "pixart_sigma" => ("pixart_sigma", &[("pos_embed", &[1, 4096, 1152])]),
        "hunyuan_image21_distilled" => (
            "hunyuan_image21",
            &[
                ("guidance_in.in_layer.weight", &[3584, 256]),
                ("guidance_in.in_layer.bias", &[3584]),
                ("guidance_in.out_layer.weight", &[3584, 3584]),
                ("guidance_in.out_layer.bias", &[3584]),
                ("time_r_in.in_layer.weight", &[3584, 256]),
                ("time_r_in.in_layer.bias", &[3584]),
                ("time_r_in.out_layer.weight", &[3584, 3584]),
                ("time_r_in.out_layer.bias", &[3584]),
            ],
        ),
        other => (other, &[]),
    }
}

/// The full-size file of a name; none where nobody listed its keys.
fn file(lists: &Value, name: &str) -> Result<Option<Arc<dyn WeightFile>>> {
    let pruned = name.strip_suffix("_pruned");
    let (list, more) = variant(pruned.unwrap_or(name));
    let Some(rows) = lists[list].as_array() else {
        return Ok(None);
    };
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    for row in rows {
        let shape = sizes(&row[1]).context("a row without a shape")?;
        for name in expand(row[0].as_str().context("a row without a name")?)? {
            all.push((name, shape.clone()));
        }
    }
    if pruned.is_some() {
        let layer = |name: &str| -> Option<usize> {
            let rest = name.strip_prefix("model.layers.")?;
            rest.split('.').next()?.parse().ok()
        };
        all.retain(|(name, _)| {
            layer(name).is_none_or(|layer| layer < 30) && name != "model.norm.weight"
        });
    }
    for (name, shape) in more {
        all.retain(|(known, _)| known != name);
        all.push(((*name).to_owned(), shape.to_vec()));
    }
    all.sort();
    Ok(Some(Arc::new(Names(all))))
}

/// Our name of what the reference calls a family.
const FAMILIES: &[(&str, &[&str])] = &[
    ("Flux2", &["Flux.2"]),
    ("FluxInpaint", &["Flux.1 fill"]),
    ("FluxSchnell", &["Flux.1 schnell", "Ovis-Image"]),
    (
        "QwenImage",
        &["Qwen-Image", "Qwen-Image Edit 2511", "Qwen-Image Layered"],
    ),
    ("ZImage", &["Z-Image"]),
    ("Lumina2", &["Lumina 2", "NewBie"]),
    ("Chroma", &["Chroma"]),
    ("ChromaRadiance", &["Chroma Radiance"]),
    ("HiDream", &["HiDream"]),
    (
        "HunyuanImage21",
        &["HunyuanImage 2.1", "HunyuanImage 2.1 distilled"],
    ),
    ("Kandinsky5Image", &["Kandinsky 5"]),
    ("Omnigen2", &["OmniGen 2"]),
    ("AuraFlow", &["AuraFlow"]),
    ("PixArtAlpha", &["PixArt Alpha"]),
    ("PixArtSigma", &["PixArt Sigma"]),
    ("HunyuanDiT", &["HunyuanDiT 1.2"]),
    ("HunyuanDiT1", &["HunyuanDiT 1.1"]),
    ("Stable_Cascade_C", &["Stable Cascade C"]),
    ("Stable_Cascade_B", &["Stable Cascade B"]),
];

fn detection(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    if !device.is_cpu() {
        // Nothing is computed.
        report.equal("the same", &true, &true);
        return Ok(());
    }
    let lists = lists(golden)?;
    let networks = golden.about["networks"].as_object().context("networks")?;
    for (name, about) in networks {
        let Some(file) = file(&lists, name)? else {
            report.fail(format!("there is no list of keys for {name}"));
            continue;
        };
        let found = match detect_checkpoint(&file) {
            Ok(found) => found,
            Err(error) => {
                report.fail(format!("{name}: {error}"));
                continue;
            }
        };
        let theirs = about["family"].as_str().unwrap_or_default();
        let ours = FAMILIES.iter().find(|(name, _)| *name == theirs);
        let known = ours.is_some_and(|(_, ours)| ours.contains(&found.family));
        if !known {
            report.fail(format!("{name} is {theirs} and not {}", found.family));
        }
        let facts = found.network.facts();
        let latent = about["latent"].as_str().unwrap_or_default();
        report.equal(&format!("{name}: latent"), &facts.latent.name, &latent);
        let shift = match facts.sampling.spacing {
            Spacing::Flow { shift, .. }
            | Spacing::ExponentialFlow { shift }
            | Spacing::Cosine { shift } => Some(shift),
            _ => None,
        };
        if let Some(expected) = about["sampling"]["shift"].as_f64() {
            report.equal(&format!("{name}: shift"), &shift, &Some(expected));
        }
        // What it asks for is what is there, in its shape.
        let layout = found.network.layout()?;
        let store = found.store(&file, Device::cpu());
        if let Err(error) = layout.verify(&store, "the network") {
            report.fail(format!("{name}: {error}"));
        }
    }
    let encoders = golden.about["text_encoders"].as_object();
    for (name, about) in encoders.into_iter().flatten() {
        let Some(file) = file(&lists, name)? else {
            report.fail(format!("there is no list of keys for {name}"));
            continue;
        };
        let kind = TEXT_KINDS.iter().find_map(|find| find(&*file));
        let kind = kind.map(|kind| kind.name);
        let theirs = about.as_str();
        let fits = match theirs {
            // Only the loader of its own model knows it there; here it is known by its keys.
            None => kind == Some("BERT"),
            Some(theirs) => kind.is_some_and(|kind| same_encoder(theirs, kind)),
        };
        if !fits {
            report.fail(format!("{name} is {theirs:?} and not {kind:?}"));
        }
        report.equal(&format!("{name} is known"), &kind.is_some(), &true);
    }
    Ok(())
}

/// Whether a kind of text network of ours is what the reference calls so.
fn same_encoder(theirs: &str, ours: &str) -> bool {
    let words = |text: &str| -> String {
        let small = text.chars().filter(char::is_ascii_alphanumeric);
        small.collect::<String>().to_lowercase()
    };
    let (theirs, ours) = (words(theirs), words(ours));
    // Sizes stand behind the name there.
    let begins = theirs.starts_with(&ours) || theirs.starts_with(&ours.replace("vl", ""));
    // Both of the large T5 have one name there.
    begins || (theirs == "t5xl" && ours.ends_with("t5"))
}

/// The list of formats in a golden, which some have under a name and some have not.
fn formats(golden: &Golden) -> Option<&serde_json::Map<String, Value>> {
    let named = golden.about["formats"].as_object();
    let list = named.or(golden.about.as_object())?;
    let is_format = |value: &Value| value["latent_channels"].is_u64();
    (!list.is_empty() && list.values().all(is_format)).then_some(list)
}

fn latent_formats(golden: &Golden, _: &Device, report: &mut Report<'_>) -> Result<()> {
    for (name, about) in formats(golden).context("formats")? {
        let Some(format) = LatentFormat::by_name(name) else {
            report.fail(format!("there is no format {name}"));
            continue;
        };
        let number = |key: &str, or: f64| about[key].as_f64().unwrap_or(or) as f32;
        let scale = (format.scale, format.shift);
        let expected = (number("scale_factor", 1.0), number("shift_factor", 0.0));
        report.equal(&format!("{name}: scale"), &scale, &expected);
        let size = [format.channels, format.dimensions].map(|n| Some(n as u64));
        let expected = ["latent_channels", "latent_dimensions"].map(|key| about[key].as_u64());
        report.equal(&format!("{name}: size"), &size, &expected);
        let decoder = about["taesd_decoder_name"].as_str();
        report.equal(&format!("{name}: decoder"), &format.taesd, &decoder);
        let row = |row: &Value| -> Option<[f32; 3]> {
            let values: Option<Vec<f32>> = row
                .as_array()?
                .iter()
                .map(|v| v.as_f64().map(|v| v as f32))
                .collect();
            values?.try_into().ok()
        };
        let rows = about["latent_rgb_factors"].as_array();
        let rows: Option<Vec<[f32; 3]>> =
            rows.map_or(Some(Vec::new()), |rows| rows.iter().map(row).collect());
        let rows = rows.ok_or_else(|| anyhow!("{name}: colours that are none"))?;
        report.equal(&format!("{name}: colours"), &format.rgb.to_vec(), &rows);
        let bias = row(&about["latent_rgb_factors_bias"]).unwrap_or_default();
        report.equal(&format!("{name}: base colour"), &format.rgb_bias, &bias);
    }
    Ok(())
}

fn seen(golden: &Golden, _: &Device, report: &mut Report<'_>) -> Result<()> {
    let left: Vec<f32> = unclip::left().into_iter().map(|v| v as f32).collect();
    report.check("sqrt_acp", &Tensor::from_slice(&left))?;
    let number = |name: &str| golden.float(name).with_context(|| name.to_owned());
    let picture = |name: &str| -> Result<SeenPicture> {
        Ok(SeenPicture {
            embeds: golden.tensor(name)?,
            strength: number("strength")?,
            noise: number("noise_augmentation")?,
        })
    };
    let first = picture("e0")?;
    // The second picture is there to be summed, with noise that the reference draws from nowhere in particular.
    golden.maybe("e1")?;
    let width = 2 * golden.need("timestep_dim")?;
    let seed = golden.need("seed")? as u64;
    let made = unclip::vector(&[first], seed, unclip::USUAL_MERGE, width)?;
    report.check("adm/one", &made)
}

/// The golden that describes the network whose layers this one has.
fn described(golden: &Golden) -> Option<Golden> {
    let whole = golden.name.strip_suffix("_acts")?;
    let bare = golden.about.get("keys").is_none() && golden.has("out");
    if !bare {
        return None;
    }
    let beside = Golden::open(&golden.folder, whole).ok();
    beside.or_else(|| Golden::open(Path::new("tests/gold"), whole).ok())
}

/// The network runs on this golden's inputs; that the layers inside agree follows from what comes out.
fn layers(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let whole = described(golden).context("there is no golden for the network")?;
    let net = super::sd::network(&whole, device)?;
    let x = golden.tensor("x")?;
    let (t, context) = (golden.values("t")?, golden.maybe("context")?);
    let y = golden.maybe("y")?;
    let hooks = fresco_models::denoise::hooks::Hooks::default();
    let found = net.forward(&x, &t, context.as_ref(), y.as_ref(), None, &hooks);
    let found: Result<Tensor, ModelError> = found;
    if t.is_empty() {
        bail!("there is no noise level");
    }
    report.check("out", &found?)
}

/// Noise levels at which time steps were written down.
const LEVELS: [f32; 3] = [0.1, 0.5, 0.9];
const CASCADE_LEVELS: [f32; 5] = [0.01, 0.5, 1.0, 5.0, 50.0];

/// How a family of the golden is sampled, by what is said of it.
fn sampling(name: &str, about: &Value) -> Result<ModelSampling> {
    let (shift, multiplier) = (about["shift"].as_f64(), about["multiplier"].as_f64());
    Ok(match (shift, multiplier, about["table"].as_u64()) {
        (Some(shift), _, Some(10_000)) => ModelSampling::exponential_flow(shift),
        (Some(shift), Some(multiplier), _) => ModelSampling::flow(shift, multiplier),
        _ => match name {
            "pixart" => ModelSampling::even_betas(Prediction::Eps, 1e-4, 0.02),
            "hydit" => ModelSampling::discrete_until(Prediction::V, 0.018),
            "hydit1" => ModelSampling::discrete_until(Prediction::V, 0.03),
            "lotus" => ModelSampling::discrete(Prediction::ImgToImg, false),
            other => bail!("nothing is said of how {other} is sampled"),
        },
    })
}

/// Entries of a table, and time steps of some levels.
fn levels(
    report: &mut Report<'_>,
    sampling: &ModelSampling,
    places: impl Iterator<Item = usize>,
    at: &[f32],
    [table, steps]: [&str; 2],
) -> Result<()> {
    let all = sampling.sigmas();
    let entries: Vec<f32> = places.filter_map(|place| all.get(place).copied()).collect();
    report.check(table, &Tensor::from_slice(&entries))?;
    let times: Vec<f32> = at.iter().map(|sigma| sampling.timestep(*sigma)).collect();
    report.check(steps, &Tensor::from_slice(&times))
}

fn numbers(golden: &Golden, _: &Device, report: &mut Report<'_>) -> Result<()> {
    for name in golden.tensors() {
        if let Some(family) = name
            .strip_prefix("sampling/")
            .and_then(|rest| rest.strip_suffix("/sigmas8"))
        {
            let sampling = sampling(family, &golden.about[family])?;
            let last = sampling.sigmas().len() - 1;
            let places = (0..8).map(|i| (last as f64 * f64::from(i) / 7.0).round() as usize);
            let steps = format!("sampling/{family}/timestep");
            levels(report, &sampling, places, &LEVELS, [&name, &steps])?;
        } else if let Some(shift) = name.strip_prefix("cascade_sigmas_every500/shift") {
            let sampling = ModelSampling::cosine(Prediction::Eps, shift.parse()?);
            let places = (499..10_000).step_by(500);
            let steps = format!("cascade_timestep/shift{shift}");
            levels(report, &sampling, places, &CASCADE_LEVELS, [&name, &steps])?;
        } else if let Some(case) = name.strip_prefix("flux2_sigmas/") {
            let (steps, size) = case.split_once('_').context("steps and size")?;
            let (width, height) = size.split_once('x').context("width and height")?;
            let found = schedule::levels(steps.parse()?, width.parse()?, height.parse()?)?;
            report.check(&name, &Tensor::from_slice(&found))?;
        }
    }
    if golden.has("hy_refiner/in") {
        let format = LatentFormat::by_name("HunyuanImage21Refiner").context("no such format")?;
        let inside = format.process_in(&golden.tensor("hy_refiner/in")?)?;
        report.check("hy_refiner/process_in", &inside)?;
        report.check("hy_refiner/roundtrip", &format.process_out(&inside)?)?;
    }
    if golden.has("flux2_latent") {
        let found = preview::unpacked(&golden.tensor("flux2_latent")?)?;
        report.check("flux2_unpacked", &found)?;
    }
    if golden.has("easycache/x0") {
        reused(golden, report)?;
    }
    Ok(())
}

/// Passes that are left out while little changes. The model is a formula; two conditions go in a batch, along a flow.
fn reused(golden: &Golden, report: &mut Report<'_>) -> Result<()> {
    let calls = golden.about["easycache_calls"].as_array();
    let wanted: Vec<u64> = calls
        .context("easycache_calls")?
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    let reuse = Reuse::new(ReuseRule {
        threshold: 0.2,
        start_sigma: 0.85,
        end_sigma: 0.05,
    });
    let level = |i: usize| 1.0 - i as f32 / wanted.len() as f32;
    let sign = Tensor::from_vec([2, 1, 1, 1], vec![0.05, -0.05])?;
    let mut x = golden.tensor("easycache/x0")?;
    let (mut made, mut last) = (Vec::new(), x.clone());
    for i in 0..wanted.len() {
        let (sigma, next) = (level(i), level(i + 1));
        let mut called = 0;
        reuse.begin_step();
        last = reuse.around(&x, sigma, &[10, 11], || {
            called = 1;
            let plain = x.map(|v| 0.9 * v + 0.1 * (3.0 * v).sin());
            Ok(plain.add(&sign.mul_scalar(sigma))?)
        })?;
        made.push(called);
        let step = last.sub(&x)?.mul_scalar(2.0 * (sigma - next));
        x = x.add(&step)?;
    }
    report.equal("easycache_calls", &made, &wanted);
    report.check("easycache/out_last", &last)
}
