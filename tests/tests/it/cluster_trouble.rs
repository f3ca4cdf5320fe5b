//! Clusters in trouble: NATS nodes that are lost, disks that are full. Skipped where there is no `nats-server`.

use std::{fs, path::Path};

use anyhow::Result;
use fresco_tests::{
    cluster::{Cluster, Front, nats_server, small_disks},
    workflow,
};
use serde_json::{Value, json};

/// What the server keeps.
const STREAMS: [&str; 2] = ["FRESCO_EVENTS", "OBJ_fresco_files"];

fn put(base: &Path, file: &str, content: &[u8]) -> Result<()> {
    let path = base.join(file);
    fs::create_dir_all(path.parent().unwrap())?;
    Ok(fs::write(path, content)?)
}

/// A picture of noise, which does not compress: its three bytes a pixel are its length.
fn noise_picture(size: u32) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, size, size);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as u8
    };
    let pixels: Vec<u8> = (0..size * size * 3).map(|_| next()).collect();
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(bytes)
}

/// A prompt that makes three files as large as the picture of noise. Another number is another result.
fn noise(number: u32) -> Value {
    json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": "in.png"}},
        "2": {"class_type": "RepeatImageBatch", "inputs": {"image": ["1", 0], "amount": 3}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": format!("noise{number}")}},
    })
}

