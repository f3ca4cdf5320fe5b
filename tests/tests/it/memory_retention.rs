//! Which models stay and which go: the acceptance cases of the memory specification, section 5.8.
//!
//! U removes noise, C reads text, V decodes. The cases that need two prompts at once, a panic or a failure inside of the
//! program are shown where that can be arranged: in `crates/memory/tests/registry`, called registry here.
//!
//! | case | test |
//! |---|---|
//! | R-1, R-34 | `r01_r34_eject_one_keep_two`, `r01_ejected_bytes_go_back_to_the_system` |
//! | R-2, R-29 | `r02_r29_eject_all_then_run_from_the_cache` |
//! | R-3 | `r03_keep_all` |
//! | R-4 | `r04_a_plain_loader_says_nothing` |
//! | R-5 | `r05_the_same_again_with_another_seed` |
//! | R-6 | `r06_twenty_times` |
//! | R-7 | `r07_keep_beats_eject` |
//! | R-8 | `r08_two_variants_are_released_once` |
//! | R-9 | `r09_a_variant_inherits` |
//! | R-10 | `r10_another_policy_of_the_same_node` |
//! | R-11 | `r11_kept_without_its_workflow` |
//! | R-12, R-13 | registry: `retention::r12_r13_two_prompts_share_a_model` |
//! | R-14 | `r14_queued_prompts_hold_nothing` |
//! | R-15 | `r15_after_an_error` |
//! | R-16 | `r16_after_an_interrupt` |
//! | R-17 | `r17_out_of_memory_while_computing` |
//! | R-18 | `r18_out_of_memory_while_loading` |
//! | R-19 | registry: `retention::r15_r16_r19_the_end_of_a_prompt_is_the_same_however_it_comes`; that a panic ends the prompt |
//! | | and nothing else: `crates/engine/tests/acceptance`: `execution::a_panic_or_lack_of_memory_ends_that_prompt_only` |
//! | R-20 | `r20_a_reset_cache_that_respects_keep` |
//! | R-21, R-22 | `r21_r22_free_overrides_keep` |
//! | R-23 | `r23_a_pin_stays_unless_forced` |
//! | R-24 | `r24_force_does_not_wait_for_what_is_not_used` |
//! | R-25 | `r25_eject_makes_room` |
//! | R-26, R-27 | `r26_r27_eject_is_what_the_input_says` |
//! | R-28 | `r28_eject_on_one_device` |
//! | R-30 | `r30_a_part_of_the_workflow` |
//! | R-31 | registry: `retention::r31_a_release_that_fails_is_tried_again` |
//! | R-32 | `r32_a_new_start_knows_nothing` |
//! | R-33 | `r33_terminated_while_running`; there is no pinned memory yet |
//! | R-35 | `r35_a_replaced_file` |
//! | R-36 | `r36_emptying_caches_changes_nothing` |
//! | R-37 | `r37_free_at_the_end_of_a_prompt` |
//! | R-38 | `r38_idle_models_leave` |
//! | R-39 | `r39_unload_inside_a_node` |
//! | R-40 | `r40_eject_beats_a_plain_loader` |

use std::{collections::BTreeMap, fs, thread};

use fresco_tests::{
    Frame,
    memory::{Flow, MIB, Room, base, decisions, id, kind, number, of, on, released, seq, text},
    workflow,
};
use serde_json::{Value, json};

/// The three parts as they stand on the first device: bytes there and policy, by component.
#[track_caller]
fn residents(room: &Room) -> BTreeMap<String, (u64, String)> {
    let entry = |m: &Value| {
        let policy = text(m, "effective_policy").to_owned();
        (text(m, "component").to_owned(), (on(m, "sim:0"), policy))
    };
    room.models().iter().map(entry).collect()
}

/// Everything the registry says, without times.
fn timeless(room: &Room) -> Vec<Value> {
    let mut models = room.models();
    for model in &mut models {
        model["last_used"] = Value::Null;
    }
    models
}

