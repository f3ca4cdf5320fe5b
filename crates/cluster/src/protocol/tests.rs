use fresco_engine::placement::{
    DeviceBytes, FreedModel, NeedKey, PlannedStep, Resident, StepAction, WorkerView,
};
use fresco_engine::{
    EventKind, Failure, FreeRequest, JobEnd, JobOutcome, NodeIds, NodeProgress, NodeState,
    RoomReport, RunJob,
};
use fresco_graph::{Map, Preview, PreviewFormat, map};

use fresco_memory::{
    DeviceTotal, LoadQuery, LoadSubject, MemoryCommand, Policy, Refusal, Unit, Who,
};

use super::alive::{Alive, ClientName, FrontAlive, TaskName, WorkerState};
use super::control::{FreedMemory, WorkerAnswer, WorkerDescription, WorkerRequest};
use super::fronts::{FrontAnswer, FrontRequest};
use super::jobs::{
    JobMessage, RunAnswer, RunEvent, RunMessage, RunOutcome, decode_picture, encode_picture,
};
use super::memory::{MemoryReply, ModelDetail, ModelState, Removal};
use super::models::{CopyEnd, CopyProgress, ModelAnswer, ModelRequest, Wanted};
use super::*;
use crate::content::{FileRef, FolderObjects, ModelEntry};

fn report() -> RoomReport {
    RoomReport {
        models: vec![FreedModel {
            weights_id: "vae:a-1".into(),
            before: [("cuda:0".into(), 7), ("cpu".into(), 0)].into(),
            after: DeviceBytes::new(),
            error: None,
            worker: None,
        }],
        plan: vec![PlannedStep {
            weights_id: "vae:a-1".into(),
            device: Some("cuda:0".into()),
            action: StepAction::Demote,
            action_bytes: Some(7),
            policy: "ttl:30".into(),
            bytes: 7,
            reason: "asked to go".into(),
            worker: None,
        }],
    }
}

fn model() -> ModelDetail {
    ModelDetail {
        model: ModelState {
            weights_id: "vae:a-1".into(),
            content: vec!["/m/a".into()],
            component: "vae".into(),
            class: "vae".into(),
            bytes_total: u64::MAX,
            residency: [("cuda:0".into(), 7)].into(),
            host_bytes: 0,
            pinned_bytes: 0,
            state: "partial".into(),
            effective_policy: "auto".into(),
            policy_source: "default".into(),
            claims: Vec::new(),
            leases: vec!["p".into()],
            handles: Vec::new(),
            last_used: Some(9),
            demoted_by: None,
            read_bytes: 1,
            worker: None,
        },
        placement: Vec::new(),
        units: Vec::new(),
    }
}

fn task() -> TaskName {
    TaskName {
        front: "f-1".into(),
        task: u64::MAX,
    }
}

fn file() -> FileRef {
    FileRef {
        dir: fresco_files::DirType::Output,
        name: "s/x_00001_.png".into(),
        size: 3,
        hash: ContentHash::of(b"abc"),
        data: Some(b"abc"[..].into()),
    }
}

fn entry() -> ModelEntry {
    ModelEntry {
        folder: "loras".into(),
        name: "s/a.pt".into(),
        size: u64::MAX,
        hash: Some(ContentHash::of(b"")),
    }
}

fn alive() -> Alive {
    let resident = vec![Resident {
        key: NeedKey::model("vae", "a"),
        bytes: 7,
        kept: true,
    }];
    Alive {
        protocol: PROTOCOL,
        version: PROGRAM.into(),
        session: "s".into(),
        time: 5,
        state: WorkerState::Busy,
        job: Some(task()),
        events: 3,
        offered: Some("g".into()),
        catalogue: 2,
        view: WorkerView::new(resident, vec!["cuda:0".into()], 100),
        results: Some(4),
        delivering: vec![task()],
        trouble: Some("its disk is full".into()),
    }
}

/// Written and read again, it says the same.
#[track_caller]
fn travels<T: Serialize + DeserializeOwned>(message: &T) {
    let bytes = encode(message);
    let read: T = decode(&bytes).expect("it is read");
    assert_eq!(
        String::from_utf8_lossy(&encode(&read)),
        String::from_utf8_lossy(&bytes)
    );
}

