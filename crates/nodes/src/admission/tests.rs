//! Small checkpoints on simulated devices of every size. Of the files only the headers are real.

use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Map, Value, map};
use fresco_memory::{HostMemory, ModelRegistry, Policy, Probes, Reserves, Settings};
use fresco_models::detect::Families;
use fresco_tensor::Device;

use super::{AdmissionQuery, Assessment, ModelPlan, Outcome, Verdict};
use crate::small_files::{keys, place, write};

fn assess(prompt: &Map, folders: &Folders, registry: &ModelRegistry) -> Assessment {
    super::assess(prompt, folders, &Families::default(), registry)
}

fn assess_run(
    asked: &AdmissionQuery<'_>,
    folders: &Folders,
    registry: &ModelRegistry,
) -> Assessment {
    super::assess_run(asked, folders, &Families::default(), registry)
}

/// A room with one device of its own and without reserves, so that every byte counts.
fn room(number: u32, bytes: u64) -> ModelRegistry {
    let settings = Settings {
        reserves: Reserves {
            extra: 0,
            inference: 0,
            ratio: 0.0,
        },
        ..Settings::default()
    };
    ModelRegistry::new(settings, vec![Device::register_sim(number, bytes).unwrap()])
}

const MIB: u64 = 1 << 20;
const UNET: u64 = 12_673_296;

fn node(class: &str, inputs: Map) -> Value {
    map! {"class_type" => class, "inputs" => inputs}.into()
}

fn link(id: &str, slot: i64) -> Value {
    vec![Value::from(id), slot.into()].into()
}

/// From words to a picture.
fn picture(side: i64) -> Map {
    map! {
        "1" => node("CheckpointLoaderSimple", map! {"ckpt_name" => "whole.safetensors"}),
        "2" => node("EmptyLatentImage", map! {"width" => side, "height" => side, "batch_size" => 1}),
        "3" => node("CLIPTextEncode", map! {"clip" => link("1", 1), "text" => "x"}),
        "4" => node("KSampler", map! {"model" => link("1", 0), "positive" => link("3", 0), "latent_image" => link("2", 0)}),
        "5" => node("VAEDecode", map! {"vae" => link("1", 2), "samples" => link("4", 0)}),
        "6" => node("SaveImage", map! {"images" => link("5", 0)}),
    }
}

fn unet(class: &str, more: Map) -> Map {
    let mut inputs = map! {"unet_name" => "net.safetensors", "weight_dtype" => "default"};
    inputs.extend(more);
    map! {"1" => node(class, inputs)}
}

fn parts(found: &Assessment) -> Vec<&str> {
    found.models.iter().map(|model| model.component).collect()
}

fn on(model: &ModelPlan, device: &str) -> u64 {
    let place = model.places.iter().find(|(name, _)| name == device);
    place.map_or(0, |(_, bytes)| *bytes)
}

#[test]
fn a_prompt_without_loaders_asks_nobody() {
    let place = place();
    let prompt = map! {"1" => node("EmptyImage", map! {"width" => 64})};
    let room = ModelRegistry::new(Settings::default(), Vec::new());
    assert_eq!(
        assess(&prompt, &place.folders, &room),
        Assessment::default()
    );
}

#[test]
fn what_fits_is_named_with_its_bytes() {
    let place = place();
    let found = assess(&picture(64), &place.folders, &room(300, 256 * MIB));
    assert_eq!(found.verdict, Verdict::Fits);
    assert_eq!(parts(&found), ["diffusion", "clip", "vae"]);
    let unet = &found.models[0];
    assert_eq!(
        (unet.bytes, &*unet.what, &*unet.compute),
        (UNET, "SD1.x", "sim:300")
    );
    assert_eq!(unet.places, [("sim:300".to_owned(), UNET)]);
    assert!(unet.files[0].ends_with("checkpoints/whole.safetensors"));
    // The network's own measure: 64 cells of 32 channels, held 32 times in numbers of four bytes.
    assert_eq!(unet.minimum, 65 * 32 * 32 * 4);
    assert_eq!(unet.required, 2 * unet.minimum);
    let names: Vec<&str> = found.devices.iter().map(|d| &*d.device).collect();
    assert_eq!(names, ["cpu", "sim:300"]);
    assert_eq!(found.devices[1].total, 256 * MIB);
    assert!(found.devices[1].wanted >= UNET);
}