/// The first scenario of the users' notes, and that every event names each model by the same text.
#[test]
fn r01_r34_eject_one_keep_two() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "keep", "keep");
    let run = room.ok(&flow.prompt());
    assert_eq!(room.components(), ["clip", "vae"]);
    let events = room.events(0);
    for component in ["clip", "vae"] {
        let model = room.model(component);
        assert_eq!(
            on(&model, "sim:0"),
            number(&model, "bytes_total"),
            "{model}"
        );
        assert_eq!(model["effective_policy"], "keep");
        assert_eq!(model["state"], "resident");
        let weights = id(&model);
        for kind in ["model.evicted", "model.shrunk", "model.released"] {
            assert!(
                of(&events, kind, weights).is_empty(),
                "{kind} of {component}"
            );
        }
        assert_eq!(decisions(&events, weights), ["keep"], "{component}");
        //
        assert_eq!(of(&events, "policy.set", weights).len(), 1, "{component}");
    }
    let released = kind(&events, "model.released");
    assert_eq!(released.len(), 1, "{released:?}");
    let unet = id(released[0]);
    assert_eq!(released[0]["prompt_id"], run.id);
    assert_eq!(decisions(&events, unet), ["release"]);
    assert_eq!(of(&events, "policy.set", unet).len(), 1);
    let started = kind(&events, "cleanup.started");
    assert_eq!(started.len(), 1, "once per prompt");
    assert_eq!(kind(&events, "cleanup.completed").len(), 1);
    assert!(kind(&events, "cache.reset").is_empty());
    assert!(kind(&events, "accounting.drift").is_empty());

    // The results of nodes are all there.
    let again = room.ok(&flow.prompt());
    assert_eq!(again.cached().len(), 9, "{:?}", again.cached());
    assert_eq!(room.components(), ["clip", "vae"], "nothing comes back");
    room.checked();
}

/// What is ejected leaves the main memory of the process too: at least 95 % of it.
#[test]
fn r01_ejected_bytes_go_back_to_the_system() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("keep", "keep", "keep");
    flow.u.file = "large";
    // Twice, so that what the program allocates once is allocated.
    room.ok(&flow.prompt());
    room.ok(&flow.clone().seed(2).prompt());
    let bytes = number(&room.model("diffusion"), "bytes_total");
    assert!(bytes > 100 * MIB, "{bytes}");
    let kept = room.resident_memory();
    flow.u.retention = Some("eject_after");
    room.ok(&flow.seed(3).prompt());
    assert_eq!(room.components(), ["clip", "vae"]);
    let ejected = room.resident_memory();
    let fallen = kept.saturating_sub(ejected);
    assert!(
        fallen * 100 >= bytes * 95,
        "{fallen} of {bytes} bytes came back"
    );
    room.checked();
}

#[test]
fn r02_r29_eject_all_then_run_from_the_cache() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "eject_after", "eject_after");
    room.ok(&flow.prompt());
    assert!(room.models().is_empty(), "{:?}", room.models());
    for device in ["sim:0", "sim:1"] {
        assert_eq!(room.device(device)["weights_resident"], 0);
    }
    // nothing is executed, nothing is planned, nothing comes back.
    let before = room.now();
    let again = room.ok(&flow.prompt());
    assert_eq!(again.cached().len(), 9, "{:?}", again.cached());
    let events = room.events(before);
    assert!(kind(&events, "plan.computed").is_empty(), "{events:?}");
    assert!(kind(&events, "model.loaded").is_empty(), "{events:?}");
    assert_eq!(kind(&events, "cleanup.completed").len(), 1);
    assert!(room.models().is_empty());
    // Words that are encoded stay encoded: only what the new seed needs is loaded.
    let before = room.now();
    let next = room.ok(&flow.seed(2).prompt());
    assert!(
        next.cached().iter().any(|n| n == "5"),
        "{:?}",
        next.cached()
    );
    assert!(room.models().is_empty());
    let loaded = room.events(before);
    let classes: Vec<_> = kind(&loaded, "model.loaded");
    assert_eq!(
        classes.len(),
        2,
        "the text encoder is not needed: {classes:?}"
    );
    room.checked();
}

#[test]
fn r03_keep_all() {
    let room = Room::roomy();
    room.ok(&Flow::retaining("keep", "keep", "keep").prompt());
    let models = residents(&room);
    assert_eq!(models.len(), 3);
    assert!(
        models
            .values()
            .all(|(bytes, policy)| *bytes > 0 && policy == "keep")
    );
    let events = room.events(0);
    for unload in ["model.evicted", "model.released", "model.shrunk"] {
        assert!(kind(&events, unload).is_empty(), "{unload}: {events:?}");
    }
    for event in kind(&events, "plan.computed") {
        assert_eq!(event["decision"], "keep", "{event}");
    }
    room.free(json!({"unload_models": true}));
    let models = room.models();
    assert_eq!(models.len(), 3);
    for model in &models {
        assert_eq!(on(model, "sim:0"), 0);
        assert_eq!(number(model, "host_bytes"), number(model, "bytes_total"));
    }
    room.checked();
}

#[test]
fn r04_a_plain_loader_says_nothing() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("eject_after", "keep", "auto");
    flow.v.plain = true;
    room.ok(&flow.prompt());
    let models = residents(&room);
    assert!(!models.contains_key("diffusion"));
    assert_eq!(models["clip"].1, "keep");
    assert_eq!(models["vae"].1, "auto");
    room.checked();
}

