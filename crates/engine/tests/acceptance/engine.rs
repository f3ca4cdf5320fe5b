//! The engine with its store and worker: cases 30, 45, 46, queue order, hangs, restarts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_engine::store::{JobStore, Limits, StorePath};
use fresco_engine::*;
use fresco_graph::{Map, NoListings, NodeRegistry, PromptLimits, map};

use crate::fixtures;
use crate::harness::{Recorder, config, parse};

pub struct Rig {
    pub engine: Engine,
    pub recorder: Arc<Recorder>,
}

fn rig_on(path: &StorePath) -> Rig {
    rig_with(path, Arc::default(), Arc::new(NoModels))
}

pub fn rig_with(path: &StorePath, recorder: Arc<Recorder>, memory: Arc<dyn MemoryRoom>) -> Rig {
    let workers = vec![WorkerConfig::local()];
    rig_of(path, recorder, memory, workers)
}

pub fn rig_of(
    path: &StorePath,
    recorder: Arc<Recorder>,
    memory: Arc<dyn MemoryRoom>,
    workers: Vec<WorkerConfig>,
) -> Rig {
    let mut registry = NodeRegistry::new();
    registry.add(fixtures::NODES);
    let registry = LiveRegistry::new(registry);
    let executor = ExecutorConfig {
        memory,
        ..config(&registry, &recorder, Strategy::Classic)
    };
    let engine = Engine::start(EngineConfig {
        executor,
        workers,
        listings: Arc::new(NoListings),
        jobs: Arc::new(JobStore::open(path, Limits::default()).unwrap()),
        limits: PromptLimits::default(),
        // Long enough for a node that heeds an interrupt, on a machine that does much else.
        hang_grace: Duration::from_millis(1500),
    })
    .unwrap();
    Rig { engine, recorder }
}

fn rig() -> Rig {
    rig_on(&StorePath::Memory)
}

impl Rig {
    pub fn submit(&self, id: &str, script: &str) {
        self.submit_as(id, script, Submission::default());
    }

    fn submit_as(&self, id: &str, script: &str, submission: Submission) {
        let valid = self
            .engine
            .validate(parse(script), None)
            .unwrap_or_else(|e| panic!("{e}"));
        let extra_data: Map = map! {"client_id" => "me"};
        let submission = Submission {
            prompt_id: Some(id.into()),
            extra_data,
            ..submission
        };
        drop(self.engine.submit_blocking(valid, submission).unwrap());
    }

