//! Leases that outlive the process: who has a job, until when, and what happens when nobody renews.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod store_support;

use std::sync::mpsc;
use std::time::Duration;

use fresco_engine::store::*;
use store_support::*;

fn far(term: Duration) -> Claim {
    Claim {
        owner: "far".into(),
        term: Some(term),
    }
}

const LONG: Duration = Duration::from_hours(1);
/// Long enough for what a test does under it on a busy machine.
const AWHILE: Duration = Duration::from_secs(4);
/// Over at once.
const SHORT: Duration = Duration::from_millis(50);

#[track_caller]
fn take_for(store: &JobStore, claim: &Claim) -> TakenJob {
    match store.next(claim, Duration::from_mins(1)) {
        Next::Job(job) => *job,
        other => panic!("no job but {other:?}"),
    }
}

#[test]
fn a_lease_survives_a_crash_and_its_outcome_is_recorded_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = open(&path).unwrap();
    put(&store, "far", Priority::Auto);
    put(&store, "here", Priority::Auto);
    let leased = take_for(&store, &far(LONG));
    let ours = take(&store);
    assert_eq!(&*ours.prompt_id, "here");
    let copy = crash_copy(&path, &dir.path().join("crashed"));
    let after = open(&copy).unwrap();
    // Ours died with the process and is tried again; the other one still runs somewhere.
    assert_eq!(pending_ids(&after), ["here"]);
    assert_eq!(take(&after).attempt, 2);
    let leases = after.leases().wait().unwrap();
    assert_eq!(leases.len(), 1);
    assert_eq!((leases[0].task, &*leases[0].owner), (leased.task, "far"));
    assert_eq!(after.remaining(), 2);
    assert_eq!(end(&after, leased.task), 1);
    assert_eq!(end(&after, leased.task), 1);
    assert_eq!(history_ids(&after), ["far"]);
}

#[test]
fn a_lease_that_ended_while_nobody_looked_counts_as_an_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = open(&path).unwrap();
    put(&store, "a", Priority::Auto);
    let (told, lost) = mpsc::channel();
    store.on_lost_lease(move |task| told.send(task).unwrap());
    let first = take_for(&store, &far(AWHILE));
    // Long before its end, as a crash would leave it.
    let copy = crash_copy(&path, &dir.path().join("crashed"));
    assert_eq!(lost.recv_timeout(Duration::from_mins(2)), Ok(first.task));
    // By now it is over in the copy too. Nobody could hear a sign of life meanwhile, so it is waited for once more.
    let after = open(&copy).unwrap();
    assert_eq!(after.leases().wait().unwrap()[0].task, first.task);
    let (told, lost) = mpsc::channel();
    after.on_lost_lease(move |task| told.send(task).unwrap());
    let second = take_for(&after, &far(SHORT));
    assert_eq!(lost.recv_timeout(Duration::from_mins(2)), Ok(first.task));
    assert_eq!((second.attempt, second.task == first.task), (2, false));
    // The first run is over, whatever it says.
    assert_eq!(end(&after, first.task), 1);
    assert!(history_ids(&after).is_empty());
    // Workers come and go, but a job that loses one after the other is held.
    for attempt in 3..=5 {
        assert_eq!(take_for(&after, &far(SHORT)).attempt, attempt);
    }
    for _ in 2..=5 {
        assert!(lost.recv_timeout(Duration::from_mins(2)).is_ok());
    }
    let outline = after.outline().wait().unwrap().unwrap();
    assert_eq!(outline.held.len(), 1);
    assert!(outline.reasons[0].1.contains("went down 5 times"));
    assert_eq!(after.remaining(), 1);
}

#[test]
fn a_job_that_is_given_back_waits_again() {
    let store = memory();
    put(&store, "a", Priority::Auto);
    let first = take_for(&store, &far(LONG));
    assert_eq!(
        store
            .leased_job(first.task)
            .wait()
            .flatten()
            .unwrap()
            .prompt_id,
        first.prompt_id
    );
    // It never began: that is no attempt, and the same run may be handed out again.
    assert!(
        store
            .give_back(first.task, Attempt::NotMade)
            .wait()
            .unwrap()
            .unwrap()
    );
    assert_eq!(pending_ids(&store), ["a"]);
    assert!(
        !store
            .give_back(first.task, Attempt::NotMade)
            .wait()
            .unwrap()
            .unwrap()
    );
    let second = take_for(&store, &far(LONG));
    assert_eq!(second.attempt, 1);
    // Its worker went down with it: that is one.
    assert!(
        store
            .give_back(second.task, Attempt::Made)
            .wait()
            .unwrap()
            .unwrap()
    );
    let third = take_for(&store, &far(LONG));
    assert_eq!((third.attempt, third.task == second.task), (2, false));
    assert_eq!(
        end(&store, second.task),
        1,
        "a run that is over changes nothing"
    );
    assert_eq!(end(&store, third.task), 0);
    assert_eq!(history_ids(&store), ["a"]);
}

#[test]
fn a_renewed_lease_stays() {
    let store = memory();
    put(&store, "a", Priority::Auto);
    let job = take_for(&store, &far(AWHILE));
    store.renew(job.task, LONG);
    let before = store.leases().wait().unwrap()[0].deadline;
    store.renew(job.task, 2 * LONG);
    assert!(store.leases().wait().unwrap()[0].deadline > before);
    assert_eq!(end(&store, job.task), 0);
    // Nothing to renew any more, and no harm done.
    store.renew(job.task, LONG);
    assert!(store.leases().wait().unwrap().is_empty());
    assert_eq!(history_ids(&store), ["a"]);
}