#[test]
fn r05_the_same_again_with_another_seed() {
    let room = Room::roomy();
    let all_kept = {
        let flow = Flow::retaining("keep", "keep", "keep");
        let room = Room::roomy();
        room.ok(&flow.prompt());
        let mut again = flow.seed(7);
        again.text = "two dogs";
        room.pixels(&again.prompt())
    };
    let mut flow = Flow::retaining("eject_after", "keep", "keep");
    room.ok(&flow.prompt());
    let (clip, vae) = (room.model("clip"), room.model("vae"));
    let before = room.now();
    // Other words too, so that all three are used.
    flow.text = "two dogs";
    let pixels = room.pixels(&flow.seed(7).prompt());
    assert_eq!(pixels, all_kept);
    let events = room.events(before);
    for (old, component) in [(clip, "clip"), (vae, "vae")] {
        let new = room.model(component);
        assert_eq!(id(&new), id(&old));
        assert_eq!(new["read_bytes"], old["read_bytes"], "{component}");
        for kind in ["model.registered", "model.loaded", "model.rehydrated"] {
            assert!(
                of(&events, kind, id(&old)).is_empty(),
                "{kind}: {events:#?}"
            );
        }
    }
    let back: Vec<_> = events
        .iter()
        .filter(|e| e["kind"] == "model.rehydrated" || e["kind"] == "model.registered")
        .collect();
    assert_eq!(back.len(), 1, "{back:?}");
    assert_eq!(kind(&events, "model.loaded").len(), 1);
    room.checked();
}

#[test]
fn r06_twenty_times() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "keep", "keep");
    let (mut books, mut memory) = (Vec::new(), Vec::new());
    for seed in 0..20 {
        room.ok(&flow.clone().seed(seed).prompt());
        assert_eq!(room.components(), ["clip", "vae"], "after {seed}");
        let device = room.device("sim:0");
        books.push((number(&device, "weights_resident"), number(&device, "free")));
        memory.push(room.resident_memory());
    }
    books.dedup();
    assert_eq!(books.len(), 1, "{books:?}");
    // What the allocator keeps settles in the first runs; one model more in each would be 15 times 12 MiB.
    let (settled, last) = (memory[4], memory[19]);
    assert!(
        last < settled + settled / 100 + 24 * MIB,
        "{settled} grew to {last}"
    );
    room.checked();
}

/// The workflow with a second model loader (node 10), sampler (17), decoder (18) and picture (19).
fn twice(flow: &Flow, second: &Flow) -> Value {
    let mut prompt = flow.prompt();
    let other = second.prompt();
    prompt["10"] = other["1"].clone();
    prompt["17"] = other["7"].clone();
    prompt["17"]["inputs"]["model"] = json!(["10", 0]);
    prompt["18"] = other["8"].clone();
    prompt["18"]["inputs"]["samples"] = json!(["17", 0]);
    prompt["19"] = other["9"].clone();
    prompt["19"]["inputs"]["images"] = json!(["18", 0]);
    prompt
}

#[test]
fn r07_keep_beats_eject() {
    let room = Room::roomy();
    let one = Flow::retaining("keep", "keep", "keep");
    let two = Flow::retaining("eject_after", "keep", "keep").seed(5);
    room.ok(&twice(&one, &two));
    let model = room.model("diffusion");
    assert_eq!(model["effective_policy"], "keep");
    assert!(on(&model, "sim:0") > 0);
    let events = room.events(0);
    let conflicts = of(&events, "retention.conflict", id(&model));
    assert_eq!(conflicts.len(), 1, "{events:#?}");
    let set: Vec<_> = of(&events, "policy.set", id(&model));
    assert_eq!(set.len(), 2, "two claims: {set:?}");
    // The claim of the loser is used up at its prompt's end; the other one stays.
    let claims = model["claims"].as_array().unwrap();
    assert_eq!(claims.len(), 1, "{claims:?}");
    assert_eq!(claims[0]["policy"], "keep");
    room.checked();
}

#[test]
fn r08_two_variants_are_released_once() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "eject_after", "eject_after");
    let mut prompt = twice(&flow, &flow.clone().seed(4));
    for (node, model, sampler, strength) in [("20", "1", "7", 0.5), ("21", "10", "17", 0.9)] {
        prompt[node] = json!({"class_type": "LoraLoaderModelOnly", "inputs": {
            "model": [model, 0], "lora_name": "lora.safetensors", "strength_model": strength}});
        prompt[sampler]["inputs"]["model"] = json!([node, 0]);
    }
    let run = room.ok(&prompt);
    assert_ne!(room.saved(&run, "9"), room.saved(&run, "19"));
    let left: Vec<_> = room
        .models()
        .into_iter()
        .filter(|m| m["component"] != "lora")
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let events = room.events(0);
    let mut released = released(&events);
    assert_eq!(released.len(), 3, "each once: {released:?}");
    released.dedup();
    assert_eq!(released.len(), 3, "each once: {released:?}");
    assert_eq!(room.device("sim:0")["weights_resident"], 0);
    room.checked();
}

