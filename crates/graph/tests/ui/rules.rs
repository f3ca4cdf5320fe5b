//! One test for each rule, on small made-up classes.

use fresco_graph::ui::{
    ConvertError, NodeDefs, Now, Options, WorkflowKind, convert, detect, prompt_of,
};
use fresco_graph::{Choices, Form, Input, NoListings, Schema, Value, json, object_info};

/// A few classes in the form of `/object_info`.
const CLASSES: &str = r#"{
  "Source": {"input": {"required": {"name": [["x.ckpt", "y.ckpt"]]}}, "output": ["MODEL", "CLIP"], "display_name": "Load it"},
  "Patch": {"input": {"required": {"strength": ["FLOAT", {"default": 1.0}], "model": ["MODEL"], "clip": ["CLIP"]}},
            "output": ["MODEL", "CLIP"]},
  "Sample": {"input": {"required": {"model": ["MODEL"], "seed": ["INT", {"default": 0}], "steps": ["INT", {"default": 20}],
             "mode": ["COMBO", {"options": ["a", "b"]}], "on": ["BOOLEAN"]}, "optional": {"note": ["STRING"]}}, "output": ["LATENT"]},
  "Quiet": {"input": {"required": {"seed": ["INT", {"control_after_generate": false}], "x": ["INT", {}]}}, "output": []},
  "Pick": {"input": {"required": {"c": [["p", "q"], {"control_after_generate": true}], "f": ["FLOAT", {"control_after_generate": "mode"}],
           "x": ["INT", {}]}}, "output": []},
  "Load": {"input": {"required": {"image": [["a.png"], {"image_upload": true}], "channel": [["red"]]}}, "output": ["IMAGE"]},
  "Forced": {"input": {"required": {"t": ["STRING", {"forceInput": true}], "seed": ["INT", {"forceInput": true}], "x": ["INT", {}]}},
             "output": []},
  "Ordered": {"input": {"required": {"b": ["INT", {}], "a": ["INT", {}], "z": ["INT", {}]}}, "input_order": {"required": ["a", "b"]},
              "output": []},
  "Typed": {"input": {"required": {"w": ["FLOATS", {"widgetType": "STRING", "default": "1,2"}]}}, "output": []},
  "Resize": {"input": {"required": {"how": ["COMFY_DYNAMICCOMBO_V3", {"options": [
      {"key": "by", "inputs": {"required": {"factor": ["FLOAT", {"default": 2.0}]}}},
      {"key": "to", "inputs": {"required": {"w": ["INT", {"default": 5}], "like": ["IMAGE"]}, "optional": {"h": ["INT", {"default": 6}]}}}]}],
      "last": ["INT", {}]}}, "output": ["IMAGE"]},
  "Batch": {"input": {"required": {"images": ["COMFY_AUTOGROW_V3", {"template": {}}]}}, "output": ["IMAGE"]},
  "Many": {"input": {"required": {"list": ["COMBO", {"multiselect": true, "options": ["a", "b"]}]}}, "output": []},
  "Text": {"input": {"required": {"text": ["STRING", {"multiline": true, "dynamicPrompts": true}]}}, "output": ["COND"]},
  "SaveIt": {"input": {"required": {"filename_prefix": ["STRING", {"default": "out"}], "model": ["MODEL"]}}, "output": []},
  "LoadAudio": {"input": {"required": {"audio": ["COMBO", {"options": [], "audio_upload": true}]}}, "output": ["AUDIO"]},
  "PreviewAny": {"input": {"required": {"source": ["*", {}]}}, "output": []},
  "Spread": {"input": {"required": {"name": [["x", "y"]], "seed": ["INT", {}]}, "optional": {"gb": ["FLOAT", {"default": 4.0}],
             "eject_models": ["BOOLEAN", {"default": true}], "retention": [["auto", "keep"], {"default": "auto"}],
             "keep_loaded": ["BOOLEAN", {"forceInput": true}]}}, "output": ["MODEL"]},
  "Sink": {"input": {"required": {"any": ["*"]}, "optional": {"model": ["MODEL"], "latent": ["LATENT"], "image": ["IMAGE"]}}, "output": []}
}"#;

fn defs() -> NodeDefs {
    NodeDefs::new(&json::parse(CLASSES).unwrap())
}

#[track_caller]
fn run(file: &str, options: &Options) -> (String, Vec<String>) {
    let file = json::parse(file).unwrap();
    let done = convert(&file, &defs(), options).unwrap();
    let lines: Vec<String> = done
        .prompt
        .iter()
        .map(|(id, node)| {
            let inputs = json::to_string(node.get("inputs").unwrap());
            let class = node
                .get("class_type")
                .and_then(Value::as_str)
                .unwrap_or("?");
            format!("{id} {class} {inputs}")
        })
        .collect();
    (lines.join("\n"), done.warnings)
}

