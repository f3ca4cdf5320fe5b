//! Several workers, and workers that are no threads of this process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fresco_engine::store::StorePath;
use fresco_engine::*;

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

/// Stands for a machine elsewhere: it has each job for as long as the test wants.
#[derive(Default)]
struct Far {
    name: Arc<str>,
    sink: Mutex<Option<Arc<dyn EventSink>>>,
    made: AtomicUsize,
    /// Outcomes that the test lets it come to.
    ends: Mutex<Vec<Outcome>>,
    changed: Condvar,
    runs: Mutex<Vec<(Arc<str>, RunControl)>>,
}

impl Worker for Far {
    fn name(&self) -> &Arc<str> {
        &self.name
    }
    fn run(&self, job: &RunJob, control: &RunControl) -> Outcome {
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
        let wait = |ends: &mut Vec<Outcome>| ends.is_empty() && !control.is_given_up();
        let (mut ends, _) = self
            .changed
            .wait_timeout_while(ends, Duration::from_secs(20), wait)
            .unwrap();
        if control.is_given_up() {
            return Outcome::default();
        }
        ends.pop().unwrap_or_default()
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
    fn end(&self, outcome: Outcome) {
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
    let leases = rig.engine.store().leases().wait().unwrap();
    assert_eq!((&*leases[0].owner, &*leases[0].prompt_id), ("far", "a"));
    // Each sign of life makes it last longer.
    let control = far.control("a").unwrap();
    rig.until("a later deadline", || {
        control.renew_lease();
        let renewed = rig.engine.store().leases().wait().unwrap();
        renewed[0].deadline > leases[0].deadline
    });
    rig.engine.interrupt(Some("a"));
    rig.until("the token", || {
        far.control("a").is_some_and(|c| c.cancel.is_raised())
    });
    far.end(Outcome {
        interrupted: true,
        ..Outcome::default()
    });
    rig.until("the end", || rig.status("a") == "error false");
    assert!(rig.engine.store().leases().wait().unwrap().is_empty());
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
    far.end(Outcome {
        success: true,
        ..Outcome::default()
    });
    rig.until("the end", || rig.status("a") == "success true");
    assert_eq!(far.runs.lock().unwrap().len(), 2);
    assert_eq!(far.made.load(Ordering::SeqCst), 2);
}