#[test]
fn r09_a_variant_inherits() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("keep", "keep", "keep");
    flow.lora = Some(0.5);
    let half = room.pixels(&flow.prompt());
    let model = room.model("diffusion");
    assert_eq!(model["effective_policy"], "keep");
    assert!(on(&model, "sim:0") > 0);
    let read = number(&model, "read_bytes");
    assert!(read > 0);
    flow.lora = Some(1.0);
    assert_ne!(room.pixels(&flow.prompt()), half);
    let model = room.model("diffusion");
    assert_eq!(
        number(&model, "read_bytes"),
        read,
        "the file was read again"
    );
    room.checked();
}

#[test]
fn r10_another_policy_of_the_same_node() {
    let room = Room::roomy();
    room.ok(&Flow::retaining("keep", "keep", "keep").prompt());
    assert_eq!(room.components().len(), 3);
    room.ok(&Flow::retaining("eject_after", "keep", "keep")
        .seed(2)
        .prompt());
    assert_eq!(room.components(), ["clip", "vae"]);
    // The older spelling of the same, and that the newer one wins.
    let mut prompt = Flow::default().seed(3).prompt();
    prompt["1"]["inputs"]["keep_loaded"] = json!(false);
    prompt["2"]["inputs"]["keep_loaded"] = json!(true);
    prompt["3"]["inputs"]["keep_loaded"] = json!(false);
    prompt["3"]["inputs"]["retention"] = json!("keep");
    room.ok(&prompt);
    let models = residents(&room);
    assert!(!models.contains_key("diffusion"), "{models:?}");
    assert_eq!(models["clip"].1, "keep");
    assert_eq!(models["vae"].1, "keep");
    room.checked();
}

#[test]
fn r11_kept_without_its_workflow() {
    let room = Room::roomy();
    room.ok(&Flow::retaining("keep", "auto", "auto").prompt());
    let model = room.model("diffusion");
    for colour in 0..3 {
        room.ok(&workflow::smallest(colour, "other"));
    }
    let still = room.model("diffusion");
    assert_eq!(id(&still), id(&model));
    assert_eq!(still["residency"], model["residency"]);
    let claims = still["claims"].as_array().unwrap();
    assert_eq!(claims.len(), 1, "{still}");
    let claimant = claims[0]["claimant"].to_string();
    assert!(claimant.contains('1'), "node 1 is named: {claimant}");
    // By the API it goes.
    room.about("DELETE", id(&still), "", &Value::Null)
        .expect_status(200);
    assert!(!room.components().iter().any(|c| c == "diffusion"));
    room.checked();
}

#[test]
fn r14_queued_prompts_hold_nothing() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "keep", "keep");
    let mut first = flow.clone();
    first.steps = 10;
    let first = room.server.queue(&first.prompt(), None);
    let second = Flow::retaining("auto", "keep", "keep").seed(9);
    let second = room.server.queue(&second.prompt(), None);
    room.end(&first);
    let run = room.end(&second);
    assert_eq!(run.history["status"]["status_str"], "success");
    let events = room.events(0);
    let released = kind(&events, "model.released");
    assert_eq!(released.len(), 1, "{released:?}");
    assert_eq!(released[0]["prompt_id"], first);
    let weights = id(released[0]);
    let done = kind(&events, "cleanup.completed");
    assert_eq!(done[0]["prompt_id"], first);
    assert!(seq(released[0]) < seq(done[0]));
    let loaded = of(&events, "model.loaded", weights);
    assert_eq!(loaded.len(), 2, "{loaded:?}");
    assert_eq!(loaded[1]["prompt_id"], second);
    assert!(seq(loaded[1]) > seq(done[0]));
    assert_eq!(room.model("diffusion")["effective_policy"], "auto");
    room.checked();
}

#[test]
fn r15_after_an_error() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "keep", "keep");
    let mut prompt = flow.prompt();
    prompt["9"]["inputs"]["filename_prefix"] = json!("../outside");
    let run = room.run(&prompt);
    assert_eq!(run.failure().0, "SaveImage");
    assert_eq!(room.components(), ["clip", "vae"]);
    let models = residents(&room);
    assert!(
        models
            .values()
            .all(|(bytes, policy)| *bytes > 0 && policy == "keep")
    );
    room.ok(&flow.seed(2).prompt());
    room.checked();
}