    #[track_caller]
    pub fn until(&self, what: &str, test: impl Fn() -> bool) {
        let give_up = Instant::now() + Duration::from_mins(2);
        while !test() {
            assert!(
                Instant::now() < give_up,
                "waited in vain for {what}: {:?}",
                self.recorder.0.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn idle(&self) {
        self.until("an empty queue", || {
            self.engine.remaining() == 0 && self.engine.running().is_empty()
        });
        // `ended` comes after the record.
        self.until("the end event", || {
            let events = self.recorder.0.lock().unwrap();
            events.iter().filter(|e| *e == "start").count()
                == events.iter().filter(|e| *e == "ended").count()
        });
    }

    pub fn running(&self, id: &str) {
        self.until("a start", || {
            self.engine
                .running()
                .iter()
                .any(|c| &*c.prompt_id == id && c.display.is_some())
        });
    }

    pub fn status(&self, id: &str) -> String {
        let record = self
            .engine
            .store()
            .unwrap()
            .history_get(id)
            .wait()
            .unwrap()
            .unwrap();
        record.map_or("-".into(), |r| {
            format!("{} {}", r.end.status_str(), r.end.is_finished())
        })
    }
}

pub const SAVE: &str = "1 Image value=1; 2 Save image=@1";

#[test]
fn a_prompt_is_recorded_before_its_end_is_told() {
    let rig = rig();
    rig.submit("a", SAVE);
    rig.idle();
    assert_eq!(rig.status("a"), "success true");
    let events = rig.recorder.0.lock().unwrap().clone();
    let without_states: Vec<&str> = events
        .iter()
        .filter(|e| !e.starts_with("state"))
        .map(String::as_str)
        .collect();
    let tail = without_states[without_states.len() - 3..].join(" | ");
    assert_eq!(tail, "success | status 0 | ended");
    assert_eq!(
        without_states.iter().filter(|e| **e == "status 1").count(),
        2
    );
}

#[test]
fn order_of_the_queue() {
    let rig = rig();
    rig.submit("hold", "1 Forever deaf=false; 2 SaveAny value=@1");
    rig.running("hold");
    rig.submit("b", "1 Image value=2; 2 Save image=@1");
    rig.submit("c", "1 Image value=3; 2 Save image=@1");
    rig.submit_as(
        "front1",
        "1 Image value=4; 2 Save image=@1",
        Submission {
            front: true,
            ..Submission::default()
        },
    );
    rig.submit_as(
        "front2",
        "1 Image value=5; 2 Save image=@1",
        Submission {
            front: true,
            ..Submission::default()
        },
    );
    rig.submit_as(
        "n",
        "1 Image value=6; 2 Save image=@1",
        Submission {
            number: Some(1.5),
            ..Submission::default()
        },
    );
    rig.engine.interrupt(None);
    rig.idle();
    let history = rig
        .engine
        .store()
        .unwrap()
        .history(None, -1)
        .wait()
        .unwrap()
        .unwrap();
    let ids: Vec<&str> = history.iter().map(|r| &*r.prompt_id).collect();
    assert_eq!(ids, ["hold", "front2", "front1", "b", "n", "c"]);
    assert_eq!(rig.status("hold"), "error false");
}

#[test]
fn interrupts_can_be_aimed() {
    let rig = rig();
    rig.submit("a", "1 Forever deaf=false; 2 SaveAny value=@1");
    rig.running("a");
    assert!(!rig.engine.interrupt(Some("other")));
    assert!(rig.engine.interrupt(Some("a")));
    rig.idle();
    // An interrupt while idle is lost.
    rig.engine.interrupt(None);
    rig.submit("b", SAVE);
    rig.idle();
    assert_eq!(rig.status("b"), "success true");
}

#[test]
fn a_node_that_never_ends_ends_its_own_prompt_only() {
    let rig = rig();
    rig.submit("deaf", "1 Forever deaf=true; 2 SaveAny value=@1");
    rig.running("deaf");
    rig.engine.interrupt(Some("deaf"));
    rig.idle();
    assert_eq!(rig.status("deaf"), "error false");
    // It was cancelled, and that is what it is called, though its thread had to be given up.
    let job = rig
        .engine
        .store()
        .unwrap()
        .job("deaf")
        .wait()
        .unwrap()
        .unwrap();
    assert_eq!(
        job.unwrap().job.status,
        fresco_engine::store::JobStatus::Cancelled
    );
    rig.submit("next", SAVE);
    rig.idle();
    assert_eq!(rig.status("next"), "success true");
}

#[test]
fn case_46_free_flags_take_effect_after_the_prompt() {
    let rig = rig();
    rig.submit("a", "1 Image value=1; 2 SetFree value=@1; 3 Save image=@1");
    rig.idle();
    rig.submit("b", "1 Image value=1; 2 SetFree value=@1; 3 Save image=@1");
    rig.idle();
    let cached: Vec<String> = rig
        .recorder
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|e| e.starts_with("cached"))
        .cloned()
        .collect();
    assert_eq!(cached, ["cached ", "cached "]);
}

#[test]
fn freeing_while_idle_works_at_once() {
    let rig = rig();
    rig.submit("a", SAVE);
    rig.idle();
    let request = FreeRequest {
        free_memory: true,
        ..FreeRequest::default()
    };
    for reply in rig.engine.free_and_wait(request) {
        let report = reply.wait().unwrap();
        assert_eq!((&*report.worker, report.cache_reset), ("local", true));
    }
    rig.submit("b", SAVE);
    rig.idle();
    let last = rig
        .recorder
        .0
        .lock()
        .unwrap()
        .iter()
        .rev()
        .find(|e| e.starts_with("cached"))
        .cloned();
    assert_eq!(last.as_deref(), Some("cached "));
}

#[test]
fn secrets_reach_no_record() {
    let rig = rig();
    let valid = rig.engine.validate(parse(SAVE), None).unwrap();
    let extra_data =
        map! {"auth_token_comfy_org" => "s3cret", "api_key_comfy_org" => "k3y", "x" => 1};
    let submission = Submission {
        prompt_id: Some("a".into()),
        extra_data,
        ..Submission::default()
    };
    drop(rig.engine.submit_blocking(valid, submission).unwrap());
    rig.idle_without_client();
    let record = rig
        .engine
        .store()
        .unwrap()
        .history_get("a")
        .wait()
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(!record.extra_data.contains("s3cret") && !record.extra_data.contains("k3y"));
    assert!(record.extra_data.contains("create_time"));
}

impl Rig {
    fn idle_without_client(&self) {
        self.until("an empty queue", || {
            self.engine.remaining() == 0 && self.engine.running().is_empty()
        });
    }
}

#[test]
fn stopping_puts_the_running_prompt_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = StorePath::File(dir.path().join("fresco.db"));
    let first = rig_on(&path);
    first.submit("a", "1 Forever deaf=false; 2 SaveAny value=@1");
    first.running("a");
    first.submit("b", SAVE);
    first.engine.stop(Duration::from_secs(5));
    drop(first);
    let second = rig_on(&path);
    second.running("a");
    second.engine.interrupt(Some("a"));
    second.idle();
    assert_eq!(
        (second.status("a"), second.status("b")),
        ("error false".into(), "success true".into())
    );
}

#[test]
fn cancelling_a_waiting_job_records_it() {
    let rig = rig();
    rig.submit("a", "1 Forever deaf=false; 2 SaveAny value=@1");
    rig.running("a");
    rig.submit("b", SAVE);
    assert!(wait(rig.engine.cancel("b")).unwrap());
    assert!(wait(rig.engine.cancel("a")).unwrap());
    assert!(!wait(rig.engine.cancel("nobody")).unwrap());
    rig.idle();
    assert_eq!(
        (rig.status("a"), rig.status("b")),
        ("error false".into(), "error false".into())
    );
}

/// Polls a future on this thread until it is done.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
