//! Classes of other processes: where they are asked, and what `/object_info` says of them.

use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use fresco_graph::*;

use crate::harness::*;

/// Remembers which threads asked it something that may wait.
struct Pack {
    owner: Arc<str>,
    choices: Mutex<Result<Vec<&'static str>, NodeError>>,
    asked_on: Mutex<Vec<ThreadId>>,
}

impl Pack {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            owner: "pack".into(),
            choices: Mutex::new(Ok(vec!["a"])),
            asked_on: Mutex::default(),
        })
    }

    fn note(&self) {
        self.asked_on
            .lock()
            .unwrap()
            .push(std::thread::current().id());
    }
}

impl NodeClass for Pack {
    fn schema(&self) -> Arc<Schema> {
        let choices = Choices::Fixed(Arc::default());
        let mut schema = Schema::new("PackOut", Form::V1).input(Input::combo("c", choices));
        schema.output_node = true;
        Arc::new(schema)
    }
    fn describe(&self) -> Result<Declaration, NodeError> {
        self.note();
        let choices = self.choices.lock().unwrap().clone()?;
        let choices = Choices::Fixed(Arc::new(choices.into_iter().map(Value::from).collect()));
        let mut schema = Schema::new("PackOut", Form::V1).input(Input::combo("c", choices));
        schema.output_node = true;
        let schema = Arc::new(schema);
        Ok(Declaration {
            scheduling: schema.clone(),
            schema,
        })
    }
    fn owner(&self) -> Option<&Arc<str>> {
        Some(&self.owner)
    }
    fn validator(&self) -> Option<Arc<ValidatorInputs>> {
        // Names that no source file had when this program was built.
        Some(Arc::new(ValidatorInputs {
            params: vec![format!("{}", 'c').into()],
            ..ValidatorInputs::default()
        }))
    }
    fn validate(&self, _: Args, _: &Map, _: &Cx) -> Result<Verdict, NodeError> {
        self.note();
        Ok(Verdict::Because("never".into()))
    }
    fn call(&self, _: Args, _: &Cx) -> Result<Flow, NodeError> {
        Ok(Flow::Done(NodeOutput::default()))
    }
}

#[tokio::test]
async fn a_foreign_validator_is_never_asked_on_a_socket_thread() {
    let rig = rig();
    let pack = Pack::new();
    rig.app
        .engine
        .change_classes(|registry| registry.add_class(pack.clone()));
    let body = r#"{"prompt":{"1":{"class_type":"PackOut","inputs":{"c":"a"}}}}"#;
    let answer = rig.post("/prompt", body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("c - never"), "{}", answer.text());
    let asked = pack.asked_on.lock().unwrap();
    assert!(asked.len() >= 2);
    // This runtime serves all requests on the thread of the test.
    let here = std::thread::current().id();
    assert!(asked.iter().all(|thread| *thread != here));
}

#[tokio::test]
async fn object_info_shows_the_newest_classes() {
    let rig = rig();
    let shown = async || rig.get("/object_info").await.text().to_owned();
    let before = shown().await;
    assert!(!before.contains("PackOut") && before.contains("\"Show\""));
    let pack = Pack::new();
    rig.app
        .engine
        .change_classes(|registry| registry.add_class(pack.clone()));
    assert!(shown().await.contains(r#""c":[["a"]"#));
    // Its combos are read anew each time.
    *pack.choices.lock().unwrap() = Ok(vec!["a", "b"]);
    let both = shown().await;
    assert!(
        both.contains(r#""c":[["a","b"]"#) || both.contains(r#""c": [["a", "b"]"#),
        "{both}"
    );
    assert!(json::parse(&both).is_ok());
    // A class that cannot say what it declares is left out until it can.
    *pack.choices.lock().unwrap() = Err(NodeError::runtime("away"));
    let without = shown().await;
    assert_eq!(without, before);
    *pack.choices.lock().unwrap() = Ok(vec!["a"]);
    assert!(shown().await.contains("PackOut"));
    rig.app
        .engine
        .change_classes(|registry| registry.remove_owned("pack"));
    assert_eq!(shown().await, before);
}
