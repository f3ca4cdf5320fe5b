//! `/free`, `/memory` and the events of the memory room, over a room that writes down what it is asked.

use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use fresco_engine::*;
use fresco_graph::Value;
use fresco_server::event_line;

use crate::harness::{Rig, chain, rig, rig_memory};
use crate::sockets::Client;

const ID: &str = "sd15.safetensors#diffusion@1a2b";
const PATH: &str = "/memory/models/sd15.safetensors%23diffusion%401a2b";

#[derive(Default)]
struct Room {
    asked: Mutex<Vec<String>>,
    /// Prompts that hold the model.
    leases: Mutex<Vec<Arc<str>>>,
}

impl Room {
    fn note(&self, line: String) {
        self.asked.lock().unwrap().push(line);
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn report(&self) -> ModelReport {
        ModelReport {
            weights_id: ID.into(),
            files: vec!["/models/sd15.safetensors".into()],
            component: "diffusion".into(),
            class: "diffusion SD1".into(),
            bytes_total: 1000,
            residency: vec![("sim:0".into(), 600)],
            host_bytes: 400,
            pinned_bytes: 0,
            state: "partial",
            policy: "keep".into(),
            policy_source: "node_input",
            claims: vec![ClaimReport {
                client: "me".into(),
                node: "4".into(),
                prompt_id: "p".into(),
                policy: "keep".into(),
                source: "node_input",
                at: UNIX_EPOCH + Duration::from_millis(1500),
            }],
            leases: self.leases.lock().unwrap().clone(),
            handles: vec![HandleReport {
                model_id: "m1".into(),
                patch_version: 0,
                patches: 0,
                compute_device: "sim:0".into(),
                on_the_fly: 0,
                own: Vec::new(),
                placement: Some("#sim:0;1.0;cpu".into()),
            }],
            last_used: None,
            demoted_by: None,
            read_bytes: 1000,
        }
    }
}

fn event(seq: u64) -> MemoryEvent {
    MemoryEvent {
        seq,
        time: UNIX_EPOCH + Duration::from_millis(seq),
        kind: "plan.computed",
        trigger: Some("prompt_end"),
        prompt_id: Some("p".into()),
        node_id: None,
        weights_id: Some(ID.into()),
        model_id: None,
        class: None,
        device: None,
        bytes_before: Some(7),
        bytes_after: None,
        policy: Some("keep".into()),
        policy_source: Some("node_input"),
        policy_node: Some("4".into()),
        policy_client: Some("8f3a".into()),
        origin: Some(MemoryOrigin {
            kind: "node",
            name: Some("retention"),
            node: Some("4".into()),
            client: Some("8f3a".into()),
        }),
        decision: Some("keep"),
        reason: Some("asked to be kept".into()),
        error: None,
        places: vec![("sim:0".into(), 7)],
        numbers: vec![("units", 3)],
    }
}

fn step() -> PlanStep {
    PlanStep {
        weights_id: ID.into(),
        device: Some("sim:0".into()),
        action: "evict",
        action_bytes: None,
        policy: "keep".into(),
        bytes: 600,
        reason: "asked".into(),
    }
}

impl MemoryRoom for Room {
    fn resident_ram(&self) -> Option<u64> {
        Some(1 << 20)
    }

    fn after_prompt(&self, _: &str) {}
    fn unload_all(&self, _: &str, _: Unload) {}
    fn release_caches(&self) {}

    fn free(&self, request: &FreeRequest, _: Option<&str>) -> FreeReport {
        self.note(format!("free {request:?}"));
        FreeReport {
            models: vec![Freed {
                weights_id: ID.into(),
                before: vec![("sim:0".into(), 600), ("cpu".into(), 400)],
                after: vec![("cpu".into(), 1000)],
                error: None,
            }],
            plan: FreePlan {
                steps: vec![step()],
            },
            ..FreeReport::default()
        }
    }

    fn free_plan(&self, request: &FreeRequest) -> FreePlan {
        self.note(format!("plan {request:?}"));
        FreePlan {
            steps: vec![step()],
        }
    }

    fn note_free(&self, note: FreeNote<'_>) {
        self.note(format!("{note:?}"));
    }

    fn snapshot(&self) -> Snapshot {
        let device = |name: &str, kind, index, total, free| DeviceReport {
            device: name.into(),
            kind,
            index,
            total,
            free,
            allocator_reserved: total - free,
            allocator_free: 0,
            reserved: 10,
            weights_resident: 600,
            weights_buffer: 0,
            pinned_host: 0,
            peak: 700,
        };
        Snapshot {
            devices: vec![
                device("cpu", "cpu", None, 8000, 4000),
                device("sim:3", "sim", Some(3), 1000, 400),
                device("sim:0", "sim", Some(0), 2000, 500),
            ],
            models: vec![self.report()],
        }
    }

