//! Memory, models and history of a cluster as its fronts tell of them. Skipped where there is no `nats-server`.

use std::{fs, path::Path};

use anyhow::Result;
use fresco_tests::{
    cluster::{Cluster, nats_server},
    memory, picture,
    server::run_program,
    workflow::{self, TextToImage},
};
use serde_json::{Value, json};

fn put(base: &Path, file: &str, content: &[u8]) -> Result<()> {
    let path = base.join(file);
    fs::create_dir_all(path.parent().unwrap())?;
    Ok(fs::write(path, content)?)
}

fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Everything in a list is of the worker.
#[track_caller]
fn all_of_worker(list: &Value) {
    let list = items(list);
    assert!(!list.is_empty(), "nothing is in the list");
    for item in &list {
        assert_eq!(item["worker"], "w0", "{item}");
    }
}

#[test]
fn memory_of_a_worker_is_told_by_its_front() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 0)?;
    cluster.add_worker("w0", memory::ROOMY)?;
    memory::add(&cluster.workers[0].base, "checkpoints", "model", "model");
    cluster.start()?;
    let listed = |cluster: &Cluster| {
        let list = cluster.fronts[0].get("/models/checkpoints");
        list.is_ok_and(|list| list == json!(["model.safetensors"]))
    };
    cluster.until("the worker's model in the list", listed)?;
    let front = &cluster.fronts[0];
    let prompt = workflow::text_to_image(&TextToImage::default());
    let entry = front.wait_for(&front.queue(&prompt)?)?;
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    // What there is, what happened, and what would happen.
    let models = front.get("/memory/models")?;
    all_of_worker(&models);
    let id = models[0]["weights_id"].as_str().unwrap().to_owned();
    let path = format!("/memory/models/{}", memory::encoded(&id));
    let detail = front.get(&path)?;
    assert_eq!(
        (&detail["weights_id"], &detail["worker"]),
        (&json!(id), &json!("w0"))
    );
    let overview = front.get("/memory")?;
    all_of_worker(&overview["models"]);
    all_of_worker(&overview["decisions"]);
    let events = front.get("/memory/events")?;
    all_of_worker(&events["events"]);
    let named = front.get("/memory/events?worker=w0")?;
    assert_eq!(named["last_seq"], events["last_seqs"]["w0"], "{named}");
    let asks = json!({"unload_models": true, "dry_run": true});
    all_of_worker(&front.post("/free", &asks)?["plan"]);
    let plan = front.post("/memory/plan", &json!({"trigger": "free"}))?;
    all_of_worker(&plan["plan"]);
    let load = front.post("/memory/plan?worker=w0", &json!({"weights_id": id}))?;
    assert_eq!(load["worker"], "w0", "{load}");
    let url = format!("http://{}", front.address);
    let folder = cluster.folder.path();
    let (status, table, errors) = run_program(&["memory", "--url", &url], folder);
    assert!(status.success(), "{errors}");
    assert!(table.contains("WORKER") && table.contains("w0 "), "{table}");
    // It is freed when the answer comes, and the answer says what went.
    let freed = front.post(
        "/free",
        &json!({"unload_models": true, "free_memory": true, "wait": true}),
    )?;
    all_of_worker(&freed["models"]);
    let on_devices = |model: &Value| {
        let places = model["residency"].as_object().cloned().unwrap_or_default();
        places.values().filter_map(Value::as_u64).sum::<u64>()
    };
    let left: u64 = items(&front.get("/memory/models")?)
        .iter()
        .map(on_devices)
        .sum();
    assert_eq!(left, 0, "{freed}");
    Ok(())
}

fn upscale(name: &str) -> Value {
    json!({
        "1": {"class_type": "UpscaleModelLoader", "inputs": {"model_name": name}},
        "2": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 1}},
        "3": {"class_type": "ImageUpscaleWithModel", "inputs": {"upscale_model": ["1", 0], "image": ["2", 0]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "up"}},
    })
}

