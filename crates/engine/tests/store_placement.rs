//! Several workers that ask one store: who is given what.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod store_support;

use std::sync::Arc;
use std::time::Duration;

use fresco_engine::placement::{JobNeeds, ModelNeed, NeedKey, Resident, WorkerView};
use fresco_engine::store::*;
use fresco_graph::map;
use store_support::*;

const SOON: Duration = Duration::from_millis(30);

fn needs(model: &str) -> JobNeeds {
    let models = (!model.is_empty()).then(|| ModelNeed {
        key: NeedKey::class(model),
        bytes: 4 << 30,
    });
    JobNeeds::new(models.into_iter().collect(), Vec::new())
}

fn put_for(store: &JobStore, id: &str, client: &str, model: &str, priority: Priority) {
    let mut job = job(id, priority);
    job.extra_data = map! {"client_id" => client};
    let accepted = store.enqueue_needing(job, Some(needs(model)));
    accepted.wait().unwrap().unwrap();
}

fn view(models: &[&str]) -> Option<Arc<WorkerView>> {
    let resident = models.iter().map(|key| Resident {
        key: NeedKey::class(key),
        bytes: 4 << 30,
        kept: false,
    });
    Some(Arc::new(WorkerView::new(
        resident.collect(),
        Vec::new(),
        10 << 30,
    )))
}

/// What a worker with these weights is given at once, if anything.
fn ask(store: &JobStore, worker: &str, models: &[&str]) -> Option<TakenJob> {
    let claim = Claim::local(worker);
    match store.ask_next(&claim, view(models), SOON).wait() {
        Some(Next::Job(job)) => Some(*job),
        Some(Next::Timeout) => None,
        other => panic!("neither a job nor nothing: {other:?}"),
    }
}

#[track_caller]
fn take_expected_job(store: &JobStore, worker: &str, models: &[&str], wanted: &str) -> u64 {
    let job = ask(store, worker, models);
    let id = job.as_ref().map(|job| &*job.prompt_id);
    assert_eq!(id, Some(wanted));
    job.unwrap().task
}

#[test]
fn a_worker_takes_what_it_has_weights_for() {
    let store = memory();
    assert!(ask(&store, "one", &["a"]).is_none());
    for (id, model) in [("1", "b"), ("2", "a"), ("3", "a"), ("4", "")] {
        put_for(&store, id, "me", model, Priority::Auto);
    }
    take_expected_job(&store, "one", &["a"], "2");
    take_expected_job(&store, "one", &["a"], "3");
    // Nothing of its own is left but what needs none.
    take_expected_job(&store, "one", &["a"], "4");
    take_expected_job(&store, "one", &["a"], "1");
    assert!(ask(&store, "one", &["b"]).is_none());
}

#[test]
fn what_is_put_in_front_is_next() {
    let store = memory();
    assert!(ask(&store, "one", &["a"]).is_none());
    put_for(&store, "1", "me", "a", Priority::Auto);
    put_for(&store, "2", "me", "b", Priority::Front);
    take_expected_job(&store, "one", &["a"], "2");
    take_expected_job(&store, "one", &["a"], "1");
}

#[test]
fn clients_take_turns_and_keep_their_own_order() {
    let store = memory();
    assert!(ask(&store, "one", &[]).is_none());
    for id in ["a1", "a2", "a3"] {
        put_for(&store, id, "a", "", Priority::Auto);
    }
    for id in ["b1", "b2"] {
        put_for(&store, id, "b", "", Priority::Auto);
    }
    let order: Vec<String> = (0..5)
        .map(|_| ask(&store, "one", &[]).unwrap().prompt_id.to_string())
        .collect();
    assert_eq!(order, ["a1", "b1", "a2", "b2", "a3"]);
}

#[test]
fn one_worker_that_says_nothing_has_the_order_of_the_queue() {
    let store = memory();
    put_for(&store, "a1", "a", "x", Priority::Auto);
    put_for(&store, "a2", "a", "y", Priority::Auto);
    put_for(&store, "b1", "b", "x", Priority::Auto);
    let order: Vec<String> = (0..3).map(|_| take(&store).prompt_id.to_string()).collect();
    assert_eq!(order, ["a1", "a2", "b1"]);
}

/// Jobs from before the start have their clients and needs looked up.
#[test]
fn jobs_from_before_are_placed_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = open(&path).unwrap();
    for (id, client) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        put_for(&store, id, client, "", Priority::Auto);
    }
    store.close().wait();
    drop(store);
    let store = open(&path).unwrap();
    store.on_needs(|_, _| needs("x"));
    let order: Vec<String> = (0..3)
        .map(|_| ask(&store, "one", &["x"]).unwrap().prompt_id.to_string())
        .collect();
    assert_eq!(order, ["a1", "b1", "a2"]);
}

#[test]
fn jobs_that_went_down_with_the_process_run_again_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = open(&path).unwrap();
    for id in ["1", "2", "3"] {
        put_for(&store, id, "me", "", Priority::Auto);
    }
    take_expected_job(&store, "one", &[], "1");
    take_expected_job(&store, "two", &[], "2");
    let copy = crash_copy(&path, &dir.path().join("crashed"));
    let after = open(&copy).unwrap();
    let first = take_expected_job(&after, "one", &[], "1");
    assert!(ask(&after, "two", &[]).is_none(), "nothing runs beside it");
    end(&after, first);
    let second = take_expected_job(&after, "two", &[], "2");
    assert!(ask(&after, "one", &[]).is_none());
    // It goes down again: only this one is to blame.
    let copy = crash_copy(&copy, &dir.path().join("again"));
    let last = open(&copy).unwrap();
    take_expected_job(&last, "one", &[], "3");
    let outline = last.outline().wait().unwrap().unwrap();
    assert_eq!(outline.held, [Arc::from("2")]);
    end(&after, second);
    take_expected_job(&after, "one", &[], "3");
}

#[test]
fn order_holding_and_pausing_hold_for_several_workers() {
    let store = memory();
    assert!(ask(&store, "one", &[]).is_none());
    for id in ["1", "2", "3", "4"] {
        put_for(&store, id, "me", "", Priority::Auto);
    }
    let change = QueueChange {
        order: vec!["3".into()],
        hold: vec!["1".into()],
        ..QueueChange::default()
    };
    store.change_queue(change).wait().unwrap().unwrap();
    take_expected_job(&store, "one", &[], "3");
    take_expected_job(&store, "two", &[], "2");
    let pause = |paused| QueueChange {
        paused: Some(paused),
        release: vec!["1".into()],
        ..QueueChange::default()
    };
    store.change_queue(pause(true)).wait().unwrap().unwrap();
    assert!(ask(&store, "one", &[]).is_none());
    store.change_queue(pause(false)).wait().unwrap().unwrap();
    take_expected_job(&store, "one", &[], "1");
    take_expected_job(&store, "one", &[], "4");
    store.clear_pending().wait().unwrap().unwrap();
    put_for(&store, "5", "me", "", Priority::Auto);
    take_expected_job(&store, "one", &[], "5");
}