#[test]
fn signs_of_life_come_back_as_they_were() {
    let whole = alive();
    assert_eq!(Alive::decode(&whole.encode()), Ok(Ok(whole.clone())));
    let bare = Alive {
        job: None,
        offered: None,
        results: None,
        delivering: Vec::new(),
        trouble: None,
        view: WorkerView::default(),
        ..whole
    };
    assert_eq!(Alive::decode(&bare.encode()), Ok(Ok(bare)));
    for clients in [
        None,
        Some(vec![ClientName {
            sid: "c".into(),
            described_previews: true,
        }]),
    ] {
        let front = FrontAlive::new(clients);
        assert_eq!(FrontAlive::decode(&front.encode()), Ok(front));
    }
}

#[test]
fn every_request_and_answer_travels_whole() {
    let wanted = Wanted {
        folder: "loras".into(),
        name: "a.pt".into(),
    };
    let free = FreeRequest {
        unload_models: true,
        devices: Some(vec!["cuda:0".to_owned()]),
        ..FreeRequest::default()
    };
    for request in [
        WorkerRequest::Want { front: "f".into() },
        WorkerRequest::Interrupt(task()),
        WorkerRequest::Free(free),
        WorkerRequest::Describe,
        WorkerRequest::Models(ModelRequest::List),
        WorkerRequest::Models(ModelRequest::Describe(wanted.clone())),
        WorkerRequest::Models(ModelRequest::Part {
            file: wanted.clone(),
            offset: 1 << 40,
        }),
        WorkerRequest::Models(ModelRequest::Copy {
            from: "w".into(),
            files: vec![wanted],
            replace: true,
        }),
        WorkerRequest::Models(ModelRequest::Progress { copy: 3 }),
    ] {
        travels(&request);
    }
    for answer in [
        WorkerAnswer::Done,
        WorkerAnswer::Freed(FreedMemory {
            done: true,
            room: Some(report()),
            ram_before: Some(5),
            ..FreedMemory::default()
        }),
        WorkerAnswer::Memory(Ok(MemoryReply::Free(report()))),
        WorkerAnswer::Memory(Ok(MemoryReply::FreePlan(report().plan))),
        WorkerAnswer::Memory(Ok(MemoryReply::Model(Box::new(model())))),
        WorkerAnswer::Memory(Ok(MemoryReply::Removal(Removal::Deferred))),
        WorkerAnswer::Description(WorkerDescription {
            classes: vec!["X".into()],
            models: vec![entry()],
        }),
        WorkerAnswer::Models(ModelAnswer::List(vec![entry()])),
        WorkerAnswer::Models(ModelAnswer::Part {
            hash: ContentHash::of(b"x"),
        }),
        WorkerAnswer::Models(ModelAnswer::Progress(vec![CopyProgress {
            done: 1,
            size: 2,
            end: Some(CopyEnd::Failed("no room".into())),
        }])),
    ] {
        travels(&answer);
    }
    for request in [
        FrontRequest::Queue,
        FrontRequest::History {
            prompt_id: "p".into(),
        },
        FrontRequest::Interrupt { prompt_id: None },
        FrontRequest::Delete {
            prompt_ids: vec!["p".into()],
        },
    ] {
        travels(&request);
    }
    travels(&FrontAnswer::Records {
        records: map! {"p" => map! {"outputs" => Map::new()}}.into(),
        files: vec![file()],
    });
    let refused: RequestResult<WorkerAnswer> = Err("it is busy".to_owned());
    let read: RequestResult<WorkerAnswer> = decode_answer(&encode_answer(&refused)).unwrap();
    assert_eq!(read.unwrap_err(), "it is busy");
}

