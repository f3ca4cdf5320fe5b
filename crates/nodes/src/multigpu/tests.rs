//! The nodes as workflows know them: names, inputs, defaults; what inputs mean; what is refused before a prompt runs.

use std::fmt::Write as _;
use std::sync::Arc;

use fresco_graph::object_info::node_info;
use fresco_graph::{
    Args, Listings, Map, NodeRegistry as Classes, PromptLimits, Resources, Rules, Schema, Value,
    json, map,
};
use fresco_memory::{EjectOthers, ModelRegistry, Placement, Policy, PolicySource, Settings};
use fresco_tensor::Device;

use super::bases::{self, Base as _};
use super::family::{DisTorch2, Known, Legacy, LoaderForm, OnDevice};
use crate::resident::LoadOptions;

/// Two accelerators for all tests here.
fn room() -> ModelRegistry {
    let device = |number| {
        let made = Device::register_sim(number, 12 << 30);
        made.or_else(|_| Device::sim(number)).unwrap()
    };
    ModelRegistry::new(Settings::default(), vec![device(71), device(72)])
}

struct Lists;

impl Listings for Lists {
    fn list(&self, source: &str) -> Vec<String> {
        let names: &[&str] = match source {
            "devices/all" => &["cpu", "sim:71", "sim:72"],
            _ => &["a.safetensors", "b.gguf"],
        };
        names.iter().map(ToString::to_string).collect()
    }

    fn preset(&self, source: &str) -> Option<String> {
        (source == "devices/all").then(|| "sim:71".into())
    }
}

fn classes() -> Classes {
    let mut classes = Classes::new();
    classes.add(&crate::all());
    classes
}

