//! A workflow file of the editor, turned into a prompt against the node descriptions of the reference.
#![no_main]

use std::sync::LazyLock;

use fresco_graph::{
    json,
    ui::{self, NodeDefs, Options},
};
use libfuzzer_sys::fuzz_target;

static DEFS: LazyLock<NodeDefs> = LazyLock::new(|| {
    let text = include_str!("../../tests/gold/object_info.json");
    NodeDefs::new(&json::parse(text).expect("the golden file is JSON"))
});

fuzz_target!(|data: &[u8]| {
    let Ok(workflow) = json::parse_bytes(data) else {
        return;
    };
    let options = Options {
        dynamic_prompts: true,
        text_replacements: true,
        ..Options::default()
    };
    if let Ok(converted) = ui::prompt_of(&workflow, &DEFS, &options) {
        let again =
            ui::prompt_of(&workflow, &DEFS, &options).expect("the same file converts again");
        assert_eq!(
            json::to_string(&converted.prompt.into()),
            json::to_string(&again.prompt.into()),
            "the same file gives the same prompt"
        );
    }
});
