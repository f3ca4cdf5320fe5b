//! What the memory room is told, in which order, on every way a prompt can end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fresco_engine::placement::FreedModel;
use fresco_engine::store::StorePath;
use fresco_engine::*;

use crate::engine::{Rig, SAVE, rig_with};
use crate::harness::{Bench, Recorder};

type Hook = Box<dyn Fn(&Engine) + Send>;

/// Writes down what it is told, among the events.
#[derive(Default)]
struct Room {
    recorder: Arc<Recorder>,
    engine: OnceLock<Engine>,
    /// Called before the first node, with the engine.
    at_start: Mutex<Option<Hook>>,
    answer: Mutex<Admission>,
    due: AtomicUsize,
}

impl Room {
    fn note(&self, line: impl Into<String>) {
        self.recorder.0.lock().unwrap().push(line.into());
    }
}

fn shown(request: &FreeRequest) -> String {
    let mut words = Vec::new();
    for (set, word) in [
        (request.unload_models, "unload"),
        (request.free_memory, "free"),
        (request.respect, "respect"),
        (request.force, "force"),
    ] {
        if set {
            words.push(word.to_owned());
        }
    }
    words.extend(request.devices.iter().flatten().cloned());
    words.join(",")
}

impl MemoryRoom for Room {
    fn resident_ram(&self) -> Option<u64> {
        Some(1)
    }

    fn admit(&self, arriving: &Arriving<'_>) -> Admission {
        let hook = self.at_start.lock().unwrap().take();
        if let (Some(hook), Some(engine)) = (hook, self.engine.get()) {
            hook(engine);
        }
        assert!(arriving.prompt.len() >= arriving.cached.len());
        self.answer.lock().unwrap().clone()
    }

    fn prompt_started(&self, id: &str) {
        self.note(format!("room started {id}"));
        if let ("early", Some(engine)) = (id, self.engine.get()) {
            assert!(engine.interrupt(None));
        }
    }

    fn after_prompt(&self, id: &str) {
        self.note(format!("room after {id}"));
    }

    fn unload_all(&self, id: &str, why: Unload) {
        self.note(format!("room unload {id} {why:?}"));
    }

    fn free(&self, request: &FreeRequest, running: Option<&str>) -> Option<RoomReport> {
        let history = self.engine.get().map_or(0, |engine| {
            let all = engine
                .store()
                .unwrap()
                .history(None, -1)
                .wait()
                .unwrap()
                .unwrap();
            all.len()
        });
        let running = running.map_or(String::new(), |id| format!(" beside {id}"));
        self.note(format!(
            "room free {}{running} history {history}",
            shown(request)
        ));
        Some(RoomReport {
            models: vec![FreedModel {
                weights_id: "w".into(),
                before: [("sim:0".into(), 1)].into(),
                after: [("cpu".into(), 1)].into(),
                error: None,
                worker: None,
            }],
            plan: Vec::new(),
        })
    }

    fn note_free(&self, note: FreeNote<'_>) {
        self.note(match note {
            FreeNote::Noop => "room noop".to_owned(),
            FreeNote::Deferred { prompt_id } => format!("room deferred {prompt_id}"),
        });
    }

    fn cache_reset(&self) {
        self.note("room reset");
    }

    fn release_caches(&self) {}

    fn tick(&self) {
        self.due.fetch_sub(1, Ordering::SeqCst);
        self.note("room tick");
    }

    fn next_tick(&self) -> Option<Instant> {
        (self.due.load(Ordering::SeqCst) > 0).then(Instant::now)
    }

    fn shutdown(&self) {
        self.note("room shutdown");
    }
}

fn rig() -> (Rig, Arc<Room>) {
    let recorder: Arc<Recorder> = Arc::default();
    let room = Arc::new(Room {
        recorder: recorder.clone(),
        ..Room::default()
    });
    let rig = rig_with(&StorePath::Memory, recorder, room.clone());
    assert!(room.engine.set(rig.engine.clone()).is_ok());
    (rig, room)
}

fn unload() -> FreeRequest {
    FreeRequest {
        unload_models: true,
        ..FreeRequest::default()
    }
}

fn both() -> FreeRequest {
    FreeRequest {
        unload_models: true,
        free_memory: true,
        ..FreeRequest::default()
    }
}

impl Room {
    fn at_start(&self, hook: impl Fn(&Engine) + Send + 'static) {
        *self.at_start.lock().unwrap() = Some(Box::new(hook));
    }
}