    fn model(&self, id: &str) -> Option<ModelDetail> {
        let unit = UnitReport {
            name: "input_blocks.0.0".into(),
            bytes: 600,
            device: Some("sim:0".into()),
            planned: None,
            orphan: false,
        };
        (id == ID).then(|| ModelDetail {
            model: self.report(),
            units: vec![unit],
        })
    }

    fn events(&self, since: u64, kinds: &[String], limit: usize) -> Vec<MemoryEvent> {
        self.note(format!("events {since} {kinds:?} {limit}"));
        (since + 1..=3).take(limit).map(event).collect()
    }

    fn last_seq(&self) -> u64 {
        3
    }

    fn check(&self) -> Vec<String> {
        vec!["a byte is missing".into()]
    }

    fn set_policy(&self, id: &str, policy: &str) -> Result<ModelReport, MemoryProblem> {
        self.note(format!("policy {id} {policy}"));
        match (id, policy) {
            (ID, "keep" | "ttl:30") => Ok(self.report()),
            (ID, _) => Err(MemoryProblem::Policy {
                policy: policy.into(),
                known: "auto, keep",
            }),
            _ => Err(MemoryProblem::Unknown { id: id.into() }),
        }
    }

    fn remove(&self, id: &str, force: bool) -> Result<Removed, MemoryProblem> {
        self.note(format!("remove {id} {force}"));
        match id {
            ID if self.leases.lock().unwrap().is_empty() => Ok(Removed::Done),
            ID => Ok(Removed::Deferred),
            "pinned" => Err(MemoryProblem::Pinned { id: id.into() }),
            _ => Err(MemoryProblem::Unknown { id: id.into() }),
        }
    }

    fn release(&self, id: &str) -> Result<(), MemoryProblem> {
        self.note(format!("release {id}"));
        match id {
            ID if self.leases.lock().unwrap().is_empty() => Ok(()),
            ID => Err(MemoryProblem::Leased { id: id.into() }),
            _ => Err(MemoryProblem::Unknown { id: id.into() }),
        }
    }

