//! `/free`, `/memory` and the events of the memory room, over a registry with one model on simulated devices.

use std::sync::{Arc, mpsc};
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use fresco_engine::{Event, EventKind};
use fresco_graph::Value;
use fresco_memory::{FreeNote, Policy, PolicySource};
use fresco_server::event_line;

use crate::harness::{Rig, chain, rig, rig_models};
use crate::model_room::{BYTES, CAPACITY, COUNT, DONATED, Furnished, furnished, who};
use crate::sockets::Client;

const ALL: u64 = BYTES * COUNT as u64;
const IN_HOST: u64 = BYTES * DONATED as u64;
const ON_DEVICE: u64 = ALL - IN_HOST;

fn room() -> (Rig, Furnished) {
    let room = furnished();
    (rig_models(room.registry.clone()), room)
}

/// The kinds of events after a number.
fn kinds(room: &Furnished, since: u64) -> Vec<&'static str> {
    let events = room.registry.events(since, &[], usize::MAX);
    events.iter().map(|event| event.kind).collect()
}

/// Bytes of the model by place.
fn places(room: &Furnished) -> (u64, u64) {
    let snapshot = room.registry.snapshot();
    let model = &snapshot.models[0];
    let there = model.residency.iter().map(|(_, bytes)| bytes).sum();
    (there, model.host_bytes)
}

#[tokio::test]
async fn the_plain_bodies_answer_with_nothing() {
    let (rig, room) = room();
    let device = format!(
        r#"{{"retention":"override","device":"{}","model":"gone"}}"#,
        room.other
    );
    for body in [
        "{}",
        r#"{"unload_models":true}"#,
        r#"{"unload_models":true,"free_memory":1,"unknown":[1]}"#,
        &device,
        r#"{"retention":null,"devices":null,"models":[]}"#,
    ] {
        for path in ["/free", "/api/free"] {
            let got = rig.post(path, body.to_owned()).await.expect(200);
            assert!(got.body.is_empty(), "{body}");
            assert_eq!(got.header("content-type"), None);
        }
    }
}

