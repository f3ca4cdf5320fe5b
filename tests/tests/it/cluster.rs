//! Workers as processes of their own behind a NATS server. Skipped where there is no `nats-server`.

use std::{fs, path::Path, time::Duration};

use anyhow::Result;
use fresco_tests::{
    Socket,
    cluster::{Cluster, nats_server},
    member::{Member, Message, Voice},
    picture,
    server::run_program,
    workflow,
};
use serde_json::{Value, json};

/// Nothing to test with.
fn skipped() -> bool {
    nats_server().is_none()
}

fn put(base: &Path, file: &str, content: &[u8]) -> Result<()> {
    let path = base.join(file);
    fs::create_dir_all(path.parent().unwrap())?;
    Ok(fs::write(path, content)?)
}

fn lora(name: &str) -> Value {
    // A prompt that names a model; what is in the file does not matter before it runs.
    json!({
        "1": {"class_type": "UpscaleModelLoader", "inputs": {"model_name": name}},
        "2": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 1}},
        "3": {"class_type": "ImageUpscaleWithModel", "inputs": {"upscale_model": ["1", 0], "image": ["2", 0]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "up"}},
    })
}

#[test]
fn files_go_to_the_worker_and_come_back() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    // Large enough for the object store: noise does not compress.
    let noise = picture::sample(300, 300)?;
    put(&cluster.fronts[0].base, "input/s/in.png", &noise)?;
    put(
        &cluster.fronts[0].base,
        "output/far_00001_.png",
        b"a different file of this name",
    )?;
    cluster.start()?;
    let front = &cluster.fronts[0];
    let prompt = json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": "s/in.png"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "far"}},
    });
    let id = front.queue(&prompt)?;
    let entry = front.wait_for(&id)?;
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    let image = &entry["outputs"]["2"]["images"][0];
    assert_eq!(image["filename"], "far_00002_.png", "{entry}");
    let made = picture::read_file(&front.base.join("output/far_00002_.png"))?;
    assert_eq!((made.width, made.height), (300, 300));
    // The same prompt again: what the worker still knows has the same name.
    let entry = front.wait_for(&front.queue(&prompt)?)?;
    let again = &entry["outputs"]["2"]["images"][0]["filename"];
    assert_eq!(again, "far_00002_.png", "{entry}");
    Ok(())
}

#[test]
fn a_job_goes_where_its_model_is_or_says_who_lacks_it() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 2)?;
    put(
        &cluster.workers[0].base,
        "models/upscale_models/a.pth",
        b"A",
    )?;
    put(&cluster.workers[0].base, "models/loras/l.safetensors", b"L")?;
    put(
        &cluster.workers[1].base,
        "models/upscale_models/b.pth",
        b"B",
    )?;
    cluster.start()?;
    cluster.until("the models of both workers in the list", |cluster| {
        let list = cluster.fronts[0].get("/models/upscale_models");
        list.is_ok_and(|list| list == json!(["a.pth", "b.pth"]))
    })?;
    let front = &cluster.fronts[0];
    // A name that nobody has is refused at once.
    let answer = front
        .connect()?
        .post("/prompt", &json!({"prompt": lora("c.pth")}))?;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(
        answer.text().contains("value_not_in_list"),
        "{}",
        answer.text()
    );
    // Two models that no worker has together.
    let mut both = lora("a.pth");
    both["5"] = json!({"class_type": "UpscaleModelLoader", "inputs": {"model_name": "b.pth"}});
    both["6"] = json!({"class_type": "ImageUpscaleWithModel", "inputs": {"upscale_model": ["5", 0], "image": ["2", 0]}});
    both["7"] =
        json!({"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": "up"}});
    let id = front.queue(&both)?;
    cluster.until("the reason why it waits", |cluster| {
        let outline = cluster.fronts[0].get("/fresco/queue").unwrap_or_default();
        let reason = outline["waiting_reasons"][&id].as_str().unwrap_or_default();
        reason.contains("w0 lacks upscale_models/b.pth")
            && reason.contains("w1 lacks upscale_models/a.pth")
    })?;
    // Others pass it.
    let other = front.queue(&workflow::smallest(5, "passes"))?;
    assert_eq!(front.wait_for(&other)?["status"]["status_str"], "success");
    // The file is brought to the one that lacks it; then the job runs, and fails for what is in the file.
    let url = cluster.url();
    let folder = cluster.folder.path();
    let arguments = [
        "models", "sync", "--nats", &url, "--from", "w1", "--to", "w0", "b.pth",
    ];
    let (status, out, log) = run_program(&arguments, folder);
    assert!(status.success(), "{out}{log}");
    assert!(out.contains("upscale_models/b.pth copied"), "{out}");
    let copy = cluster.workers[0].base.join("models/upscale_models/b.pth");
    assert_eq!(fs::read(copy)?, b"B");
    let entry = cluster.fronts[0].wait_for(&id)?;
    assert_eq!(entry["status"]["status_str"], "error", "{entry}");
    let (status, out, log) = run_program(&["models", "list", "--nats", &url], folder);
    assert!(status.success(), "{out}{log}");
    assert!(out.contains("workers: w0, w1"), "{out}");
    assert!(out.contains("loras/l.safetensors  0.0 MB  w0"), "{out}");
    assert!(
        out.contains("upscale_models/b.pth  0.0 MB  w0, w1"),
        "{out}"
    );
    Ok(())
}

