//! LoRA, merging and saving nodes through the interface that the engine uses, on a model of a few weights.

use std::collections::BTreeMap;
use std::sync::Mutex;

use fresco_files::dirs::Dirs;
use fresco_files::folders::Folders;
use fresco_files::naming::Saver;
use fresco_graph::{Args, Flow, Map, NodeOutput, Progress, Resources, Services, Slots, Value, map};
use fresco_models::{ModelSampling, Prediction};
use fresco_tensor::{Device, Dtype, SafeTensors, Stored, Tensor, safetensors, synthetic};

use super::*;
use crate::sampling::BaseModel;
use crate::save::SaveOptions;

const CONV: &str = "input_blocks.0.0.weight";
const LINEAR: &str = "time_embed.0.weight";
const BIAS: &str = "time_embed.0.bias";

/// A model that only has weights.
struct Bare(Arc<WeightStore>);

impl BaseModel for Bare {
    fn name(&self) -> String {
        "bare".to_owned()
    }

    fn process_latent_in(&self, latent: &Tensor) -> fresco_tensor::Result<Tensor> {
        Ok(latent.clone())
    }

    fn process_latent_out(&self, latent: &Tensor) -> fresco_tensor::Result<Tensor> {
        Ok(latent.clone())
    }

    fn store(&self) -> Option<&Arc<WeightStore>> {
        Some(&self.0)
    }
}

fn weights(seed: &str) -> BTreeMap<String, Stored> {
    let shapes: [(&str, &[usize]); 4] = [
        (CONV, &[8, 4, 3, 3]),
        (LINEAR, &[8, 8]),
        (BIAS, &[8]),
        ("out.0.weight", &[8]),
    ];
    shapes
        .into_iter()
        .map(|(key, shape)| {
            let plain = synthetic::value(&format!("{seed}.{key}"), shape, 0.5).unwrap();
            (
                key.to_owned(),
                Stored::from_f32(&plain, Dtype::F16).unwrap(),
            )
        })
        .collect()
}

fn model(seed: &str) -> Model {
    let store = WeightStore::from_stored(seed, weights(seed), Device::cpu());
    Model::new(
        Arc::new(Bare(store)),
        ModelSampling::discrete(Prediction::V, true),
    )
}

/// Remembers the texts that nodes show.
#[derive(Default)]
struct Shown(Mutex<Vec<String>>);

impl Services for Shown {
    fn progress(&self, _: &str, _: &str, _: Progress) {}
    fn interrupted(&self) -> bool {
        false
    }
    fn send(&self, _: &str, _: Value, _: Option<&str>) {}
    fn text(&self, _: &str, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
    fn set_flag(&self, _: &str, _: Value) {}
}

struct LoraRig {
    base: tempfile::TempDir,
    shown: Arc<Shown>,
    cx: Cx,
}

fn place(options: impl FnOnce(&mut Resources)) -> LoraRig {
    let base = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(base.path());
    std::fs::create_dir_all(base.path().join("models/loras")).unwrap();
    let mut resources = Resources::default();
    resources.insert(Folders::new(&dirs));
    resources.insert(dirs);
    resources.insert(Saver::new());
    options(&mut resources);
    let shown = Arc::new(Shown::default());
    let cx = Cx::new("p".into(), "7".into(), shown.clone(), Arc::new(resources));
    LoraRig { base, shown, cx }
}

impl LoraRig {
    fn lora(&self, name: &str, tensors: &[(&str, Tensor)]) {
        let path = self.base.path().join("models/loras").join(name);
        let list: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, t)).collect();
        safetensors::write(path, &list, &[]).unwrap();
    }

    fn call(&self, id: &str, args: Map) -> Result<NodeOutput, NodeError> {
        let all = [
            NODES,
            crate::merging::NODES,
            &crate::merging::specific::NODES,
            crate::saving::NODES,
        ]
        .concat();
        let class = all
            .iter()
            .map(|e| e.class())
            .find(|c| &*c.schema().id == id)
            .unwrap_or_else(|| panic!("no {id}"));
        match class.call(Args(args), &self.cx)? {
            Flow::Done(output) => Ok(output),
            Flow::Later(_) => panic!("{id} is not asynchronous"),
        }
    }

    fn model(&self, id: &str, args: Map) -> Model {
        let Slots::Values(values) = self.call(id, args).unwrap().slots else {
            panic!("{id} gives nothing");
        };
        values[0].downcast::<Model>().unwrap().clone()
    }

    fn saved(&self, name: &str) -> SafeTensors {
        SafeTensors::open(self.base.path().join("output").join(name)).unwrap()
    }
}