#[test]
fn what_is_too_large_streams_and_says_how_much() {
    let place = place();
    let found = assess(
        &unet("UNETLoader", map! {}),
        &place.folders,
        &room(301, 8 * MIB),
    );
    let Verdict::Streams(text) = &found.verdict else {
        panic!("{:?}", found.verdict);
    };
    let model = &found.models[0];
    let resident = on(model, "sim:301");
    assert!(resident > 0 && resident < 8 * MIB, "{resident}");
    assert_eq!(on(model, "cpu"), UNET - resident);
    for part in ["SD1.x", "12 MiB", "sim:301", "8 MiB"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

/// On a device that cannot hold the largest layer, and at a size that it cannot compute.
#[test]
fn what_cannot_run_is_refused_with_numbers() {
    let place = place();
    let found = assess(&picture(64), &place.folders, &room(302, 100 << 10));
    let Verdict::Refused(text) = &found.verdict else {
        panic!("{:?}", found.verdict);
    };
    assert_eq!(found.blamed.as_deref(), Some("1"));
    for part in ["sim:302", "100 KiB", "largest layer", "cpu"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let small = room(303, 16 * MIB);
    assert!(!matches!(
        assess(&picture(64), &place.folders, &small).verdict,
        Verdict::Refused(_)
    ));
    let found = assess(&picture(4096), &place.folders, &small);
    let Verdict::Refused(text) = &found.verdict else {
        panic!("{:?}", found.verdict);
    };
    assert!(text.contains("a smaller picture"), "{text}");
}

#[test]
fn main_memory_always_computes() {
    let place = place();
    let prompt = unet("UNETLoaderMultiGPU", map! {"device" => "cpu"});
    let found = assess(&prompt, &place.folders, &room(304, 100 << 10));
    assert_eq!(found.verdict, Verdict::Fits);
    assert_eq!(found.models[0].places, [("cpu".to_owned(), UNET)]);
}

#[test]
fn a_file_that_is_not_there_is_left_to_its_loader() {
    let place = place();
    let prompt = map! {"1" => node("UNETLoader", map! {"unet_name" => "gone.safetensors"})};
    let room = room(305, MIB);
    let found = assess(&prompt, &place.folders, &room);
    assert_eq!(found.verdict, Verdict::Fits);
    assert!(matches!(&found.models[0].outcome, Outcome::Unknown(why) if why.contains("gone")));
    // What lies outside the model folders is not looked at, whoever names it.
    let outside = place.base.path().join("models/unet/net.safetensors");
    let outside = outside.to_string_lossy().into_owned();
    let prompt = map! {"1" => node("VAELoader", map! {"vae_name" => outside})};
    let found = assess(&prompt, &place.folders, &room);
    let why = &found.models[0].outcome;
    assert!(
        matches!(why, Outcome::Unknown(why) if why.contains("in the folder vae")),
        "{why:?}"
    );
    // So is one that comes over a link, and one that is something else.
    let linked = map! {"1" => node("UNETLoader", map! {"unet_name" => link("2", 0)})};
    assert_eq!(assess(&linked, &place.folders, &room).models, []);
    std::fs::write(place.base.path().join("models/unet/bad.safetensors"), "bad").unwrap();
    let bad = map! {"1" => node("UNETLoader", map! {"unet_name" => "bad.safetensors"})};
    assert_eq!(assess(&bad, &place.folders, &room).verdict, Verdict::Fits);
}

#[test]
fn placements_are_shown_as_they_will_be() {
    let place = place();
    let room = room(306, 64 * MIB);
    let more = map! {"compute_device" => "sim:306", "expert_mode_allocations" => "sim:306,25%;cpu,75%", "retention" => "keep"};
    let found = assess(
        &unet("UNETLoaderDisTorch2MultiGPU", more),
        &place.folders,
        &room,
    );
    assert_eq!(found.verdict, Verdict::Fits);
    let model = &found.models[0];
    assert_eq!(
        (&model.outcome, model.policy),
        (&Outcome::Placed, Policy::Keep)
    );
    let (here, there) = (on(model, "sim:306"), on(model, "cpu"));
    assert_eq!(here + there, UNET);
    let layers: usize = model.shards.iter().map(|shard| shard.layers).sum();
    assert_eq!((model.shards.len(), layers), (2, model.layers));
    assert!(here * 3 < there * 2, "{here} {there}");
    // More than the model has: all of it but the small layers waits elsewhere.
    let all = map! {"compute_device" => "sim:306", "virtual_vram_gb" => 99};
    let found = assess(
        &unet("UNETLoaderDisTorch2MultiGPU", all),
        &place.folders,
        &room,
    );
    assert!(on(&found.models[0], "sim:306") < UNET / 10);
    // Nothing to spread: an ordinary model.
    let none = map! {"compute_device" => "sim:306", "virtual_vram_gb" => 0};
    let found = assess(
        &unet("UNETLoaderDisTorch2MultiGPU", none),
        &place.folders,
        &room,
    );
    assert_eq!(
        (&found.models[0].placement, on(&found.models[0], "sim:306")),
        (&None, UNET)
    );
    // More on the device than it has.
    let over = map! {"compute_device" => "sim:306", "expert_mode_allocations" => "sim:306,*"};
    let tight = super::tests::room(307, 12 * MIB);
    let over_there = map! {"compute_device" => "sim:307", "expert_mode_allocations" => "sim:307,*"};
    assert_eq!(
        assess(
            &unet("UNETLoaderDisTorch2MultiGPU", over),
            &place.folders,
            &room
        )
        .verdict,
        Verdict::Fits
    );
    let found = assess(
        &unet("UNETLoaderDisTorch2MultiGPU", over_there),
        &place.folders,
        &tight,
    );
    assert!(matches!(&found.verdict, Verdict::Streams(text) if text.contains("as it is placed")));
}

#[test]
fn every_kind_of_loader_is_known() {
    let place = place();
    let models = place.base.path().join("models");
    write(&models.join("vae/v.safetensors"), &keys("vae_kl_small"));
    write(
        &models.join("text_encoders/t.safetensors"),
        &keys("clip_l_small"),
    );
    write(
        &models.join("controlnet/c.safetensors"),
        &keys("controlnet_small"),
    );
    let folder = models.join("diffusers/d");
    write(
        &folder.join("vae/diffusion_pytorch_model.safetensors"),
        &keys("vae_kl_small"),
    );
    write(
        &folder.join("text_encoder/model.safetensors"),
        &keys("clip_l_small"),
    );
    write(
        &folder.join("unet/diffusion_pytorch_model.safetensors"),
        &keys("unet_sd1_small"),
    );
    std::fs::write(folder.join("model_index.json"), "{}").unwrap();
    let room = room(308, 256 * MIB);
    let one = |class: &str, inputs: Map| {
        let prompt = map! {"1" => node(class, inputs)};
        let found = assess(&prompt, &place.folders, &room);
        assert_eq!(found.verdict, Verdict::Fits, "{class}");
        let text = |m: &ModelPlan| {
            assert!(
                !matches!(m.outcome, Outcome::Unknown(_)),
                "{class}: {:?}",
                m.outcome
            );
            format!("{} {} {}", m.component, m.bytes, m.compute)
        };
        found.models.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    let checkpoint = map! {"ckpt_name" => "whole.safetensors"};
    let whole = one("CheckpointLoaderSimple", checkpoint.clone());
    assert_eq!(one("CheckpointLoader", checkpoint.clone()), whole);
    assert_eq!(
        one("CheckpointLoaderSimpleMultiGPU", checkpoint.clone()),
        whole
    );
    let mut advanced = checkpoint;
    for part in ["unet", "vae"] {
        advanced.insert(format!("{part}_device").into(), "sim:308".into());
    }
    advanced.insert("clip_device".into(), "cpu".into());
    let advanced = one("CheckpointLoaderAdvancedMultiGPU", advanced);
    assert!(advanced.contains(" cpu, vae "), "{advanced}");
    assert_eq!(
        one("VAELoader", map! {"vae_name" => "v.safetensors"}),
        "vae 10808348 sim:308"
    );
    assert_eq!(one("VAELoader", map! {"vae_name" => "pixel_space"}), "");
    let text =
        map! {"clip_name" => "t.safetensors", "type" => "stable_diffusion", "device" => "cpu"};
    assert!(one("CLIPLoader", text.clone()).starts_with("clip "));
    assert!(one("CLIPLoader", text.clone()).ends_with(" cpu"));
    assert!(one("CLIPLoaderGGUFDisTorchMultiGPU", text).ends_with(" cpu"));
    let control = map! {"control_net_name" => "c.safetensors"};
    assert!(one("ControlNetLoaderDisTorch2MultiGPU", control).starts_with("control "));
    assert!(one("UNetLoaderLP", map! {"unet_name" => "net.safetensors"}).starts_with("diffusion "));
    let halved = map! {"unet_name" => "net.safetensors", "weight_dtype" => "fp8_e4m3fn"};
    let halved = one("UNETLoader", halved);
    assert!(!halved.contains(&UNET.to_string()), "{halved}");
    let diffusers = one("DiffusersLoader", map! {"model_path" => "d"});
    assert_eq!(diffusers.matches("sim:308").count(), 3, "{diffusers}");
}

/// Only what is still to be done counts.
#[test]
fn what_is_not_needed_is_not_counted() {
    let place = place();
    let room = room(309, 256 * MIB);
    let mut prompt = picture(64);
    prompt.insert(
        "9".into(),
        node("UNETLoader", map! {"unet_name" => "net.safetensors"}),
    );
    let count = |outputs: Option<&[&str]>, cached: &[&str]| {
        let owned = |list: &[&str]| {
            list.iter()
                .map(|id| Arc::from(*id))
                .collect::<Vec<Arc<str>>>()
        };
        let (outputs, cached) = (outputs.map(owned), owned(cached));
        let asked = AdmissionQuery {
            prompt: &prompt,
            outputs: outputs.as_deref(),
            cached: &cached,
        };
        assess_run(&asked, &place.folders, &room).models.len()
    };
    assert_eq!(count(None, &[]), 4);
    assert_eq!(count(Some(&["6"]), &[]), 3);
    assert_eq!(count(Some(&["6"]), &["1", "2", "3"]), 3);
    assert_eq!(count(Some(&["6"]), &["1", "2", "3", "4", "5", "6"]), 0);
    assert_eq!(count(Some(&["gone"]), &[]), 0);
}

#[test]
fn a_file_that_changed_is_read_again() {
    let place = place();
    let room = room(310, 256 * MIB);
    let bytes = || {
        let found = assess(&unet("UNETLoader", map! {}), &place.folders, &room);
        found.models[0].bytes
    };
    assert_eq!((bytes(), bytes()), (UNET, UNET));
    let mut keys = keys("unet_sd1_small");
    keys.extend([("out.9.weight".to_owned(), vec![1024u64])]);
    write(
        &place.base.path().join("models/unet/net.safetensors"),
        &keys,
    );
    assert_eq!(bytes(), UNET + 4096);
}

/// Two models that are to be in main memory at once, and a machine that has room for one of them.
#[test]
fn main_memory_has_an_end() {
    let place = place();
    let room = room(312, 256 * MIB);
    let probes = Probes {
        host: Arc::new(|| {
            Some(HostMemory {
                total: 20 * MIB,
                available: 20 * MIB,
            })
        }),
        ..Probes::default()
    };
    room.set_probes(probes);
    let other = place.base.path().join("models/unet/other.safetensors");
    write(&other, &keys("unet_sd1_small"));
    let cpu = |name: &str| {
        let inputs = map! {"unet_name" => name, "weight_dtype" => "default", "device" => "cpu"};
        node("UNETLoaderMultiGPU", inputs)
    };
    let one = map! {"1" => cpu("net.safetensors")};
    assert_eq!(assess(&one, &place.folders, &room).verdict, Verdict::Fits);
    let two = map! {"1" => cpu("net.safetensors"), "2" => cpu("other.safetensors")};
    let found = assess(&two, &place.folders, &room);
    let Verdict::Refused(text) = &found.verdict else {
        panic!("{:?}", found.verdict);
    };
    for part in ["host_memory", "24.1 MiB", "19 MiB of 20 MiB"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(found.blamed.is_some());
}

/// The same weights from two nodes are there once.
#[test]
fn equal_weights_count_once_in_main_memory() {
    let place = place();
    let room = room(311, 256 * MIB);
    let cpu = || {
        node(
            "UNETLoaderMultiGPU",
            map! {"unet_name" => "net.safetensors", "weight_dtype" => "default", "device" => "cpu"},
        )
    };
    let found = assess(&map! {"1" => cpu(), "2" => cpu()}, &place.folders, &room);
    assert_eq!(found.models.len(), 2);
    assert_eq!(found.devices[0].wanted, UNET);
}