/// What the room was told, and how the prompt ended.
fn story(rig: &Rig) -> String {
    let events = rig.recorder.0.lock().unwrap();
    let told: Vec<&str> = events
        .iter()
        .filter(|e| {
            e.starts_with("room")
                || ["success", "ended"].contains(&e.as_str())
                || e.starts_with("error")
                || e.starts_with("interrupted")
        })
        .map(|e| e.split(": ").next().unwrap_or(e))
        .collect();
    told.join(" | ")
}

fn count(rig: &Rig, line: &str) -> usize {
    let events = rig.recorder.0.lock().unwrap();
    events.iter().filter(|e| *e == line).count()
}

#[track_caller]
fn check(script: &str, want: &str) {
    let (rig, room) = rig();
    room.at_start(|engine| engine.free(both()));
    rig.submit("a", script);
    rig.idle();
    rig.until("the reset", || count(&rig, "room reset") == 1);
    assert_eq!(story(&rig), want);
}

#[test]
fn requests_are_carried_out_after_the_end_was_told_and_recorded() {
    check(
        SAVE,
        "room started a | room deferred a | success | room after a | ended | room free unload,free history 1 | room reset",
    );
}

#[test]
fn a_failed_prompt_does_not_keep_a_request_from_being_carried_out() {
    check(
        "1 Fail; 2 SaveAny value=@1",
        "room started a | room deferred a | error 1 ValueError | room after a | ended | room free unload,free history 1 | room reset",
    );
    check(
        "1 Fail how=panic; 2 SaveAny value=@1",
        "room started a | room deferred a | error 1 RuntimeError | room after a | ended | room free unload,free history 1 | room reset",
    );
    check(
        "1 Fail how=memory; 2 SaveAny value=@1",
        "room started a | room deferred a | room unload a OutOfMemory | error 1 torch.OutOfMemoryError | room after a | ended | room free unload,free history 1 | room reset",
    );
}

#[test]
fn an_interrupt_ends_with_one_cleanup() {
    let (rig, _) = rig();
    rig.submit("a", "1 Forever deaf=false; 2 SaveAny value=@1");
    rig.running("a");
    rig.engine.interrupt(None);
    rig.idle();
    assert_eq!(
        story(&rig),
        "room started a | interrupted 1 | room after a | ended"
    );
}

/// The queue shows it as running before its worker has begun.
#[test]
fn a_prompt_that_was_handed_out_can_be_interrupted_before_it_begins() {
    let (rig, _) = rig();
    rig.submit("early", "1 Forever deaf=false; 2 SaveAny value=@1");
    rig.idle();
    assert_eq!(
        story(&rig),
        "room started early | interrupted 1 | room after early | ended"
    );
}

#[test]
fn a_node_that_never_ends_is_cleaned_up_once() {
    let (rig, _) = rig();
    rig.submit("a", "1 Forever deaf=true; 2 SaveAny value=@1");
    rig.running("a");
    rig.engine.interrupt(None);
    rig.idle();
    assert_eq!(
        story(&rig),
        "room started a | interrupted 1 | room after a | ended"
    );
    rig.submit("b", SAVE);
    rig.idle();
    rig.engine.stop(Duration::from_secs(5));
    assert_eq!(
        (count(&rig, "room after a"), count(&rig, "room after b")),
        (1, 1)
    );
}

#[test]
fn stopping_cleans_up_whether_the_node_heeds_or_not() {
    for (deaf, patience) in [(false, Duration::from_secs(5)), (true, Duration::ZERO)] {
        let (rig, _) = rig();
        rig.submit("a", &format!("1 Forever deaf={deaf}; 2 SaveAny value=@1"));
        rig.running("a");
        rig.engine.stop(patience);
        let told = story(&rig).replace("interrupted 1 | ", "");
        assert_eq!(told, "room started a | room after a | room shutdown");
    }
}

#[test]
fn three_requests_become_one() {
    let (rig, room) = rig();
    room.at_start(|engine| {
        for device in ["sim:0", "sim:1", "sim:0"] {
            engine.free(FreeRequest {
                devices: Some(vec![device.to_owned()]),
                ..unload()
            });
        }
    });
    rig.submit("a", SAVE);
    rig.submit("b", "1 Image value=2; 2 Save image=@1");
    rig.idle();
    assert_eq!(
        story(&rig),
        "room started a | room deferred a | room deferred a | room deferred a | success | room after a | ended \
         | room free unload,sim:0,sim:1 history 1 | room started b | success | room after b | ended"
    );
}