#[test]
fn r16_after_an_interrupt() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("eject_after", "keep", "keep");
    // V is loaded by a first prompt; the second one is stopped before it decodes.
    room.ok(&flow.prompt());
    flow.steps = 1000;
    flow.size = 128;
    let id = interrupted(&room, &flow.prompt());
    let run = room.end(&id);
    assert!(!run.message("execution_interrupted").is_null(), "{run:?}");
    assert_eq!(room.components(), ["clip", "vae"]);
    room.ok(&Flow::default().prompt());
    room.checked();
}

/// Queues a prompt and stops it after its second step; gives its id.
fn interrupted(room: &Room, prompt: &Value) -> String {
    let mut socket = room.server.socket("watcher");
    let id = room.server.queue(prompt, Some("watcher"));
    loop {
        let Frame::Text(message, _) = socket.frame() else {
            continue;
        };
        if message["type"] == "progress" && message["data"]["value"] == 2 {
            break;
        }
    }
    room.server
        .post("/interrupt", &json!({}))
        .expect_status(200);
    id
}

/// Runs `then` while the prompt samples, and then lets it end; gives its id.
fn while_sampling(room: &Room, prompt: &Value, then: impl FnOnce(&str)) -> String {
    let mut socket = room.server.socket("watcher");
    let id = room.server.queue(prompt, Some("watcher"));
    loop {
        let Frame::Text(message, _) = socket.frame() else {
            continue;
        };
        if message["type"] == "progress" && message["data"]["value"] == 1 {
            break;
        }
    }
    then(&id);
    id
}

/// The picture grows on its way to the sampler, so that nothing can say before the prompt runs that it will not fit.
#[test]
fn r17_out_of_memory_while_computing() {
    // Room for the weights, not for the feature maps of a large picture.
    let room = Room::small("48MiB");
    let flow = Flow::retaining("eject_after", "keep", "keep");
    room.ok(&flow.prompt());
    for component in ["clip", "vae"] {
        assert!(on(&room.model(component), "sim:0") > 0, "{component}");
    }
    let before = room.now();
    let mut prompt = flow.clone().seed(2).prompt();
    prompt["28"] = json!({"class_type": "LatentUpscale", "inputs": {
        "samples": ["4", 0], "upscale_method": "nearest-exact", "width": 3072, "height": 3072,
        "crop": "disabled"}});
    prompt["7"]["inputs"]["latent_image"] = json!(["28", 0]);
    let (node, message) = room.run(&prompt).failure();
    assert_eq!(node, "KSampler");
    assert!(message.contains("sim:0"), "{message}");
    let events = room.events(before);
    let steps: Vec<u64> = kind(&events, "oom.step")
        .into_iter()
        .map(|e| number(&e["numbers"], "step"))
        .collect();
    assert!(steps.starts_with(&[1, 2, 3]), "{steps:?}");
    assert_eq!(
        room.components(),
        ["clip", "vae"],
        "the model goes as it was told"
    );
    for component in ["clip", "vae"] {
        let model = room.model(component);
        assert_eq!(on(&model, "sim:0"), 0, "{model}");
        assert_eq!(model["effective_policy"], "keep");
        assert_eq!(number(&model, "host_bytes"), number(&model, "bytes_total"));
        // What is known to be needed makes room before anything computes; the steps only find what is left.
        assert!(
            ["oom", "pressure"].contains(&text(&model, "demoted_by")),
            "{model}"
        );
    }
    room.ok(&flow.seed(3).prompt());
    room.checked();
}

#[test]
fn r18_out_of_memory_while_loading() {
    let room = Room::small("40MiB");
    let mut kept = Flow::retaining("keep", "keep", "keep");
    kept.u.file = "u";
    room.ok(&kept.prompt());
    let before = room.now();
    let mut other = Flow::retaining("keep", "keep", "keep").seed(2);
    other.u.file = "large";
    room.ok(&other.prompt());
    let events = room.events(before);
    let overridden = kind(&events, "retention.overridden");
    assert!(!overridden.is_empty(), "{events:#?}");
    assert!(overridden.iter().all(|e| e["policy"] == "keep"));
    assert_eq!(room.components(), ["clip", "diffusion", "diffusion", "vae"]);
    let large = kind(&events, "model.loaded")
        .into_iter()
        .find(|e| id(e).starts_with("large"))
        .unwrap();
    assert_eq!(large["decision"], "partial", "{large}");
    assert!(number(large, "bytes_after") > 0, "{large}");
    room.checked();
}

