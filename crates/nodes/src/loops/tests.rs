use super::*;

/// Nodes by id: class and inputs.
struct Drawn(BTreeMap<&'static str, (&'static str, Map)>);

impl GraphView for Drawn {
    fn node(&self, id: &str) -> Option<SubNode> {
        self.0.get(id).map(|(class, inputs)| SubNode {
            class: (*class).into(),
            inputs: inputs.clone(),
            display: None,
        })
    }

    fn parent(&self, _: &str) -> Option<Arc<str>> {
        None
    }

    fn display(&self, id: &str) -> Arc<str> {
        id.into()
    }

    fn ids(&self) -> Vec<Arc<str>> {
        self.0.keys().map(|id| Arc::from(*id)).collect()
    }
}

/// `a StartLoop; b Body a; c EndLoop b`
fn drawn(text: &'static str) -> Drawn {
    let nodes = text.split(';').map(|node| {
        let mut words = node.split_whitespace();
        let (id, class) = (words.next().unwrap(), words.next().unwrap());
        let mut inputs = Map::new();
        for (n, word) in words.enumerate() {
            let (name, from) = word.split_once('=').unwrap_or(("", word));
            let name = if name.is_empty() {
                format!("in{n}")
            } else {
                name.to_owned()
            };
            inputs.insert(name.into(), link(&from.into(), 0));
        }
        (id, (class, inputs))
    });
    Drawn(nodes.collect())
}

#[track_caller]
fn finds(text: &'static str, end: &str, start: &str, body: &[&str]) {
    let found = Loop::find(&drawn(text), end).unwrap_or_else(|e| panic!("{}", e.message()));
    let ids: Vec<&str> = found.body.iter().map(|id| &**id).collect();
    assert_eq!((&*found.start, ids.as_slice()), (start, body));
}

#[track_caller]
fn refuses(text: &'static str, end: &str, words: &str) {
    match Loop::find(&drawn(text), end) {
        Ok(found) => panic!("found {}", found.start),
        Err(error) => assert!(error.message().contains(words), "{}", error.message()),
    }
}

#[test]
fn a_loop_is_what_depends_on_its_start() {
    finds(
        "s StartLoop; b Body s; e EndLoop b; o Output e",
        "e",
        "s",
        &["b"],
    );
    // What comes in from outside stays outside; what is done beside the way to the end is done in each turn.
    finds(
        "x Source; s StartLoop; b Body s x; p Save b; e EndLoop b",
        "e",
        "s",
        &["b", "p"],
    );
    finds("s StartLoop; e EndLoop s", "e", "s", &[]);
}

#[test]
fn loops_inside_of_loops_and_after_each_other() {
    let nested =
        "o StartLoop; i StartLoop parent=o; b Body o i; f EndLoop b; c Body o f; e EndLoop c";
    finds(nested, "f", "i", &["b"]);
    finds(nested, "e", "o", &["b", "c", "f", "i"]);
    let after = "o StartLoop; i StartLoop p=o; b Body i; f EndLoop b; j StartLoop v=f; d Body o j; g EndLoop d; e EndLoop g";
    finds(after, "g", "j", &["d"]);
    finds(after, "e", "o", &["b", "d", "f", "g", "i", "j"]);
}

#[test]
fn what_is_no_loop_says_so() {
    refuses("x Source; e EndLoop x", "e", "no StartLoop");
    refuses(
        "l StartLoop; r StartLoop; b Body l r; e EndLoop b",
        "e",
        "several loops (l, r)",
    );
    refuses(
        "s StartLoop; b Body s; e EndLoop b; o Output e b",
        "e",
        "node o",
    );
    refuses("s StartLoop; e EndLoop s accumulate=s", "e", "accumulate");
    refuses("s StartLoop; f EndLoop s; e EndLoop f", "e", "no StartLoop");
}