    fn plan_load(&self, request: &LoadRequest) -> Result<LoadPlan, MemoryProblem> {
        self.note(format!("load {request:?}"));
        Ok(LoadPlan {
            fits: true,
            places: vec![("sim:0".into(), 5)],
            units: vec![("a".into(), "sim:0".into())],
            ..LoadPlan::default()
        })
    }
}

fn room() -> (Rig, Arc<Room>) {
    let room = Arc::new(Room::default());
    (rig_memory(room.clone()), room)
}

#[tokio::test]
async fn the_plain_bodies_answer_with_nothing() {
    let (rig, _) = room();
    for body in [
        "{}",
        r#"{"unload_models":true}"#,
        r#"{"unload_models":true,"free_memory":1,"unknown":[1]}"#,
        r#"{"retention":"override","device":"sim:0","model":"gone"}"#,
        r#"{"retention":null,"devices":null,"models":[]}"#,
    ] {
        for path in ["/free", "/api/free"] {
            let got = rig.post(path, body).await.expect(200);
            assert!(got.body.is_empty(), "{body}");
            assert_eq!(got.header("content-type"), None);
        }
    }
}

#[tokio::test]
async fn bad_requests_to_free_say_what_is_wrong() {
    let (rig, room) = room();
    for (body, why) in [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (r#"{"retention":"keep"}"#, "retention must be"),
        (r#"{"retention":1}"#, "retention must be"),
        (r#"{"devices":[1]}"#, "devices must be a name"),
        (r#"{"device":{"a":1}}"#, "device must be a name"),
        (r#"{"models":[null]}"#, "models must be a name"),
        (
            r#"{"unload_models":true,"devices":["sim:0","sim:9"]}"#,
            r#"no device "sim:9"; there are cpu, sim:3, sim:0"#,
        ),
    ] {
        let got = rig.post("/free", body).await.expect(400).json();
        let error = got.get("error").unwrap();
        let details = error.get("details").unwrap().as_str().unwrap();
        assert!(details.contains(why), "{body}: {details}");
    }
    assert_eq!(room.taken(), [""; 0], "nothing was done");
}

#[tokio::test]
async fn waiting_gives_the_report_and_a_dry_run_the_plan() {
    let (rig, room) = room();
    let body = r#"{"free_memory":true,"retention":"respect","force":true,"devices":["sim:0"],"device":"sim:3","model":"x","wait":true}"#;
    let got = rig.post("/free", body).await.expect(200).json();
    let model = &got.get("models").unwrap().as_list().unwrap()[0];
    assert_eq!(model.get("before").unwrap().get("sim:0"), Some(&600.into()));
    assert_eq!(model.get("after").unwrap().get("cpu"), Some(&1000.into()));
    for key in ["ram_before", "ram_after", "duration"] {
        assert!(got.get(key).is_some_and(|v| !v.is_null()), "{key}");
    }
    assert_eq!(got.get("cache_reset"), Some(&true.into()));
    let wanted = FreeRequest {
        unload_models: true,
        free_memory: true,
        respect: true,
        force: true,
        devices: Some(vec!["sim:0".into(), "sim:3".into()]),
        models: Some(vec!["x".into()]),
    };
    assert_eq!(room.taken(), [format!("free {wanted:?}")]);

    let body = r#"{"free_memory":true,"dry_run":true,"wait":true}"#;
    let got = rig.post("/free", body).await.expect(200).json();
    let plan = got.get("plan").unwrap().as_list().unwrap();
    assert_eq!(plan[0].get("action"), Some(&"evict".into()));
    let wanted = FreeRequest {
        unload_models: true,
        free_memory: true,
        ..FreeRequest::default()
    };
    assert_eq!(room.taken(), [format!("plan {wanted:?}")]);
    rig.post("/free", r#"{"wait":true}"#).await.expect(200);
    assert_eq!(room.taken(), ["Noop"]);
}

#[tokio::test]
async fn a_request_waits_for_the_running_prompt() {
    let (rig, room) = room();
    let id = rig.queue(&chain(1, "Wait"), None).await;
    rig.until_event(&id, "executing").await;
    rig.post("/free", r#"{"unload_models":true}"#)
        .await
        .expect(200);
    let deferred = format!("Deferred {{ prompt_id: {id:?} }}");
    assert_eq!(room.taken(), [deferred]);
    rig.post("/interrupt", "").await.expect(200);
    rig.finish(&id).await;
    // Its own request comes after the one that waited.
    rig.post("/free", r#"{"unload_models":true,"wait":true}"#)
        .await
        .expect(200);
    assert!(!room.taken().is_empty());
}

#[tokio::test]
async fn stats_list_every_accelerator_the_primary_first() {
    let (rig, _) = room();
    let got = rig.get("/system_stats").await.expect(200);
    let first = r#"{"name":"sim:3","type":"sim","index":3,"vram_total":1000,"vram_free":400,"torch_vram_total":600,"torch_vram_free":0}"#;
    let second = r#"{"name":"sim:0","type":"sim","index":0,"#;
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
    assert_eq!(rig.get("/api/memory").await.expect(200).json(), all);
    let places = all.get("places").unwrap().get(ID).unwrap();
    assert_eq!(places.get("sim:0"), Some(&600.into()));
    assert_eq!(places.get("cpu"), Some(&400.into()));
    let policy = all.get("policies").unwrap().get(ID).unwrap();
    assert_eq!(policy.get("source"), Some(&"node_input".into()));

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
    assert_eq!(claim.get("at"), Some(&1500.into()));

    let one = rig.get(PATH).await.expect(200).json();
    let units = one.get("units").unwrap().as_list().unwrap();
    assert_eq!(units[0].get("device"), Some(&"sim:0".into()));
    let placement = one.get("placement").unwrap().as_list().unwrap();
    assert_eq!(
        placement[0].get("allocation"),
        Some(&"#sim:0;1.0;cpu".into())
    );
    rig.get("/memory/models/gone").await.expect(404);

    let check = rig.get("/memory/check").await.expect(200);
    assert_eq!(
        check.text(),
        r#"{"consistent":false,"problems":["a byte is missing"]}"#
    );
    room.taken();
}

#[tokio::test]
async fn events_are_asked_for_by_number_and_kind() {
    let (rig, room) = room();
    let got = rig
        .get("/memory/events?since=1&kinds=free.applied,%20plan.computed&limit=5")
        .await
        .expect(200)
        .json();
    assert_eq!(
        room.taken(),
        [r#"events 1 ["free.applied", "plan.computed"] 5"#]
    );
    assert_eq!(got.get("last_seq"), Some(&3.into()));
    let events = got.get("events").unwrap().as_list().unwrap();
    assert_eq!(events.len(), 2);
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
        assert!(events[0].get(key).is_some(), "{key}");
    }
    rig.get("/memory/events?limit=99999999999999")
        .await
        .expect(200);
    assert_eq!(room.taken(), ["events 0 [] 10000"]);
    for bad in ["since=x", "since=-1", "limit=1.5"] {
        rig.get(&format!("/memory/events?{bad}")).await.expect(400);
    }
    assert_eq!(
        event_line(&event(1)).lines().count(),
        1,
        "one event, one line"
    );
}

#[tokio::test]
async fn policies_are_set_and_models_dropped() {
    let (rig, room) = room();
    let patch = async |path: &str, body: &str| rig.ask("PATCH", path, &[], body.to_owned()).await;
    let got = patch(PATH, r#"{"policy":"keep"}"#).await.expect(200).json();
    assert_eq!(got.get("weights_id"), Some(&ID.into()));
    patch(PATH, r#"{"policy":"ttl","seconds":30}"#)
        .await
        .expect(200);
    assert_eq!(
        room.taken(),
        [format!("policy {ID} keep"), format!("policy {ID} ttl:30")]
    );
    for bad in [
        "{",
        "[]",
        "{}",
        r#"{"policy":1}"#,
        r#"{"policy":"ttl"}"#,
        r#"{"policy":"always"}"#,
    ] {
        patch(PATH, bad).await.expect(400);
    }
    patch("/memory/models/gone", r#"{"policy":"keep"}"#)
        .await
        .expect(404);
    room.taken();

    patch(PATH, r#"{"policy":"release_now"}"#).await.expect(200);
    assert_eq!(room.taken(), [format!("release {ID}")]);
    let delete = async |path: &str| rig.ask("DELETE", path, &[], Body::empty()).await;
    let got = delete(&format!("{PATH}?force=1")).await.expect(200).json();
    assert_eq!(got.get("status"), Some(&"released".into()));
    assert_eq!(room.taken(), [format!("remove {ID} true")]);
    delete("/memory/models/gone").await.expect(404);
    delete("/memory/models/pinned").await.expect(409);

    room.leases.lock().unwrap().push("p".into());
    let got = delete(PATH).await.expect(202).json();
    assert_eq!(got.get("status"), Some(&"deferred".into()));
    patch(PATH, r#"{"policy":"release_now"}"#).await.expect(409);
}

#[tokio::test]
async fn plans_can_be_asked_for() {
    let (rig, room) = room();
    let plan = async |body: &str| rig.post("/memory/plan", body.to_owned()).await;
    plan(r#"{"trigger":"free"}"#).await.expect(200);
    plan(r#"{"free_memory":true}"#).await.expect(200);
    let asked = room.taken();
    assert!(asked[0].contains("unload_models: true, free_memory: false"));
    assert!(asked[1].contains("unload_models: true, free_memory: true"));

    let body = r#"{"units":[{"name":"a","bytes":5,"embedding":true},{"name":"b","bytes":7,"block":2}],
        "devices":[{"device":"cuda:0","total":100}],"compute_device":"cuda:0","virtual_vram_gb":1.5,
        "donor_device":"cpu","expert_mode_allocations":"","eject_models":true,"text_encoder":false,"required":9}"#;
    let got = plan(body).await.expect(200).json();
    assert_eq!(got.get("fits"), Some(&true.into()));
    assert_eq!(got.get("units").unwrap().get("a"), Some(&"sim:0".into()));
    let unit = |name: &str, bytes, embedding, block| PlannedUnit {
        name: name.into(),
        bytes,
        embedding,
        biased: !embedding,
        castable: true,
        block,
    };
    let request = LoadRequest {
        subject: LoadSubject::Units(vec![unit("a", 5, true, None), unit("b", 7, false, Some(2))]),
        devices: Some(vec![("cuda:0".into(), 100)]),
        compute_device: Some("cuda:0".into()),
        virtual_vram_gb: Some(1.5),
        donor_device: Some("cpu".into()),
        expert: Some(String::new()),
        eject_models: true,
        text_encoder: false,
        required: 9,
    };
    assert_eq!(room.taken(), [format!("load {request:?}")]);

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
            r#"{"weights_id":"x","compute_device":"sim:9"}"#,
            "no device",
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
    let site = [
        ("origin", "https://evil.example"),
        ("host", "127.0.0.1:8188"),
    ];
    for (method, path) in [
        ("POST", "/free"),
        ("PATCH", PATH),
        ("DELETE", PATH),
        ("POST", "/memory/plan"),
    ] {
        rig.ask(method, path, &site, "{}").await.expect(403);
    }
    assert_eq!(room.taken(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_ask_get_the_events() {
    let rig = rig();
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
    emit(EventKind::Memory(Arc::new(event(7))));
    emit(EventKind::Downgraded {
        message: "streamed".into(),
    });
    emit(EventKind::Status { remaining: 0 });
    let frame = curious.next();
    assert_eq!(frame.kind(), "memory_event");
    assert_eq!(frame.data().get("seq"), Some(&7.into()));
    let frame = curious.next();
    assert_eq!(
        frame.data().get("kind"),
        Some(&"admission.downgraded".into())
    );
    assert_eq!(curious.next().kind(), "status");
    assert_eq!(plain.next().kind(), "status", "it did not ask");
}
