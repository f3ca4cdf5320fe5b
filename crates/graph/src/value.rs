//! The values that travel along links: everything JSON can say, plus opaque objects and blockers.
//!
//! Dictionaries of the reference (LATENT, AUDIO) are [`Value::Map`], its lists (CONDITIONING) [`Value::List`]; tensors,
//! models and the like are [`Value::Object`]. Clones share, they never copy contents.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::NodeError;

/// An insertion-ordered object.
pub type Map = IndexMap<Arc<str>, Value>;

/// Something only its own room can look into: a tensor, a model, a sampler.
pub trait Opaque: Any + Send + Sync {
    /// What a person would call it, for error reports (`current_inputs`) and logs.
    fn describe(&self) -> String;

    /// Bytes of main memory that go away when this value does; the RAM-pressure cache reads it.
    fn bytes(&self) -> u64 {
        0
    }

    /// Whose value it is, where somebody else holds what it stands for (an object in another process): when the owner is
    /// gone, so is the value, and results that have it are not used again.
    fn owner(&self) -> Option<&Arc<str>> {
        None
    }

    /// What can be asked of the value, where code of another process stands behind it.
    fn callback(&self) -> Option<&dyn Callback> {
        None
    }

    /// The pieces of memory that are held against a prompt's budget, so that what several values share counts once.
    /// Models add nothing: the memory room counts their weights.
    fn pieces(&self, pieces: &mut Pieces) {
        pieces.add(std::ptr::from_ref(self).cast::<()>() as usize, self.bytes());
    }
}

/// What a function of another process asks while it runs: a word that says what, and the values that go with it.
pub type Back<'a> = dyn FnMut(&str, Vec<Value>) -> Result<Value, NodeError> + 'a;

/// A function or an object of another process: a step of sampling that somebody else computes.
pub trait Callback: Send + Sync {
    /// Calls a method; an empty name is the object itself. Waits, unless the work of this thread is not wanted any more.
    /// What it asks meanwhile is answered by `back`, on this thread.
    fn call(
        &self,
        method: &str,
        arguments: Vec<Value>,
        back: &mut Back<'_>,
    ) -> Result<Value, NodeError>;
}

/// Pieces of main memory by their address, each once however many values share it.
#[derive(Debug, Default)]
pub struct Pieces(BTreeMap<usize, u64>);

impl Pieces {
    /// Adds a piece; false if it is there already.
    pub fn add(&mut self, address: usize, bytes: u64) -> bool {
        self.0.insert(address, bytes).is_none()
    }

    /// Adds all that a value holds.
    pub fn add_value(&mut self, value: &Value) {
        match value {
            Value::Object(o) => o.pieces(self),
            Value::Str(s) => {
                self.add(s.as_ptr() as usize, s.len() as u64);
            }
            // A list that was seen is not looked into again: lists of lists may share their parts many times over.
            Value::List(l) => {
                let own = size_of::<Value>() * l.capacity();
                if self.add(Arc::as_ptr(l) as usize, own as u64) {
                    l.iter().for_each(|v| self.add_value(v));
                }
            }
            Value::Map(m) => {
                let own = (size_of::<Value>() + 3 * size_of::<Arc<str>>()) * m.len();
                if self.add(Arc::as_ptr(m) as usize, own as u64) {
                    m.values().for_each(|v| self.add_value(v));
                }
            }
            _ => {}
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().map(|(address, bytes)| (*address, *bytes))
    }
}

/// One value. See the module text.
#[derive(Clone, Default)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    /// Wide enough for seeds of 2^64-1 and their negatives.
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    List(Arc<Vec<Value>>),
    Map(Arc<Map>),
    Object(Arc<dyn Opaque>),
    /// Prevents every call it reaches; the message is reported once.
    Blocker(Option<Arc<str>>),
}

impl Value {
    pub fn object<T: Opaque>(value: T) -> Self {
        Self::Object(Arc::new(value))
    }

