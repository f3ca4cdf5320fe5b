//! Cache keys: two nodes with the same key give the same outputs.
//!
//! A key covers the class, the change token and every input, linked inputs by the key of their source: a hash tree, so the
//! keys of a prompt cost one pass. The reference lists all ancestors in every key, which is quadratic; it also tells two
//! identical ancestors from one shared one, which nothing can observe.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

use crate::{Map, Value};

/// Equal for equal work. 128 bits under keys chosen at start-up, so nobody can make two prompts collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey(u128);

/// Two independently keyed hashes side by side.
struct Hasher128(std::hash::DefaultHasher, std::hash::DefaultHasher);

impl Hasher128 {
    fn new() -> Self {
        static KEYS: OnceLock<(RandomState, RandomState)> = OnceLock::new();
        let (a, b) = KEYS.get_or_init(|| (RandomState::new(), RandomState::new()));
        Self(a.build_hasher(), b.build_hasher())
    }

    fn put(&mut self, item: impl Hash) {
        item.hash(&mut self.0);
        item.hash(&mut self.1);
    }

    fn key(&self) -> CacheKey {
        CacheKey((u128::from(self.0.finish()) << 64) | u128::from(self.1.finish()))
    }
}

/// What a node contributes to its key.
pub struct Contribution {
    pub class: Arc<str>,
    pub inputs: Arc<Map>,
    /// The change token, `false` for classes without a change function.
    pub token: Value,
    /// The node's own id takes part: its class says so, or it sees its id.
    pub own_id: bool,
}

/// What the key computation asks about nodes.
pub trait Contributions {
    /// `None` for a node that does not exist.
    fn of(&self, id: &str) -> Option<Contribution>;
}

/// Keys of the nodes of one prompt, computed on demand and kept.
pub struct Keys {
    keys: HashMap<Arc<str>, CacheKey>,
    /// Differs from prompt to prompt: never-equal things are equal to themselves within one.
    prompt: u64,
}

impl Keys {
    pub fn new(prompt: u64) -> Self {
        Self {
            keys: HashMap::new(),
            prompt,
        }
    }

    pub fn get(&self, id: &str) -> Option<CacheKey> {
        self.keys.get(id).copied()
    }

    /// Computes the key of `id` and of every ancestor that has none yet. Not recursive.
    pub fn compute(&mut self, id: &Arc<str>, nodes: &dyn Contributions) -> CacheKey {
        if let Some(key) = self.keys.get(id) {
            return *key;
        }
        let mut stack = vec![(id.clone(), false)];
        let mut open: HashSet<Arc<str>> = HashSet::new();
        while let Some((id, visited)) = stack.pop() {
            if self.keys.contains_key(&id) {
                continue;
            }
            let Some(node) = nodes.of(&id) else {
                self.keys.insert(id.clone(), self.unique("missing", &id));
                continue;
            };
            if visited {
                let key = self.key_of(&id, &node);
                self.keys.insert(id.clone(), key);
                continue;
            }
            if !open.insert(id.clone()) {
                // A cycle that was never scheduled: such a node is equal to nothing.
                self.keys.insert(id.clone(), self.unique("cycle", &id));
                continue;
            }
            stack.push((id, true));
            for link in node.inputs.values().filter_map(Value::as_link) {
                if !self.keys.contains_key(&link.node) {
                    stack.push((link.node, false));
                }
            }
        }
        self.keys[id]
    }

    fn unique(&self, what: &str, id: &str) -> CacheKey {
        let mut h = Hasher128::new();
        h.put((what, self.prompt, id));
        h.key()
    }

    fn key_of(&self, id: &str, node: &Contribution) -> CacheKey {
        let mut h = Hasher128::new();
        h.put(&*node.class);
        self.put_value(&mut h, &node.token, id);
        if node.own_id {
            h.put(("id", id));
        }
        let mut names: Vec<&Arc<str>> = node.inputs.keys().collect();
        names.sort();
        h.put(names.len());
        for name in names {
            h.put(&**name);
            let value = &node.inputs[name];
            match value.as_link() {
                Some(link) => {
                    let source = self
                        .keys
                        .get(&link.node)
                        .copied()
                        .unwrap_or_else(|| self.unique("open", &link.node));
                    h.put(("link", source, link.slot));
                }
                None => self.put_value(&mut h, value, id),
            }
        }
        h.key()
    }