/// The weights of a model with its changes.
fn value(model: &Model, key: &str) -> Tensor {
    let base = model.base.store().unwrap();
    let store = match model.weight_patches() {
        Some(set) => set.store(base, WEIGHT_PREFIX),
        None => base.clone(),
    };
    store.tensor(key).unwrap()
}

fn rounded(t: &Tensor) -> Tensor {
    Stored::from_f32(t, Dtype::F16).unwrap().to_f32().unwrap()
}

fn near(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    let far = a.data().iter().zip(b.data()).map(|(x, y)| (x - y).abs());
    let far = far.fold(0.0, f32::max);
    assert!(far < 2e-3, "{far}");
}

fn simple_lora() -> [(&'static str, Tensor); 3] {
    [
        (
            "lora_unet_time_embedding_linear_1.lora_up.weight",
            Tensor::ones([8, 2]).unwrap(),
        ),
        (
            "lora_unet_time_embedding_linear_1.lora_down.weight",
            Tensor::ones([2, 8]).unwrap(),
        ),
        (
            "lora_unet_time_embedding_linear_1.alpha",
            Tensor::scalar(1.0),
        ),
    ]
}

#[test]
fn a_lora_changes_the_model_it_is_for() {
    let place = place(|_| {});
    place.lora("a.safetensors", &simple_lora());
    let plain = model("a");
    let args = |strength: f64| map! {"model" => plain.clone(), "lora_name" => "a.safetensors", "strength_model" => strength};
    let changed = place.model("LoraLoaderModelOnly", args(0.5));
    // Two ones times two, halved by alpha over rank, halved by the strength.
    near(
        &value(&changed, LINEAR),
        &value(&plain, LINEAR).add_scalar(0.5),
    );
    assert_eq!(value(&changed, CONV), value(&plain, CONV));
    assert!(plain.weight_patches().is_none());
    // A second one comes after the first, and a strength of nothing reads no file.
    let twice = place.model(
        "LoraLoaderModelOnly",
        map! {"model" => changed, "lora_name" => "a.safetensors", "strength_model" => 1.0},
    );
    near(
        &value(&twice, LINEAR),
        &value(&plain, LINEAR).add_scalar(1.5),
    );
    let same = place.model(
        "LoraLoaderModelOnly",
        map! {"model" => plain.clone(), "lora_name" => "absent", "strength_model" => 0.0},
    );
    assert!(same.weight_patches().is_none());
    // Both outputs of the other node, with no text encoder there.
    let both = place
        .call(
            "LoraLoader",
            map! {
                "model" => plain.clone(), "clip" => Value::Null, "lora_name" => "a.safetensors",
                "strength_model" => 1.0, "strength_clip" => 1.0,
            },
        )
        .unwrap();
    let Slots::Values(values) = both.slots else {
        panic!()
    };
    assert_eq!(values.len(), 2);
    assert!(values[1].is_null());
    near(
        &value(values[0].downcast::<Model>().unwrap(), LINEAR),
        &value(&plain, LINEAR).add_scalar(1.0),
    );
    assert!(place.shown.0.lock().unwrap().is_empty());
}

#[test]
fn on_the_fly_and_the_numbers_of_the_merge_are_settings() {
    let fly = LoraOptions {
        mode: PatchMode::OnTheFly,
    };
    let place = place(|r| r.insert(fly));
    place.lora("a.safetensors", &simple_lora());
    let args =
        map! {"model" => model("a"), "lora_name" => "a.safetensors", "strength_model" => 1.0};
    let changed = place.model("LoraLoaderModelOnly", args);
    assert_eq!(
        changed.weight_patches().unwrap().mode(),
        PatchMode::OnTheFly
    );
    let options = changed.weight_patches().unwrap().options();
    assert_eq!(options, PatchOptions::default());
    let half = self::place(|r| r.insert(MergeDtype::Fp16));
    half.lora("a.safetensors", &simple_lora());
    let args =
        map! {"model" => model("a"), "lora_name" => "a.safetensors", "strength_model" => 1.0};
    let changed = half.model("LoraLoaderModelOnly", args);
    let options = changed.weight_patches().unwrap().options();
    assert_eq!(options.merge, MergeDtype::Fp16);
}

/// What is warned of meanwhile.
fn logged(body: impl FnOnce()) -> Vec<String> {
    struct Capture(Arc<Mutex<Vec<String>>>);
    struct Message<'a>(&'a mut Vec<String>);
    impl tracing::field::Visit for Message<'_> {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0.push(format!("{value:?}"));
            }
        }
    }
    impl tracing::Subscriber for Capture {
        fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
            *about.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut Message(&mut self.0.lock().unwrap()));
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let lines = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Capture(Arc::clone(&lines)), body);
    let lines = lines.lock().unwrap();
    lines.clone()
}