#[test]
fn r20_a_reset_cache_that_respects_keep() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "keep", "auto");
    room.ok(&flow.prompt());
    let clip = room.model("clip");
    room.free(json!({"free_memory": true, "retention": "respect"}));
    assert_eq!(room.components(), ["clip"]);
    assert_eq!(room.model("clip")["residency"], clip["residency"]);
    let before = room.now();
    let run = room.ok(&flow.prompt());
    assert!(run.cached().is_empty(), "{:?}", run.cached());
    let events = room.events(before);
    assert_eq!(of(&events, "model.attached", id(&clip)).len(), 1);
    let again = room.model("clip");
    assert_eq!(id(&again), id(&clip));
    assert_eq!(again["read_bytes"], clip["read_bytes"]);
    room.checked();
}

#[test]
fn r21_r22_free_overrides_keep() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("auto", "keep", "auto");
    room.ok(&flow.prompt());
    let before = room.model("clip");
    room.free(json!({"unload_models": true}));
    let model = room.model("clip");
    assert_eq!(on(&model, "sim:0"), 0);
    assert_eq!(number(&model, "host_bytes"), number(&model, "bytes_total"));
    assert_eq!(model["effective_policy"], "keep");
    assert_eq!(model["claims"].as_array().unwrap().len(), 1);
    flow.text = "other words";
    room.ok(&flow.prompt());
    let model = room.model("clip");
    assert_eq!(on(&model, "sim:0"), on(&before, "sim:0"), "it is back");
    assert_eq!(model["read_bytes"], before["read_bytes"]);
    //
    room.free(json!({"unload_models": true, "free_memory": true}));
    assert!(room.models().is_empty(), "{:?}", room.models());
    let run = room.ok(&flow.prompt());
    assert!(run.cached().is_empty());
    assert_eq!(room.model("clip")["claims"].as_array().unwrap().len(), 1);
    room.checked();
}

#[test]
fn r23_a_pin_stays_unless_forced() {
    let room = Room::roomy();
    room.ok(&Flow::default().prompt());
    room.set_policy("clip", "pin");
    let before = room.now();
    room.free(json!({"unload_models": true}));
    let clip = room.model("clip");
    assert_eq!(on(&clip, "sim:0"), number(&clip, "bytes_total"));
    assert_eq!(on(&room.model("vae"), "sim:0"), 0);
    let events = room.events(before);
    let pinned = events
        .iter()
        .any(|e| e["weights_id"] == id(&clip) && e["reason"].to_string().contains("pinned"));
    assert!(pinned, "{events:#?}");
    room.free(json!({"unload_models": true, "force": true}));
    let clip = room.model("clip");
    assert_eq!(on(&clip, "sim:0"), 0);
    assert_eq!(clip["effective_policy"], "pin");
    room.checked();
}

#[test]
fn r24_force_does_not_wait_for_what_is_not_used() {
    let room = Room::roomy();
    let other = workflow::text_to_image(&workflow::TextToImage {
        steps: 1,
        ..workflow::TextToImage::default()
    });
    let mut prompt = other.clone();
    prompt["9"]["inputs"]["filename_prefix"] = json!("other");
    room.ok(&prompt);
    let idle: Vec<String> = room.models().iter().map(|m| id(m).to_owned()).collect();
    assert_eq!(idle.len(), 3);
    let mut flow = Flow::retaining("keep", "keep", "keep");
    // Long enough for the request to come while it samples, however busy the machine is.
    flow.steps = 150;
    // The checkpoint is part of the second prompt too, so that its values are in the cache and it stays.
    let mut prompt = flow.prompt();
    for (node, value) in other.as_object().unwrap() {
        if ["4", "5", "6", "7", "3", "8", "9"].contains(&node.as_str()) {
            let mut value = value.clone();
            for input in value["inputs"].as_object_mut().unwrap().values_mut() {
                if let Some(link) = input.as_array_mut() {
                    link[0] = json!(format!("x{}", link[0].as_str().unwrap()));
                }
            }
            prompt[format!("x{node}")] = value;
        }
    }
    prompt.as_object_mut().unwrap().remove("x9");
    let run = while_sampling(&room, &prompt, |_| {
        let body = json!({"unload_models": true, "force": true});
        room.server.post("/free", &body).expect_status(200);
    });
    room.end(&run);
    let mut applied = 0;
    // Twice: for what nobody used while the prompt ran, and for the rest after it.
    room.wait_event(0, |e| {
        e["kind"] == "free.applied" && e["prompt_id"].is_null()
    });
    let events = room.events(0);
    let done = events
        .iter()
        .find(|e| e["kind"] == "cleanup.started" && e["prompt_id"] == run)
        .unwrap();
    for event in kind(&events, "model.evicted") {
        let early = seq(event) < seq(done);
        let was_idle = idle.iter().any(|i| i == id(event));
        assert_eq!(early, was_idle, "{event}");
        applied += 1;
    }
    assert!(applied >= 6, "{applied} models left: {events:#?}");
    for model in room.models() {
        assert_eq!(on(&model, "sim:0"), 0, "{model}");
    }
    room.checked();
}