    /// The object inside, if it is one of type `T`.
    pub fn downcast<T: Opaque>(&self) -> Option<&T> {
        match self {
            Self::Object(o) => (&**o as &dyn Any).downcast_ref::<T>(),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(s) = self {
            Some(s)
        } else {
            None
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(b) = self {
            Some(*b)
        } else {
            None
        }
    }

    /// Integers only; a float is not an integer even when whole.
    pub fn as_int(&self) -> Option<i128> {
        if let Self::Int(i) = self {
            Some(*i)
        } else {
            None
        }
    }

    /// Any number as a float (booleans included, as in the reference).
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(i) => Some(*i as f64),
            Self::Float(f) => Some(*f),
            Self::Bool(b) => Some(f64::from(u8::from(*b))),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Value]> {
        if let Self::List(l) = self {
            Some(l)
        } else {
            None
        }
    }

    pub fn as_map(&self) -> Option<&Map> {
        if let Self::Map(m) = self {
            Some(m)
        } else {
            None
        }
    }

    /// Member of a map; `None` for anything else.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_map()?.get(key)
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Python truthiness, which `BOOLEAN` coercion and the flags of `/free` use.
    pub fn truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(b) => *b,
            Self::Int(i) => *i != 0,
            Self::Float(f) => *f != 0.0,
            Self::Str(s) => !s.is_empty(),
            Self::List(l) => !l.is_empty(),
            Self::Map(m) => !m.is_empty(),
            Self::Object(_) | Self::Blocker(_) => true,
        }
    }

    /// A link `[node id, slot]` by the engine's strict test: an array of two, text first, a number second.
    pub fn as_link(&self) -> Option<Link> {
        let [Value::Str(node), slot] = self.as_list()? else {
            return None;
        };
        let slot = match slot {
            Value::Int(i) => i64::try_from(*i).ok()?,
            Value::Float(f) => *f as i64,
            Value::Bool(b) => i64::from(*b),
            _ => return None,
        };
        Some(Link {
            node: node.clone(),
            slot,
        })
    }

    /// Main memory held by this value, through lists and maps.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Object(o) => o.bytes(),
            Self::Str(s) => s.len() as u64,
            Self::List(l) => l.iter().map(Self::bytes).sum(),
            Self::Map(m) => m.values().map(Self::bytes).sum(),
            _ => 0,
        }
    }

    /// Equality as the reference's combo membership has it: numbers compare across types, objects by identity.
    pub fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(x, y)| x.same(y))
            }
            (Self::Map(a), Self::Map(b)) => {
                a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| v.same(w)))
            }
            (Self::Object(a), Self::Object(b)) => Arc::ptr_eq(a, b),
            (Self::Blocker(a), Self::Blocker(b)) => a == b,
            (a, b) => matches!((a.as_f64(), b.as_f64()), (Some(x), Some(y)) if x == y),
        }
    }
}

/// `[node id, slot]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub node: Arc<str>,
    /// May be negative or out of range in a bad prompt; validation reports that.
    pub slot: i64,
}

impl Link {
    pub fn to_value(&self) -> Value {
        Value::from(vec![Value::Str(self.node.clone()), Value::from(self.slot)])
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.same(other)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::json::to_string(self))
    }
}

macro_rules! from_int {
    ($($t:ty),*) => {$(
        impl From<$t> for Value {
            fn from(v: $t) -> Self { Self::Int(v as i128) }
        }
    )*};
}
from_int!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, usize);

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}
impl From<f64> for Value {
    fn from(v: f64) -> Self {
        Self::Float(v)
    }
}
impl From<f32> for Value {
    fn from(v: f32) -> Self {
        Self::Float(f64::from(v))
    }
}
impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Self::Str(v.into())
    }
}
impl From<&String> for Value {
    fn from(v: &String) -> Self {
        Self::Str(v.as_str().into())
    }
}
impl From<String> for Value {
    fn from(v: String) -> Self {
        Self::Str(v.into())
    }
}
impl From<Arc<str>> for Value {
    fn from(v: Arc<str>) -> Self {
        Self::Str(v)
    }
}
impl From<&Arc<str>> for Value {
    fn from(v: &Arc<str>) -> Self {
        Self::Str(v.clone())
    }
}
impl From<Map> for Value {
    fn from(v: Map) -> Self {
        Self::Map(Arc::new(v))
    }
}
impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(v: Vec<T>) -> Self {
        Self::List(Arc::new(v.into_iter().map(Into::into).collect()))
    }
}
impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(v: [T; N]) -> Self {
        Self::List(Arc::new(v.into_iter().map(Into::into).collect()))
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Self {
        v.map_or(Self::Null, Into::into)
    }
}

/// Builds a [`Map`] or a map [`Value`] in the written order: `map! { "a" => 1, "b" => value }`.
#[macro_export]
macro_rules! map {
    ($($key:expr => $value:expr),* $(,)?) => {{
        #[allow(unused_mut, clippy::allow_attributes, reason = "an empty map needs no mut")]
        let mut m = $crate::Map::new();
        $( m.insert(::std::sync::Arc::from($key), $crate::Value::from($value)); )*
        m
    }};
}
