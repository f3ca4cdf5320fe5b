//! Several workers, and workers that are no threads of this process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fresco_engine::placement::{JobNeeds, ModelNeed, NeedKey, Resident, WorkerView};
use fresco_engine::store::StorePath;
use fresco_engine::*;
use fresco_graph::{Map, NodeRegistry};

use crate::engine::{Rig, SAVE, rig_of};
use crate::harness::Recorder;

fn local(name: &str) -> WorkerConfig {
    WorkerConfig {
        name: name.into(),
        kind: WorkerKind::Local,
    }
}

fn rig(workers: Vec<WorkerConfig>) -> Rig {
    rig_of(
        &StorePath::Memory,
        Arc::default(),
        Arc::new(NoModels),
        workers,
    )
}

const FOREVER: &str = "1 Forever deaf=false; 2 SaveAny value=@1";

#[test]
fn two_workers_run_two_prompts_and_each_is_stopped_alone() {
    let rig = rig(vec![local("one"), local("two")]);
    rig.submit("a", FOREVER);
    rig.submit("b", FOREVER);
    rig.running("a");
    rig.running("b");
    rig.submit("c", SAVE);
    let mut workers: Vec<String> = rig
        .engine
        .running()
        .iter()
        .map(|c| c.worker.to_string())
        .collect();
    workers.sort();
    assert_eq!(workers, ["one", "two"]);
    assert!(rig.engine.interrupt(Some("b")));
    rig.until("c to have run", || rig.status("c") == "success true");
    assert_eq!(rig.status("b"), "error false");
    assert!(rig.engine.running().iter().any(|c| &*c.prompt_id == "a"));
    // Both free, whoever runs something does so afterwards.
    let request = FreeRequest {
        free_memory: true,
        ..FreeRequest::default()
    };
    let replies = rig.engine.free_and_wait(request);
    assert!(rig.engine.interrupt(None));
    let mut freed: Vec<String> = replies
        .into_iter()
        .map(|reply| reply.wait().unwrap().worker.to_string())
        .collect();
    freed.sort();
    assert_eq!(freed, ["one", "two"]);
    rig.idle();
    assert_eq!(rig.status("a"), "error false");
}

#[test]
fn a_hung_node_costs_its_own_worker_only() {
    let rig = rig(vec![local("one"), local("two")]);
    rig.submit("deaf", "1 Forever deaf=true; 2 SaveAny value=@1");
    rig.submit("other", FOREVER);
    rig.running("deaf");
    rig.running("other");
    rig.engine.interrupt(Some("deaf"));
    rig.until("the hung one to be given up", || {
        rig.status("deaf") == "error false"
    });
    rig.submit("next", SAVE);
    rig.until("its worker to be back", || {
        rig.status("next") == "success true"
    });
    assert!(
        rig.engine
            .running()
            .iter()
            .any(|c| &*c.prompt_id == "other")
    );
    rig.engine.interrupt(None);
    rig.idle();
}

/// Has one model, and remembers whose prompts ran with it.
struct OwnRoom {
    model: &'static str,
    ran: Mutex<Vec<String>>,
    closed: AtomicUsize,
}