/// One line for a class: `category | title | inputs -> outputs`, optional inputs in brackets.
fn line(schema: &Schema) -> String {
    let info = node_info(schema, &Lists);
    let text = |key: &str| {
        info.get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut line = format!("{} | {} |", text("category"), text("display_name"));
    for (group, open, close) in [("required", "", ""), ("optional", "[", "]")] {
        let inputs = info.get("input").and_then(|i| i.get(group));
        for (name, spec) in inputs.and_then(Value::as_map).into_iter().flatten() {
            let spec = spec.as_list().unwrap();
            let ty = match &spec[0] {
                Value::List(entries)
                    if entries.first().is_some_and(|e| e.as_str() == Some("cpu")) =>
                {
                    "devices".to_owned()
                }
                Value::List(entries) if entries.len() > 5 => format!("{} entries", entries.len()),
                Value::List(entries) => {
                    let names: Vec<&str> = entries.iter().filter_map(Value::as_str).collect();
                    names.join("/")
                }
                other => other.as_str().unwrap().to_owned(),
            };
            let _ = write!(line, " {open}{name}:{ty}");
            let options = spec.get(1).and_then(Value::as_map);
            for key in ["default", "min", "max", "step"] {
                if let Some(value) = options.and_then(|o| o.get(key)) {
                    let _ = write!(line, " {key}={}", json::to_string(value));
                }
            }
            line += close;
        }
    }
    let outputs: Vec<&str> = schema.outputs.iter().filter_map(|o| o.ty.name()).collect();
    line + " -> " + &outputs.join(",")
}

#[track_caller]
fn is(class: &str, expected: &str) {
    let classes = classes();
    let class = classes
        .get(class)
        .unwrap_or_else(|| panic!("there is no {class}"));
    assert_eq!(line(&class.schema()), expected);
    assert!(!class.schema().description.is_empty());
}

const FILES: &str = "a.safetensors/b.gguf";
const DEVICE: &str = r#"[device:devices default="sim:71"]"#;
/// What follows the device of a DisTorch2 loader; `{}` is the default of `eject_models`.
fn spread(eject: bool) -> String {
    format!(
        r#"[virtual_vram_gb:FLOAT default=4.0 min=0.0 max=128.0 step=0.1] [donor_device:devices default="cpu"] [expert_mode_allocations:STRING default=""] {}"#,
        staying(eject)
    )
}

/// What every loader with devices can be told about staying.
fn staying(eject: bool) -> String {
    format!(
        r#"[eject_models:BOOLEAN default={eject}] [retention:auto/keep/eject_after default="auto"] [keep_loaded:BOOLEAN]"#
    )
}

/// Plain class, title, its required inputs, outputs, whether it is an encoder.
fn bases() -> Vec<(&'static str, &'static str, String, &'static str, bool)> {
    let file = |input: &str| format!("{input}:{FILES}");
    vec![
        (
            "CheckpointLoaderSimple",
            "Load Checkpoint",
            file("ckpt_name"),
            "MODEL,CLIP,VAE",
            false,
        ),
        (
            "UNETLoader",
            "Load Diffusion Model",
            file("unet_name") + " weight_dtype:default/fp8_e4m3fn/fp8_e4m3fn_fast/fp8_e5m2",
            "MODEL",
            false,
        ),
        ("VAELoader", "Load VAE", file("vae_name"), "VAE", false),
        (
            "CLIPLoader",
            "Load CLIP",
            file("clip_name") + " type:31 entries",
            "CLIP",
            true,
        ),
        (
            "DualCLIPLoader",
            "DualCLIPLoader",
            file("clip_name1") + " " + &file("clip_name2") + " type:11 entries",
            "CLIP",
            true,
        ),
        (
            "TripleCLIPLoader",
            "TripleCLIPLoader",
            ["clip_name1", "clip_name2", "clip_name3"]
                .map(&file)
                .join(" "),
            "CLIP",
            true,
        ),
        (
            "QuadrupleCLIPLoader",
            "QuadrupleCLIPLoader",
            ["clip_name1", "clip_name2", "clip_name3", "clip_name4"]
                .map(&file)
                .join(" "),
            "CLIP",
            true,
        ),
        (
            "CLIPVisionLoader",
            "Load CLIP Vision",
            file("clip_name"),
            "CLIP_VISION",
            true,
        ),
        (
            "ControlNetLoader",
            "Load ControlNet Model",
            file("control_net_name"),
            "CONTROL_NET",
            false,
        ),
        (
            "DiffControlNetLoader",
            "Load ControlNet Model (diff)",
            "model:MODEL ".to_owned() + &file("control_net_name"),
            "CONTROL_NET",
            false,
        ),
        (
            "DiffusersLoader",
            "DiffusersLoader",
            file("model_path"),
            "MODEL,CLIP,VAE",
            false,
        ),
        (
            "UnetLoaderGGUF",
            "Unet Loader (GGUF)",
            file("unet_name"),
            "MODEL",
            false,
        ),
        (
            "UnetLoaderGGUFAdvanced",
            "Unet Loader (GGUF/Advanced)",
            file("unet_name")
                + r#" dequant_dtype:default/target/float32/float16/bfloat16 default="default" patch_dtype:default/target/float32/float16/bfloat16 default="default" patch_on_device:BOOLEAN default=false"#,
            "MODEL",
            false,
        ),
        (
            "CLIPLoaderGGUF",
            "CLIPLoader (GGUF)",
            file("clip_name") + " type:31 entries",
            "CLIP",
            true,
        ),
        (
            "DualCLIPLoaderGGUF",
            "DualCLIPLoader (GGUF)",
            file("clip_name1") + " " + &file("clip_name2") + " type:11 entries",
            "CLIP",
            true,
        ),
        (
            "TripleCLIPLoaderGGUF",
            "TripleCLIPLoader (GGUF)",
            ["clip_name1", "clip_name2", "clip_name3"]
                .map(&file)
                .join(" "),
            "CLIP",
            true,
        ),
        (
            "QuadrupleCLIPLoaderGGUF",
            "QuadrupleCLIPLoader (GGUF)",
            ["clip_name1", "clip_name2", "clip_name3", "clip_name4"]
                .map(file)
                .join(" "),
            "CLIP",
            true,
        ),
    ]
}

#[test]
fn every_loader_has_its_families() {
    for (id, title, inputs, outputs, encoder) in bases() {
        let name = format!("{id}MultiGPU");
        is(
            &name,
            &format!(
                "multigpu | {name} | {inputs} {DEVICE} {} -> {outputs}",
                staying(false)
            ),
        );
        let device = if encoder {
            DEVICE.to_owned()
        } else {
            DEVICE.replace("device:", "compute_device:")
        };
        is(
            &format!("{id}DisTorch2MultiGPU"),
            &format!(
                "multigpu/distorch_2 | {title} (DisTorch2) | {inputs} {device} {} -> {outputs}",
                spread(!encoder)
            ),
        );
        if id.contains("GGUF") {
            is(id, &format!("bootleg | {title} | {inputs} -> {outputs}"));
            is(
                &format!("{id}DisTorchMultiGPU"),
                &format!(
                    r#"multigpu/legacy | {title} (Legacy) | {inputs} {DEVICE} [virtual_vram_gb:FLOAT default=4.0 min=0.0 max=24.0 step=0.1] [use_other_vram:BOOLEAN default=false] [expert_mode_allocations:STRING default=""] {} -> {outputs}"#,
                    staying(false)
                ),
            );
        }
    }
    let mine = classes();
    let mine = mine
        .iter()
        .filter(|c| c.schema().id.ends_with("DisTorch2MultiGPU"));
    assert_eq!(mine.count(), bases().len() + 1, "and the advanced one");
}

#[test]
fn the_extensions_own_nodes() {
    is(
        "DeviceSelectorMultiGPU",
        r#"multigpu | DeviceSelectorMultiGPU | device:devices default="sim:71" -> MULTIGPUDEVICE"#,
    );
    is(
        "CheckpointLoaderAdvancedMultiGPU",
        &format!(
            r#"multigpu | CheckpointLoaderAdvancedMultiGPU | ckpt_name:{FILES} unet_device:devices default="sim:71" clip_device:devices default="sim:71" vae_device:devices default="sim:71" {} -> MODEL,CLIP,VAE"#,
            staying(false)
        ),
    );
    let gb = |name: &str, default: &str| {
        format!("{name}:FLOAT default={default} min=0.0 max=128.0 step=0.1")
    };
    is(
        "CheckpointLoaderAdvancedDisTorch2MultiGPU",
        &format!(
            r#"multigpu/distorch_2 | CheckpointLoaderAdvanced (DisTorch2) | ckpt_name:{FILES} unet_compute_device:devices default="sim:71" {} unet_donor_device:devices default="cpu" clip_compute_device:devices default="cpu" {} clip_donor_device:devices default="cpu" vae_device:devices default="sim:71" [unet_expert_mode_allocations:STRING default=""] [clip_expert_mode_allocations:STRING default=""] [high_precision_loras:BOOLEAN default=true] {} -> MODEL,CLIP,VAE"#,
            gb("unet_virtual_vram_gb", "4.0"),
            gb("clip_virtual_vram_gb", "2.0"),
            staying(true),
        ),
    );
    is(
        "UNetLoaderLP",
        &format!("multigpu | UNet Loader (LP) | unet_name:{FILES} -> MODEL"),
    );
}

/// The switch of older versions is shown, but has no widget: the editor would send a value for it in every prompt.
#[test]
fn the_older_input_is_shown_without_a_widget() {
    let classes = classes();
    let loaders: Vec<_> = classes
        .iter()
        .filter(|c| c.schema().id.ends_with("MultiGPU"))
        .filter(|c| &*c.schema().id != "DeviceSelectorMultiGPU")
        .collect();
    assert_eq!(loaders.len(), 2 * bases().len() + 6 + 2);
    for class in loaders {
        let schema = class.schema();
        let info = fresco_graph::object_info::node_info(&schema, &Lists);
        let optional = info.get("input").and_then(|i| i.get("optional")).unwrap();
        let Some(Value::List(keep)) = optional.get("keep_loaded") else {
            panic!("{} shows no keep_loaded", schema.id);
        };
        assert_eq!(keep[0], "BOOLEAN".into(), "{}", schema.id);
        assert_eq!(
            keep[1].get("forceInput"),
            Some(&true.into()),
            "{}",
            schema.id
        );
        assert!(optional.get("retention").is_some(), "{}", schema.id);
        assert!(optional.get("eject_models").is_some(), "{}", schema.id);
        assert!(schema.hidden.is_empty(), "{}", schema.id);
    }
}

fn options<F: LoaderForm>(base: &bases::Loader, inputs: Map) -> LoadOptions {
    F::options(base, &mut Args(inputs), &Known::new(&room())).unwrap()
}

fn names(options: &LoadOptions) -> (Option<String>, Option<Placement>) {
    (
        options.compute.as_ref().map(Device::name),
        options.placement.clone(),
    )
}

#[test]
fn inputs_become_options() {
    let (unet, clip) = (bases::Unet::LOADER, bases::Clip::LOADER);
    // What is not in the prompt has the default that the schema shows.
    let donors = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let four = Placement::Virtual {
        gb: 4.0,
        donors: donors(&["cpu"]),
    };
    let default = options::<DisTorch2>(&unet, Map::new());
    assert_eq!(names(&default), (Some("sim:71".into()), Some(four.clone())));
    assert_eq!(default.eject_others, EjectOthers::ComputeDevice);
    assert_eq!(
        (default.policy, default.source),
        (Policy::Auto, PolicySource::Default)
    );
    assert_eq!(
        options::<DisTorch2>(&clip, Map::new()).eject_others,
        EjectOthers::None
    );
    // Nothing to spread: the standard loader, but others may still have to go.
    let plain = options::<DisTorch2>(
        &unet,
        map! {"virtual_vram_gb" => 0, "compute_device" => "sim:72"},
    );
    assert_eq!(names(&plain), (Some("sim:72".into()), None));
    assert_eq!(plain.eject_others, EjectOthers::ComputeDevice);
    // In main memory there is nothing to spread either, unless to another device.
    let on_cpu = |donor: &str| {
        options::<DisTorch2>(&clip, map! {"device" => "cpu", "donor_device" => donor})
    };
    assert_eq!(names(&on_cpu("cpu")), (Some("cpu".into()), None));
    assert!(on_cpu("sim:72").placement.is_some());
    // An expert string decides alone, also without virtual memory.
    let expert = map! {"virtual_vram_gb" => 0.0, "expert_mode_allocations" => "sim:71,25%;cpu,*"};
    assert!(matches!(
        options::<DisTorch2>(&unet, expert).placement,
        Some(Placement::Expert(expert)) if expert.wildcard.as_deref() == Some("cpu")
    ));
    // Older nodes.
    let legacy = |inputs| options::<Legacy>(&bases::UnetGguf::LOADER, inputs).placement;
    assert_eq!(legacy(Map::new()), Some(four));
    let all =
        legacy(map! {"use_other_vram" => true, "device" => "sim:72", "virtual_vram_gb" => 1.5});
    let expected = Placement::Virtual {
        gb: 1.5,
        donors: donors(&["sim:71", "cpu"]),
    };
    assert_eq!(all, Some(expected));
    let one = options::<OnDevice>(&unet, map! {"device" => "cpu"});
    assert_eq!(names(&one), (Some("cpu".into()), None));
    assert_eq!(
        names(&options::<OnDevice>(&unet, Map::new())).0,
        Some("sim:71".into())
    );
}

#[test]
fn retention_inputs_old_and_new() {
    let unet = bases::Unet::LOADER;
    let said = (PolicySource::NodeInput, PolicySource::Default);
    for (inputs, policy, source) in [
        (map! {}, Policy::Auto, said.1),
        (map! {"retention" => "auto"}, Policy::Auto, said.1),
        (map! {"retention" => "keep"}, Policy::Keep, said.0),
        (
            map! {"retention" => "eject_after"},
            Policy::EjectAfter,
            said.0,
        ),
        (map! {"keep_loaded" => true}, Policy::Keep, said.0),
        (map! {"keep_loaded" => false}, Policy::EjectAfter, said.0),
        (map! {"keep_loaded" => Value::Null}, Policy::Auto, said.1),
        (
            map! {"keep_loaded" => true, "retention" => "auto"},
            Policy::Keep,
            said.0,
        ),
        (
            map! {"keep_loaded" => true, "retention" => "eject_after"},
            Policy::EjectAfter,
            said.0,
        ),
        (
            map! {"keep_loaded" => false, "retention" => "keep"},
            Policy::Keep,
            said.0,
        ),
    ] {
        let shown = format!("{inputs:?}");
        for options in [
            options::<DisTorch2>(&unet, inputs.clone()),
            options::<OnDevice>(&unet, inputs.clone()),
            options::<Legacy>(&bases::UnetGguf::LOADER, inputs),
        ] {
            assert_eq!(
                (options.policy, options.source),
                (policy, source),
                "{shown}"
            );
        }
    }
}

#[test]
fn wrong_inputs_are_errors_that_name_what_is_right() {
    let fails = |inputs: Map| {
        let known = Known::new(&room());
        let failed = DisTorch2::options(&bases::Unet::LOADER, &mut Args(inputs), &known);
        failed.err().unwrap().message().to_owned()
    };
    let text = fails(map! {"compute_device" => "cuda:7"});
    assert!(
        text.contains("\"cuda:7\"") && text.contains("cpu, sim:71, sim:72"),
        "{text}"
    );
    assert!(fails(map! {"donor_device" => "gpu"}).contains("donor_device"));
    assert!(fails(map! {"retention" => "pin"}).contains("auto, keep, eject_after"));
    assert!(fails(map! {"virtual_vram_gb" => f64::NAN}).contains("NaN"));
    assert!(fails(map! {"virtual_vram_gb" => -1.0}).contains("-1"));
    assert!(fails(map! {"expert_mode_allocations" => "sim:71,xg"}).contains("bad_amount"));
}

/// Validates a prompt of one loader; gives the problems of the loader as `kind [details]`.
fn problems(class: &str, inputs: Map) -> Vec<String> {
    let mut resources = Resources::default();
    resources.insert(room());
    let classes = Arc::new(classes());
    let rules = Rules {
        registry: &classes,
        listings: &Lists,
        resources: &Arc::new(resources),
        limits: PromptLimits::default(),
    };
    let prompt = map! {
        "1" => map! {"class_type" => class, "inputs" => inputs},
        "2" => map! {
            "class_type" => "ModelSave",
            "inputs" => map! {"model" => vec![Value::from("1"), 0.into()], "filename_prefix" => "x"},
        },
    };
    match rules.validate(prompt, None) {
        Ok(_) => Vec::new(),
        Err(error) => {
            let errors = error.nodes.get("1").map(|node| node.errors.clone());
            let errors = errors.unwrap_or_default().into_iter();
            errors
                .map(|e| format!("{} [{}]", e.kind, e.details))
                .collect()
        }
    }
}

fn unet(more: Map) -> Map {
    let mut inputs = map! {"unet_name" => "a.safetensors", "weight_dtype" => "default"};
    inputs.extend(more);
    inputs
}

/// Every row of the table of expert strings, with `sim` for `cuda`.
#[test]
fn expert_strings_are_checked_with_the_prompt() {
    for (text, codes) in [
        ("", &[][..]),
        ("sim:71,2.5gb;cpu,*", &[]),
        ("sim:71,500mb;sim:72,3.0g;cpu,5gb*", &[]),
        ("sim:71,25%;cpu,75%", &[]),
        ("sim:71,8%;sim:72,8%;cpu,4%", &[]),
        ("sim:71,0.1;cpu,0.5", &[]),
        ("sim:71,50%;cpu,*", &[]),
        ("sim:71,0.5; sim:72,0.5", &[]),
        ("sim:71,.5g", &[]),
        ("sim:71,1G ; cpu , * ;", &[]),
        ("cuda:7,1g", &["unknown_device"]),
        ("gpu,1g", &["unknown_device"]),
        ("sim:71,-1g", &["bad_amount"]),
        ("sim:71,xg", &["bad_amount"]),
        ("sim:71,1e3m", &["bad_amount"]),
        ("sim:71,0%;cpu,0%", &["zero_ratio"]),
        ("sim:71,0.5,0.2", &["bad_item"]),
        ("sim:71", &["bad_item"]),
        ("sim:71,2g;cpu,50%", &["mixed_modes"]),
        ("sim:71,1g;sim:71,2g", &["duplicate_device"]),
        (
            "gpu,1g;sim:71,xg;sim:72",
            &["unknown_device", "bad_amount", "bad_item"],
        ),
    ] {
        for class in [
            "UNETLoaderDisTorch2MultiGPU",
            "UnetLoaderGGUFDisTorchMultiGPU",
        ] {
            let found = problems(class, unet(map! {"expert_mode_allocations" => text}));
            assert_eq!(found.len(), codes.len(), "{class} {text:?}: {found:?}");
            for (problem, code) in found.iter().zip(codes) {
                let start =
                    format!("custom_validation_failed [expert_mode_allocations - {code} at ");
                assert!(problem.starts_with(&start), "{class} {text:?}: {problem}");
            }
        }
    }
    let unknown = problems(
        "UNETLoaderDisTorch2MultiGPU",
        unet(map! {"expert_mode_allocations" => "cuda:7,1g"}),
    );
    assert!(
        ["cpu", "sim:71", "sim:72"]
            .iter()
            .all(|d| unknown[0].contains(d)),
        "{unknown:?}"
    );
}

#[test]
fn each_wrong_string_of_the_advanced_loader_is_named() {
    let inputs = map! {
        "ckpt_name" => "a.safetensors", "unet_compute_device" => "sim:71", "unet_virtual_vram_gb" => 4.0,
        "unet_donor_device" => "cpu", "clip_compute_device" => "cpu", "clip_virtual_vram_gb" => 2.0,
        "clip_donor_device" => "cpu", "vae_device" => "sim:71",
        "unet_expert_mode_allocations" => "sim:71,1g", "clip_expert_mode_allocations" => "nowhere,1g",
    };
    let found = problems("CheckpointLoaderAdvancedDisTorch2MultiGPU", inputs);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("clip_expert_mode_allocations - unknown_device"),
        "{found:?}"
    );
}