#[test]
fn every_memory_command_and_refusal_travels_whole() {
    let id = || "u.safetensors:diffusion-1a".to_owned();
    let request = fresco_memory::FreeRequest {
        unload_models: true,
        models: Some(vec![id()]),
        ..fresco_memory::FreeRequest::default()
    };
    let who = || Who {
        client: "c".into(),
        prompt: "p".into(),
        node: "1".into(),
    };
    let unit = Unit {
        name: "a.weight".into(),
        bytes: 1 << 40,
        cost: 7,
        embedding: false,
        biased: true,
        castable: true,
        own: false,
        block: Some(3),
    };
    for command in [
        MemoryCommand::Overview { recent: 50 },
        MemoryCommand::Model { id: id() },
        MemoryCommand::Events {
            since: 3,
            kinds: vec!["model.loaded".into()],
            limit: 10,
        },
        MemoryCommand::Check,
        MemoryCommand::SetPolicy {
            id: id(),
            policy: Policy::Ttl(Duration::from_secs(30)),
        },
        MemoryCommand::Release { id: id() },
        MemoryCommand::Remove {
            id: id(),
            force: true,
        },
        MemoryCommand::Free {
            request: request.clone(),
            running: Some("p".into()),
        },
        MemoryCommand::PlanFree(request),
        MemoryCommand::PlanLoad(LoadQuery {
            subject: LoadSubject::Units(vec![unit].into()),
            devices: Some(vec![DeviceTotal {
                name: "sim:0".into(),
                total: 1 << 30,
            }]),
            compute_device: Some("sim:0".into()),
            virtual_vram_gb: Some(0.5),
            donor_device: Some("cpu".into()),
            expert: None,
            eject_models: true,
            text_encoder: false,
            required: 9,
        }),
        MemoryCommand::UnloadForNode(who()),
        MemoryCommand::UnloadAfterFailure(who()),
        MemoryCommand::TrimCaches,
    ] {
        let bytes = encode(&WorkerRequest::Memory(command.clone()));
        let read: WorkerRequest = decode(&bytes).unwrap();
        assert!(matches!(read, WorkerRequest::Memory(read) if read == command));
    }
    for refusal in [
        Refusal::Unknown,
        Refusal::Leased,
        Refusal::Pinned,
        Refusal::Invalid(vec!["devices must be a list".into()]),
    ] {
        let bytes = encode(&WorkerAnswer::Memory(Err(refusal.clone())));
        let read: WorkerAnswer = decode(&bytes).unwrap();
        assert!(matches!(read, WorkerAnswer::Memory(Err(read)) if read == refusal));
    }
    let text = br#"{"protocol":2,"body":{"memory":{"set_policy":{"id":"a","policy":"always"}}}}"#;
    let error = decode::<WorkerRequest>(text).unwrap_err().to_string();
    assert!(
        error.contains("policy: unknown policy \"always\""),
        "{error}"
    );
}

#[test]
fn jobs_travel_whole() {
    let job = JobMessage {
        models: vec![entry()],
        name: task(),
        session: "s".into(),
        job: RunJob {
            prompt_id: "p".into(),
            prompt: Arc::new(map! {"1" => map! {"seed" => Value::Int(1 << 100)}}),
            extra_data: map! {"client_id" => "c"},
            outputs: vec!["1".into()],
            sensitive: map! {"key" => "secret"},
            client: Some("c".into()),
        },
        inputs: vec![file()],
    };
    let bytes = encode(&job);
    let read = JobMessage::decode(&bytes).unwrap();
    assert_eq!(encode(&read), bytes);
    assert_eq!(read.job.prompt, job.job.prompt);
    travels(&RunAnswer::Busy("x".into()));
    travels(&RunAnswer::Accepted);
    let bad = JobMessage {
        name: TaskName {
            front: "a.b".into(),
            task: 1,
        },
        ..job
    };
    let error = JobMessage::decode(&encode(&bad)).unwrap_err();
    assert!(error.to_string().contains("front is not a name"));
}

fn ids() -> NodeIds {
    NodeIds {
        node: "1.2".into(),
        display: "1".into(),
        parent: Some("1".into()),
        real: "1.2".into(),
    }
}

fn failure() -> EventKind {
    EventKind::Error(Arc::new(Failure {
        node: "1".into(),
        class: "X".into(),
        executed: vec![],
        message: "m".into(),
        kind: "k".into(),
        trace: vec!["t".into()],
        inputs: Map::new().into(),
        outputs: vec!["o".into()],
        timestamp: 5,
    }))
}

fn events() -> Vec<EventKind> {
    vec![
        EventKind::Start { timestamp: 3 },
        EventKind::Cached {
            nodes: vec!["1".into()],
            timestamp: 3,
        },
        EventKind::Executing {
            node: "1".into(),
            display: "2".into(),
        },
        EventKind::NodeProgress(NodeProgress {
            ids: ids(),
            state: NodeState::Finished,
            value: 0.5,
            max: f64::NAN,
        }),
        EventKind::Progress {
            ids: ids(),
            value: 1.0,
            max: 2.0,
            preview: None,
        },
        EventKind::Executed {
            node: "1".into(),
            display: "1".into(),
            output: map! {"text" => vec![Value::from("a")], "large" => Value::Int(1 << 90)}.into(),
        },
        EventKind::Success { timestamp: 4 },
        failure(),
        EventKind::Blocked {
            node: "1".into(),
            class: "X".into(),
            executed: vec!["2".into()],
            message: "m".into(),
        },
        EventKind::Interrupted {
            node: "1".into(),
            class: "X".into(),
            executed: vec![],
            timestamp: 6,
        },
        EventKind::Downgraded {
            message: "m".into(),
        },
        EventKind::Text {
            node: "1".into(),
            text: "t".into(),
        },
        EventKind::Bytes {
            event: 1000,
            bytes: Arc::from(&[0, 255, 7][..]),
            client: None,
        },
        EventKind::Custom {
            event: "e".into(),
            data: 5.into(),
            client: Some("c".into()),
        },
    ]
}