impl MemoryRoom for OwnRoom {
    fn needs(&self, prompt: &Map, _: &[Arc<str>]) -> JobNeeds {
        let named = ["a", "b"]
            .into_iter()
            .filter(|key| prompt.contains_key(*key));
        let models = named.map(|key| ModelNeed {
            key: NeedKey::class(key),
            bytes: 1 << 30,
        });
        JobNeeds::new(models.collect(), Vec::new())
    }
    fn view(&self) -> WorkerView {
        let resident = Resident {
            key: NeedKey::class(self.model),
            bytes: 1 << 30,
            kept: false,
        };
        WorkerView::new(vec![resident], Vec::new(), 0)
    }
    fn after_prompt(&self, id: &str) {
        self.ran.lock().unwrap().push(id.to_owned());
    }
    fn unload_all(&self, _: &str, _: Unload) {}
    fn free(&self, _: &FreeRequest, _: Option<&str>) -> Option<RoomReport> {
        None
    }
    fn release_caches(&self) {}
    fn shutdown(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn each_worker_has_a_memory_of_its_own_and_runs_what_is_in_it() {
    let rooms = ["a", "b"].map(|model| {
        Arc::new(OwnRoom {
            model,
            ran: Mutex::default(),
            closed: AtomicUsize::new(0),
        })
    });
    let recorder = Arc::<Recorder>::default();
    let mut registry = NodeRegistry::new();
    registry.add(crate::fixtures::NODES);
    let registry = LiveRegistry::new(registry);
    let workers = rooms.iter().map(|room| {
        let config = ExecutorConfig {
            memory: room.clone(),
            ..crate::harness::config(&registry, &recorder, Strategy::Classic)
        };
        WorkerConfig {
            name: format!("on {}", room.model).into(),
            kind: WorkerKind::OnDevices(Box::new(config)),
        }
    });
    let rig = rig_of(
        &StorePath::Memory,
        recorder.clone(),
        rooms[0].clone(),
        workers.collect(),
    );
    // Threads of workers start in any order, and who is not there yet is given nothing.
    for number in 0..4 {
        let id = format!("first {number}");
        rig.submit(&id, &format!("x Int value={number}; 2 SaveAny value=@x"));
        rig.until("its end", || rig.status(&id) == "success true");
        std::thread::sleep(Duration::from_millis(20));
    }
    for room in &rooms {
        room.ran.lock().unwrap().clear();
    }
    let mut wanted = [Vec::new(), Vec::new()];
    for round in 0..6 {
        let which = usize::from(round % 3 == 0);
        let model = ["a", "b"][which];
        let id = format!("{model}{round}");
        rig.submit(
            &id,
            &format!("{model} Int value={round}; 2 SaveAny value=@{model}"),
        );
        rig.until("its end", || rig.status(&id) == "success true");
        rig.idle();
        wanted[which].push(id);
    }
    for (room, wanted) in rooms.iter().zip(&wanted) {
        assert_eq!(*room.ran.lock().unwrap(), *wanted);
    }
    rig.engine.stop(Duration::from_secs(5));
    assert!(
        rooms
            .iter()
            .all(|room| room.closed.load(Ordering::SeqCst) == 1)
    );
}

/// Jobs that only wait do so together; the bench measures what that gives.
#[test]
fn two_workers_wait_for_two_jobs_at_once() {
    let rig = rig(vec![local("one"), local("two")]);
    for job in 0..6 {
        let id = format!("job {job}");
        rig.submit(
            &id,
            &format!("1 Sleep value={job} seconds=0.3; 2 SaveAny value=@1"),
        );
    }
    rig.until("both to work", || rig.engine.running().len() == 2);
    rig.idle();
}

/// Stands for a machine elsewhere: it has each job for as long as the test wants.
#[derive(Default)]
struct Far {
    name: Arc<str>,
    sink: Mutex<Option<Arc<dyn EventSink>>>,
    made: AtomicUsize,
    /// Outcomes that the test lets it come to.
    ends: Mutex<Vec<JobOutcome>>,
    changed: Condvar,
    runs: Mutex<Vec<(Arc<str>, RunControl)>>,
}

impl Worker for Far {
    fn name(&self) -> &Arc<str> {
        &self.name
    }
    fn run(&self, job: &RunJob, control: &RunControl) -> JobOutcome {
        let sink = self.sink.lock().unwrap().clone().unwrap();
        sink.emit(Event {
            prompt_id: Some(job.prompt_id.clone()),
            client: job.client.clone(),
            worker: None,
            kind: EventKind::Executing {
                node: "1".into(),
                display: "1".into(),
            },
        });
        self.runs
            .lock()
            .unwrap()
            .push((job.prompt_id.clone(), control.clone()));
        let ends = self.ends.lock().unwrap();
        let wait = |ends: &mut Vec<JobOutcome>| ends.is_empty() && !control.is_given_up();
        let (mut ends, _) = self
            .changed
            .wait_timeout_while(ends, Duration::from_mins(2), wait)
            .unwrap();
        if control.is_given_up() {
            return JobEnd::Failed.into();
        }
        ends.pop().unwrap_or(JobEnd::Failed.into())
    }
    fn free(&self, _: &FreeRequest) -> FreeReport {
        FreeReport {
            worker: self.name.clone(),
            ..FreeReport::default()
        }
    }
    fn drop_owned(&self, _: &str) {}
    fn snapshot(&self) -> WorkerSnapshot {
        WorkerSnapshot {
            worker: self.name.clone(),
            ..WorkerSnapshot::default()
        }
    }
}

fn far(term: Duration) -> (Arc<Far>, WorkerConfig) {
    let far = Arc::new(Far {
        name: "far".into(),
        ..Far::default()
    });
    let make: MakeWorker = {
        let far = far.clone();
        Arc::new(move |sink| {
            *far.sink.lock().unwrap() = Some(sink);
            far.made.fetch_add(1, Ordering::SeqCst);
            far.clone()
        })
    };
    let kind = WorkerKind::Remote { make, term };
    let name = "far".into();
    (far, WorkerConfig { name, kind })
}

impl Far {
    fn end(&self, outcome: JobOutcome) {
        self.ends.lock().unwrap().push(outcome);
        self.changed.notify_all();
    }

    fn control(&self, id: &str) -> Option<RunControl> {
        let runs = self.runs.lock().unwrap();
        let run = runs.iter().rev().find(|(run, _)| &**run == id);
        run.map(|(_, control)| control.clone())
    }
}

#[test]
fn a_worker_elsewhere_is_stopped_by_its_token_and_its_end_is_recorded() {
    let recorder: Arc<Recorder> = Arc::default();
    let (far, config) = far(Duration::from_mins(10));
    let rig = rig_of(
        &StorePath::Memory,
        recorder,
        Arc::new(NoModels),
        vec![config],
    );
    rig.submit("a", SAVE);
    rig.until("the run", || far.control("a").is_some());
    assert_eq!(&*rig.engine.running()[0].worker, "far");
    let leases = rig.engine.store().unwrap().leases().wait().unwrap();
    assert_eq!((&*leases[0].owner, &*leases[0].prompt_id), ("far", "a"));
    // Each sign of life makes it last longer.
    let control = far.control("a").unwrap();
    rig.until("a later deadline", || {
        control.renew_lease();
        let renewed = rig.engine.store().unwrap().leases().wait().unwrap();
        renewed[0].deadline > leases[0].deadline
    });
    rig.engine.interrupt(Some("a"));
    rig.until("the token", || {
        far.control("a").is_some_and(|c| c.cancel.is_raised())
    });
    far.end(JobEnd::Interrupted.into());
    rig.until("the end", || rig.status("a") == "error false");
    assert!(
        rig.engine
            .store()
            .unwrap()
            .leases()
            .wait()
            .unwrap()
            .is_empty()
    );
    assert_eq!(&*rig.engine.workers()[0].worker, "far");
}

#[test]
fn a_job_whose_worker_gives_no_sign_of_life_goes_to_another() {
    let (far, config) = far(Duration::from_secs(1));
    let rig = rig(vec![config]);
    rig.submit("a", SAVE);
    // The first run is never heard of again; the second one ends at once.
    rig.until("a first run", || far.runs.lock().unwrap().len() == 1);
    let first = far.control("a").unwrap();
    rig.until("the loss", || first.is_given_up());
    far.end(JobEnd::Finished.into());
    rig.until("the end", || rig.status("a") == "success true");
    assert_eq!(far.runs.lock().unwrap().len(), 2);
    assert_eq!(far.made.load(Ordering::SeqCst), 2);
}
