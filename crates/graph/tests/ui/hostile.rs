//! Files nobody saved with an editor: an error or a warning, never a panic, a hang or a deep stack.

use std::fmt::Write as _;
use std::sync::LazyLock;

use fresco_graph::ui::{ConvertError, NodeDefs, Options, convert, detect, prompt_of};
use fresco_graph::{Map, Value, json};
use proptest::prelude::*;

fn defs() -> NodeDefs {
    let text = r#"{"Pass": {"input": {"required": {"a": ["MODEL"], "n": ["INT", {}]}}, "output": ["MODEL"]}}"#;
    NodeDefs::new(&json::parse(text).unwrap())
}

fn run(file: &str) -> Result<(Map, Vec<String>), ConvertError> {
    let done = convert(&json::parse(file).unwrap(), &defs(), &Options::default())?;
    Ok((done.prompt, done.warnings))
}

/// `count` nodes in a row, each linked to the one before, then one that can be written.
fn chain(count: usize, node: &str, first_link: bool) -> String {
    let mut nodes = String::new();
    let mut links = String::new();
    for i in 0..=count {
        let class = if i == count {
            r#""type": "Pass""#
        } else {
            node
        };
        let link = if i > 0 || first_link {
            i.to_string()
        } else {
            "null".into()
        };
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(
            nodes,
            r#"{comma}{{"id": {i}, {class}, "inputs": [{{"name": "a", "type": "MODEL", "link": {link}}}]}}"#
        );
        let from = if i == 0 { count - 1 } else { i - 1 };
        let _ = write!(links, r#"{comma}[{i}, {from}, 0, {i}, 0, "MODEL"]"#);
    }
    format!(r#"{{"nodes": [{nodes}], "links": [{links}]}}"#)
}

#[test]
fn circles_of_links_end() {
    for node in [
        r#""type": "Reroute""#,
        r#""type": "Pass", "mode": 4"#,
        r#""type": "Nope", "mode": 4, "outputs": [{"type": "MODEL"}]"#,
    ] {
        let (prompt, warnings) = run(&chain(5, node, true)).unwrap();
        assert_eq!(prompt.len(), 1, "{node}");
        assert!(
            warnings.iter().any(|w| w.contains("circle")),
            "{node} {warnings:?}"
        );
    }
}

#[test]
fn long_chains_need_no_stack() {
    for node in [r#""type": "Reroute""#, r#""type": "Pass", "mode": 4"#] {
        let (prompt, warnings) = run(&chain(20_000, node, false)).unwrap();
        assert_eq!((prompt.len(), warnings.len()), (1, 0));
    }
    assert_eq!(
        run(&chain(20_000, r#""type": "Pass""#, false))
            .unwrap()
            .0
            .len(),
        20_001
    );
}

#[test]
fn many_consumers_at_the_end_of_a_long_chain() {
    // Without remembering, 20,000 x 20,000 steps.
    let text = chain(20_000, r#""type": "Reroute""#, false);
    let mut extra = String::new();
    for i in 0..20_000 {
        let _ = write!(
            extra,
            r#",{{"id": "c{i}", "type": "Pass", "inputs": [{{"name": "a", "type": "MODEL", "link": 20000}}]}}"#
        );
    }
    let text = text.replace("], \"links\"", &format!("{extra}], \"links\""));
    assert_eq!(run(&text).unwrap().0.len(), 20_001);
}

fn definitions(list: &[String]) -> String {
    format!(
        r#"{{"nodes": [{{"id": 1, "type": "d0"}}], "definitions": {{"subgraphs": [{}]}}}}"#,
        list.join(",")
    )
}

#[test]
fn subgraphs_inside_themselves_are_refused() {
    let direct =
        [r#"{"id": "d0", "name": "Loop", "nodes": [{"id": 1, "type": "d0"}]}"#.to_string()];
    assert_eq!(
        run(&definitions(&direct)).unwrap_err(),
        ConvertError::Recursive {
            name: "Loop".into()
        }
    );
    let mutual = [
        r#"{"id": "d0", "nodes": [{"id": 1, "type": "d1"}]}"#.to_string(),
        r#"{"id": "d1", "nodes": [{"id": 1, "type": "d0"}]}"#.to_string(),
    ];
    assert!(matches!(
        run(&definitions(&mutual)),
        Err(ConvertError::Recursive { .. })
    ));
    // Switched off, or shown through a promoted widget, it still must end.
    let off = r#"{"id": "d0", "inputs": [{"name": "a", "type": "INT", "linkIds": [1]}], "links": [{"id": 1, "origin_id": -10, "origin_slot": 0}],
                  "nodes": [{"id": 1, "type": "d0", "mode": 4, "inputs": [{"name": "a", "link": 1}]},
                            {"id": 2, "type": "Pass", "inputs": [{"name": "n", "link": 1}]}]}"#;
    assert_eq!(run(&definitions(&[off.into()])).unwrap().0.len(), 1);
}

#[test]
fn depth_and_size_are_bounded() {
    let nested = |count: usize, copies: usize| -> Vec<String> {
        (0..count)
            .map(|i| {
                let nodes: Vec<String> = (0..copies)
                    .map(|n| format!(r#"{{"id": {n}, "type": "d{}"}}"#, i + 1))
                    .collect();
                format!(r#"{{"id": "d{i}", "nodes": [{}]}}"#, nodes.join(","))
            })
            .collect()
    };
    assert!(run(&definitions(&nested(60, 1))).is_ok());
    assert!(matches!(
        run(&definitions(&nested(2000, 1))),
        Err(ConvertError::TooDeep { .. })
    ));
    assert_eq!(
        run(&definitions(&nested(40, 2))).unwrap_err(),
        ConvertError::TooLarge { limit: 100_000 }
    );
    // A small file whose instances would have a thousand million inputs.
    let ports = vec![r#"{"name": "p"}"#; 30_000].join(",");
    let many: Vec<String> = (0..30_000)
        .map(|i| format!(r#"{{"id": {i}, "type": "d0"}}"#))
        .collect();
    let text = format!(
        r#"{{"nodes": [{}], "definitions": {{"subgraphs": [{{"id": "d0", "inputs": [{ports}]}}]}}}}"#,
        many.join(",")
    );
    assert!(matches!(run(&text), Err(ConvertError::TooLarge { .. })));
}

#[test]
fn group_nodes_inside_themselves_are_refused() {
    for copies in [1, 2] {
        let child = vec![r#"{"type": "workflow>G"}"#; copies].join(",");
        let text = format!(
            r#"{{"nodes": [{{"id": 1, "type": "workflow>G"}}], "extra": {{"groupNodes": {{"G": {{"nodes": [{child}]}}}}}}}}"#
        );
        let options = Options {
            max_nodes: 5_000,
            ..Options::default()
        };
        let done = convert(&json::parse(&text).unwrap(), &defs(), &options);
        assert!(matches!(
            done.map(|_| ()),
            Err(ConvertError::TooDeep { .. } | ConvertError::TooLarge { .. })
        ));
    }
}

#[test]
fn wrong_types_are_left_out() {
    let (prompt, warnings) = run(r#"{"nodes": [3, null, {"id": [], "type": 5}, {"id": 1, "type": "Pass", "inputs": 7, "widgets_values": "x",
            "mode": "4x", "outputs": {}, "properties": []}, {"id": 1, "type": "Pass"}, {"id": 2.0, "type": "Pass",
            "inputs": [5, {"name": {}, "link": {}}, {"name": "a", "link": 99}]}, {"id": 3, "type": "Pass", "inputs": [{"name": "a", "link": 1}]}],
            "links": [7, [], [1, 88, 0, 3, 0, "X"], [2, 1, -5, 2, 0, "X"], {"id": 5}], "definitions": 3, "extra": "no"}"#)
    .unwrap();
    assert_eq!(
        prompt.keys().map(|k| &**k).collect::<Vec<_>>(),
        ["1", "2", "3"]
    );
    assert_eq!(warnings.len(), 6, "{warnings:?}");
}

#[test]
fn braces_without_end() {
    let defs = r#"{"T": {"input": {"required": {"t": ["STRING", {"dynamicPrompts": true}]}}, "output": []}}"#;
    let defs = NodeDefs::new(&json::parse(defs).unwrap());
    for text in [
        "{x".repeat(300_000),
        "/*".repeat(300_000),
        "{|".repeat(300_000),
        "\\".repeat(300_001),
    ] {
        let file = Value::from(fresco_graph::map! {"nodes" => vec![
        fresco_graph::map! {"id" => 1, "type" => "T", "widgets_values" => vec![text]}]});
        assert_eq!(
            convert(&file, &defs, &Options::default())
                .unwrap()
                .prompt
                .len(),
            1
        );
    }
}

/// A long text that is stored once and written many times.
#[test]
fn a_text_does_not_multiply_without_end() {
    let defs = r#"{"T": {"input": {"required": {"t": ["STRING", {"dynamicPrompts": true}]}}, "output": ["STRING"]},
        "SaveT": {"input": {"required": {"filename_prefix": ["STRING", {}]}}, "output": []}}"#;
    let defs = NodeDefs::new(&json::parse(defs).unwrap());
    let options = Options {
        max_bytes: 10_000_000,
        ..Options::default()
    };
    let long = "x".repeat(100_000);
    let many = |count: usize, node: &str| -> String {
        let nodes: Vec<String> = (0..count)
            .map(|i| format!(r#"{{"id": {i}, {node}}}"#))
            .collect();
        nodes.join(",")
    };
    let subgraph = |count: usize, inside: &str| {
        let nodes = many(count, r#""type": "d0""#);
        format!(
            r#"{{"nodes": [{nodes}], "definitions": {{"subgraphs": [{{"id": "d0", {inside}}}]}}}}"#
        )
    };
    let group = |count: usize, children: &str| {
        let nodes = many(count, r#""type": "workflow>G""#);
        format!(
            r#"{{"nodes": [{nodes}], "extra": {{"groupNodes": {{"G": {{"nodes": [{children}]}}}}}}}}"#
        )
    };
    let value = format!(r#""nodes": [{{"id": 1, "type": "T", "widgets_values": ["{long}"]}}]"#);
    let unknown = format!(r#""nodes": [{{"id": 1, "type": "U", "widgets_values": [["{long}"]]}}]"#);
    let title = format!(r#""nodes": [{{"id": 1, "type": "T", "title": "{long}"}}]"#);
    let class = format!(r#""nodes": [{{"id": 1, "type": "{long}"}}]"#);
    let primitive = format!(
        r#""nodes": [{{"id": 1, "type": "PrimitiveNode", "widgets_values": ["{long}"]}},
            {{"id": 2, "type": "T", "inputs": [{{"name": "t", "link": 1, "widget": {{"name": "t"}}}}]}}],
            "links": [{{"id": 1, "origin_id": 1, "origin_slot": 0}}]"#
    );
    let slots = vec!["{}"; 50_000].join(",");
    let idle = format!(r#""nodes": [{{"id": 1, "type": "T", "inputs": [{slots}]}}]"#);
    let child = format!(r#"{{"type": "T", "widgets_values": ["{long}"]}}"#);
    let junk = format!(r#"{{"type": "T", "properties": {{"proxyWidgets": "{long}"}}}}"#);
    let external = format!(r#"{{"type": "T"}}], "external": [{slots}"#);
    let names = format!(
        r#"{{"id": "n", "type": "T", "title": "Long", "widgets_values": ["{long}"]}},{}"#,
        many(200, r#""type": "SaveT", "widgets_values": ["%Long.t%"]"#)
    );
    for (what, few, lots) in [
        ("value", subgraph(2, &value), subgraph(200, &value)),
        ("unknown", subgraph(2, &unknown), subgraph(200, &unknown)),
        ("title", subgraph(2, &title), subgraph(200, &title)),
        ("class", subgraph(2, &class), subgraph(200, &class)),
        (
            "primitive",
            subgraph(2, &primitive),
            subgraph(200, &primitive),
        ),
        ("slots", subgraph(2, &idle), subgraph(300, &idle)),
        ("child", group(2, &child), group(200, &child)),
        ("junk", group(2, &junk), group(200, &junk)),
        ("external", group(2, &external), group(200, &external)),
        (
            "names",
            r#"{"nodes": [{"id": 1, "type": "T"}]}"#.to_owned(),
            format!(r#"{{"nodes": [{names}]}}"#),
        ),
    ] {
        let run = |text: &str| convert(&json::parse(text).unwrap(), &defs, &options);
        let fine = run(&few).map(|done| done.prompt.len());
        assert!(fine.is_ok_and(|nodes| nodes > 0), "{what}");
        let limit = options.max_bytes;
        assert_eq!(
            run(&lots).map(|_| ()),
            Err(ConvertError::TooLong { limit }),
            "{what}"
        );
    }
}

/// What is asked for at every use is short.
#[test]
fn links_and_names_that_lead_nowhere_cost_little() {
    let ids = (0..200_000).map(|i: u32| i.to_string());
    let ids = ids.collect::<Vec<_>>().join(",");
    let mut nodes = String::new();
    let mut links = String::new();
    for i in 0..5_000 {
        let _ = write!(
            nodes,
            r#"{{"id": "s{i}", "type": "d0"}},{{"id": "p{i}", "type": "Pass", "inputs": [{{"name": "a", "link": {i}}}]}},"#
        );
        let _ = write!(links, r#"[{i}, "s{i}", 0, "p{i}", 0, "MODEL"],"#);
    }
    let text = format!(
        r#"{{"nodes": [{}], "links": [{}], "definitions": {{"subgraphs": [{{"id": "d0", "outputs": [{{"name": "o", "linkIds": [{ids}]}}]}}]}}}}"#,
        nodes.trim_end_matches(','),
        links.trim_end_matches(',')
    );
    assert_eq!(run(&text).unwrap().0.len(), 5_000);
}

/// A change to some place of a file.
#[derive(Clone, Debug)]
struct Change {
    place: u32,
    kind: u8,
    other: u32,
}

/// Applies a change to the `place`-th value in reading order.
fn mutate(value: &Value, change: &Change, all: &[Value], at: &mut u32) -> Option<Value> {
    let here = *at;
    *at += 1;
    if here == change.place {
        return match change.kind % 9 {
            0 => None,
            1 => Some(Value::Null),
            2 => Some(Value::from(i64::from(change.other) - 100)),
            3 => Some(Value::from(-10)),
            4 => Some(Value::from(f64::NAN)),
            5 => Some(Value::from("x")),
            6 => Some(Value::List(vec![value.clone(), value.clone()].into())),
            7 => Some(Map::new().into()),
            // Some other part of the same file: links to other nodes, nodes inside nodes.
            _ => Some(all[change.other as usize % all.len()].clone()),
        };
    }
    Some(match value {
        Value::List(l) => Value::List(
            l.iter()
                .filter_map(|v| mutate(v, change, all, at))
                .collect::<Vec<_>>()
                .into(),
        ),
        Value::Map(m) => m
            .iter()
            .filter_map(|(k, v)| Some((k.clone(), mutate(v, change, all, at)?)))
            .collect::<Map>()
            .into(),
        other => other.clone(),
    })
}

fn parts(value: &Value, out: &mut Vec<Value>) {
    out.push(value.clone());
    match value {
        Value::List(l) => l.iter().for_each(|v| parts(v, out)),
        Value::Map(m) => m.values().for_each(|v| parts(v, out)),
        _ => {}
    }
}

/// The smaller golden files, stripped of what only looks, each with all its parts.
static FILES: LazyLock<Vec<(Value, Vec<Value>)>> = LazyLock::new(|| {
    super::pairs()
        .into_iter()
        .map(|(_, file, _)| {
            let mut all = Vec::new();
            parts(&file, &mut all);
            (file, all)
        })
        .filter(|(_, all)| all.len() < 20_000)
        .collect()
});

static DEFS: LazyLock<NodeDefs> = LazyLock::new(super::defs);

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is broken in a real file, converting ends, and ends the same way twice.
    #[test]
    fn broken_templates_never_panic(
        file in 0usize..1000,
        changes in prop::collection::vec((any::<u32>(), any::<u8>(), any::<u32>()), 1..8),
    ) {
        let (file, all) = &FILES[file % FILES.len()];
        let mut broken = file.clone();
        for (place, kind, other) in changes {
            let change = Change { place: place % all.len() as u32, kind, other };
            broken = mutate(&broken, &change, all, &mut 0).unwrap_or_default();
        }
        let _ = detect(&broken);
        let first = prompt_of(&broken, &DEFS, &Options::default());
        let second = prompt_of(&broken, &DEFS, &Options::default());
        match (first, second) {
            (Ok(a), Ok(b)) => {
                prop_assert_eq!(json::to_string(&a.prompt.into()), json::to_string(&b.prompt.into()));
                prop_assert_eq!(a.warnings, b.warnings);
            }
            (Err(a), Err(b)) => prop_assert_eq!(a, b),
            _ => prop_assert!(false, "two runs differ"),
        }
    }
}