#[test]
fn a_broker_that_is_not_there_is_named_and_waited_for() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    cluster.fronts[0].process.start()?;
    cluster.workers[0].process.start()?;
    cluster.fronts[0].until_ready()?;
    let id = cluster.fronts[0].queue(&workflow::smallest(7, "later"))?;
    cluster.until("a line about NATS in the log", |cluster| {
        cluster.fronts[0]
            .process
            .log()
            .contains("NATS at 127.0.0.1")
    })?;
    cluster.nats.start()?;
    let entry = cluster.fronts[0].wait_for(&id)?;
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    // It goes away and comes back.
    cluster.nats.kill();
    let id = cluster.fronts[0].queue(&workflow::smallest(8, "later"))?;
    cluster.nats.start()?;
    let entry = cluster.fronts[0].wait_for(&id)?;
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    // A worker that is told to stop ends by itself.
    let status = cluster.workers[0].process.terminate();
    assert!(status.is_some_and(|status| status.success()));
    Ok(())
}

#[test]
fn a_front_that_begins_anew_takes_up_what_runs() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    cluster.start()?;
    // Long enough to be still running when the front is back.
    let id = cluster.fronts[0].queue(&workflow::chain(3000, 512, 3))?;
    cluster.until("the job to run", |cluster| {
        let queue = cluster.fronts[0].get("/queue").unwrap_or_default();
        queue["queue_running"][0][1] == json!(id)
    })?;
    std::thread::park_timeout(Duration::from_millis(300));
    cluster.fronts[0].process.kill();
    cluster.fronts[0].process.start()?;
    cluster.fronts[0].until_ready()?;
    let entry = cluster.fronts[0].wait_for(&id)?;
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    let starts = cluster.workers[0].process.log();
    assert_eq!(
        starts.matches("got prompt").count(),
        1,
        "it ran once:\n{starts}"
    );
    Ok(())
}