/// A change of the wrong shape is reported with its key and both shapes, and the rest is applied.
#[test]
fn l08_what_does_not_fit_is_reported_and_the_rest_goes_on() {
    let place = place(|_| {});
    let ones = |shape: &[usize]| Tensor::ones(shape).unwrap();
    place.lora(
        "a.safetensors",
        &[
            ("diffusion_model.time_embed.0.diff", ones(&[9, 7])),
            ("diffusion_model.input_blocks.0.0.diff", ones(&[8, 4, 3, 3])),
            ("strange.lora_up.weight", ones(&[1, 1])),
        ],
    );
    let plain = model("a");
    let run = || {
        let args = map! {"model" => plain.clone(), "lora_name" => "a.safetensors", "strength_model" => 1.0};
        let changed = place.model("LoraLoaderModelOnly", args);
        assert_eq!(value(&changed, LINEAR), value(&plain, LINEAR));
        near(&value(&changed, CONV), &value(&plain, CONV).add_scalar(1.0));
    };
    let lines = logged(run);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("a.safetensors") && lines[0].contains("strange.lora_up.weight"));
    for part in [
        "1 of 2",
        "diffusion_model.time_embed.0.weight",
        "[9, 7]",
        "[8, 8]",
    ] {
        assert!(lines[1].contains(part), "{part}: {}", lines[1]);
    }
    // Names that nothing is called are said once per file.
    let again = logged(run);
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(again[0].contains("[9, 7]"));
}

/// The memory room has the file; another strength does not read it again, another file under its name does.
#[test]
fn l07_a_file_is_read_once_and_counted() {
    let registry =
        fresco_memory::ModelRegistry::new(fresco_memory::Settings::default(), Vec::new());
    let place = place(|r| r.insert(registry.clone()));
    place.lora("a.safetensors", &simple_lora());
    registry.prompt_started("p");
    let run = |strength: f64| {
        let args = map! {"model" => model("a"), "lora_name" => "a.safetensors", "strength_model" => strength};
        place.model("LoraLoaderModelOnly", args)
    };
    let count = |kind: &str| registry.events(0, &[kind.to_owned()], 100).len();
    let (one, half) = (run(1.0), run(0.5));
    near(&value(&half, LINEAR), &value(&one, LINEAR).add_scalar(-0.5));
    assert_eq!((count("model.registered"), count("model.attached")), (1, 1));
    assert_eq!(count("model.loaded"), 1);
    let bytes = 4 * (8 * 2 + 2 * 8 + 1);
    let all = registry.snapshot();
    let of_lora = |s: &fresco_memory::Snapshot| -> Vec<u64> {
        let loras = s.models.iter().filter(|m| m.component == "lora");
        loras.map(|m| m.host_bytes).collect()
    };
    assert_eq!(of_lora(&all), [bytes]);
    let problems = registry.check();
    assert!(problems.is_empty(), "{problems:?}");
    registry.prompt_ended("p");
    let free = fresco_memory::FreeRequest {
        unload_models: true,
        free_memory: true,
        ..fresco_memory::FreeRequest::default()
    };
    let report = registry.free(&free, None);
    let left = of_lora(&registry.snapshot());
    assert!(left.is_empty() || left == [0], "{left:?} {report:?}");
    // Patches keep what they were made from.
    near(&value(&one, LINEAR), &value(&run(1.0), LINEAR));
    assert_eq!(count("model.loaded"), 2);
    place.lora(
        "a.safetensors",
        &[(
            "diffusion_model.time_embed.0.diff",
            Tensor::ones([8, 8]).unwrap(),
        )],
    );
    near(
        &value(&run(2.0), LINEAR),
        &value(&one, LINEAR).add_scalar(1.0),
    );
    assert_eq!(count("model.loaded"), 3);
}