    /// Literals by value, numbers across types, objects in any order; NaN and opaque values only equal themselves.
    fn put_value(&self, h: &mut Hasher128, value: &Value, id: &str) {
        match value {
            Value::Null => h.put(0u8),
            Value::Bool(b) => h.put((1u8, i128::from(*b))),
            Value::Int(i) => h.put((1u8, *i)),
            Value::Float(f) if f.is_nan() => h.put((2u8, self.prompt, id)),
            Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e30 => h.put((1u8, *f as i128)),
            Value::Float(f) => h.put((3u8, f.to_bits())),
            Value::Str(s) => h.put((4u8, &**s)),
            Value::List(l) => {
                h.put((5u8, l.len()));
                for v in l.iter() {
                    self.put_value(h, v, id);
                }
            }
            Value::Map(m) => {
                let mut keys: Vec<_> = m.keys().collect();
                keys.sort();
                h.put((6u8, keys.len()));
                for k in keys {
                    h.put(&**k);
                    self.put_value(h, &m[k], id);
                }
            }
            Value::Object(o) => h.put((7u8, self.prompt, Arc::as_ptr(o).cast::<()>() as usize)),
            Value::Blocker(message) => h.put((8u8, message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse;

    struct Graph(Map);
    impl Contributions for Graph {
        fn of(&self, id: &str) -> Option<Contribution> {
            let node = self.0.get(id)?;
            Some(Contribution {
                class: node.get("c")?.as_str()?.into(),
                inputs: Arc::new(node.get("i")?.as_map()?.clone()),
                token: node.get("t").cloned().unwrap_or(Value::Bool(false)),
                own_id: node.get("own").is_some(),
            })
        }
    }

    fn key(prompt: u64, graph: &str, id: &str) -> CacheKey {
        let Value::Map(m) = parse(graph).unwrap() else {
            panic!("not a map")
        };
        Keys::new(prompt).compute(&id.into(), &Graph((*m).clone()))
    }

    #[test]
    fn equal_work_has_equal_keys_whatever_the_ids() {
        let a = r#"{"1":{"c":"A","i":{"x":1}},"2":{"c":"B","i":{"y":["1",0]}}}"#;
        let b = r#"{"7":{"c":"A","i":{"x":1.0}},"9":{"c":"B","i":{"y":["7",0]}}}"#;
        assert_eq!(key(1, a, "2"), key(2, b, "9"));
        let c = a.replace("\"x\":1", "\"x\":2");
        assert_ne!(key(1, a, "2"), key(1, &c, "2"));
        let other_slot = a.replace("[\"1\",0]", "[\"1\",1]");
        assert_ne!(key(1, a, "2"), key(1, &other_slot, "2"));
    }

    #[test]
    fn never_equal_things_hold_within_one_prompt_only() {
        let a = r#"{"1":{"c":"A","t":[NaN],"i":{}},"2":{"c":"B","i":{"y":["1",0]}}}"#;
        assert_eq!(key(1, a, "2"), key(1, a, "2"));
        assert_ne!(key(1, a, "2"), key(2, a, "2"));
        let gone = r#"{"2":{"c":"B","i":{"y":["1",0]}}}"#;
        assert_ne!(key(1, gone, "2"), key(2, gone, "2"));
    }

    #[test]
    fn own_id_and_cycles() {
        let a = r#"{"1":{"c":"A","own":1,"i":{}},"2":{"c":"A","own":1,"i":{}}}"#;
        assert_ne!(key(1, a, "1"), key(1, a, "2"));
        let cycle = r#"{"1":{"c":"A","i":{"x":["2",0]}},"2":{"c":"A","i":{"x":["1",0]}}}"#;
        assert_ne!(key(1, cycle, "1"), key(2, cycle, "1"));
    }
}
