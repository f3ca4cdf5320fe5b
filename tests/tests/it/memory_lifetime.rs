//! Models that leave by themselves or inside of a prompt: the last of the cases whose table is in `memory_retention.rs`.

use fresco_tests::memory::{Flow, Room, id, number, of, on, seq};
use serde_json::json;

#[test]
fn r38_idle_models_leave() {
    let mut arguments = fresco_tests::memory::ROOMY.to_vec();
    arguments.extend(["--unload-after", "1"]);
    let room = Room::with(&arguments);
    room.ok(&Flow::retaining("auto", "keep", "auto").prompt());
    let unet = id(&room.model("diffusion")).to_owned();
    for _ in 0..2 {
        room.wait_event(0, |e| {
            e["kind"] == "model.evicted" && e["weights_id"] == *unet && e["trigger"] == "idle"
        });
    }
    let vae = id(&room.model("vae")).to_owned();
    room.wait_event(0, |e| {
        e["kind"] == "model.evicted" && e["weights_id"] == *vae
    });
    assert_eq!(on(&room.model("diffusion"), "sim:0"), 0);
    assert!(on(&room.model("clip"), "sim:0") > 0);
    room.checked();
}

/// Between two uses of the model, with a model of an earlier prompt beside it that is pinned.
#[test]
fn r39_unload_inside_a_node() {
    let room = Room::roomy();
    room.ok(&Flow::default().prompt());
    room.set_policy("vae", "pin");
    let before = room.now();
    let mut prompt = Flow::default().seed(2).prompt();
    prompt["26"] = json!({"class_type": "FrescoUnloadModels", "inputs": {"value": ["7", 0]}});
    prompt["27"] = prompt["7"].clone();
    prompt["27"]["inputs"]["latent_image"] = json!(["26", 0]);
    prompt["8"]["inputs"]["samples"] = json!(["27", 0]);
    room.ok(&prompt);
    let events = room.events(before);
    let (unet, vae) = (room.model("diffusion"), room.model("vae"));
    let evicted = of(&events, "model.evicted", id(&unet));
    assert_eq!(evicted.len(), 1, "{events:#?}");
    assert_eq!(evicted[0]["trigger"], "in_node");
    let loaded = of(&events, "model.loaded", id(&unet));
    assert!(
        loaded.iter().any(|e| seq(e) > seq(evicted[0])),
        "it is back"
    );
    assert_eq!(
        number(&unet, "read_bytes"),
        number(&unet, "bytes_total"),
        "read once"
    );
    assert!(
        of(&events, "model.evicted", id(&vae)).is_empty(),
        "it is pinned"
    );
    assert!(on(&unet, "sim:0") > 0);
    room.checked();
}

/// Beyond the cases: a time to live, set by the node that speaks for any model.
#[test]
fn a_time_to_live_by_node() {
    let room = Room::roomy();
    let mut prompt = Flow::default().prompt();
    prompt["29"] = json!({"class_type": "FrescoRetention", "inputs":
        {"model": ["3", 0], "retention": "ttl", "ttl_seconds": 1}});
    prompt["8"]["inputs"]["vae"] = json!(["29", 0]);
    room.ok(&prompt);
    let vae = room.wait_event(0, |e| e["kind"] == "model.released");
    assert!(id(&vae).starts_with("v.safetensors"), "{vae}");
    assert_eq!(room.components(), ["clip", "diffusion"]);
    room.checked();
}