#[test]
fn force_does_not_wait_for_the_end() {
    let (rig, room) = rig();
    room.at_start(|engine| {
        engine.free(FreeRequest {
            devices: Some(vec!["sim:0".to_owned()]),
            ..unload()
        });
        engine.free(FreeRequest {
            force: true,
            devices: Some(vec!["sim:1".to_owned()]),
            ..unload()
        });
    });
    rig.submit("a", SAVE);
    rig.idle();
    rig.until("the rest", || {
        count(&rig, "room free unload,force,sim:0,sim:1 history 1") == 1
    });
    assert_eq!(
        story(&rig),
        "room started a | room deferred a | room deferred a | room free unload,force,sim:1 beside a history 0 \
         | success | room after a | ended | room free unload,force,sim:0,sim:1 history 1"
    );
}

/// The report of the one worker.
fn freed(rig: &Rig, request: FreeRequest) -> Option<FreeReport> {
    let mut replies = rig.engine.free_and_wait(request);
    assert_eq!(replies.len(), 1);
    replies.pop().unwrap().wait()
}

#[test]
fn whoever_waits_gets_the_report() {
    let (rig, _) = rig();
    let report = freed(&rig, both()).unwrap();
    let said = report.models.as_ref().unwrap();
    assert_eq!(&*said.models[0].weights_id, "w");
    assert!(report.cache_reset && report.ram_before.is_some() && report.ram_after.is_some());
    let nothing = rig.engine.free_and_wait(FreeRequest::default());
    let nothing: Vec<_> = nothing.into_iter().map(Reply::wait).collect();
    let [Some(nothing)] = &nothing[..] else {
        panic!("{nothing:?}")
    };
    assert!(nothing.models.is_none() && !nothing.cache_reset && nothing.worker.is_empty());
    assert_eq!(
        story(&rig),
        "room free unload,free history 0 | room reset | room noop"
    );
    rig.engine.stop(Duration::from_secs(5));
    assert!(freed(&rig, both()).is_none());
}

#[test]
fn free_memory_implies_unloading() {
    let (rig, _) = rig();
    let only = FreeRequest {
        free_memory: true,
        ..FreeRequest::default()
    };
    freed(&rig, only).unwrap();
    assert_eq!(story(&rig), "room free unload,free history 0 | room reset");
}

#[test]
fn ticks_come_when_they_are_due() {
    let (rig, room) = rig();
    // The worker already waits for something else: it has to be woken.
    rig.submit("a", SAVE);
    rig.idle();
    room.due.store(3, Ordering::SeqCst);
    rig.engine.memory_changed();
    rig.until("the ticks", || count(&rig, "room tick") == 3);
    assert_eq!(room.due.load(Ordering::SeqCst), 0);
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_before_its_first_node() {
    let room = Arc::new(Room::default());
    let mut bench = Bench::with_memory(Strategy::Classic, room.clone());
    *room.answer.lock().unwrap() = Admission::Refused {
        node: Some("1".into()),
        message: "this model needs 3 GiB".into(),
    };
    let done = bench.run(SAVE);
    assert_eq!(
        done.story(),
        "start | cached  | error 1 torch.OutOfMemoryError: this model needs 3 GiB"
    );
    assert!(!done.outcome.end.is_finished());
    *room.answer.lock().unwrap() = Admission::Downgraded("half of it is streamed".into());
    let done = bench.run(SAVE);
    assert!(done.story().contains("downgraded half of it is streamed"));
    assert!(done.outcome.end.is_finished());
}

#[test]
fn a_room_that_panics_harms_nobody() {
    struct Broken;
    impl MemoryRoom for Broken {
        fn prompt_started(&self, _: &str) {
            panic!("start");
        }
        fn after_prompt(&self, _: &str) {
            panic!("end");
        }
        fn unload_all(&self, _: &str, _: Unload) {}
        fn free(&self, _: &FreeRequest, _: Option<&str>) -> Option<RoomReport> {
            panic!("free");
        }
        fn release_caches(&self) {}
    }
    let rig = rig_with(&StorePath::Memory, Arc::default(), Arc::new(Broken));
    rig.submit("a", SAVE);
    rig.idle();
    assert_eq!(rig.status("a"), "success true");
    assert!(freed(&rig, both()).is_some());
    rig.submit("b", SAVE);
    rig.idle();
    assert_eq!(rig.status("b"), "success true");
}
