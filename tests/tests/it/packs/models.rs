//! Models of the program in the hands of packs: what they do with them gives what native nodes give.

use fresco_tests::tiny::Tiny;

use super::contract::picture_of;
use super::*;

fn rig() -> Option<Rig> {
    let python = python()?;
    if !has_module(&python, "numpy") {
        return None;
    }
    let base = base_with(&["models", "plain"]);
    Tiny::default()
        .write(base.path(), "tiny.safetensors")
        .unwrap();
    let rig = Rig::starting(base, &["--cpu"])?;
    rig.server.get("/extensions").expect_status(200);
    Some(rig)
}

/// Loader, prompts and latent, as 1 to 4.
fn start() -> Value {
    json!({
        "1": node("CheckpointLoaderSimple", json!({"ckpt_name": "tiny.safetensors"})),
        "2": node("CLIPTextEncode", json!({"clip": ["1", 1], "text": "a (red:1.5) house"})),
        "3": node("CLIPTextEncode", json!({"clip": ["1", 1], "text": ""})),
        "4": node("EmptyLatentImage", json!({"width": 64, "height": 64, "batch_size": 1}))})
}

fn sampled(model: Value) -> Value {
    node(
        "KSampler",
        json!({"model": model, "seed": 5, "steps": 2, "cfg": 3.0, "sampler_name": "euler", "scheduler": "normal",
            "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0], "denoise": 1.0}),
    )
}

impl Rig {
    /// The pixels that a prompt's picture has; `image` gives it.
    #[track_caller]
    fn pixels(&self, mut prompt: Value, image: Value) -> Vec<u8> {
        prompt["9"] = node("PreviewImage", json!({"images": image}));
        let shown = self.shown(&prompt);
        let name = shown["images"][0]["filename"].as_str().unwrap();
        let answer = self.server.get(&format!("/view?type=temp&filename={name}"));
        picture_of(&answer.body)
    }

    /// The native picture of a model.
    #[track_caller]
    fn native(&self, mut prompt: Value, model: Value) -> Vec<u8> {
        prompt["5"] = sampled(model);
        prompt["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
        self.pixels(prompt, json!(["6", 0]))
    }
}

#[track_caller]
fn same(a: &[u8], b: &[u8]) {
    assert_eq!(a.len(), b.len());
    let most = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(most <= 1, "they differ by {most}");
}

#[test]
fn a_picture_through_the_objects_of_the_host() {
    let Some(rig) = rig() else { return };
    let native = rig.native(start(), json!(["1", 0]));
    for how in ["ksampler", "custom", "sample"] {
        let mut prompt = start();
        prompt["5"] = node(
            "ModelsPicture",
            json!({"model": ["1", 0], "clip": ["1", 1], "vae": ["1", 2], "latent": ["4", 0], "how": how}),
        );
        prompt["8"] = show(json!(["5", 1]));
        same(&rig.pixels(prompt.clone(), json!(["5", 0])), &native);
        let told = rig.run(&prompt)["outputs"]["8"]["text"][0].clone();
        let told = told.as_str().unwrap();
        assert!(
            told.contains("{'l': [77]}") && told.contains("[1.0, 1.5]"),
            "{told}"
        );
        assert!(
            told.contains("'BaseModel', 4, 4, 8, 1.0, False, True"),
            "{told}"
        );
        if how == "custom" {
            assert!(
                told.contains("[0, 2, [1, 4, 8, 8]], [1, 2, [1, 4, 8, 8]]"),
                "{told}"
            );
        }
    }
}

#[test]
fn weights_that_packs_change() {
    let Some(rig) = rig() else { return };
    let plain = rig.native(start(), json!(["1", 0]));
    let mut prompt = start();
    prompt["7"] = node(
        "ModelsLora",
        json!({"model": ["1", 0], "clip": ["1", 1], "how": "tensors"}),
    );
    let changed = rig.native(prompt.clone(), json!(["7", 0]));
    assert_ne!(changed, plain);
    prompt["9"] = show(json!(["7", 2]));
    assert_eq!(
        text_of(&rig.shown(&prompt)),
        "['diffusion_model.out.2.weight']"
    );
    // The model without the change is as it was.
    same(&rig.native(start(), json!(["1", 0])), &plain);
}

#[test]
fn a_lora_file_by_the_hosts_function() {
    let Some(rig) = rig() else { return };
    let file = rig.base.path().join("models/loras/small.safetensors");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let keys = fresco_tests::memory::lora(&Tiny::default(), "diffusion_model.", "attn");
    fresco_tests::tiny::write(&file, &keys).unwrap();
    let mut prompt = start();
    prompt["7"] = node(
        "ModelsLora",
        json!({"model": ["1", 0], "clip": ["1", 1], "how": "file"}),
    );
    let python = rig.native(prompt.clone(), json!(["7", 0]));
    prompt["7"] = node(
        "LoraLoader",
        json!({"model": ["1", 0], "clip": ["1", 1], "lora_name": "small.safetensors", "strength_model": 0.8, "strength_clip": 0.8}),
    );
    same(&python, &rig.native(prompt, json!(["7", 0])));
    assert_ne!(python, rig.native(start(), json!(["1", 0])));
}

#[test]
fn an_upscale_model_from_the_content_of_its_file() {
    let Some(rig) = rig() else { return };
    let python = python().unwrap();
    // With spandrel the model is spandrel's, which rounds in its own way.
    if !has_module(&python, "torch") || has_module(&python, "spandrel") {
        return;
    }
    let name = "realesrgan_x4.safetensors";
    let models = rig.base.path().join("models");
    fresco_tests::templates::files::write(&models, "upscale_models", name)
        .unwrap()
        .unwrap();
    let pictured = |larger: Value| {
        let mut prompt = start();
        prompt["5"] = sampled(json!(["1", 0]));
        prompt["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
        prompt["7"] = node("UpscaleModelLoader", json!({"model_name": name}));
        prompt["8"] = larger;
        rig.pixels(prompt, json!(["8", 0]))
    };
    let native = pictured(node(
        "ImageUpscaleWithModel",
        json!({"upscale_model": ["7", 0], "image": ["6", 0]}),
    ));
    let python = pictured(node(
        "ModelsUpscale",
        json!({"image": ["6", 0], "name": name}),
    ));
    same(&python, &native);
}

#[test]
fn steps_of_noise_of_another_shape() {
    let Some(rig) = rig() else { return };
    let levels = |shape: &str, first: f64, last: f64| {
        let mut prompt = start();
        let given = json!({"model": ["1", 0], "shape": shape, "first": first, "last": last});
        prompt["7"] = node("ModelsEven", given);
        prompt["9"] = node("ModelsLevels", json!({"model": ["7", 0]}));
        rig.shown(&prompt)["levels"].clone()
    };
    // What is left of the picture after all steps, as the product of what each leaves.
    let last_level = |beta: &dyn Fn(f64) -> f64| {
        let left: f64 = (0..1000)
            .map(|i| 1.0 - beta(f64::from(i) / 999.0))
            .product();
        ((1.0 - left) / left).sqrt()
    };
    let cases: [(&str, f64, f64); 3] = [
        ("linear", 0.00085, 0.012),
        ("linear", 0.00085, 0.018),
        ("sqrt_linear", 0.0001, 0.02),
    ];
    for (shape, first, last) in cases {
        let power = if shape == "linear" { 2.0 } else { 1.0 };
        let (a, b) = (first.powf(1.0 / power), last.powf(1.0 / power));
        let wanted = last_level(&|part| (a + (b - a) * part).powf(power));
        let found = levels(shape, first, last)[2].as_f64().unwrap();
        assert!(
            (found / wanted - 1.0).abs() < 1e-4,
            "{shape} {last}: {found} {wanted}"
        );
    }
}

#[test]
fn hooks_that_packs_make_are_those_of_nodes() {
    let Some(rig) = rig() else { return };
    if !has_module(&python().unwrap(), "torch") {
        return;
    }
    let file = rig.base.path().join("models/loras/small.safetensors");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let keys = fresco_tests::memory::lora(&Tiny::default(), "diffusion_model.", "attn");
    fresco_tests::tiny::write(&file, &keys).unwrap();
    let pictured = |cond: Value| {
        let mut prompt = start();
        prompt["10"] = node(
            "ModelsHooks",
            json!({"model": ["1", 0], "clip": ["1", 1], "cond": ["2", 0]}),
        );
        let lora =
            json!({"lora_name": "small.safetensors", "strength_model": 0.8, "strength_clip": 0.0});
        prompt["11"] = node("CreateHookLora", lora);
        prompt["12"] = node(
            "CreateHookKeyframe",
            json!({"strength_mult": 0.5, "start_percent": 0.0}),
        );
        prompt["13"] = node(
            "CreateHookKeyframe",
            json!({"strength_mult": 1.0, "start_percent": 0.5, "prev_hook_kf": ["12", 0]}),
        );
        prompt["14"] = node(
            "SetHookKeyframes",
            json!({"hooks": ["11", 0], "hook_kf": ["13", 0]}),
        );
        let hooked = |hooks: Value| json!({"cond_NEW": ["2", 0], "strength": 1.0, "set_cond_area": "default", "hooks": hooks});
        prompt["15"] = node("ConditioningSetProperties", hooked(json!(["14", 0])));
        prompt["16"] = node("ConditioningSetProperties", hooked(json!(["10", 1])));
        // Hooks of a node beside those of the pack.
        let other =
            json!({"lora_name": "small.safetensors", "strength_model": 3.0, "strength_clip": 0.0});
        prompt["20"] = node("CreateHookLora", other);
        prompt["17"] = node(
            "CombineHooks2",
            json!({"hooks_A": ["14", 0], "hooks_B": ["20", 0]}),
        );
        prompt["18"] = node("ConditioningSetProperties", hooked(json!(["17", 0])));
        prompt["19"] = node(
            "ModelsHooks",
            json!({"model": ["1", 0], "clip": ["1", 1], "cond": ["2", 0], "more": ["20", 0]}),
        );
        let mut sampler = sampled(json!(["1", 0]));
        sampler["inputs"]["positive"] = cond;
        prompt["5"] = sampler;
        prompt["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
        rig.pixels(prompt, json!(["6", 0]))
    };
    let native = pictured(json!(["15", 0]));
    assert_ne!(native, pictured(json!(["2", 0])));
    same(&pictured(json!(["10", 0])), &native);
    same(&pictured(json!(["16", 0])), &native);
    let both = pictured(json!(["18", 0]));
    assert_ne!(both, native);
    same(&pictured(json!(["19", 0])), &both);
}

#[test]
fn samplers_of_the_host_around_a_function_of_a_pack() {
    let Some(rig) = rig() else { return };
    if !has_module(&python().unwrap(), "torch") {
        return;
    }
    let pictured = |sampler: Value| {
        let mut prompt = start();
        prompt["10"] = sampler;
        prompt["13"] = node("RandomNoise", json!({"noise_seed": 5}));
        prompt["14"] = node(
            "CFGGuider",
            json!({"model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "cfg": 3.0}),
        );
        prompt["15"] = node(
            "BasicScheduler",
            json!({"model": ["1", 0], "scheduler": "normal", "steps": 3, "denoise": 1.0}),
        );
        prompt["5"] = node(
            "SamplerCustomAdvanced",
            json!({"noise": ["13", 0], "guider": ["14", 0], "sampler": ["10", 0], "sigmas": ["15", 0], "latent_image": ["4", 0]}),
        );
        prompt["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
        rig.pixels(prompt, json!(["6", 0]))
    };
    let host = |name: &str, how: &str| {
        pictured(node("ModelsHostSampler", json!({"name": name, "how": how})))
    };
    for (name, options) in [
        ("dpmpp_2m_sde", true),
        ("euler_ancestral", true),
        ("res_multistep", false),
    ] {
        let native = pictured(node("KSamplerSelect", json!({"sampler_name": name})));
        same(&host(name, "itself"), &native);
        same(&host(name, "inside"), &native);
        if options {
            same(&host(name, "options"), &native);
        }
    }
    // What needs the negative prediction runs in Fresco, by its name.
    let native = pictured(node(
        "KSamplerSelect",
        json!({"sampler_name": "euler_cfg_pp"}),
    ));
    same(&host("euler_cfg_pp", "itself"), &native);
}

#[test]
fn a_model_as_a_literal_of_an_expansion() {
    let Some(rig) = rig() else { return };
    let native = rig.native(start(), json!(["1", 0]));
    let mut prompt = start();
    prompt["7"] = node("ModelsExpand", json!({"model": ["1", 0]}));
    same(&rig.native(prompt, json!(["7", 0])), &native);
}

#[test]
fn guidance_samplers_and_noise_in_python() {
    let Some(rig) = rig() else { return };
    let native = rig.native(start(), json!(["1", 0]));
    let guided = |how: &str| {
        let mut prompt = start();
        prompt["7"] = node("ModelsGuidance", json!({"model": ["1", 0], "how": how}));
        prompt
    };
    same(&rig.native(guided("cfg"), json!(["7", 0])), &native);
    same(&rig.native(guided("pre"), json!(["7", 0])), &native);
    assert_ne!(rig.native(guided("post"), json!(["7", 0])), native);
    assert_ne!(rig.native(guided("sampling"), json!(["7", 0])), native);
    // What is inside of the network is refused where it leaves the pack, by name.
    let mut inside = guided("inside");
    inside["5"] = sampled(json!(["7", 0]));
    inside["9"] = node("PreviewImage", json!({"images": ["6", 0]}));
    inside["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
    let error = rig.error(&inside);
    assert_eq!(error["node_type"], "ModelsGuidance", "{error}");
    let text = error["exception_message"].as_str().unwrap();
    assert!(
        text.contains("set_model_attn2_patch") && text.contains("L3b"),
        "{text}"
    );
    // An error of a function is the sampler's, with Python's words.
    inside["7"] = node("ModelsGuidance", json!({"model": ["1", 0], "how": "fails"}));
    let error = rig.error(&inside);
    assert_eq!(error["node_type"], "KSampler", "{error}");
    assert!(
        error["exception_message"]
            .as_str()
            .unwrap()
            .contains("ValueError: this guidance fails")
    );
    // A sampler whose loop is Python's.
    let custom = |sampler: Value, noise: Value, guider: Value| {
        let mut prompt = start();
        prompt["10"] = node("ModelsSampler", json!({}));
        prompt["11"] = node("KSamplerSelect", json!({"sampler_name": "euler"}));
        prompt["12"] = node(
            "ModelsParts",
            json!({"model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0]}),
        );
        prompt["13"] = node("RandomNoise", json!({"noise_seed": 5}));
        prompt["14"] = node(
            "CFGGuider",
            json!({"model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "cfg": 3.0}),
        );
        prompt["15"] = node(
            "BasicScheduler",
            json!({"model": ["1", 0], "scheduler": "normal", "steps": 2, "denoise": 1.0}),
        );
        prompt["5"] = node(
            "SamplerCustomAdvanced",
            json!({"noise": noise, "guider": guider, "sampler": sampler, "sigmas": ["15", 0], "latent_image": ["4", 0]}),
        );
        prompt["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
        rig.pixels(prompt, json!(["6", 0]))
    };
    let (noise, guider) = (json!(["13", 0]), json!(["14", 0]));
    let usual = custom(json!(["11", 0]), noise.clone(), guider.clone());
    same(&usual, &native);
    same(
        &custom(json!(["10", 0]), noise.clone(), guider.clone()),
        &usual,
    );
    same(&custom(json!(["11", 0]), noise, json!(["12", 1])), &usual);
    assert_ne!(custom(json!(["11", 0]), json!(["12", 0]), guider), usual);
}

/// A picture by a guider of the pack.
fn guided(guider: &str, how: &str, sampler: &str, scheduler: &str) -> Value {
    let mut prompt = start();
    prompt["10"] = node("KSamplerSelect", json!({"sampler_name": sampler}));
    prompt["12"] = node(
        guider,
        json!({"model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "how": how}),
    );
    prompt["13"] = node("RandomNoise", json!({"noise_seed": 5}));
    prompt["15"] = node(
        "BasicScheduler",
        json!({"model": ["1", 0], "scheduler": scheduler, "steps": 2, "denoise": 1.0}),
    );
    prompt["5"] = node(
        "SamplerCustomAdvanced",
        json!({"noise": ["13", 0], "guider": ["12", 0], "sampler": ["10", 0], "sigmas": ["15", 0], "latent_image": ["4", 0]}),
    );
    prompt["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
    prompt
}

#[test]
fn a_guider_of_a_packs_own_predicts() {
    let Some(rig) = rig() else { return };
    let native = rig.native(start(), json!(["1", 0]));
    let prompt = |how: &str| {
        guided(
            "ModelsOwnGuider",
            how,
            "euler_of_a_pack",
            "levels_of_a_pack",
        )
    };
    for how in ["batch", "super"] {
        same(&rig.pixels(prompt(how), json!(["6", 0])), &native);
    }
    let mut fails = prompt("fails");
    fails["9"] = node("PreviewImage", json!({"images": ["6", 0]}));
    let error = rig.error(&fails);
    assert_eq!(error["node_type"], "SamplerCustomAdvanced");
    let text = error["exception_message"].as_str().unwrap();
    assert!(text.contains("ValueError: this guider fails"), "{text}");
}

#[test]
fn a_guider_with_a_loop_of_its_own_samples() {
    let Some(rig) = rig() else { return };
    let native = rig.native(start(), json!(["1", 0]));
    let prompt = |how: &str| guided("ModelsLoopingGuider", how, "euler", "normal");
    for how in ["super", "sampler", "twice"] {
        same(&rig.pixels(prompt(how), json!(["6", 0])), &native);
    }
    for (how, kind, part) in [
        ("fails", "ValueError", "this loop fails"),
        ("shape", "ValueError", "instead of [1, 4, 8, 8]"),
        ("nothing", "TypeError", "gave no tensor"),
    ] {
        let mut fails = prompt(how);
        fails["9"] = node("PreviewImage", json!({"images": ["6", 0]}));
        let error = rig.error(&fails);
        assert_eq!(error["node_type"], "SamplerCustomAdvanced");
        let text = error["exception_message"].as_str().unwrap();
        assert!(text.contains(part), "{text}");
        assert_eq!(error["exception_type"], kind);
    }
}

#[test]
fn samplers_and_schedules_that_packs_add_join_the_lists() {
    let Some(rig) = rig() else { return };
    let info = rig.server.get("/object_info").json();
    let has = |list: &Value, name: &str| list.as_array().unwrap().contains(&json!(name));
    for class in ["KSampler", "KSamplerAdvanced"] {
        let required = &info[class]["input"]["required"];
        assert!(has(&required["sampler_name"][0], "euler_of_a_pack"));
        assert!(has(&required["scheduler"][0], "levels_of_a_pack"));
    }
    let select = &info["KSamplerSelect"]["input"]["required"]["sampler_name"];
    assert!(select.to_string().contains("euler_of_a_pack"), "{select}");
    let basic = &info["BasicScheduler"]["input"]["required"]["scheduler"];
    assert!(basic.to_string().contains("levels_of_a_pack"), "{basic}");
    let native = rig.native(start(), json!(["1", 0]));
    let picture = |sampler: &str, scheduler: &str, denoise: f64| {
        let mut prompt = start();
        prompt["5"] = sampled(json!(["1", 0]));
        prompt["5"]["inputs"]["sampler_name"] = json!(sampler);
        prompt["5"]["inputs"]["scheduler"] = json!(scheduler);
        prompt["5"]["inputs"]["denoise"] = json!(denoise);
        prompt["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
        rig.pixels(prompt, json!(["6", 0]))
    };
    same(&picture("euler_of_a_pack", "normal", 1.0), &native);
    same(&picture("euler", "levels_of_a_pack", 1.0), &native);
    same(
        &picture("euler_of_a_pack", "levels_of_a_pack", 1.0),
        &native,
    );
    // Less noise, and a sampler that leaves a level out.
    for (sampler, denoise) in [("euler", 0.5), ("dpm_2", 1.0)] {
        same(
            &picture(sampler, "levels_of_a_pack", denoise),
            &picture(sampler, "normal", denoise),
        );
    }
}

#[test]
fn a_function_that_never_ends_is_interrupted() {
    let Some(rig) = rig() else { return };
    let mut prompt = start();
    prompt["7"] = node("ModelsGuidance", json!({"model": ["1", 0], "how": "loops"}));
    prompt["5"] = sampled(json!(["7", 0]));
    prompt["6"] = node("VAEDecode", json!({"samples": ["5", 0], "vae": ["1", 2]}));
    prompt["9"] = node("PreviewImage", json!({"images": ["6", 0]}));
    let mut socket = rig.server.socket("watcher");
    let id = rig.server.queue(&prompt, Some("watcher"));
    socket.until(|m| m["type"] == "executing" && m["data"]["node"] == "5");
    std::thread::park_timeout(Duration::from_millis(400));
    let began = Instant::now();
    rig.server.post("/interrupt", &json!({})).expect_status(200);
    let entry = rig.server.wait_for(&id);
    assert!(
        entry.to_string().contains("execution_interrupted"),
        "{entry}"
    );
    // It would not end by itself.
    eprintln!("interrupted in {:?}", began.elapsed());
    rig.native(start(), json!(["1", 0]));
}