#[test]
fn devices_and_ranges_are_checked_with_the_prompt() {
    let class = "UNETLoaderDisTorch2MultiGPU";
    for (input, value, kind) in [
        ("compute_device", Value::from("cuda:7"), "value_not_in_list"),
        ("donor_device", "gpu".into(), "value_not_in_list"),
        ("retention", "pin".into(), "value_not_in_list"),
        ("virtual_vram_gb", 128.1.into(), "value_bigger_than_max"),
        ("virtual_vram_gb", (-0.1).into(), "value_smaller_than_min"),
        ("virtual_vram_gb", "much".into(), "invalid_input_type"),
    ] {
        let mut more = Map::new();
        more.insert(input.into(), value);
        let found = problems(class, unet(more));
        assert!(
            found.len() == 1 && found[0].starts_with(kind),
            "{input}: {found:?}"
        );
        let lists = kind == "value_not_in_list" && input.ends_with("device");
        assert!(
            !lists || found[0].contains("'cpu', 'sim:71', 'sim:72'"),
            "{found:?}"
        );
    }
    let old = problems(
        "UnetLoaderGGUFDisTorchMultiGPU",
        unet(map! {"virtual_vram_gb" => 25.0}),
    );
    assert!(old[0].starts_with("value_bigger_than_max"), "{old:?}");
    // An input that is not in the schema is nobody's problem.
    assert!(problems(class, unet(map! {"keep_loaded" => true, "unknown" => 1})).is_empty());
}