#[tokio::test]
async fn bad_requests_to_free_say_what_is_wrong() {
    let (rig, room) = room();
    let before = room.registry.last_seq();
    let (primary, other) = (&room.primary, &room.other);
    let unknown = format!(r#"{{"unload_models":true,"devices":["{other}","sim:999"]}}"#);
    let known = format!(r#"unknown device "sim:999"; there are cpu, {primary}, {other}"#);
    for (body, why) in [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (r#"{"retention":"keep"}"#, "retention must be"),
        (r#"{"retention":1}"#, "retention must be"),
        (r#"{"devices":[1]}"#, "devices must be a name"),
        (r#"{"device":{"a":1}}"#, "device must be a name"),
        (r#"{"models":[null]}"#, "models must be a name"),
        (&unknown, &known),
    ] {
        let got = rig.post("/free", body.to_owned()).await.expect(400).json();
        let error = got.get("error").unwrap();
        let details = error.get("details").unwrap().as_str().unwrap();
        assert!(details.contains(why), "{body}: {details}");
    }
    assert_eq!(kinds(&room, before), [""; 0], "nothing was done");
}

#[tokio::test]
async fn waiting_gives_the_report_and_a_dry_run_the_plan() {
    let (rig, room) = room();
    let (primary, other) = (room.primary.name(), room.other.name());
    let ask = async |body: String| rig.post("/free", body).await.expect(200).json();
    let action = |got: &Value| {
        let plan = got.get("plan").unwrap().as_list().unwrap();
        plan.first()
            .map(|step| step.get("action").unwrap().as_str().unwrap().to_owned())
    };
    // What is limited to other devices or models, or respects what is to be kept, leaves it where it is.
    for (body, planned) in [
        (
            r#"{"free_memory":true,"retention":"respect","dry_run":true,"wait":true}"#.to_owned(),
            Some("keep"),
        ),
        (
            r#"{"unload_models":true,"model":"x","dry_run":true}"#.to_owned(),
            None,
        ),
        (
            format!(r#"{{"unload_models":true,"device":"{other}","dry_run":1}}"#),
            None,
        ),
        (
            format!(r#"{{"unload_models":true,"device":"{primary}","dry_run":1}}"#),
            Some("evict"),
        ),
        (
            r#"{"free_memory":true,"dry_run":true,"wait":true}"#.to_owned(),
            Some("release"),
        ),
    ] {
        let got = ask(body.clone()).await;
        assert_eq!(got.get("dry_run"), Some(&true.into()));
        assert_eq!(action(&got).as_deref(), planned, "{body}");
        assert_eq!(places(&room), (ON_DEVICE, IN_HOST), "{body}");
    }
    let id = room.id();
    let body = format!(
        r#"{{"unload_models":true,"devices":["{primary}"],"device":"{other}","model":"{id}","wait":true}}"#
    );
    let got = ask(body).await;
    let model = &got.get("models").unwrap().as_list().unwrap()[0];
    assert_eq!(model.get("weights_id"), Some(&id.into()));
    let before = model.get("before").unwrap();
    assert_eq!(before.get(&primary), Some(&ON_DEVICE.into()));
    assert_eq!(before.get("cpu"), Some(&IN_HOST.into()));
    assert_eq!(model.get("after").unwrap().get("cpu"), Some(&ALL.into()));
    assert_eq!(model.get("after").unwrap().get(&primary), None);
    assert_eq!(model.get("error"), Some(&Value::Null));
    assert_eq!(action(&got).as_deref(), Some("evict"));
    for key in ["ram_before", "ram_after", "duration"] {
        assert!(got.get(key).is_some_and(|v| !v.is_null()), "{key}");
    }
    assert_eq!(got.get("cache_reset"), Some(&false.into()));

    let got = ask(r#"{"free_memory":true,"wait":true}"#.to_owned()).await;
    assert_eq!(got.get("cache_reset"), Some(&true.into()));
    assert_eq!(action(&got).as_deref(), Some("release"));

    let before = room.registry.last_seq();
    let got = ask(r#"{"wait":true}"#.to_owned()).await;
    assert_eq!(got.get("models"), Some(&Vec::<Value>::new().into()));
    assert_eq!(kinds(&room, before), ["free.noop"]);
}

#[tokio::test]
async fn a_request_waits_for_the_running_prompt() {
    let (rig, room) = room();
    let id = rig.queue(&chain(1, "Wait"), None).await;
    rig.until_event(&id, "executing").await;
    let before = room.registry.last_seq();
    rig.post("/free", r#"{"unload_models":true}"#)
        .await
        .expect(200);
    let events = room.registry.events(before, &[], usize::MAX);
    let [deferred] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(deferred.kind, "free.deferred");
    assert_eq!(deferred.prompt.as_deref(), Some(id.as_str()));
    assert_eq!(places(&room), (ON_DEVICE, IN_HOST), "not yet");
    rig.post("/interrupt", "").await.expect(200);
    rig.finish(&id).await;
    // Its own request comes after the one that waited.
    rig.post("/free", r#"{"unload_models":true,"wait":true}"#)
        .await
        .expect(200);
    assert_eq!(places(&room), (0, ALL));
}

#[tokio::test]
async fn stats_list_every_accelerator_the_primary_first() {
    let (rig, room) = room();
    let got = rig.get("/system_stats").await.expect(200);
    let (primary, other) = (room.primary.name(), room.other.name());
    let number = |name: &str| name.strip_prefix("sim:").unwrap().to_owned();
    let first = format!(
        r#"{{"name":"{primary}","type":"sim","index":{},"vram_total":{CAPACITY},"vram_free":{},"torch_vram_total":{ON_DEVICE},"torch_vram_free":0}}"#,
        number(&primary),
        CAPACITY - ON_DEVICE,
    );
    let second = format!(
        r#"{{"name":"{other}","type":"sim","index":{},"#,
        number(&other)
    );
    let text = got.text();
    assert!(
        text.contains(&format!("\"devices\":[{first},{second}")),
        "{text}"
    );
}

#[tokio::test]
async fn looking() {
    let (rig, room) = room();
    let all = rig.get("/memory").await.expect(200).json();
    let keys: Vec<&str> = all.as_map().unwrap().keys().map(|k| &**k).collect();
    assert_eq!(
        keys,
        [
            "devices",
            "models",
            "places",
            "leases",
            "policies",
            "decisions",
            "last_seq"
        ]
    );
    let again = rig.get("/api/memory").await.expect(200).json();
    // Main memory that is free differs from moment to moment.
    for key in keys.iter().filter(|key| **key != "devices") {
        assert_eq!(again.get(key), all.get(key), "{key}");
    }
    let (id, primary) = (room.id(), room.primary.name());
    let places = all.get("places").unwrap().get(id).unwrap();
    assert_eq!(places.get(&primary), Some(&ON_DEVICE.into()));
    assert_eq!(places.get("cpu"), Some(&IN_HOST.into()));
    let policy = all.get("policies").unwrap().get(id).unwrap();
    assert_eq!(policy.get("policy"), Some(&"keep".into()));
    assert_eq!(policy.get("source"), Some(&"node_input".into()));
    assert_eq!(all.get("leases"), Some(&Vec::<Value>::new().into()));
    let last_seq = room.registry.last_seq();
    assert_eq!(all.get("last_seq"), Some(&last_seq.into()));
    let decisions = all.get("decisions").unwrap().as_list().unwrap();
    assert_eq!(decisions.len() as u64, last_seq);

    let devices = rig.get("/memory/devices").await.expect(200).json();
    let device = &devices.as_list().unwrap()[1];
    for key in [
        "device",
        "type",
        "total",
        "free",
        "allocator_reserved",
        "allocator_free",
        "reserved",
        "weights_resident",
        "weights_buffer",
        "pinned_host",
    ] {
        assert!(device.get(key).is_some(), "{key}");
    }

    let models = rig.get("/memory/models").await.expect(200).json();
    let model = &models.as_list().unwrap()[0];
    for key in [
        "weights_id",
        "content",
        "component",
        "class",
        "bytes_total",
        "residency",
        "host_bytes",
        "pinned_bytes",
        "state",
        "effective_policy",
        "claims",
        "leases",
        "handles",
        "last_used",
        "demoted_by",
    ] {
        assert!(model.get(key).is_some(), "{key}");
    }
    let claim = &model.get("claims").unwrap().as_list().unwrap()[0];
    let made = room.registry.snapshot().models[0].claims[0].at;
    let made = made.duration_since(UNIX_EPOCH).unwrap().as_millis() as i128;
    assert_eq!(claim.get("at"), Some(&Value::Int(made)));
    let claimant = claim.get("claimant").unwrap();
    assert_eq!(claimant.get("client_id"), Some(&"me".into()));
    assert_eq!(claimant.get("node_id"), Some(&"4".into()));
    assert_eq!(model.get("state"), Some(&"partial".into()));
    assert_eq!(model.get("host_bytes"), Some(&IN_HOST.into()));
    let file = "/models/sd15.safetensors";
    assert_eq!(model.get("content"), Some(&vec![Value::from(file)].into()));

    // By the id of the weights, and by that of a handle.
    let one = rig.get(&room.path()).await.expect(200).json();
    let handle = room.handle.model().to_string();
    let same = rig.get(&format!("/memory/models/{handle}")).await;
    assert_eq!(same.expect(200).json(), one);
    let units = one.get("units").unwrap().as_list().unwrap();
    assert_eq!(units.len(), COUNT);
    let on = |name: &str| {
        let there = units.iter().map(|unit| unit.get("device"));
        there.filter(|device| *device == Some(&name.into())).count()
    };
    assert_eq!((on(&primary), on("cpu")), (COUNT - DONATED, DONATED));
    let placement = one.get("placement").unwrap().as_list().unwrap();
    assert_eq!(placement[0].get("model_id"), Some(&handle.as_str().into()));
    let allocation = format!("#{primary};0.00390625;cpu");
    assert_eq!(
        placement[0].get("allocation"),
        Some(&allocation.as_str().into())
    );
    rig.get("/memory/models/gone").await.expect(404);
}

#[tokio::test]
async fn books_that_are_wrong_are_told() {
    let (rig, room) = room();
    let check = async || rig.get("/memory/check").await.expect(200);
    assert_eq!(check().await.text(), r#"{"consistent":true,"problems":[]}"#);
    let snapshot = room.registry.model(room.id()).unwrap().1;
    let primary = room.primary.name();
    let there = |unit: &fresco_memory::UnitReport| unit.home.as_ref() == Some(&primary);
    room.layers.steal(snapshot.iter().position(there).unwrap());
    let found = check().await.json();
    assert_eq!(found.get("consistent"), Some(&false.into()));
    let problems = found.get("problems").unwrap().as_list().unwrap();
    let first = problems[0].as_str().unwrap();
    assert!(first.contains("the books say"), "{first}");
}

#[tokio::test]
async fn events_are_asked_for_by_number_and_kind() {
    let (rig, room) = room();
    let ask = async |query: &str| {
        let got = rig.get(&format!("/memory/events?{query}")).await;
        let got = got.expect(200).json();
        let last = got.get("last_seq").cloned();
        assert_eq!(last, Some(room.registry.last_seq().into()));
        got.get("events").unwrap().as_list().unwrap().to_vec()
    };
    let all = room.registry.events(0, &[], usize::MAX);
    let wanted = ["policy.set", "model.loaded"];
    let mut seqs = all.iter().filter(|e| wanted.contains(&e.kind));
    let first = seqs.next().unwrap().seq;
    let seqs: Vec<Value> = seqs.map(|event| event.seq.into()).collect();
    let query = format!("since={first}&kinds=model.loaded,%20policy.set&limit=5");
    let events = ask(&query).await;
    let told: Vec<Value> = events
        .iter()
        .filter_map(|e| e.get("seq").cloned())
        .collect();
    assert_eq!(told, seqs);
    assert_eq!(
        ask("limit=1").await[0].get("seq").cloned(),
        all.last().map(|e| e.seq.into())
    );
    assert_eq!(ask("limit=99999999999999").await.len(), all.len());

    let named = |event: &&Value| event.get("places").is_some() && event.get("numbers").is_some();
    let events = ask("").await;
    let event = events.iter().find(named).unwrap();
    for key in [
        "seq",
        "time",
        "kind",
        "trigger",
        "prompt_id",
        "node_id",
        "weights_id",
        "model_id",
        "class",
        "device",
        "bytes_before",
        "bytes_after",
        "policy",
        "policy_source",
        "policy_node",
        "policy_client",
        "origin",
        "places",
        "decision",
        "reason",
        "error",
        "numbers",
    ] {
        assert!(event.get(key).is_some(), "{key}");
    }
    for bad in ["since=x", "since=-1", "limit=1.5"] {
        rig.get(&format!("/memory/events?{bad}")).await.expect(400);
    }
    let lines = event_line(all.last().unwrap());
    assert_eq!(lines.lines().count(), 1, "one event, one line");
}

#[tokio::test]
async fn events_say_who_decided() {
    let (rig, room) = room();
    let set = rig.get("/memory/events?kinds=policy.set").await.expect(200);
    let set = set.json();
    let event = &set.get("events").unwrap().as_list().unwrap()[0];
    for (key, want) in [
        ("prompt_id", "p"),
        ("node_id", "4"),
        ("weights_id", room.id()),
        ("class", "diffusion SD1"),
        ("policy", "keep"),
        ("policy_source", "node_input"),
        ("policy_node", "4"),
        ("policy_client", "me"),
    ] {
        assert_eq!(event.get(key), Some(&want.into()), "{key}");
    }
    let model = room.handle.model().to_string();
    assert_eq!(event.get("model_id"), Some(&model.as_str().into()));
    let origin = fresco_graph::json::to_string(event.get("origin").unwrap());
    assert_eq!(
        origin,
        r#"{"kind":"node","name":"retention","node_id":"4","client_id":"me"}"#
    );
}

#[tokio::test]
async fn policies_are_set_and_models_dropped() {
    let (rig, room) = room();
    let (path, id) = (room.path(), room.id());
    let patch = async |path: &str, body: &str| rig.ask("PATCH", path, &[], body.to_owned()).await;
    let delete = async |path: &str| rig.ask("DELETE", path, &[], Body::empty()).await;
    let effective = |room: &Furnished| room.registry.snapshot().models[0].policy;
    for (body, shown, policy) in [
        (r#"{"policy":"pin"}"#, "pin", Policy::Pin),
        (r#"{"policy":"auto"}"#, "keep", Policy::Keep),
        (r#"{"policy":"keep"}"#, "keep", Policy::Keep),
    ] {
        let got = patch(&path, body).await.expect(200).json();
        assert_eq!(got.get("weights_id"), Some(&id.into()));
        assert_eq!(got.get("effective_policy"), Some(&shown.into()));
        assert_eq!(effective(&room), policy);
    }
    let got = patch(&path, r#"{"policy":"ttl","seconds":30}"#).await;
    let claims = got.expect(200).json().get("claims").unwrap().clone();
    let claims = claims.as_list().unwrap();
    let ttl = claims
        .iter()
        .any(|c| c.get("policy") == Some(&"ttl:30".into()));
    assert!(ttl, "{claims:?}");
    for bad in [
        "{",
        "[]",
        "{}",
        r#"{"policy":1}"#,
        r#"{"policy":"ttl"}"#,
        r#"{"policy":"always"}"#,
    ] {
        patch(&path, bad).await.expect(400);
    }
    let bad = patch(&path, r#"{"policy":"always"}"#).await.json();
    let details = bad.get("error").unwrap().get("details").unwrap();
    assert_eq!(
        details.as_str(),
        Some(r#"unknown policy "always"; there are auto, keep, pin, eject_after, ttl:SECONDS"#)
    );
    for body in [r#"{"policy":"keep"}"#, r#"{"policy":"release_now"}"#] {
        let gone = patch("/memory/models/gone", body).await.expect(404);
        assert!(gone.text().contains("unknown model gone"));
    }
    delete("/memory/models/gone").await.expect(404);

    patch(&path, r#"{"policy":"pin"}"#).await.expect(200);
    for pinned in [
        delete(&path).await,
        patch(&path, r#"{"policy":"release_now"}"#).await,
    ] {
        let text = pinned.expect(409).text().to_owned();
        assert!(
            text.contains(&format!("the model {id} is pinned")),
            "{text}"
        );
    }
    patch(&path, r#"{"policy":"keep"}"#).await.expect(200);

    // What a prompt uses goes after it.
    room.begin("q");
    let busy = patch(&path, r#"{"policy":"release_now"}"#)
        .await
        .expect(409);
    assert!(busy.text().contains(&format!("the model {id} is in use")));
    let got = delete(&path).await.expect(202).json();
    assert_eq!(got.get("status"), Some(&"deferred".into()));
    room.registry.prompt_ended("q");
    assert!(room.registry.snapshot().models.is_empty());
    room.begin("r");
    room.registry.prompt_ended("r");
    patch(&path, r#"{"policy":"release_now"}"#)
        .await
        .expect(200);
    assert!(room.registry.snapshot().models.is_empty());
    room.begin("s");
    room.registry.prompt_ended("s");
    patch(&path, r#"{"policy":"pin"}"#).await.expect(200);
    let got = delete(&format!("{path}?force=1")).await.expect(200).json();
    assert_eq!(got.get("status"), Some(&"released".into()));
    assert_eq!(room.primary.used(), 0);
}

#[tokio::test]
async fn a_time_to_live_wakes_whoever_looks_after_it() {
    let (rig, room) = room();
    // Nothing else speaks for it.
    room.handle
        .set_policy(&who("p"), Policy::Auto, PolicySource::NodeInput);
    let (sender, events) = mpsc::channel();
    room.registry.on_event(Arc::new(move |event| {
        let _ = sender.send(event.kind);
    }));
    let body = r#"{"policy":"ttl:0"}"#;
    let set = rig.ask("PATCH", &room.path(), &[], body).await;
    set.expect(200);
    let deadline = Duration::from_mins(2);
    while events.recv_timeout(deadline).expect("it stays") != "model.released" {}
}

#[tokio::test]
async fn plans_can_be_asked_for() {
    let (rig, room) = room();
    let plan = async |body: &str| rig.post("/memory/plan", body.to_owned()).await;
    let action = async |body: &str| {
        let got = plan(body).await.expect(200).json();
        let steps = got.get("plan").unwrap().as_list().unwrap();
        steps[0].get("action").unwrap().as_str().unwrap().to_owned()
    };
    assert_eq!(action(r#"{"trigger":"free"}"#).await, "evict");
    assert_eq!(action(r#"{"free_memory":true}"#).await, "release");
    let path = room.path();
    let pin = rig.ask("PATCH", &path, &[], r#"{"policy":"pin"}"#);
    pin.await.expect(200);
    assert_eq!(action(r#"{"trigger":"free"}"#).await, "keep");
    assert_eq!(action(r#"{"trigger":"force"}"#).await, "evict");
    assert_eq!(places(&room), (ON_DEVICE, IN_HOST));

    // A model that is only described, on devices that are.
    let units: Vec<String> = (0..10)
        .map(|i| format!(r#"{{"name":"layers.{i}","bytes":{BYTES}}}"#))
        .collect();
    let body = |more: &str| {
        let units = units.join(",");
        format!(
            r#"{{"units":[{units}],"devices":[{{"device":"cuda:0","total":{CAPACITY}}},{{"device":"cpu","total":1073741824}}]{more}}}"#
        )
    };
    let on = |got: &Value, device: &str| {
        let units = got.get("units").unwrap().as_map().unwrap().clone();
        units.values().filter(|d| **d == device.into()).count()
    };
    let got = plan(&body("")).await.expect(200).json();
    assert_eq!(got.get("fits"), Some(&true.into()));
    assert_eq!(got.get("full"), Some(&true.into()));
    assert_eq!(on(&got, "cuda:0"), 10);
    assert_eq!(got.get("allocation"), Some(&Value::Null));
    assert_eq!(got.get("explanation"), Some(&Value::Null));
    assert_eq!(got.get("resident_bytes"), Some(&(10 * BYTES).into()));
    let donated = r#","virtual_vram_gb":0.00390625,"donor_device":"cpu","expert_mode_allocations":"","eject_models":true,"required":9"#;
    let got = plan(&body(donated)).await.expect(200).json();
    assert_eq!((on(&got, "cuda:0"), on(&got, "cpu")), (6, 4));
    assert_eq!(got.get("full"), Some(&false.into()));
    assert!(got.get("allocation").unwrap().as_str().is_some());
    let expert = r#","virtual_vram_gb":0.00390625,"expert_mode_allocations":"cuda:0,3mb;cpu,*""#;
    let got = plan(&body(expert)).await.expect(200).json();
    assert_eq!((on(&got, "cuda:0"), on(&got, "cpu")), (3, 7));
    let small = body("").replace(&CAPACITY.to_string(), "1000");
    let got = plan(&small).await.expect(200).json();
    assert_eq!(got.get("fits"), Some(&false.into()));
    let why = got.get("explanation").unwrap().as_str().unwrap();
    assert!(why.contains("cuda:0 has"), "{why}");

    // One that is there.
    let there = format!(r#"{{"weights_id":"{}"}}"#, room.id());
    let got = plan(&there).await.expect(200).json();
    assert_eq!(on(&got, &room.primary.name()), COUNT);
    plan(r#"{"weights_id":"gone"}"#).await.expect(404);

    for (more, whys) in [
        (
            r#","expert_mode_allocations":"cuda:7,1g;cuda:0,xg""#,
            ["unknown_device", "bad_amount"],
        ),
        (
            r#","virtual_vram_gb":2000000,"donor_device":"cuda:1""#,
            [
                "unknown device \"cuda:1\"; there are cuda:0, cpu",
                "2000000 GB of virtual memory cannot be meant",
            ],
        ),
    ] {
        let got = plan(&body(more)).await.expect(400).json();
        let details = got.get("error").unwrap().get("details").unwrap();
        let details = details.as_str().unwrap();
        assert!(whys.iter().all(|why| details.contains(why)), "{details}");
    }
    for (bad, why) in [
        ("{}", "nothing to plan"),
        (r#"{"trigger":"prompt_end"}"#, "only triggers"),
        (r#"{"trigger":1}"#, "only triggers"),
        (r#"{"units":1}"#, "units must be a list"),
        (r#"{"units":[]}"#, "1 to"),
        (
            r#"{"units":[{"bytes":1},{"name":"b","bytes":-1},{"name":"c"}]}"#,
            "units[0] must have a name; bytes of units[1] must be",
        ),
        (r#"{"weights_id":1}"#, "weights_id must be text"),
        (
            r#"{"weights_id":"x","virtual_vram_gb":-1}"#,
            "virtual_vram_gb must be a number",
        ),
        (
            r#"{"weights_id":"x","devices":[{"device":"a","total":1},{"device":"a","total":1}]}"#,
            "a twice",
        ),
        (
            r#"{"weights_id":"x","compute_device":"sim:999"}"#,
            "unknown device",
        ),
    ] {
        let got = plan(bad).await.expect(400).json();
        let details = got.get("error").unwrap().get("details").unwrap();
        assert!(
            details.as_str().unwrap().contains(why),
            "{bad}: {details:?}"
        );
    }
}

#[tokio::test]
async fn a_server_without_models_answers_too() {
    let rig = rig();
    for path in [
        "/memory",
        "/memory/devices",
        "/memory/models",
        "/memory/events",
    ] {
        rig.get(path).await.expect(200);
    }
    let check = rig.get("/memory/check").await.expect(200);
    assert_eq!(check.text(), r#"{"consistent":true,"problems":[]}"#);
    let wait = r#"{"unload_models":true,"wait":true,"device":"cpu"}"#;
    rig.post("/free", wait).await.expect(200);
}

#[tokio::test]
async fn other_sites_change_nothing() {
    let (rig, room) = room();
    let (path, before) = (room.path(), room.registry.last_seq());
    let site = [
        ("origin", "https://evil.example"),
        ("host", "127.0.0.1:8188"),
    ];
    for (method, path) in [
        ("POST", "/free"),
        ("PATCH", &*path),
        ("DELETE", &*path),
        ("POST", "/memory/plan"),
    ] {
        rig.ask(method, path, &site, "{}").await.expect(403);
    }
    assert_eq!(kinds(&room, before), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_ask_get_the_events() {
    let (rig, room) = room();
    let address = rig.listen().await;
    let (mut plain, _) = Client::open(address, "?clientId=plain");
    let (mut curious, _) = Client::open(address, "?clientId=curious");
    plain.send(r#"{"type":"feature_flags","data":{"supports_memory_events":"yes"}}"#);
    curious.send(r#"{"type":"feature_flags","data":{"supports_memory_events":true}}"#);
    for client in [&mut plain, &mut curious] {
        let reply = client.next();
        let flag = reply.data().get("supports_memory_events").cloned();
        assert_eq!(flag, Some(Value::Bool(true)));
    }
    let emit = |kind| {
        rig.app.engine.sink().emit(Event {
            worker: None,
            prompt_id: Some("p".into()),
            client: Some("plain".into()),
            kind,
        });
    };
    room.registry.note_free(FreeNote::Noop);
    let seq = room.registry.last_seq();
    emit(EventKind::Downgraded {
        message: "streamed".into(),
    });
    emit(EventKind::Status { remaining: 0 });
    let frame = curious.next();
    assert_eq!(frame.kind(), "memory_event");
    assert_eq!(frame.data().get("seq"), Some(&seq.into()));
    assert_eq!(frame.data().get("kind"), Some(&"free.noop".into()));
    let frame = curious.next();
    assert_eq!(
        frame.data().get("kind"),
        Some(&"admission.downgraded".into())
    );
    assert_eq!(curious.next().kind(), "status");
    assert_eq!(plain.next().kind(), "status", "it did not ask");
}