#[test]
fn r25_eject_makes_room() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("auto", "keep", "auto");
    flow.u.eject = true;
    room.ok(&flow.prompt());
    let clip = room.model("clip");
    assert_eq!(on(&clip, "sim:0"), 0, "{clip}");
    assert_eq!(number(&clip, "host_bytes"), number(&clip, "bytes_total"));
    assert_eq!(clip["effective_policy"], "keep");
    let events = room.events(0);
    let ejected = kind(&events, "eject.applied");
    assert_eq!(ejected.len(), 1, "{ejected:?}");
    assert_eq!(ejected[0]["device"], "sim:0");
    let unet = room.model("diffusion");
    let loaded = of(&events, "model.loaded", id(&unet));
    let evicted = of(&events, "model.evicted", id(&clip));
    assert_eq!(evicted.len(), 1);
    assert!(seq(evicted[0]) < seq(loaded[0]), "before the load");
    room.checked();
}

#[test]
fn r26_r27_eject_is_what_the_input_says() {
    let room = Room::roomy();
    let mut flow = Flow::retaining("keep", "keep", "keep");
    flow.u.virtual_gb = 4.0;
    room.ok(&flow.prompt());
    let events = room.events(0);
    assert!(kind(&events, "eject.applied").is_empty(), "{events:?}");
    assert!(kind(&events, "model.evicted").is_empty(), "{events:?}");
    assert!(on(&room.model("clip"), "sim:0") > 0);
    // the decoder, with nothing on donors.
    let before = room.now();
    flow.v.eject = true;
    room.ok(&flow.seed(2).prompt());
    let events = room.events(before);
    assert_eq!(kind(&events, "eject.applied").len(), 1, "{events:?}");
    assert_eq!(on(&room.model("clip"), "sim:0"), 0);
    assert!(on(&room.model("vae"), "sim:0") > 0);
    room.checked();
}

#[test]
fn r28_eject_on_one_device() {
    let room = Room::roomy();
    let mut flow = Flow::default();
    flow.c.device = "sim:1";
    flow.v.device = "sim:1";
    room.ok(&flow.prompt());
    let (clip, vae) = (room.model("clip"), room.model("vae"));
    assert!(on(&clip, "sim:1") > 0 && on(&vae, "sim:1") > 0);
    let mut other = flow.clone().seed(2);
    other.u.file = "large";
    other.u.eject = true;
    // The first model is of another workflow then; keep it, so that there is something to eject.
    room.set_policy("diffusion", "keep");
    room.ok(&other.prompt());
    let models = room.models();
    let small = models
        .iter()
        .find(|m| m["component"] == "diffusion" && number(m, "bytes_total") < 100 * MIB)
        .unwrap();
    assert_eq!(on(small, "sim:0"), 0, "{small}");
    assert_eq!(room.model("clip")["residency"], clip["residency"]);
    assert_eq!(room.model("vae")["residency"], vae["residency"]);
    room.checked();
}

#[test]
fn r30_a_part_of_the_workflow() {
    let room = Room::roomy();
    let mut prompt = Flow::retaining("eject_after", "keep", "keep").prompt();
    room.ok(&prompt);
    let before = room.now();
    for node in ["4", "7", "8", "9"] {
        prompt.as_object_mut().unwrap().remove(node);
    }
    prompt["5"]["inputs"]["text"] = json!("only words");
    prompt["30"] = json!({"class_type": "PreviewAny", "inputs": {"source": ["5", 0]}});
    room.ok(&prompt);
    assert_eq!(room.components(), ["clip", "vae"]);
    let events = room.events(before);
    assert!(kind(&events, "model.registered").is_empty(), "{events:?}");
    assert!(kind(&events, "model.rehydrated").is_empty(), "{events:?}");
    room.checked();
}

#[test]
fn r32_a_new_start_knows_nothing() {
    let mut room = Room::roomy();
    let prompt = Flow::retaining("keep", "keep", "keep").prompt();
    room.ok(&prompt);
    assert_eq!(room.models().len(), 3);
    assert_eq!(room.server.interrupt().code(), Some(0));
    let room = Room::at(room.base, fresco_tests::memory::ROOMY);
    assert!(room.models().is_empty());
    let run = room.ok(&prompt);
    assert!(run.cached().is_empty());
    let models = residents(&room);
    assert!(
        models.values().all(|(_, policy)| policy == "keep"),
        "{models:?}"
    );
    room.checked();
}