#[test]
fn two_fronts_show_what_both_run() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(2, 1)?;
    cluster.nats.start()?;
    for front in &mut cluster.fronts {
        front.process.start()?;
        front.until_ready()?;
    }
    let [first, second] = &cluster.fronts[..] else {
        unreachable!("two were made");
    };
    // No worker is there yet: both wait.
    let one = first.queue(&workflow::smallest(0xff0000, "same"))?;
    let other = second.queue(&workflow::smallest(0x00ff00, "same"))?;
    let gone = first.queue(&workflow::smallest(3, "gone"))?;
    let ids = |front: &fresco_tests::cluster::Front| -> Vec<Value> {
        let queue = front.get("/queue").unwrap_or_default();
        let pending = queue["queue_pending"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        pending.into_iter().map(|item| item[1].clone()).collect()
    };
    cluster.until("both queues in each front", |cluster| {
        ids(&cluster.fronts[0]) == [json!(one), json!(gone), json!(other)]
            && ids(&cluster.fronts[1]) == [json!(other), json!(one), json!(gone)]
    })?;
    // One is taken out by the front that does not have it.
    second.post("/queue", &json!({"delete": [gone]}))?;
    assert_eq!(ids(first), [json!(one), json!(other)]);
    cluster.workers[0].process.start()?;
    let (first, second) = (&cluster.fronts[0], &cluster.fronts[1]);
    first.wait_for(&one)?;
    second.wait_for(&other)?;
    // Each answers for the other, with pictures that it has itself. Two have one name, and stay two.
    let entry = second.wait_for(&one)?;
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    let image = &entry["outputs"]["2"]["images"][0];
    let name = image["filename"].as_str().unwrap_or_default();
    let shown = second
        .connect()?
        .get(&format!("/view?filename={name}&type=output"))?;
    assert_eq!(shown.status, 200, "{entry}");
    let shown = picture::read(std::io::Cursor::new(&shown.body[..]))?;
    assert_eq!(shown.pixels[..3], [255, 0, 0], "{entry}");
    let own = second.wait_for(&other)?;
    assert_ne!(own["outputs"]["2"]["images"][0]["filename"], name);
    // Nobody has this one.
    assert_eq!(second.get("/history/nobody")?, json!({}));
    Ok(())
}

/// What a client hears that is connected to one of two fronts and posts to the other.
fn heard_from(cluster: &Cluster, front: usize, client: &str) -> Result<Vec<Value>> {
    let mut socket = Socket::open(
        cluster.fronts[1 - front].address,
        &format!("/ws?clientId={client}"),
    );
    let body = json!({"prompt": workflow::smallest(0x0000ff, "relayed"), "client_id": client});
    let answer = cluster.fronts[front].post("/prompt", &body)?;
    let id = answer["prompt_id"].as_str().unwrap_or_default();
    Ok(socket.run(id))
}

#[test]
fn a_client_of_one_front_follows_what_it_posted_to_another() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(2, 1)?;
    cluster.start()?;
    // Both have a picture of this name, so that the other's has to get another one here.
    for front in &cluster.fronts {
        let id = front.queue(&workflow::smallest(0xff0000, "relayed"))?;
        front.wait_for(&id)?;
    }
    for front in [0, 1] {
        let client = format!("client-{front}");
        let messages = heard_from(&cluster, front, &client)?;
        let of = |kind: &str| messages.iter().find(|m| m["type"] == kind);
        for kind in ["execution_start", "executed", "execution_success"] {
            assert!(of(kind).is_some(), "no {kind}: {messages:?}");
        }
        let executed = of("executed").map(|m| m["data"]["output"]["images"][0].clone());
        let name = executed.unwrap_or_default()["filename"].clone();
        let name = name.as_str().unwrap_or_default();
        let path = format!("/view?filename={name}&type=output");
        let shown = cluster.fronts[1 - front].connect()?.get(&path)?;
        assert_eq!(shown.status, 200, "{name}: {messages:?}");
        let shown = picture::read(std::io::Cursor::new(&shown.body[..]))?;
        assert_eq!(shown.pixels[..3], [0, 0, 255], "{name}");
    }
    Ok(())
}

#[test]
fn any_front_interrupts() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(2, 1)?;
    cluster.start()?;
    let id = cluster.fronts[0].queue(&workflow::chain(3000, 512, 3))?;
    cluster.until("the job in the queue of the other front", |cluster| {
        let queue = cluster.fronts[1].get("/queue").unwrap_or_default();
        queue["queue_running"][0][1] == json!(id)
    })?;
    cluster.fronts[1].post("/interrupt", &json!({"prompt_id": id}))?;
    let entry = cluster.fronts[0].wait_for(&id)?;
    let messages = entry["status"]["messages"].to_string();
    assert!(messages.contains("execution_interrupted"), "{entry}");
    Ok(())
}