#[test]
fn every_event_and_the_outcome_come_back_as_they_were() {
    let events: Vec<RunEvent> = events()
        .into_iter()
        .map(|event| RunEvent {
            event,
            files: vec![file()],
        })
        .collect();
    assert!(events.iter().all(|one| one.event.is_told_elsewhere()));
    assert!(!EventKind::Ended.is_told_elsewhere());
    let outcome = |end: JobEnd| RunOutcome {
        outcome: JobOutcome {
            outputs: map! {"9" => map! {"text" => vec![Value::from("a")]}},
            messages: vec![vec![Value::from("execution_start")].into()],
            ..end.into()
        },
        files: vec![file()],
        offered: Some("g".into()),
    };
    for outcome in [
        None,
        Some(outcome(JobEnd::Finished)),
        Some(outcome(JobEnd::Failed)),
        Some(outcome(JobEnd::Interrupted)),
        Some(outcome(JobEnd::Lost("gone".into()))),
        Some(outcome(JobEnd::Refused("full".into()))),
    ] {
        let message = RunMessage {
            number: 7,
            session: "s".into(),
            events: events.clone(),
            outcome,
        };
        let bytes = encode(&message);
        let read = RunMessage::decode(&bytes).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&encode(&read)),
            String::from_utf8_lossy(&bytes)
        );
    }
}