#[test]
fn r33_terminated_while_running() {
    let folder = base();
    let log = folder.path().join("memory.log");
    let log_text = log.to_string_lossy().into_owned();
    let mut arguments = fresco_tests::memory::ROOMY.to_vec();
    arguments.extend(["--memory-log", &log_text]);
    let mut room = Room::at(folder, &arguments);
    let mut flow = Flow::retaining("eject_after", "keep", "keep");
    flow.steps = 1000;
    flow.size = 128;
    let mut running = String::new();
    while_sampling(&room, &flow.prompt(), |id| id.clone_into(&mut running));
    assert_eq!(room.server.terminate().code(), Some(0));
    let text = fs::read_to_string(&log).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let done = events
        .iter()
        .any(|e| e["kind"] == "cleanup.completed" && e["prompt_id"] == running);
    assert!(done, "{text}");
}

#[test]
fn r35_a_replaced_file() {
    let room = Room::roomy();
    let flow = Flow::default();
    let before = room.pixels(&flow.prompt());
    let old = room.model("diffusion");
    // Other weights of the same shapes: the same numbers in another order.
    let path = room.file("diffusion_models", "u");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    for value in bytes[header..].chunks_exact_mut(4) {
        let number = f32::from_le_bytes(value.try_into().unwrap());
        value.copy_from_slice(&(number * 0.9).to_le_bytes());
    }
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(&new, &path).unwrap();
    // The very same prompt.
    let run = room.ok(&flow.prompt());
    assert!(!run.cached().iter().any(|node| node == "1"), "{run:?}");
    assert_ne!(room.saved(&run, "9"), before);
    let models = room.models();
    let stale = models.iter().find(|m| id(m) == id(&old));
    let fresh: Vec<_> = models
        .iter()
        .filter(|m| m["component"] == "diffusion" && id(m) != id(&old))
        .collect();
    assert_eq!(fresh.len(), 1, "{models:?}");
    if let Some(stale) = stale {
        assert!(stale["handles"].as_array().unwrap().is_empty(), "{stale}");
        assert!(stale["claims"].as_array().unwrap().is_empty(), "{stale}");
    }
    room.checked();
}

#[test]
fn r36_emptying_caches_changes_nothing() {
    let room = Room::roomy();
    room.ok(&Flow::retaining("keep", "keep", "keep").prompt());
    let before = timeless(&room);
    let since = room.now();
    for _ in 0..5 {
        // A prompt that does nothing, and a request about a device that no model is on.
        room.ok(&Flow::retaining("keep", "keep", "keep").prompt());
        room.free(json!({"unload_models": true, "devices": ["sim:1"]}));
    }
    for event in room.events(since) {
        let word = text(&event, "kind");
        assert!(
            !word.starts_with("model.") && word != "cache.reset",
            "{event}"
        );
    }
    assert_eq!(timeless(&room), before);
    room.checked();
}

#[test]
fn r37_free_at_the_end_of_a_prompt() {
    let room = Room::roomy();
    let flow = Flow::retaining("eject_after", "auto", "auto");
    for seed in 0..6 {
        let before = room.now();
        let prompt = flow.clone().seed(seed).prompt();
        let mut socket = room.server.socket("watcher");
        let id = room.server.queue(&prompt, Some("watcher"));
        // At another moment each time: while it samples, decodes, is about to end, has ended.
        let wanted = ["7", "8", "9"].get(seed as usize % 4).copied();
        thread::scope(|scope| {
            let room = &room;
            scope.spawn(move || {
                loop {
                    let Frame::Text(message, _) = socket.frame() else {
                        continue;
                    };
                    if message["type"] == "executing" && message["data"]["node"] == json!(wanted) {
                        break;
                    }
                }
                let body = json!({"unload_models": true, "free_memory": true});
                room.server.post("/free", &body).expect_status(200);
            });
        });
        room.end(&id);
        room.wait_event(before, |e| e["kind"] == "free.applied");
        let events = room.events(before);
        assert_eq!(kind(&events, "free.applied").len(), 1, "{events:#?}");
        let mut released = released(&events);
        let all = released.len();
        released.dedup();
        assert_eq!(released.len(), all, "each once: {events:#?}");
        assert!(room.models().is_empty(), "{:?}", room.models());
    }
    room.checked();
}

#[test]
fn r40_eject_beats_a_plain_loader() {
    let room = Room::roomy();
    let mut plain = Flow::default();
    plain.u.plain = true;
    let mut eject = Flow::default().seed(3);
    eject.u.retention = Some("eject_after");
    room.ok(&twice(&plain, &eject));
    assert_eq!(room.components(), ["clip", "vae"]);
    room.checked();
}