#[test]
fn model_files_are_known_as_they_are_now() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 2)?;
    let file = "models/upscale_models/a.pth";
    put(&cluster.workers[0].base, file, b"one")?;
    cluster.start()?;
    cluster.until("the model in the list", |cluster| {
        let list = cluster.fronts[0].get("/models/upscale_models");
        list.is_ok_and(|list| list == json!(["a.pth"]))
    })?;
    // A file that was put there just now is copied at once.
    put(
        &cluster.workers[0].base,
        "models/loras/new.safetensors",
        b"new",
    )?;
    let url = cluster.url();
    let arguments = [
        "models",
        "sync",
        "--nats",
        &url,
        "--from",
        "w0",
        "--to",
        "w1",
        "new.safetensors",
    ];
    let (status, out, log) = run_program(&arguments, cluster.folder.path());
    assert!(
        status.success() && out.contains("loras/new.safetensors copied"),
        "{out}{log}"
    );
    // The front gets another file of that name, of the same length, and the job comes right after.
    put(&cluster.fronts[0].base, file, b"two")?;
    let id = cluster.fronts[0].queue(&upscale("a.pth"))?;
    cluster.until("the reason why it waits", |cluster| {
        let outline = cluster.fronts[0].get("/fresco/queue").unwrap_or_default();
        let reason = outline["waiting_reasons"][&id].as_str().unwrap_or_default();
        reason.contains("w0 lacks upscale_models/a.pth")
    })?;
    let log = cluster.workers[0].process.log();
    assert!(
        log.contains("has a different file upscale_models/a.pth"),
        "{log}"
    );
    // With the front's own file it runs, and fails for what is in it.
    put(&cluster.workers[1].base, file, b"two")?;
    let entry = cluster.fronts[0].wait_for(&id)?;
    assert_eq!(entry["status"]["status_str"], "error", "{entry}");
    let log = cluster.workers[0].process.log();
    assert!(!log.contains("Prompt executed"), "{log}");
    Ok(())
}

#[test]
fn the_history_is_that_of_all_fronts() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(2, 1)?;
    cluster.start()?;
    let colours = [0xff0000_u64, 0x00ff00];
    let mut ids = Vec::new();
    for (front, colour) in cluster.fronts.iter().zip(colours) {
        let id = front.queue(&workflow::smallest(colour, "same"))?;
        front.wait_for(&id)?;
        ids.push(id);
    }
    for at in 0..2 {
        let history = cluster.fronts[at].get("/history")?;
        let known = history.as_object().unwrap();
        assert_eq!(known.len(), 2, "{history}");
        // Each by the name that its picture has here.
        for (id, colour) in ids.iter().zip(colours) {
            let start = &known[id]["status"]["messages"][0];
            assert_eq!(start[0], "execution_start", "{start}");
            assert_eq!(start[1]["worker"], "w0", "{start}");
            let name = known[id]["outputs"]["2"]["images"][0]["filename"].as_str();
            let path = format!("/view?filename={}&type=output", name.unwrap_or_default());
            let shown = cluster.fronts[at].connect()?.get(&path)?;
            assert_eq!(shown.status, 200, "{history}");
            let shown = picture::read(std::io::Cursor::new(&shown.body[..]))?;
            let [.., red, green, _] = colour.to_be_bytes();
            assert_eq!(shown.pixels[..2], [red, green], "{history}");
        }
        let newest = cluster.fronts[at].get("/history?max_items=1")?;
        assert!(
            newest
                .as_object()
                .is_some_and(|one| one.len() == 1 && one.contains_key(&ids[1]))
        );
    }
    // One that hangs is not waited for without end, and one that is dead not at all.
    cluster.fronts[1].process.signal("STOP");
    let history = cluster.fronts[0].get("/history")?;
    assert_eq!(history.as_object().map(serde_json::Map::len), Some(1));
    cluster.fronts[1].process.signal("CONT");
    cluster.fronts[1].process.kill();
    let history = cluster.fronts[0].get("/history")?;
    assert!(history[&ids[0]].is_object(), "{history}");
    Ok(())
}