/// As version 0.1.0 wrote them into the stream.
#[test]
fn what_the_former_version_left_in_the_stream_is_read() {
    let hash = ContentHash::of(b"abc");
    let text = format!(
        r#"{{"events":[
            {{"kind":"start","timestamp":3}},
            {{"kind":"cached","nodes":["1"],"timestamp":3}},
            {{"kind":"node_progress","ids":{{"node":"1","display":"1","real":"1"}},"finished":true,"value":1,"max":null}},
            {{"kind":"progress","ids":{{"node":"1","display":"1","real":"1","parent":"0"}},"value":1.5,"max":2}},
            {{"kind":"executed","node":"1","display":"1","output":{{"images":[]}},
              "files":[{{"type":"output","name":"a.png","size":3,"hash":"{hash}","data":"YWJj"}}]}},
            {{"kind":"error","node":"1","class":"X","executed":["0"],"message":"m","type":"k","trace":["t"],
              "inputs":{{}},"outputs":[],"timestamp":5}},
            {{"kind":"bytes","event":1000,"bytes":"AP8H"}},
            {{"kind":"custom","event":"e","data":5,"client":"c"}}],
          "outcome":{{"success":false,"interrupted":false,"outputs":{{"9":{{}}}},"meta":{{}},"messages":[["x",{{}}]],
              "files":null,"offered":"g","returned":{{"lost":true,"why":"gone"}}}},
          "n":4,"session":"s"}}"#
    );
    let read = RunMessage::decode(text.as_bytes()).unwrap();
    assert_eq!((read.number, &*read.session), (4, "s"));
    assert_eq!(read.events.len(), 8);
    assert!(matches!(
        &read.events[2].event,
        EventKind::NodeProgress(progress)
            if progress.state == NodeState::Finished && progress.max.is_nan()
    ));
    let executed = &read.events[4];
    assert_eq!(executed.files[0].data.as_deref(), Some(&b"abc"[..]));
    assert!(
        matches!(&read.events[5].event, EventKind::Error(failure) if failure.kind == "k" && failure.timestamp == 5)
    );
    assert!(
        matches!(&read.events[6].event, EventKind::Bytes { bytes, .. } if **bytes == [0, 255, 7])
    );
    let outcome = read.outcome.unwrap();
    assert_eq!(outcome.outcome.end, JobEnd::Lost("gone".into()));
    assert!(outcome.files.is_empty());
    assert!(RunMessage::decode(br#"{"n":1,"session":"s","events":[{"no":1}]}"#).is_err());
}

/// The words that a person has to read who brings two machines together.
#[test]
fn older_and_newer_peers_are_refused_with_both_versions_and_what_to_do() {
    // Requests of version 1 had no number.
    let older = decode::<WorkerRequest>(br#"{"do":"describe"}"#).unwrap_err();
    let text = older.to_string();
    assert!(text.contains("version 1 of the cluster protocol"), "{text}");
    assert!(text.contains("this one version 2"), "{text}");
    assert!(text.contains("update the other one"), "{text}");
    let newer = br#"{"protocol":3,"version":"9.1","body":{"unheard_of":[]}}"#;
    let text = decode::<WorkerRequest>(newer).unwrap_err().to_string();
    assert!(text.contains("version 3 (Fresco 9.1)"), "{text}");
    assert!(text.contains("update this one"), "{text}");
    assert!(matches!(
        RunMessage::decode(newer),
        Err(ProtocolError::Version(_))
    ));
    // Its sign of life says who it is.
    let text = br#"{"protocol": 99, "version": "8", "session": "s", "state": 5}"#;
    let stranger = Alive::decode(text).unwrap().unwrap_err();
    assert_eq!((&*stranger.session, stranger.version.protocol), ("s", 99));
    // A front of version 1 said its program's version and no number.
    let text = br#"{"version": "0.1.0", "clients": []}"#;
    let error = FrontAlive::decode(text).unwrap_err().to_string();
    assert!(error.contains("version 1 (Fresco 0.1.0)"), "{error}");
}

/// Version 1 read these fields of these messages before anything else.
#[test]
fn former_peers_find_what_they_need_to_refuse_us_with_words() {
    let read = |bytes: &[u8]| json::parse_bytes(bytes).unwrap();
    let sign = read(&alive().encode());
    assert_eq!(sign.get("protocol").and_then(Value::as_int), Some(2));
    assert_eq!(sign.get("version").and_then(Value::as_str), Some(PROGRAM));
    assert!(sign.get("session").and_then(Value::as_str).is_some());
    let refusal = read(&encode_answer::<WorkerAnswer>(&Err("use another".into())));
    assert_eq!(
        refusal.get("error").and_then(Value::as_str),
        Some("use another")
    );
    // What it would take for the clients of a front is not there.
    assert!(
        read(&FrontAlive::new(Some(Vec::new())).encode())
            .get("clients")
            .is_none()
    );
}

#[test]
fn garbage_is_named_and_never_believed() {
    let text = |bytes: &[u8]| Alive::decode(bytes).unwrap_err().to_string();
    assert!(text(b"\xff\x00").contains("not JSON"));
    assert!(text(b"[]").contains("not an object"));
    assert!(text(br#"{"protocol":"2"}"#).contains("protocol: "));
    let bad = String::from_utf8(alive().encode()).unwrap();
    let bad = bad.replace("\"busy\"", "\"asleep\"");
    let why = text(bad.as_bytes());
    assert!(why.contains("state: ") && why.contains("asleep"), "{why}");
    let none = encode_answer::<RunAnswer>(&Ok(RunAnswer::Accepted));
    let none = String::from_utf8(none).unwrap();
    let none = none.replace("\"accepted\"", "null");
    let error = decode_answer::<RunAnswer>(none.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("neither"), "{error}");
}

#[test]
fn long_messages_go_through_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let objects = FolderObjects::new(folder.path()).unwrap();
    let message = encode(&FrontRequest::Delete {
        prompt_ids: vec!["p".repeat(1000).into()],
    });
    let short = shorten(&objects, message.clone(), 10_000).unwrap();
    assert_eq!(short, message);
    assert_eq!(whole(&objects, &short).unwrap(), None);
    let short = shorten(&objects, message.clone(), 500).unwrap();
    assert!(short.len() <= LONGEST_REFERENCE);
    assert_eq!(whole(&objects, &short).unwrap(), Some(message));
    // What is not a reference is a message.
    assert_eq!(whole(&objects, b"no JSON").unwrap(), None);
    assert_eq!(whole(&objects, br#"{"protocol":2}"#).unwrap(), None);
    assert!(whole(&objects, br#"{"content":"x"}"#).is_err());
}

#[test]
fn pictures_keep_their_bytes() {
    let preview = Preview {
        format: PreviewFormat::Png,
        bytes: vec![1, b'\n', 2].into(),
    };
    let progress = EventKind::Progress {
        ids: ids(),
        value: 1.0,
        max: 2.0,
        preview: Some(preview.clone()),
    };
    let bytes = encode_picture(&progress).unwrap();
    let EventKind::Progress {
        preview: Some(read),
        value,
        ..
    } = decode_picture(&bytes).unwrap()
    else {
        panic!("another event");
    };
    assert_eq!((&*read.bytes, value), (&*preview.bytes, 1.0));
    let bytes = encode_picture(&EventKind::Preview {
        ids: ids(),
        preview,
    });
    assert!(matches!(
        decode_picture(&bytes.unwrap()),
        Ok(EventKind::Preview { .. })
    ));
    assert!(encode_picture(&EventKind::Ended).is_none());
    assert!(decode_picture(b"{}").is_err());
}