/// The node with options: every way gives the same weights, and a format that was asked for is kept.
#[test]
fn a_lora_with_options() {
    let place = place(|_| {});
    place.lora("a.safetensors", &simple_lora());
    let run = |model: Model, mode: &str, storage: &str| {
        let args = map! {
            "lora_name" => "a.safetensors", "strength_model" => 0.5, "strength_clip" => 1.0,
            "patch_mode" => mode, "oft_strength" => "linear", "lora_storage" => storage,
            "model" => model, "clip" => Value::Null,
        };
        place.call("FrescoLoraLoader", args)
    };
    let ran = |model: Model, mode: &str, storage: &str| {
        let Slots::Values(values) = run(model, mode, storage).unwrap().slots else {
            panic!("no values");
        };
        assert!(values[1].is_null());
        values[0].downcast::<Model>().unwrap().clone()
    };
    let plain = model("a");
    let expected = value(&plain, LINEAR).add_scalar(0.5);
    for (name, mode) in PatchMode::NAMES {
        let changed = ran(plain.clone(), name, "stored_dtype");
        let set = changed.weight_patches().unwrap();
        assert_eq!(set.mode(), mode);
        let patch = &set.get("diffusion_model.time_embed.0.weight")[0];
        assert_eq!((patch.mode, patch.oft), (mode, OftStrength::Linear));
        near(&value(&changed, LINEAR), &expected);
    }
    let stored = |model: &Model| {
        let base = model.base.store().unwrap();
        let set = model.weight_patches().unwrap();
        set.store(base, WEIGHT_PREFIX).raw(LINEAR).unwrap().dtype()
    };
    let eight = ran(plain.clone(), "merge", "fp8_e4m3");
    assert_eq!(stored(&eight), Dtype::F8E4M3);
    // A loader's word holds for the LoRAs after it, unless one says otherwise.
    let told = plain.clone().with_lora_storage(LoraStorage::F8E4M3);
    assert_eq!(
        stored(&ran(told.clone(), "merge", "stored_dtype")),
        Dtype::F8E4M3
    );
    let args =
        map! {"model" => told.clone(), "lora_name" => "a.safetensors", "strength_model" => 1.0};
    let usual = place.model("LoraLoaderModelOnly", args);
    assert_eq!(stored(&usual), Dtype::F8E4M3);
    assert_eq!(stored(&ran(told, "merge", "bf16")), Dtype::F16);
    // Also for those that are there already.
    let later = ran(plain.clone(), "merge", "stored_dtype").with_lora_storage(LoraStorage::F8E4M3);
    assert_eq!(stored(&later), Dtype::F8E4M3);
    assert!(run(plain, "sideways", "bf16").is_err());
}

