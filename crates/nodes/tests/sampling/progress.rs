//! What a run tells while it goes, and how it is stopped.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use fresco_files::dirs::Dirs;
use fresco_files::{Folders, image};
use fresco_graph::{
    Cx, FromValue as _, Map, NodeError, PreviewFormat, Progress, Resources, Services, Value, map,
};
use fresco_models::latent_format;
use fresco_models::preview::PreviewHints;
use fresco_models::sd::SdModel;
use fresco_models::sd::unet::{Heads, UNetConfig};
use fresco_models::{ModelSampling, Prediction};
use fresco_nodes::sampling::Model;
use fresco_nodes::sampling::preview::PreviewSize;
use fresco_tensor::safetensors;
use fresco_tensor::{Stored, synthetic};

use crate::harness::*;

/// Remembers reports; says "stop" when asked for the n-th time.
#[derive(Default)]
struct Watcher {
    reports: Mutex<Vec<Progress>>,
    asked: AtomicUsize,
    stop_at: Option<usize>,
}

impl Services for Watcher {
    fn progress(&self, _: &str, _: &str, progress: Progress) {
        self.reports.lock().unwrap().push(progress);
    }
    fn interrupted(&self) -> bool {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        Some(asked) == self.stop_at
    }
    fn send(&self, _: &str, _: Value, _: Option<&str>) {}
    fn text(&self, _: &str, _: &str) {}
    fn set_flag(&self, _: &str, _: Value) {}
}

fn run(
    watcher: &Arc<Watcher>,
    resources: Resources,
    method: &str,
    changes: Map,
) -> Result<Vec<Value>, NodeError> {
    let services: Arc<dyn Services> = watcher.clone();
    let mut cx = Cx::new("prompt".into(), "3".into(), services, Arc::new(resources));
    cx.preview_method = method.into();
    call_in("KSampler", ksampler(changes), &cx)
}

/// The small SD1 with the colours of its latents.
fn coloured() -> Model {
    sd1().with_latent_format(latent_format::SD15)
}

#[test]
fn every_step_is_reported() {
    for (sampler, steps) in [
        ("euler", 4),
        ("heun", 3),
        ("dpmpp_2m_sde", 5),
        ("uni_pc", 4),
    ] {
        let watcher = Arc::new(Watcher::default());
        let changes = map! {"sampler_name" => sampler, "steps" => steps};
        run(&watcher, Resources::default(), "none", changes).unwrap();
        let reports = watcher.reports.lock().unwrap();
        let seen: Vec<(f64, f64)> = reports.iter().map(|p| (p.value, p.max)).collect();
        let wanted: Vec<(f64, f64)> = (1..=steps).map(|i| (i as f64, steps as f64)).collect();
        assert_eq!(seen, wanted, "{sampler}");
        assert!(
            reports.iter().all(|p| p.bar && p.preview.is_none()),
            "{sampler}"
        );
    }
}

fn pictures(method: &str, resources: Resources, model: Model) -> Vec<(u32, u32)> {
    let watcher = Arc::new(Watcher::default());
    run(
        &watcher,
        resources,
        method,
        map! {"model" => model, "steps" => 3},
    )
    .unwrap();
    let reports = watcher.reports.lock().unwrap();
    let previews = reports.iter().filter_map(|p| p.preview.as_ref());
    previews
        .map(|p| {
            assert_eq!(p.format, PreviewFormat::Jpeg);
            let decoded = image::decode(&p.bytes, &image::Limits::default()).unwrap();
            (decoded.frames[0].width, decoded.frames[0].height)
        })
        .collect()
}

#[test]
fn steps_come_with_pictures() {
    for method in ["auto", "latent2rgb"] {
        assert_eq!(
            pictures(method, Resources::default(), coloured()),
            [(512, 512); 3]
        );
    }
    let mut resources = Resources::default();
    resources.insert(PreviewSize(64));
    // Without a decoder the colours do.
    assert_eq!(pictures("taesd", resources, coloured()), [(64, 64); 3]);
    assert!(pictures("none", Resources::default(), coloured()).is_empty());
    // Nobody knows the colours of these latents.
    assert!(pictures("auto", Resources::default(), sd1()).is_empty());
}

#[test]
fn steps_with_pictures_are_told_in_order_and_end_with_the_run() {
    let told = |watcher: &Watcher| -> Vec<f64> {
        let reports = watcher.reports.lock().unwrap();
        assert!(reports.iter().all(|p| p.bar && p.preview.is_some()));
        reports.iter().map(|p| p.value).collect()
    };
    let changes = || map! {"model" => coloured(), "steps" => 6};
    let watcher = Arc::new(Watcher::default());
    run(&watcher, Resources::default(), "auto", changes()).unwrap();
    let all = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!(told(&watcher), all);
    let asked = watcher.asked.load(Ordering::Relaxed);
    for stop_at in [0, asked / 3, asked / 2, asked - 1] {
        let stopped = Arc::new(Watcher {
            stop_at: Some(stop_at),
            ..Watcher::default()
        });
        let error = run(&stopped, Resources::default(), "auto", changes()).unwrap_err();
        assert!(matches!(error, NodeError::Interrupted), "{error:?}");
        // Within a step, and nothing comes afterwards.
        assert_eq!(stopped.asked.load(Ordering::Relaxed), stop_at + 1);
        let told = told(&stopped);
        assert!(told.len() < 6 && told == all[..told.len()], "{told:?}");
    }
}