/// A worker that takes jobs and answers with `lie`, which is told the name of the worker and the job.
fn lying_worker(
    cluster: &Cluster,
    name: &'static str,
    lie: impl Fn(&Voice, &str, &Value) + Send + 'static,
) -> Result<Member> {
    let (run, control) = (
        format!("fresco.run.{name}"),
        format!("fresco.control.{name}"),
    );
    let heard = run.clone();
    let hear = move |voice: &Voice, message: Message| {
        let Some(reply) = message.reply else { return };
        let body: Value = serde_json::from_slice(&message.body).unwrap_or_default();
        if message.subject == heard {
            lie(voice, &reply, &body);
            return;
        }
        let classes = ["EmptyImage", "SaveImage"];
        let own = json!({"description": {"classes": classes, "models": []}});
        let _ = voice.say(&reply, message_of(PROTOCOL, &own).as_bytes());
    };
    let member = Member::join(cluster.nats_port, &[&run, &control], hear)?;
    let alive = json!({
        "protocol": PROTOCOL, "version": "1", "session": name, "time": 1, "state": "idle", "events": 0, "catalogue": 1,
        "view": {"resident": [], "devices": ["cpu"], "room": 1_u64 << 40}, "delivering": [],
    });
    member.repeat(
        &format!("fresco.alive.{name}"),
        alive.to_string().into_bytes(),
    );
    Ok(member)
}

/// The version in which this program's processes speak to each other.
const PROTOCOL: i64 = 2;

/// A message as processes send it.
fn message_of(protocol: i64, body: &Value) -> String {
    json!({"protocol": protocol, "version": "1", "body": body}).to_string()
}

/// Says yes to a job, and then this about it.
fn accept(voice: &Voice, reply: &str, job: &Value, about: &Value) {
    let _ = voice.say(reply, message_of(PROTOCOL, &json!("accepted")).as_bytes());
    let name = &job["body"]["name"];
    let (front, task) = (name["front"].as_str().unwrap_or_default(), &name["task"]);
    let about = message_of(PROTOCOL, about);
    let _ = voice.say(&format!("fresco.event.{front}.{task}"), about.as_bytes());
}

#[test]
fn workers_that_lie_are_named_and_harm_nobody() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    cluster.nats.start()?;
    cluster.until_nats_listens()?;
    cluster.fronts[0].process.start()?;
    cluster.fronts[0].until_ready()?;
    let outside = cluster.folder.path().join("outside.png");
    let _liars = [
        // No answer at all that makes sense.
        lying_worker(&cluster, "garbage", |voice, reply, _| {
            let _ = voice.say(reply, b"{\"answer\": 7");
        })?,
        // Events that are none.
        lying_worker(&cluster, "nonsense", |voice, reply, job| {
            let about = json!({"number": 1, "session": "nonsense", "events": [{"event": ["?"]}]});
            accept(voice, reply, job, &about);
        })?,
        // A result whose file would lie outside.
        lying_worker(&cluster, "escape", |voice, reply, job| {
            let file = json!({"type": "output", "name": "../../outside.png", "size": 1,
                "hash": "0".repeat(64), "data": "QQ=="});
            let outcome = json!({"end": "finished", "meta": {}, "messages": [],
                "outputs": {"2": {"images": [{"filename": "outside.png", "subfolder": "../..", "type": "output"}]}}});
            let about = json!({"number": 1, "session": "escape", "events": [],
                "outcome": {"outcome": outcome, "files": [file]}});
            accept(voice, reply, job, &about);
        })?,
    ];
    let front = &cluster.fronts[0];
    let ids: Vec<String> = (1..=3)
        .map(|colour| front.queue(&workflow::smallest(colour, "lie")))
        .collect::<Result<_>>()?;
    cluster.until("the log to name all three", |cluster| {
        let log = cluster.fronts[0].process.log();
        let named = |name: &str| {
            let mut lines = log.lines();
            lines.any(|line| line.contains(name) && line.contains("no jobs for a minute"))
        };
        ["garbage", "nonsense", "escape"].into_iter().all(named)
    })?;
    cluster.workers[0].process.start()?;
    for id in &ids {
        let entry = cluster.fronts[0].wait_for(id)?;
        assert_eq!(entry["status"]["status_str"], "success", "{entry}");
        let name = &entry["outputs"]["2"]["images"][0]["filename"];
        assert!(name.as_str().is_some_and(|name| name.starts_with("lie")));
    }
    assert!(!outside.exists() && !cluster.fronts[0].base.join("outside.png").exists());
    Ok(())
}