#[test]
fn files_that_fit_nothing_or_are_broken() {
    let place = place(|_| {});
    let plain = model("a");
    let run = |name: &str| {
        let args = map! {"model" => plain.clone(), "lora_name" => name, "strength_model" => 1.0};
        place.call("LoraLoaderModelOnly", args)
    };
    place.lora(
        "other.safetensors",
        &[("lora_te_x.lora_up.weight", Tensor::ones([2, 2]).unwrap())],
    );
    let told = |output: NodeOutput| -> Vec<String> {
        let warnings = output.ui.unwrap_or_default().shift_remove("warnings");
        let list = warnings
            .as_ref()
            .and_then(Value::as_list)
            .unwrap_or_default();
        list.iter()
            .map(|w| w.as_str().unwrap().to_owned())
            .collect()
    };
    let other = told(run("other.safetensors").unwrap());
    assert_eq!(other.len(), 1);
    assert!(
        other[0].starts_with("The LoRA other.safetensors changes nothing: the model has none of"),
        "{other:?}"
    );
    assert_eq!(*place.shown.0.lock().unwrap(), other);
    // A change of another shape leaves the weight as it was.
    place.lora(
        "shape.safetensors",
        &[(
            "diffusion_model.time_embed.0.diff",
            Tensor::ones([9, 9]).unwrap(),
        )],
    );
    let output = run("shape.safetensors").unwrap();
    let Slots::Values(values) = &output.slots else {
        panic!()
    };
    let changed = values[0].downcast::<Model>().unwrap();
    assert_eq!(value(changed, LINEAR), value(&plain, LINEAR));
    let sizes = told(output);
    assert!(
        sizes.len() == 1 && sizes[0].contains("its layers have other sizes"),
        "{sizes:?}"
    );
    // One that fits says nothing, nor does one that is switched off.
    place.lora(
        "fits.safetensors",
        &[(
            "diffusion_model.time_embed.0.diff",
            Tensor::ones([8, 8]).unwrap(),
        )],
    );
    assert!(told(run("fits.safetensors").unwrap()).is_empty());
    let off = map! {"model" => plain.clone(), "lora_name" => "shape.safetensors", "strength_model" => 0.0};
    assert!(told(place.call("LoraLoaderModelOnly", off).unwrap()).is_empty());
    place.lora(
        "nan.safetensors",
        &[(
            "diffusion_model.time_embed.0.diff",
            Tensor::full([8, 8], f32::NAN).unwrap(),
        )],
    );
    let error = run("nan.safetensors").unwrap_err();
    assert!(error.message().contains("nan.safetensors"), "{error:?}");
    let path = place.base.path().join("models/loras");
    std::fs::write(path.join("page.safetensors"), "<html>").unwrap();
    let error = run("page.safetensors").unwrap_err();
    let text = format!("{} {:?}", error.message(), error.trace());
    assert!(text.contains("page.safetensors"), "{text}");
    let mut whole = std::fs::read(path.join("shape.safetensors")).unwrap();
    whole.truncate(whole.len() - 7);
    std::fs::write(path.join("half.safetensors"), whole).unwrap();
    assert!(run("half.safetensors").is_err());
    assert_eq!(
        run("absent.safetensors").unwrap_err().kind(),
        "FileNotFoundError"
    );
    assert!(run("../../secret").is_err());
}

#[test]
fn models_are_mixed() {
    let place = place(|_| {});
    let (one, two) = (model("a"), model("b"));
    let both = || map! {"model1" => one.clone(), "model2" => two.clone()};
    let with = |key: &str, v: f64| {
        let mut args = both();
        args.insert(key.into(), v.into());
        args
    };
    let (a, b) = (value(&one, CONV), value(&two, CONV));
    let simple = place.model("ModelMergeSimple", with("ratio", 0.25));
    near(
        &value(&simple, CONV),
        &a.mul_scalar(0.25).add(&b.mul_scalar(0.75)).unwrap(),
    );
    let sum = place.model("ModelMergeAdd", both());
    near(&value(&sum, CONV), &a.add(&b).unwrap());
    let less = place.model("ModelMergeSubtract", with("multiplier", 2.0));
    near(&value(&less, CONV), &a.sub(&b).unwrap().mul_scalar(2.0));
    // What was changed in the second model comes with it.
    let args = map! {"model1" => one.clone(), "model2" => sum, "ratio" => 0.0};
    let taken = place.model("ModelMergeSimple", args);
    near(&value(&taken, CONV), &a.add(&b).unwrap());
    let mut args = both();
    args.extend(map! {"input" => 0.0, "middle" => 0.5, "out" => 1.0});
    let blocks = place.model("ModelMergeBlocks", args);
    assert_eq!(value(&blocks, CONV), b);
    // What no name begins with follows the first input.
    assert_eq!(value(&blocks, LINEAR), value(&two, LINEAR));
    assert_eq!(value(&blocks, "out.0.weight"), value(&one, "out.0.weight"));
}