/// Writes a small decoder whose layers have numbers behind a prefix.
fn write_decoder(path: &Path, prefix: &str) {
    let keys = keys("taesd_4ch").into_iter();
    let decoder = keys.filter_map(|(key, shape)| {
        let number = key.strip_prefix("taesd_decoder.")?;
        Some((
            format!("{prefix}{number}"),
            Stored::from(&synthetic::weight(&key, &shape).unwrap()),
        ))
    });
    let decoder: Vec<(String, Stored)> = decoder.collect();
    let tensors: Vec<(&str, &Stored)> = decoder.iter().map(|(k, t)| (k.as_str(), t)).collect();
    safetensors::write(path, &tensors, &[]).unwrap();
}

#[test]
fn a_small_decoder_makes_better_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(folder.path());
    let place = folder.path().join("models/vae_approx");
    std::fs::create_dir_all(&place).unwrap();
    write_decoder(&place.join("taesd_decoder.safetensors"), "");
    let resources = || {
        let mut resources = Resources::default();
        resources.insert(Folders::new(&dirs));
        resources
    };
    assert_eq!(pictures("taesd", resources(), coloured()), [(512, 512); 3]);
    // A damaged file: rough pictures, and the run goes on.
    std::fs::write(place.join("taesd_decoder.safetensors"), b"not a model").unwrap();
    assert_eq!(pictures("taesd", resources(), coloured()), [(512, 512); 3]);
}

/// The small SD1 as a file of the family: the family's colours are known.
fn familiar() -> Model {
    static MODEL: LazyLock<Model> = LazyLock::new(|| {
        let store = store("unet_sd1_small", 4);
        let config = UNetConfig {
            heads: Heads::Count(4),
            ..UNetConfig::detect(&store).unwrap()
        };
        let network = SdModel::new(store, config, latent_format::SD15).unwrap();
        let sampling = ModelSampling::discrete(Prediction::Eps, false);
        Model::new(Arc::new(network), sampling)
    });
    MODEL.clone()
}

/// Sides of the previews of a model whose file says this, at their own size. The latent has eight cells a side.
fn sides(method: &str, dirs: &Dirs, hints: (&str, &str), patched: bool) -> Vec<(u32, u32)> {
    let mut resources = Resources::default();
    resources.insert(Folders::new(dirs));
    resources.insert(PreviewSize(0));
    let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut model = familiar().with_preview(PreviewHints {
        decoder: named(hints.0),
        colours: named(hints.1),
    });
    if patched {
        let changed = call(
            "ModelSamplingDiscrete",
            map! {"model" => model, "sampling" => "v_prediction", "zsnr" => true},
        );
        model = Model::from_value(changed.unwrap().swap_remove(0)).unwrap();
    }
    pictures(method, resources, model)
}

#[test]
fn a_file_says_how_its_latents_are_shown() {
    const COLOURS: &str = "[[1, 0, 0], [0, 1, 0], [0, 0, 1.5], [0, 0, 0], [0.1, -0.1, 0]]";
    let folder = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(folder.path());
    let place = folder.path().join("models/vae_approx");
    std::fs::create_dir_all(&place).unwrap();
    let file = place.join("my-decoder.safetensors");
    let (small, large) = (vec![(8, 8); 3], vec![(64, 64); 3]);
    // Those of the family, where the file says nothing.
    assert_eq!(sides("auto", &dirs, ("", ""), false), small);
    // Its colours, also where its decoder is not there.
    for hints in [("", COLOURS), ("my-decoder", COLOURS)] {
        for method in ["auto", "latent2rgb", "taesd"] {
            assert_eq!(sides(method, &dirs, hints, false), small, "{hints:?}");
        }
    }
    for prefix in ["", "decoder."] {
        write_decoder(&file, prefix);
        for method in ["auto", "taesd"] {
            for patched in [false, true] {
                let made = sides(method, &dirs, ("my-decoder", COLOURS), patched);
                assert_eq!(made, large, "{prefix}{method}");
            }
        }
        let rough = sides("latent2rgb", &dirs, ("my-decoder", COLOURS), true);
        assert_eq!(rough, small);
    }
    // Only the whole name is its name.
    assert_eq!(sides("auto", &dirs, ("my", COLOURS), false), small);
    // Broken: what is left is used, and the run goes on.
    std::fs::write(&file, b"not a model").unwrap();
    assert_eq!(sides("auto", &dirs, ("my-decoder", COLOURS), false), small);
    for broken in [
        "",
        "[",
        "7",
        "[]",
        "[[1, 2, 3]]",
        "[[1, 0], [0, 1], [0, 0], [0, 0], [0, 0]]",
        "[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], \"x\"]",
        "[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [1e99, 0, 0]]",
    ] {
        assert_eq!(sides("auto", &dirs, ("my-decoder", broken), false), []);
    }
}

#[test]
fn a_run_stops_within_a_step() {
    let quiet = Arc::new(Watcher::default());
    run(&quiet, Resources::default(), "none", map! {}).unwrap();
    let asked = quiet.asked.load(Ordering::Relaxed);
    assert!(asked > 4 * 8, "asked only {asked} times");
    for stop_at in [0, 1, 2, asked / 2, asked - 1] {
        let watcher = Arc::new(Watcher {
            stop_at: Some(stop_at),
            ..Watcher::default()
        });
        let error = run(&watcher, Resources::default(), "none", map! {}).unwrap_err();
        assert!(matches!(error, NodeError::Interrupted), "{error:?}");
        // Nobody is asked again after the answer was yes.
        assert_eq!(watcher.asked.load(Ordering::Relaxed), stop_at + 1);
    }
    // And the next run is as if nothing had been.
    let model = made("unet_sd1_small", 4, Heads::Count(4), 0.18215);
    let watcher = Arc::new(Watcher {
        stop_at: Some(10),
        ..Watcher::default()
    });
    run(
        &watcher,
        Resources::default(),
        "none",
        map! {"model" => model.clone()},
    )
    .unwrap_err();
    assert_eq!(
        sampled(map! {"model" => model}).data(),
        sampled(map! {}).data()
    );
}
