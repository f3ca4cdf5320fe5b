//! Classes and values that belong to somebody else: they come, change and go while the engine runs.

use std::sync::{Arc, Condvar, Mutex};

use fresco_engine::*;
use fresco_graph::*;

use crate::engine::{Rig, rig_with};
use crate::harness::Bench;

/// Something that lives in another process.
struct Reference {
    owner: Arc<str>,
}

impl Opaque for Reference {
    fn describe(&self) -> String {
        format!("a reference to {}", self.owner)
    }
    fn owner(&self) -> Option<&Arc<str>> {
        Some(&self.owner)
    }
}

/// `PackMake` gives a reference inside a list inside an object, `PackPlain` a number; both name the pack's version.
struct PackClass {
    owner: Arc<str>,
    schema: Mutex<Arc<Schema>>,
    value: Value,
    lost: Mutex<Option<NodeError>>,
    /// Calls wait until this is true.
    open: (Mutex<bool>, Condvar),
}

fn class(id: &str, owner: &str, value: Value) -> Arc<PackClass> {
    let schema = Schema::new(id, Form::V1).output(Output::new("*"));
    Arc::new(PackClass {
        owner: owner.into(),
        schema: Mutex::new(Arc::new(schema)),
        value,
        lost: Mutex::default(),
        open: (Mutex::new(true), Condvar::new()),
    })
}

impl NodeClass for PackClass {
    fn schema(&self) -> Arc<Schema> {
        self.schema.lock().unwrap().clone()
    }
    fn describe(&self) -> Result<Declaration, NodeError> {
        if let Some(error) = &*self.lost.lock().unwrap() {
            return Err(error.clone());
        }
        let schema = self.schema();
        Ok(Declaration {
            scheduling: schema.clone(),
            schema,
        })
    }
    fn owner(&self) -> Option<&Arc<str>> {
        Some(&self.owner)
    }
    fn call(&self, _: Args, cx: &Cx) -> Result<Flow, NodeError> {
        let (open, changed) = &self.open;
        let wait = |open: &mut bool| !*open;
        drop(changed.wait_while(open.lock().unwrap(), wait).unwrap());
        // State that must not outlive the owner.
        cx.with_state(|calls: &mut i64| *calls += 1);
        let calls = cx.with_state(|calls: &mut i64| *calls);
        let ui = map! {"value" => vec![Value::from(calls)]};
        Ok(Flow::Done(NodeOutput::one(self.value.clone()).with_ui(ui)))
    }
}

fn reference(owner: &str) -> Value {
    let inner = Value::object(Reference {
        owner: owner.into(),
    });
    map! {"list" => vec![inner]}.into()
}

const BOTH: &str = "1 PackMake; 2 SaveAny value=@1; 3 PackPlain; 4 SaveAny value=@3";

fn bench() -> Bench {
    let bench = Bench::new(Strategy::Classic);
    bench.registry.update(|registry| {
        registry.add_class(class("PackMake", "pack", reference("pack")));
        registry.add_class(class("PackPlain", "pack", 7.into()));
    });
    bench
}

#[test]
fn results_with_values_of_an_owner_that_is_gone_are_made_anew() {
    let mut bench = bench();
    assert_eq!(bench.run(BOTH).ran(), "1 2 3 4");
    assert_eq!(bench.run(BOTH).ran(), "");
    bench.executor.drop_owned("another");
    assert_eq!(bench.run(BOTH).ran(), "");
    // What was made by the pack but is ours by now stays; so do results that only follow from the value.
    bench.executor.drop_owned("pack");
    let again = bench.run(BOTH);
    assert_eq!(again.ran(), "1");
    // The state of its nodes went with it: this was a first call.
    let made = again.outcome.outputs.get("1").unwrap();
    assert_eq!(json::to_string(made), r#"{"value":[1]}"#);
}

#[test]
fn a_class_that_cannot_be_described_fails_its_node() {
    let mut bench = bench();
    let lost = class("PackLost", "pack", 1.into());
    bench
        .registry
        .update(|registry| registry.add_class(lost.clone()));
    let valid = bench
        .validate("1 PackLost; 2 SaveAny value=@1", None)
        .unwrap();
    assert_eq!(valid.outputs.len(), 1);
    // It goes away after the check.
    *lost.lost.lock().unwrap() = Some(NodeError::runtime("the pack is away"));
    let job = RunJob {
        prompt_id: "p".into(),
        prompt: valid.prompt,
        extra_data: Map::new(),
        outputs: valid.outputs,
        sensitive: Map::new(),
        client: None,
    };
    let outcome = bench.executor.run(&job, &RunControl::default());
    let text = json::to_string(&Value::from(outcome.messages));
    assert!(
        !outcome.end.is_finished() && text.contains("the pack is away"),
        "{text}"
    );
}

fn rig() -> Rig {
    rig_with(
        &store::StorePath::Memory,
        Arc::default(),
        Arc::new(NoModels),
    )
}

#[test]
fn classes_come_and_go_while_prompts_run() {
    let rig = rig();
    assert!(!rig.engine.checks_wait(&crate::harness::parse(BOTH)));
    rig.engine.change_classes(|registry| {
        registry.add_class(class("PackMake", "pack", reference("pack")));
        registry.add_class(class("PackPlain", "pack", 7.into()));
    });
    assert!(rig.engine.checks_wait(&crate::harness::parse(BOTH)));
    // A prompt that runs has its classes, whatever happens to them meanwhile.
    let slow = class("PackSlow", "pack", 1.into());
    *slow.open.0.lock().unwrap() = false;
    rig.engine
        .change_classes(|registry| registry.add_class(slow.clone()));
    rig.submit(
        "a",
        "1 PackSlow; 2 SaveAny value=@1; 3 PackPlain; 4 SaveAny value=@3",
    );
    rig.running("a");
    let before = rig.engine.registry();
    rig.engine.change_classes(|registry| {
        registry.remove_owned("pack");
        registry.remove("SaveAny");
    });
    assert!(before.get("PackMake").is_some() && rig.engine.registry().get("PackMake").is_none());
    *slow.open.0.lock().unwrap() = true;
    slow.open.1.notify_all();
    rig.idle();
    assert_eq!(rig.status("a"), "success true");
    assert!(
        rig.engine
            .validate(crate::harness::parse(BOTH), None)
            .is_err()
    );
}

#[test]
fn an_owner_is_dropped_in_every_worker() {
    let rig = rig();
    rig.engine.change_classes(|registry| {
        registry.add_class(class("PackMake", "pack", reference("pack")));
    });
    let script = "1 PackMake; 2 SaveAny value=@1";
    rig.submit("a", script);
    rig.idle();
    assert_eq!(rig.engine.workers()[0].results, Some(2));
    rig.engine.drop_owned(&"pack".into());
    rig.until("the result to be forgotten", || {
        rig.engine.workers()[0].results == Some(1)
    });
}