#[test]
fn a_front_that_lies_spoils_no_list() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 0)?;
    cluster.start()?;
    let own = cluster.fronts[0].queue(&workflow::smallest(1, "own"))?;
    let good = json!([5, "theirs", {}, {}, []]);
    let listed = good.clone();
    let hear = move |voice: &Voice, message: Message| {
        let Some(reply) = message.reply else { return };
        let question: Value = serde_json::from_slice(&message.body).unwrap_or_default();
        let answer = if question["body"] == "queue" {
            json!({"queue": {"running": ["none"], "pending": [7, listed.clone(), ["a"], {"b": 1}]}})
        } else {
            json!({"records": {"records": {"another": {}}, "files": [{"name": "../../x"}]}})
        };
        let _ = voice.say(&reply, message_of(PROTOCOL, &answer).as_bytes());
    };
    let liar = Member::join(cluster.nats_port, &["fresco.fronts.ask.liar"], hear)?;
    let alive = json!({"protocol": PROTOCOL, "version": "1"}).to_string();
    liar.repeat("fresco.fronts.alive.liar", alive.into_bytes());
    cluster.until("the other front's job", |cluster| {
        let queue = cluster.fronts[0].get("/queue").unwrap_or_default();
        queue["queue_pending"][1] == good
    })?;
    let front = &cluster.fronts[0];
    let queue = front.get("/queue")?;
    assert_eq!(queue["queue_running"], json!([]));
    assert_eq!(queue["queue_pending"].as_array().map(Vec::len), Some(2));
    assert_eq!(queue["queue_pending"][0][1], json!(own));
    assert_eq!(front.get("/history/asked")?, json!({}));
    Ok(())
}

/// Workers and fronts of a version before and of one after this program's.
#[test]
fn members_of_other_versions_are_named_with_what_to_do_and_left_alone() -> Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    cluster.start()?;
    let say_alive = |subject: String, alive: Value| -> Result<Member> {
        let member = Member::join(cluster.nats_port, &[], |_: &Voice, _: Message| {})?;
        member.repeat(&subject, alive.to_string().into_bytes());
        Ok(member)
    };
    let worker = |protocol: i64| json!({"protocol": protocol, "version": "0.0.1", "session": "s"});
    let _others = [
        say_alive("fresco.alive.older".to_owned(), worker(PROTOCOL - 1))?,
        say_alive("fresco.alive.newer".to_owned(), worker(PROTOCOL + 1))?,
        say_alive(
            "fresco.fronts.alive.former".to_owned(),
            json!({"version": "0.0.1", "clients": []}),
        )?,
    ];
    cluster.until("the log to name all three", |cluster| {
        let log = cluster.fronts[0].process.log();
        let named = |name: &str, version: i64, update: &str| {
            let theirs = format!("speaks version {version} (Fresco 0.0.1)");
            let mut lines = log.lines();
            lines.any(|line| {
                [name, theirs.as_str(), "use the same program", update]
                    .into_iter()
                    .all(|part| line.contains(part))
            })
        };
        named("older", PROTOCOL - 1, "update the other one")
            && named("newer", PROTOCOL + 1, "update this one")
            && named("former", 1, "update the other one")
    })?;
    let front = &cluster.fronts[0];
    let id = front.queue(&workflow::smallest(1, "ours"))?;
    assert_eq!(front.wait_for(&id)?["status"]["status_str"], "success");
    let stats = front.get("/system_stats")?.to_string();
    assert!(stats.contains("update the other one"), "{stats}");
    Ok(())
}