#[test]
fn every_block_has_its_own_ratio() {
    let place = place(|_| {});
    let (one, two) = (model("a"), model("b"));
    let class = crate::merging::specific::NODES
        .iter()
        .map(|e| e.class())
        .find(|c| &*c.schema().id == "ModelMergeSD1")
        .unwrap();
    let mut args = map! {"model1" => one.clone(), "model2" => two.clone()};
    for input in class.schema().inputs.iter().skip(2) {
        let share = if &*input.name == "input_blocks.0." {
            0.0
        } else {
            1.0
        };
        args.insert(input.name.clone(), share.into());
    }
    let merged = place.model("ModelMergeSD1", args);
    assert_eq!(value(&merged, CONV), value(&two, CONV));
    assert_eq!(value(&merged, LINEAR), value(&one, LINEAR));
}

#[test]
fn a_saved_model_has_its_changes_and_says_how_it_is_sampled() {
    let place = place(|_| {});
    place.lora("a.safetensors", &simple_lora());
    let args =
        map! {"model" => model("a"), "lora_name" => "a.safetensors", "strength_model" => 1.0};
    let changed = place.model("LoraLoaderModelOnly", args);
    let mut place = place;
    place.cx.hidden.prompt = map! {"1" => 2}.into();
    let args = || map! {"model" => changed.clone(), "filename_prefix" => "models/x"};
    place.call("ModelSave", args()).unwrap();
    place.call("ModelSave", args()).unwrap();
    let file = place.saved("models/x_00002_.safetensors");
    let name = |key: &str| format!("model.diffusion_model.{key}");
    for key in [CONV, LINEAR, BIAS] {
        assert_eq!(file.info(&name(key)).unwrap().dtype, Dtype::F16, "{key}");
        assert_eq!(
            file.tensor(&name(key)).unwrap(),
            value(&changed, key),
            "{key}"
        );
    }
    assert!(file.info("v_pred").is_some() && file.info("ztsnr").is_some());
    assert_eq!(file.metadata("modelspec.predict_key"), Some("v"));
    assert_eq!(file.metadata("prompt"), Some("{\"1\": 2}"));
}

#[test]
fn metadata_can_be_switched_off() {
    let off = SaveOptions {
        disable_metadata: true,
    };
    let mut place = place(|r| r.insert(off));
    place.cx.hidden.prompt = map! {"1" => 2}.into();
    let args = map! {"model" => model("a"), "filename_prefix" => "x"};
    place.call("ModelSave", args).unwrap();
    assert_eq!(place.saved("x_00001_.safetensors").metadata("prompt"), None);
    let outside = map! {"model" => model("a"), "filename_prefix" => "../x"};
    assert!(place.call("ModelSave", outside).is_err());
}

/// A difference of models, written as a LoRA and put onto the first, gives the second back.
#[test]
fn a_difference_becomes_a_lora() {
    let place = place(|_| {});
    let (one, two) = (model("a"), model("b"));
    let args = map! {"model1" => two.clone(), "model2" => one.clone(), "multiplier" => 1.0};
    let difference = place.model("ModelMergeSubtract", args);
    for (kind, prefix) in [("full_diff", "full"), ("standard", "low")] {
        let args = map! {
            "filename_prefix" => prefix, "rank" => 8, "lora_type" => kind, "bias_diff" => true,
            "model_diff" => difference.clone(),
        };
        place.call("LoraSave", args).unwrap();
        let name = format!("{prefix}_00001_.safetensors");
        std::fs::rename(
            place.base.path().join("output").join(&name),
            place.base.path().join("models/loras").join(&name),
        )
        .unwrap();
        let args =
            map! {"model" => one.clone(), "lora_name" => name.as_str(), "strength_model" => 1.0};
        let back = place.model("LoraLoaderModelOnly", args);
        near(&value(&back, BIAS), &value(&two, BIAS));
        if kind == "full_diff" {
            near(&value(&back, CONV), &value(&two, CONV));
            near(&value(&back, LINEAR), &value(&two, LINEAR));
        } else {
            // The largest values are cut, so that the way back is only most of the way.
            let gap = |m: &Model| {
                let d = value(m, LINEAR).sub(&value(&two, LINEAR)).unwrap();
                d.data().iter().map(|v| v * v).sum::<f32>().sqrt()
            };
            assert!(gap(&back) < 0.5 * gap(&one), "{} {}", gap(&back), gap(&one));
        }
    }
    assert_eq!(rounded(&value(&one, CONV)), value(&one, CONV));
}