/// What a front says of a worker, and of NATS.
fn state_of(front: &Front, worker: &str) -> String {
    let stats = front.get("/system_stats").unwrap_or_default();
    let workers = stats["system"]["cluster"]["workers"].as_array().cloned();
    let mut workers = workers.unwrap_or_default().into_iter();
    let found = workers.find(|one| one["name"] == worker);
    found.unwrap_or_default()["state"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn trouble_of(front: &Front) -> String {
    let stats = front.get("/system_stats").unwrap_or_default();
    let trouble = &stats["system"]["cluster"]["nats"];
    trouble.as_str().unwrap_or_default().to_owned()
}

fn succeeded(front: &Front, id: &str) -> Result<Value> {
    let entry = front.wait_for(id)?;
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    Ok(entry)
}

/// All three nodes have all of a stream.
fn is_whole(stream: &Value) -> bool {
    let others = stream["cluster"]["replicas"].as_array();
    let current = |one: &Value| one["current"] == true && one["offline"] != true;
    stream["config"]["num_replicas"] == 3
        && others.is_some_and(|others| others.len() == 2 && others.iter().all(current))
}

#[test]
fn no_nats_node_is_missed() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::on_three_nodes(1, 1)?;
    put(
        &cluster.fronts[0].base,
        "input/in.png",
        &noise_picture(256)?,
    )?;
    // Two of three keep everything once; when the third is there, all of it is spread.
    cluster.more_nats[0].start()?;
    cluster.nats.start()?;
    cluster.fronts[0].process.start()?;
    cluster.workers[0].process.start()?;
    cluster.fronts[0].until_ready()?;
    succeeded(&cluster.fronts[0], &cluster.fronts[0].queue(&noise(0))?)?;
    for name in STREAMS {
        assert_eq!(cluster.stream(name)["config"]["num_replicas"], 1, "{name}");
    }
    cluster.more_nats[1].start()?;
    let whole = |cluster: &Cluster| STREAMS.iter().all(|name| is_whole(&cluster.stream(name)));
    cluster.until("three replicas of both", whole)?;
    // One leader only: a node that had a stream alone and comes back may never catch up (NATS 2.9.10), and the other two are needed then.
    for (number, name) in (1..).zip(&STREAMS[..1]) {
        let leader = cluster.stream(name)["cluster"]["leader"].clone();
        let leader = leader.as_str().unwrap_or_default();
        let index: usize = leader.trim_start_matches("nats").parse()?;
        cluster.node(index).kill();
        let id = cluster.fronts[0].queue(&noise(number))?;
        let mut silent = 0;
        cluster.until("the job to end without the node", |cluster| {
            let front = &cluster.fronts[0];
            silent += usize::from(state_of(front, "w0").contains("no sign of life"));
            front
                .get(&format!("/history/{id}"))
                .is_ok_and(|h| !h[&id].is_null())
        })?;
        assert_eq!(
            silent,
            0,
            "the worker lived all the time\n{}",
            cluster.tails(20)
        );
        succeeded(&cluster.fronts[0], &id)?;
        cluster.node(index).start()?;
    }
    // One of three can keep nothing at all. Messages go on, and so do jobs whose files are small.
    for index in 1..3 {
        cluster.node(index).kill();
    }
    let ids: Vec<String> = (1..=3)
        .map(|colour| cluster.fronts[0].queue(&workflow::smallest(colour, "small")))
        .collect::<Result<_>>()?;
    for id in &ids {
        succeeded(&cluster.fronts[0], id)?;
    }
    for index in 1..3 {
        cluster.node(index).start()?;
    }
    let id = cluster.fronts[0].queue(&noise(9))?;
    succeeded(&cluster.fronts[0], &id)?;
    let log = cluster.workers[0].process.log();
    assert_eq!(
        log.matches("Prompt executed").count(),
        6,
        "each ran once:\n{log}"
    );
    Ok(())
}

#[test]
fn results_wait_for_room_at_the_front() -> Result<()> {
    if nats_server().is_none() || small_disks().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    let sample = noise_picture(256)?;
    put(&cluster.fronts[0].base, "input/in.png", &sample)?;
    let output = cluster.fronts[0].base.join("output");
    let front = &mut cluster.fronts[0].process;
    front.on_small_disk(&output, 4 << 20, 32 << 10)?;
    cluster.start()?;
    let ids: Vec<String> = (0..3)
        .map(|number| cluster.fronts[0].queue(&noise(number)))
        .collect::<Result<_>>()?;
    cluster.until("the disk to be named", |cluster| {
        trouble_of(&cluster.fronts[0]).contains("do not fit on this machine's disk")
    })?;
    // The others wait, none is held, and nothing was done twice.
    let front = &cluster.fronts[0];
    let queue = front.get("/queue")?;
    assert_eq!(
        queue["queue_running"].as_array().map(Vec::len),
        Some(1),
        "{queue}"
    );
    assert_eq!(
        queue["queue_pending"].as_array().map(Vec::len),
        Some(2),
        "{queue}"
    );
    front.process.make_room(&output)?;
    for id in &ids {
        succeeded(front, id)?;
    }
    let log = cluster.workers[0].process.log();
    assert_eq!(
        log.matches("Prompt executed").count(),
        3,
        "each ran once:\n{log}"
    );
    Ok(())
}

#[test]
fn a_worker_without_room_hands_its_jobs_on() -> Result<()> {
    if nats_server().is_none() || small_disks().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 2)?;
    let sample = noise_picture(512)?;
    put(&cluster.fronts[0].base, "input/in.png", &sample)?;
    let own = cluster.workers[0].base.join("cluster/w0");
    // Room for what the job reads, and not for what it makes.
    let bytes = 16 << 20;
    let free = sample.len() as u64 + (1 << 20);
    cluster.workers[0]
        .process
        .on_small_disk(&own, bytes, free)?;
    cluster.nats.start()?;
    cluster.until_nats_listens()?;
    cluster.fronts[0].process.start()?;
    cluster.workers[0].process.start()?;
    cluster.fronts[0].until_ready()?;
    let id = cluster.fronts[0].queue(&noise(0))?;
    let says_so =
        |cluster: &Cluster| state_of(&cluster.fronts[0], "w0").contains("its disk is full");
    cluster.until("the worker to say that its disk is full", says_so)?;
    let front = &cluster.fronts[0];
    assert_eq!(front.get(&format!("/history/{id}"))?, json!({}), "it waits");
    cluster.workers[1].process.start()?;
    succeeded(&cluster.fronts[0], &id)?;
    for number in 1..5 {
        let id = cluster.fronts[0].queue(&noise(number))?;
        succeeded(&cluster.fronts[0], &id)?;
    }
    assert!(
        says_so(&cluster),
        "it takes no more: {}",
        state_of(&cluster.fronts[0], "w0")
    );
    // With room it is one of them again.
    cluster.workers[1].process.terminate();
    let id = cluster.fronts[0].queue(&noise(5))?;
    cluster.workers[0].process.make_room(&own)?;
    succeeded(&cluster.fronts[0], &id)?;
    Ok(())
}

#[test]
fn a_worker_that_began_anew_numbers_its_files_from_the_start() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    cluster.start()?;
    let front = &cluster.fronts[0];
    let entry = succeeded(front, &front.queue(&workflow::smallest(1, "redone"))?)?;
    let image = |entry: &Value| entry["outputs"]["2"]["images"][0]["filename"].clone();
    assert_eq!(image(&entry), "redone_00001_.png", "{entry}");
    // As if it had gone down before anybody heard of what it made.
    cluster.workers[0].process.kill();
    fs::remove_file(cluster.fronts[0].base.join("output/redone_00001_.png"))?;
    cluster.workers[0].process.start()?;
    let front = &cluster.fronts[0];
    let entry = succeeded(front, &front.queue(&workflow::smallest(2, "redone"))?)?;
    assert_eq!(image(&entry), "redone_00001_.png", "{entry}");
    Ok(())
}