/// Converts `file` and compares its nodes, one a line.
#[track_caller]
fn check(file: &str, want: &str) {
    let (have, _) = run(file, &Options::default());
    let want: Vec<&str> = want.lines().map(str::trim).collect();
    assert_eq!(have, want.join("\n").trim());
}

/// One node of a class with the given values.
#[track_caller]
fn values(class: &str, values: &str, want: &str) {
    check(
        &format!(r#"{{"nodes": [{{"id": 1, "type": "{class}", "widgets_values": {values}}}]}}"#),
        &format!("1 {class} {want}"),
    );
}

#[test]
fn kinds_are_told_apart() {
    let kind = |text: &str| detect(&json::parse(text).unwrap());
    assert_eq!(kind(r#"{"nodes": [], "links": []}"#), WorkflowKind::Ui);
    assert_eq!(
        kind(r#"{"1": {"class_type": "A", "inputs": {}}}"#),
        WorkflowKind::Api
    );
    assert_eq!(
        kind(r#"{"prompt": {"1": {"class_type": "A"}}, "client_id": "x"}"#),
        WorkflowKind::Request
    );
    assert_eq!(
        kind(r#"{"output": {}, "workflow": {}}"#),
        WorkflowKind::Both
    );
    for odd in [
        "{}",
        "[]",
        "3",
        r#"{"nodes": 3}"#,
        r#"{"1": {"class_type": "A"}, "2": 3}"#,
        r#"{"5": {"class_type": 5}}"#,
        r#"{"5": {"class_type": "5"}}"#,
        r#"{"a": {"class_type": "person", "age": 5}}"#,
        r#"{"prompt": {"5": {}}}"#,
        r#"{"prompt": {}}"#,
        r#"{"output": {}, "workflow": 5}"#,
    ] {
        assert_eq!(kind(odd), WorkflowKind::Unknown, "{odd}");
    }
}

#[test]
fn any_kind_gives_its_prompt() {
    let prompt = |text: &str| {
        prompt_of(&json::parse(text).unwrap(), &defs(), &Options::default())
            .map(|c| json::to_string(&c.prompt.into()))
    };
    let api = r#"{"1":{"class_type":"A"}}"#;
    assert_eq!(prompt(api).unwrap(), api);
    assert_eq!(prompt(&format!(r#"{{"prompt": {api}}}"#)).unwrap(), api);
    assert_eq!(
        prompt(&format!(r#"{{"output": {api}, "workflow": 1}}"#)).unwrap(),
        api
    );
    assert_eq!(
        prompt(r#"{"nodes": [{"id": 1, "type": "Note"}]}"#).unwrap(),
        "{}"
    );
    assert_eq!(prompt("{}"), Err(ConvertError::Unknown));
    let api = json::parse(api).unwrap();
    assert_eq!(
        convert(&api, &defs(), &Options::default()).unwrap_err(),
        ConvertError::NotUi
    );
}

#[test]
fn stored_elements_go_to_their_widgets() {
    // A seed has a control after it, unless the class says no.
    values(
        "Sample",
        r#"[5, "fixed", 30, "b", true, "n"]"#,
        r#"{"seed":5,"steps":30,"mode":"b","on":true,"note":"n"}"#,
    );
    values("Quiet", "[5, 6]", r#"{"seed":5,"x":6}"#);
    // A combo has two, a float one where the option asks, whatever text the option is.
    values(
        "Pick",
        r#"["q", "increment", "", 1.5, "fixed", 9]"#,
        r#"{"c":"q","f":1.5,"x":9}"#,
    );
    // The upload button is stored and not sent.
    values(
        "Load",
        r#"["b.png", "green", "image"]"#,
        r#"{"image":"b.png","channel":"green"}"#,
    );
    values("Ordered", "[1, 2, 3]", r#"{"a":1,"b":2,"z":3}"#);
    values("Typed", r#"["3"]"#, r#"{"w":"3"}"#);
}

#[test]
fn what_is_not_stored_has_its_default() {
    values(
        "Sample",
        "[]",
        r#"{"seed":0,"steps":20,"mode":"a","on":false,"note":""}"#,
    );
    values("Load", "null", r#"{"image":"a.png","channel":"red"}"#);
    values("Typed", "[]", r#"{"w":"1,2"}"#);
    values(
        "LoadAudio",
        r#"["f.mp3", null, null]"#,
        r#"{"audio":"f.mp3","audioUI":""}"#,
    );
    // No choices, no default, nothing stored: nothing sent.
    values("LoadAudio", "[]", r#"{"audioUI":""}"#);
}

/// As front-end 1.35 sends it: its value is stored in the third place and may be empty.
#[test]
fn the_mode_of_a_text_preview_is_sent_as_it_is_stored() {
    let off = r#"{"preview":"","previewMode":false}"#;
    values("PreviewAny", "[]", off);
    values("PreviewAny", "[null, null]", off);
    values("PreviewAny", "[null, null, false]", off);
    values(
        "PreviewAny",
        "[null, null, null]",
        r#"{"preview":"","previewMode":null}"#,
    );
    values(
        "PreviewAny",
        r#"{"previewMode": true}"#,
        r#"{"preview":"","previewMode":true}"#,
    );
}

#[test]
fn old_files_have_dummies_for_inputs_that_must_be_linked() {
    values("Forced", "[7]", r#"{"x":7}"#);
    values("Forced", r#"["t", 1, "fixed", 7]"#, r#"{"x":7}"#);
    // Only an exact fit is such a file.
    values("Forced", r#"["t", 1]"#, r#"{"x":"t"}"#);
}

#[test]
fn values_may_be_named() {
    values(
        "Sample",
        r#"{"steps": 3, "seed": 4}"#,
        r#"{"seed":4,"steps":3,"mode":"a","on":false,"note":""}"#,
    );
    let node = |positional: &str| {
        format!(
            r#"{{"nodes": [{{"id": 1, "type": "Ordered", "widgets_values": {positional},
                "widgets_values_named": {{"a": 7, "b": 8, "z": 9}}}}]}}"#
        )
    };
    check(&node("[1, 2, 3]"), r#"1 Ordered {"a":1,"b":2,"z":3}"#);
    check(&node("[1, 2]"), r#"1 Ordered {"a":7,"b":8,"z":9}"#);
}

/// The editor names its own widgets beside those of the class. They are in no prompt, so nothing is missing without them.
#[test]
fn widgets_that_steer_a_seed_are_not_reported() {
    let seed = r#""name": "y", "seed": 7, "control_after_generate": "randomize", "gb": 2.5"#;
    let want = r#"1 Spread {"name":"y","seed":7,"gb":2.5,"eject_models":true,"retention":"auto"}"#;
    for named in [
        format!("{{{seed}}}"),
        format!(r#"{{{seed}, "control_filter_list": ""}}"#),
    ] {
        let beside = format!(r#", "widgets_values_named": {named}"#);
        let values = r#"["y", 7, "randomize", 2.5]"#;
        assert_eq!(spread(values, &[], &beside), (want.to_owned(), vec![]));
        assert_eq!(spread(&named, &[], ""), (want.to_owned(), vec![]));
    }
    let pick = r#"{"nodes": [{"id": 1, "type": "Pick", "widgets_values": ["p", "fixed", "", 0.5, "fixed", 1],
        "widgets_values_named": {"c": "p", "control_after_generate": "fixed", "control_filter_list": "", "f": 0.5,
        "mode": "fixed", "x": 1}}]}"#;
    let (prompt, warnings) = run(pick, &Options::default());
    assert_eq!(prompt, r#"1 Pick {"c":"p","f":0.5,"x":1}"#);
    assert_eq!(warnings, Vec::<String>::new());
}

/// A node of class Spread with slots of these names for its widgets.
fn spread(values: &str, slots: &[&str], more: &str) -> (String, Vec<String>) {
    let slot = |name: &&str| {
        format!(r#"{{"name": "{name}", "type": "*", "widget": {{"name": "{name}"}}}}"#)
    };
    let slots: Vec<String> = slots.iter().map(slot).collect();
    let file = format!(
        r#"{{"nodes": [{{"id": 1, "type": "Spread", "inputs": [{}], "widgets_values": {values}{more}}}]}}"#,
        slots.join(", ")
    );
    run(&file, &Options::default())
}

/// Positions say what widgets a class has today; names say what the file meant.
#[test]
fn names_of_slots_beat_positions() {
    let all = |keep: &str, eject: &str, retention: &str, name: &str| {
        format!(
            r#"1 Spread {{"name":"{name}","seed":7,"gb":2.5,"eject_models":{eject},"retention":"{retention}"{keep}}}"#
        )
    };
    let old = ["name", "seed", "gb", "keep_loaded"];
    for value in ["true", "false"] {
        let values = format!(r#"["y", 7, "fixed", 2.5, {value}]"#);
        let keep = format!(r#","keep_loaded":{value}"#);
        let want = all(&keep, "true", "auto", "y");
        assert_eq!(spread(&values, &old, ""), (want.clone(), vec![]));
        // In another order, and beside a list that would fit by chance.
        let swapped = format!(r#"[{value}, 7, "fixed", "y", 2.5]"#);
        let order = ["keep_loaded", "seed", "name", "gb"];
        assert_eq!(spread(&swapped, &order, ""), (want.clone(), vec![]));
        let named = format!(
            r#", "widgets_values_named": {{"name": "y", "seed": 7, "gb": 2.5, "keep_loaded": {value}}}"#
        );
        assert_eq!(spread(&values, &[], &named), (want.clone(), vec![]));
        let named = format!(r#"{{"name": "y", "seed": 7, "gb": 2.5, "keep_loaded": {value}}}"#);
        assert_eq!(spread(&named, &[], ""), (want, vec![]));
    }
    // Names that say the same as the positions, and more values than names: positions count.
    let new = ["name", "seed", "gb", "eject_models", "retention"];
    let values = r#"["y", 7, "fixed", 2.5, false, "keep"]"#;
    let want = all("", "false", "keep", "y");
    assert_eq!(spread(values, &new, ""), (want.clone(), vec![]));
    assert_eq!(spread(values, &["seed"], ""), (want.clone(), vec![]));
    assert_eq!(
        spread(values, &[], ""),
        (want, vec![]),
        "newer than the change"
    );
    // A widget that the class does not have any more.
    let (prompt, warnings) = spread(
        r#"["y", 1, 7, "fixed", 2.5]"#,
        &["name", "old", "seed", "gb"],
        "",
    );
    assert_eq!(prompt, all("", "true", "auto", "y"));
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("\"old\"") && warnings[0].contains("node 1 (Spread)"),
        "{warnings:?}"
    );
}

#[test]
fn a_bare_value_whose_widget_changed_is_told() {
    let (prompt, warnings) = spread(r#"["y", 7, "fixed", 2.5, false]"#, &[], "");
    assert!(
        prompt.contains(r#""eject_models":false"#) && !prompt.contains("keep_loaded"),
        "{prompt}"
    );
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for words in ["node 1 (Spread)", "false", "eject_models", "keep_loaded"] {
        assert!(warnings[0].contains(words), "{warnings:?}");
    }
    // It ends before that widget.
    let (_, warnings) = spread(r#"["y", 7, "fixed", 2.5]"#, &[], "");
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn the_choice_of_a_dynamic_combo_decides_what_follows() {
    values(
        "Resize",
        r#"["by", 3.5, 9]"#,
        r#"{"how":"by","how.factor":3.5,"last":9}"#,
    );
    values(
        "Resize",
        r#"["to", 10, 11, 9]"#,
        r#"{"how":"to","how.w":10,"how.h":11,"last":9}"#,
    );
    values("Resize", "[]", r#"{"how":"by","how.factor":2.0,"last":0}"#);
    values("Resize", r#"["gone", 9]"#, r#"{"how":"gone","last":9}"#);
    // Its sockets and converted widgets are linked by their long names.
    check(
        r#"{"nodes": [
            {"id": 1, "type": "Load", "widgets_values": ["a", "b"]},
            {"id": 2, "type": "Resize", "widgets_values": ["to", 10, 11, 9],
             "inputs": [{"name": "how.like", "type": "IMAGE", "link": 1}, {"name": "how.w", "type": "INT", "link": 2, "widget": {"name": "how.w"}}]},
            {"id": 3, "type": "PrimitiveNode", "widgets_values": [77, "fixed"]}],
            "links": [[1, 1, 0, 2, 0, "IMAGE"], [2, 3, 0, 2, 1, "INT"]]}"#,
        r#"1 Load {"image":"a","channel":"b"}
           2 Resize {"how":"to","how.w":77,"how.h":11,"last":9,"how.like":["1",0]}"#,
    );
}

#[test]
fn lists_are_wrapped_and_links_are_not() {
    values(
        "Many",
        r#"[["a", "b"]]"#,
        r#"{"list":{"__value__":["a","b"]}}"#,
    );
    check(
        r#"{"nodes": [{"id": "a", "type": "Load", "widgets_values": ["i", "c"]},
                      {"id": 2, "type": "Batch", "inputs": [{"name": "images.image0", "type": "IMAGE", "link": 5},
                                                            {"name": "images.image1", "type": "IMAGE", "link": null}]}],
            "links": [[5, "a", 0, 2, 99, "IMAGE"]]}"#,
        r#"a Load {"image":"i","channel":"c"}
           2 Batch {"images.image0":["a",0]}"#,
    );
}

#[test]
fn a_link_overrides_a_converted_widget() {
    check(
        r#"{"nodes": [{"id": 1, "type": "Sample", "widgets_values": [1, "fixed", 2, "a", true, "n"],
                "inputs": [{"name": "steps", "type": "INT", "link": 7, "widget": {"name": "steps"}}]},
                {"id": 2, "type": "Quiet", "widgets_values": [1, 2]}],
            "links": [[7, 2, 0, 1, 0, "INT"]]}"#,
        r#"1 Sample {"seed":1,"steps":["2",0],"mode":"a","on":true,"note":"n"}
           2 Quiet {"seed":1,"x":2}"#,
    );
}

/// A source, a thing between, and a sink that wants a MODEL from output 0 of the thing between.
fn between(node: &str) -> String {
    format!(
        r#"{{"nodes": [{{"id": 1, "type": "Source", "widgets_values": ["x"]}}, {node},
            {{"id": 3, "type": "SaveIt", "widgets_values": ["f"], "inputs": [{{"name": "model", "type": "MODEL", "link": 2}}]}}],
            "links": [[1, 1, 0, 2, 0, "MODEL"], [2, 2, 0, 3, 0, "MODEL"], [4, 1, 1, 2, 1, "CLIP"]]}}"#
    )
}

#[test]
fn reroutes_and_bypassed_nodes_are_seen_through() {
    let through = r#"1 Source {"name":"x"}
                     3 SaveIt {"filename_prefix":"f","model":["1",0]}"#;
    check(
        &between(
            r#"{"id": 2, "type": "Reroute", "inputs": [{"name": "", "type": "*", "link": 1}]}"#,
        ),
        through,
    );
    // The MODEL is the second saved input; types decide.
    let patch = |mode: u8, model: &str| {
        between(&format!(
            r#"{{"id": 2, "type": "Patch", "mode": {mode}, "widgets_values": [0.5],
                "inputs": [{{"name": "clip", "type": "CLIP", "link": 4}}, {{"name": "model", "type": "MODEL", "link": {model}}}]}}"#
        ))
    };
    check(&patch(4, "1"), through);
    check(
        &patch(4, "null"),
        r#"1 Source {"name":"x"}
           3 SaveIt {"filename_prefix":"f"}"#,
    );
    check(
        &patch(2, "1"),
        r#"1 Source {"name":"x"}
           3 SaveIt {"filename_prefix":"f"}"#,
    );
    // An unknown class passes by its saved slots, and nothing fitting means nothing.
    check(
        &between(
            r#"{"id": 2, "type": "Nope", "mode": 4, "inputs": [{"name": "m", "type": "model,latent", "link": 1}], "outputs": [{"type": "MODEL"}]}"#,
        ),
        through,
    );
    check(
        &between(
            r#"{"id": 2, "type": "Nope", "mode": 4, "inputs": [{"name": "m", "type": "IMAGE", "link": 1}], "outputs": [{"type": "MODEL"}]}"#,
        ),
        r#"1 Source {"name":"x"}
           3 SaveIt {"filename_prefix":"f"}"#,
    );
}

#[test]
fn a_consumer_of_anything_takes_the_slot_of_the_same_number() {
    let file = |slot: u8| {
        format!(
            r#"{{"nodes": [{{"id": 1, "type": "Source", "widgets_values": ["x"]}},
                {{"id": 2, "type": "Patch", "mode": 4, "inputs": [{{"name": "model", "link": 1}}, {{"name": "clip", "link": 4}}]}},
                {{"id": 3, "type": "Sink", "inputs": [{{"name": "any", "type": "*", "link": 2}}]}}],
                "links": [[1, 1, 0, 2, 0, "MODEL"], [2, 2, {slot}, 3, 0, "*"], [4, 1, 1, 2, 1, "CLIP"]]}}"#
        )
    };
    check(
        &file(1),
        "1 Source {\"name\":\"x\"}\n3 Sink {\"any\":[\"1\",1]}",
    );
    // Slot 9 does not exist: the first input.
    check(
        &file(9),
        "1 Source {\"name\":\"x\"}\n3 Sink {\"any\":[\"1\",0]}",
    );
}

#[test]
fn a_muted_feeder_takes_the_widget_with_it() {
    let file = r#"{"nodes": [{"id": 1, "type": "Quiet", "widgets_values": [5, 6], "inputs": [{"name": "x", "link": 1, "widget": {"name": "x"}}]},
                             {"id": 2, "type": "Quiet", "mode": 2}], "links": [[1, 2, 0, 1, 0, "INT"]]}"#;
    check(file, r#"1 Quiet {"seed":5}"#);
    let keep = Options {
        keep_widgets_of_muted: true,
        ..Options::default()
    };
    assert_eq!(run(file, &keep).0, r#"1 Quiet {"seed":5,"x":6}"#);
}

#[test]
fn primitive_nodes_write_into_widgets() {
    check(
        r#"{"nodes": [{"id": 1, "type": "PrimitiveNode", "widgets_values": [42, "randomize"]},
                      {"id": 2, "type": "Quiet", "widgets_values": [5, 6], "inputs": [{"name": "x", "link": 1, "widget": {"name": "x"}}]},
                      {"id": 3, "type": "Sink", "inputs": [{"name": "any", "link": 1}]}],
            "links": [[1, 1, 0, 2, 0, "INT"]]}"#,
        r#"2 Quiet {"seed":5,"x":42}
           3 Sink {}"#,
    );
}

#[test]
fn switching_off_what_never_runs_changes_nothing() {
    for mode in [2, 4] {
        check(
            &format!(
                r#"{{"nodes": [{{"id": 1, "type": "PrimitiveNode", "mode": {mode}, "widgets_values": [42]}},
                      {{"id": 2, "type": "Quiet", "widgets_values": [5, 6], "inputs": [{{"name": "x", "link": 1, "widget": {{"name": "x"}}}}]}},
                      {{"id": 3, "type": "Reroute", "mode": {mode}, "inputs": [{{"name": "", "link": 2}}]}},
                      {{"id": 4, "type": "Sink", "inputs": [{{"name": "any", "link": 3}}]}}],
                    "links": [[1, 1, 0, 2, 0, "INT"], [2, 2, 0, 3, 0, "*"], [3, 3, 0, 4, 0, "*"]]}}"#
            ),
            r#"2 Quiet {"seed":5,"x":42}
               4 Sink {"any":["2",0]}"#,
        );
    }
}

#[test]
fn unknown_classes_come_out_nameless() {
    let (nodes, warnings) = run(
        r#"{"nodes": [{"id": 1, "type": "Nope", "widgets_values": [1, "z"], "inputs": [{"name": "i", "link": 1}]},
                      {"id": 2, "type": "Nope"}], "links": [[1, 2, 0, 1, 0, "*"]]}"#,
        &Options::default(),
    );
    assert_eq!(nodes, "1 ? {\"UNKNOWN\":\"z\",\"i\":[\"2\",0]}\n2 ? {}");
    assert_eq!(warnings, [r#"node 1: unknown node type "Nope""#]);
}

/// A subgraph with a MODEL, a seed and a second seed going in, and a MODEL passing through, used by `nodes`.
fn subgraph(nodes: &str) -> String {
    format!(
        r#"{{"nodes": [{{"id": 1, "type": "Source", "widgets_values": ["x"]}}, {nodes}],
         "links": [[1, 1, 0, 5, 0, "MODEL"], [2, 5, 0, 6, 0, "MODEL"], [3, 5, 1, 6, 0, "LATENT"], [4, 8, 0, 5, 1, "INT"]],
         "definitions": {{"subgraphs": [
          {{"id": "def-a", "name": "A",
           "inputs": [{{"name": "model", "type": "MODEL", "linkIds": [1, 2]}}, {{"name": "seed", "type": "INT", "linkIds": [4]}},
                      {{"name": "x", "type": "INT", "linkIds": [6]}}],
           "outputs": [{{"name": "model", "type": "MODEL", "linkIds": [1]}}, {{"name": "latent", "type": "LATENT", "linkIds": [3]}}],
           "nodes": [{{"id": 10, "type": "Sample", "widgets_values": [100, "fixed", 20, "a", false, ""],
                       "inputs": [{{"name": "model", "link": 2}}, {{"name": "seed", "link": 4, "widget": {{"name": "seed"}}}}]}},
                     {{"id": 11, "type": "def-b", "widgets_values": [null], "inputs": [{{"name": "inner", "link": 6}}]}}],
           "links": [{{"id": 1, "origin_id": -10, "origin_slot": 0, "target_id": -20, "target_slot": 0, "type": "MODEL"}},
                     {{"id": 2, "origin_id": -10, "origin_slot": 0, "target_id": 10, "target_slot": 0, "type": "MODEL"}},
                     {{"id": 3, "origin_id": 10, "origin_slot": 0, "target_id": -20, "target_slot": 1, "type": "LATENT"}},
                     {{"id": 4, "origin_id": -10, "origin_slot": 1, "target_id": 10, "target_slot": 1, "type": "INT"}},
                     {{"id": 6, "origin_id": -10, "origin_slot": 2, "target_id": 11, "target_slot": 0, "type": "INT"}}]}},
          {{"id": "def-b", "name": "B", "inputs": [{{"name": "inner", "type": "INT", "linkIds": [1]}}],
           "nodes": [{{"id": 20, "type": "Quiet", "widgets_values": [7, 8], "inputs": [{{"name": "x", "link": 1, "widget": {{"name": "x"}}}}]}}],
           "links": [{{"id": 1, "origin_id": -10, "origin_slot": 0}}]}}]}}}}"#
    )
}

const SINK: &str = r#"{"id": 6, "type": "Sink", "inputs": [{"name": "model", "link": 2}, {"name": "latent", "link": 3}]}"#;

#[test]
fn instances_expand_under_their_path() {
    check(
        &subgraph(&format!(
            r#"{{"id": 5, "type": "def-a", "widgets_values": [200, 9], "inputs": [{{"name": "model", "link": 1}}]}}, {SINK}"#
        )),
        r#"1 Source {"name":"x"}
           5:10 Sample {"seed":200,"steps":20,"mode":"a","on":false,"note":"","model":["1",0]}
           5:11:20 Quiet {"seed":7,"x":9}
           6 Sink {"model":["1",0],"latent":["5:10",0]}"#,
    );
}

#[test]
fn null_keeps_what_is_stored_inside() {
    check(
        &subgraph(r#"{"id": 5, "type": "def-a", "widgets_values": [null, null]}"#),
        r#"1 Source {"name":"x"}
           5:10 Sample {"seed":100,"steps":20,"mode":"a","on":false,"note":""}
           5:11:20 Quiet {"seed":7,"x":8}"#,
    );
}

#[test]
fn proxies_say_where_the_values_are() {
    let proxies = |list: &str| {
        subgraph(&format!(
            r#"{{"id": 5, "type": "def-a", "widgets_values": [1, 2, 3], "properties": {{"proxyWidgets": {list}}}}}"#
        ))
    };
    let want = |seed: &str, x: &str| {
        format!(
            r#"1 Source {{"name":"x"}}
               5:10 Sample {{"seed":{seed},"steps":20,"mode":"a","on":false,"note":""}}
               5:11:20 Quiet {{"seed":7,"x":{x}}}"#
        )
    };
    check(
        &proxies(r#"[["-1", "x"], ["10", "steps"], ["-1", "seed"]]"#),
        &want("3", "1"),
    );
    check(&proxies(r#"[["10", "seed"]]"#), &want("100", "8"));
    check(&proxies(r#""[[\"-1\", \"seed\"]]""#), &want("1", "8"));
}

#[test]
fn named_values_of_instances() {
    check(
        &subgraph(
            r#"{"id": 5, "type": "def-a", "widgets_values": {"x": 4}}, {"id": 6, "type": "def-a", "widgets_values": [1, 2]}"#,
        ),
        r#"1 Source {"name":"x"}
           5:10 Sample {"seed":100,"steps":20,"mode":"a","on":false,"note":""}
           5:11:20 Quiet {"seed":7,"x":4}
           6:10 Sample {"seed":1,"steps":20,"mode":"a","on":false,"note":""}
           6:11:20 Quiet {"seed":7,"x":2}"#,
    );
}

#[test]
fn a_primitive_node_feeds_the_promoted_widget() {
    check(
        &subgraph(
            r#"{"id": 8, "type": "PrimitiveNode", "widgets_values": [55, "fixed"]},
               {"id": 5, "type": "def-a", "widgets_values": [200, 9], "inputs": [{"name": "seed", "link": 4, "widget": {"name": "seed"}}]}"#,
        ),
        r#"1 Source {"name":"x"}
           5:10 Sample {"seed":55,"steps":20,"mode":"a","on":false,"note":""}
           5:11:20 Quiet {"seed":7,"x":9}"#,
    );
}

#[test]
fn switched_off_instances_are_one_node() {
    check(
        &subgraph(&format!(
            r#"{{"id": 5, "type": "def-a", "mode": 4, "inputs": [{{"name": "model", "link": 1}}]}}, {SINK}"#
        )),
        r#"1 Source {"name":"x"}
           6 Sink {"model":["1",0]}"#,
    );
    check(
        &subgraph(&format!(
            r#"{{"id": 5, "type": "def-a", "mode": 2, "inputs": [{{"name": "model", "link": 1}}]}}, {SINK}"#
        )),
        r#"1 Source {"name":"x"}
           6 Sink {}"#,
    );
}

#[test]
fn group_nodes_expand_by_index() {
    // Two children linked inside; values one after the other; the second seed has the title before its name.
    let file = |instance: &str| {
        format!(
            r#"{{"nodes": [{{"id": 1, "type": "Source", "widgets_values": ["x"]}}, {{"id": 2, "type": "Quiet", "widgets_values": [1, 2]}},
                {{"id": 5, "type": "workflow>G", {instance}}},
                {{"id": 6, "type": "Sink", "inputs": [{{"name": "model", "link": 3}}, {{"name": "latent", "link": 2}}]}}],
             "links": [[1, 1, 0, 5, 0, "MODEL"], [2, 5, 2, 6, 0, "LATENT"], [3, 5, 0, 6, 1, "MODEL"], [4, 2, 0, 5, 9, "INT"]],
             "extra": {{"groupNodes": {{"G": {{
              "nodes": [{{"type": "Patch", "index": 0, "inputs": [{{"name": "model"}}, {{"name": "clip"}}], "widgets_values": [1]}},
                        {{"type": "Sample", "index": 1, "inputs": [{{"name": "model"}}], "widgets_values": [1, "fixed", 2, "a", true, ""]}},
                        {{"type": "Quiet", "index": 2, "widgets_values": [3, 4]}}],
              "links": [[0, 0, 1, 0, 1, "MODEL"]], "external": [[0, 0, "MODEL"]]}}}}}}}}"#
        )
    };
    check(
        &file(
            r#""widgets_values": [0.5, 11, "fixed", 12, "b", false, "n", 13, 14],
               "inputs": [{"name": "model", "link": 1}, {"name": "Quiet seed", "link": 4, "widget": {"name": "Quiet seed"}}]"#,
        ),
        r#"1 Source {"name":"x"}
           2 Quiet {"seed":1,"x":2}
           5:0 Patch {"strength":0.5,"model":["1",0]}
           5:1 Sample {"seed":11,"steps":12,"mode":"b","on":false,"note":"n","model":["5:0",0]}
           5:2 Quiet {"seed":["2",0],"x":14}
           6 Sink {"model":["5:0",0],"latent":["5:1",0]}"#,
    );
}

#[test]
fn alternatives_and_comments() {
    let text = |t: &str, seed: u64| {
        let file = format!(
            r#"{{"nodes": [{{"id": 1, "type": "Text", "widgets_values": [{}]}}]}}"#,
            json::to_string(&t.into())
        );
        let options = Options {
            seed,
            ..Options::default()
        };
        let file = json::parse(&file).unwrap();
        let done = convert(&file, &defs(), &options).unwrap();
        let inputs = done.prompt["1"].get("inputs").unwrap().clone();
        inputs.get("text").unwrap().as_str().unwrap().to_string()
    };
    assert_eq!(text("a /* x\n */b // c\nd /e /* f", 0), "a b \nd /e /* f");
    assert_eq!(text(r"\{a\|b\} \n \", 0), r"{a|b} \n \");
    assert_eq!(text("a}b|c", 0), "a}b|c");
    assert_eq!(text("{x}", 0), "x");
    assert_eq!(text("a\r\nb", 0), "a\nb");
    let seen: std::collections::BTreeSet<String> =
        (0..50).map(|s| text("{a|{b|c}d}!", s)).collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["a!", "bd!", "cd!"]);
    assert_eq!(text("{a|b|c|d}", 3), text("{a|b|c|d}", 3));
    assert_eq!(text("{a|", 0).len().min(1), text("{a|", 0).len());

    let file = r#"{"nodes": [{"id": 1, "type": "Text", "widgets_values": ["{a|b} // c"]}]}"#;
    let off = Options {
        dynamic_prompts: false,
        ..Options::default()
    };
    assert_eq!(run(file, &off).0, r#"1 Text {"text":"{a|b} // c"}"#);
}

#[test]
fn names_in_file_names() {
    let file = |prefix: &str| {
        format!(
            r#"{{"nodes": [{{"id": 1, "type": "SaveIt", "widgets_values": ["{prefix}"]}},
                {{"id": 2, "type": "Source", "widgets_values": ["a/b:c"], "properties": {{"Node name for S&R": "Src"}}}},
                {{"id": 3, "type": "Quiet", "title": "Q", "widgets_values": [3, 1.0]}}]}}"#
        )
    };
    let prefix = |text: &str, now: Option<Now>| {
        let options = Options {
            now,
            ..Options::default()
        };
        let done = convert(&json::parse(&file(text)).unwrap(), &defs(), &options).unwrap();
        let inputs = done.prompt["1"].get("inputs").unwrap().clone();
        inputs
            .get("filename_prefix")
            .unwrap()
            .as_str()
            .unwrap()
            .to_string()
    };
    assert_eq!(prefix("%Src.name%/%Q.seed%-%Q.x%", None), "a_b_c/3-1");
    assert_eq!(
        prefix("%Src.no% %No.x% %width% 5% %", None),
        "%Src.no% %No.x% %width% 5% %"
    );
    assert_eq!(prefix("%date:yyyy%", None), "%date:yyyy%");
    let now = Some(Now {
        year: 2026,
        month: 3,
        day: 4,
        hour: 15,
        minute: 6,
        second: 7,
    });
    assert_eq!(
        prefix("%date:yyyy-MM-dd_hhmmss% %date:yy M d%", now),
        "2026-03-04_150607 26 3 4"
    );
}

#[test]
fn titles_are_the_nodes_own_or_the_classes() {
    let file = r#"{"nodes": [{"id": 1, "type": "Source", "title": "Mine"}, {"id": 2, "type": "Source"}, {"id": 3, "type": "Text"}]}"#;
    let done = convert(&json::parse(file).unwrap(), &defs(), &Options::default()).unwrap();
    let title = |id: &str| json::to_string(done.prompt[id].get("_meta").unwrap());
    assert_eq!(title("1"), r#"{"title":"Mine"}"#);
    assert_eq!(title("2"), r#"{"title":"Load it"}"#);
    assert_eq!(title("3"), r#"{"title":"Text"}"#);
}

#[test]
fn classes_may_come_from_our_own_schemas() {
    let choices = || Choices::Fixed(vec![Value::from("a"), Value::from("b")].into());
    let mut defs = NodeDefs::default();
    for (id, form) in [("Old", Form::V1), ("New", Form::V3)] {
        let schema = Schema::new(id, form)
            .input(Input::new("model", "MODEL"))
            .input(Input::combo("pick", choices()))
            .input(Input::new("seed", "INT").option("control_after_generate", true))
            .input(Input::new("on", "BOOLEAN").optional())
            .input(Input::dynamic_combo(
                "how",
                vec![("x", vec![Input::new("f", "FLOAT").option("default", 0.5)])],
            ));
        defs.insert(&id.into(), &object_info::node_info(&schema, &NoListings));
        let file = format!(
            r#"{{"nodes": [{{"id": 1, "type": "{id}", "widgets_values": ["b", 7, "fixed", "x", 2.5]}}]}}"#
        );
        let done = convert(&json::parse(&file).unwrap(), &defs, &Options::default()).unwrap();
        let inputs = json::to_string(done.prompt["1"].get("inputs").unwrap());
        assert_eq!(
            inputs, r#"{"pick":"b","seed":7,"how":"x","how.f":2.5,"on":false}"#,
            "{id}"
        );
    }
}
