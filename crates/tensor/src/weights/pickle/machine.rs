//! The pickle machine: opcodes that build values, and none that run anything.
//!
//! A pickle is a program for a stack machine, and Python's own machine calls whatever function the program names. Here a
//! name stays a name. Calls of the few functions of torch that put a tensor together are understood
//! ([`super::torch`]); any other call leaves an inert [`Object`].

use std::collections::BTreeMap;

use super::node::{Id, Node, Object};
use super::torch::{self, Storages};
use super::{Problem, read_problem};
use crate::weights::input::Input;

/// Most values in a pickle, and most on its stack. A model of 10,000 tensors has about 200,000.
const MAX_NODES: usize = 1 << 22;

pub(super) struct Machine<'a, 'b> {
    input: &'a mut Input<'b>,
    pub(super) nodes: Vec<Node>,
    pub(super) storages: Storages,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Id>,
    /// Position of the opcode at work, from the start of this pickle.
    position: u64,
    start: u64,
}

const NONE: Id = 0;
const TRUE: Id = 1;
const FALSE: Id = 2;

type Result<T> = std::result::Result<T, Problem>;

impl<'a, 'b> Machine<'a, 'b> {
    pub(super) fn new(input: &'a mut Input<'b>) -> Self {
        let start = input.at();
        Self {
            input,
            nodes: vec![Node::None, Node::Bool(true), Node::Bool(false)],
            storages: Storages::default(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
            position: 0,
            start,
        }
    }

    /// Runs one pickle up to its STOP; the input then stands behind it.
    pub(super) fn run(&mut self) -> Result<Id> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        self.start = self.input.at();
        loop {
            self.position = self.input.at() - self.start;
            let opcode = self.input.u8().map_err(read_problem)?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    fn problem(&self, what: &'static str) -> Problem {
        Problem::Pickle {
            what,
            at: self.position,
        }
    }

    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // PROTO, FRAME: hints for readers.
            0x80 => self.skip(1),
            0x95 => self.skip(8),
            b'(' => {
                self.check_room(self.marks.len())?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop().map(drop),
            b'1' => self.pop_mark().map(drop),
            b'N' => self.push(NONE),
            0x88 => self.push(TRUE),
            0x89 => self.push(FALSE),
            // BININT, BININT1, BININT2, LONG1, LONG4, BINFLOAT.
            b'J' => {
                let value = self.input.u32().map_err(read_problem)? as i32;
                self.add(Node::Int(value.into()))
            }
            b'K' => {
                let value = self.input.u8().map_err(read_problem)?;
                self.add(Node::Int(value.into()))
            }
            b'M' => {
                let value = self.input.u16().map_err(read_problem)?;
                self.add(Node::Int(value.into()))
            }
            0x8A => {
                let bytes = self.counted::<1>()?;
                self.add(long(&bytes))
            }
            0x8B => {
                let bytes = self.counted::<4>()?;
                self.add(long(&bytes))
            }
            b'G' => {
                let bytes = self.input.array().map_err(read_problem)?;
                self.add(Node::Float(f64::from_be_bytes(bytes)))
            }
            // Text: BINUNICODE, SHORT_BINUNICODE, BINUNICODE8.
            b'X' => self.text::<4>(),
            0x8C => self.text::<1>(),
            0x8D => self.text::<8>(),
            // Text of Python 2: BINSTRING, SHORT_BINSTRING.
            b'T' => self.old_text::<4>(),
            b'U' => self.old_text::<1>(),
            // BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8.
            b'B' => self.bytes::<4>(),
            b'C' => self.bytes::<1>(),
            0x8E | 0x96 => self.bytes::<8>(),
            // Containers: EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, EMPTY_SET.
            b'}' => self.add(Node::Dict(Vec::new())),
            b']' | 0x8F => self.add(Node::List(Vec::new())),
            b')' => self.add(Node::Tuple(Vec::new())),
            // TUPLE, TUPLE1 to TUPLE3, LIST, FROZENSET, DICT.
            b't' => {
                let items = self.pop_mark()?;
                self.add(Node::Tuple(items))
            }
            0x85..=0x87 => {
                let items = self.pop_some(usize::from(opcode - 0x84))?;
                self.add(Node::Tuple(items))
            }
            b'l' | 0x91 => {
                let items = self.pop_mark()?;
                self.add(Node::List(items))
            }
            b'd' => {
                let items = self.pop_pairs()?;
                self.add(Node::Dict(items))
            }
            // APPEND, APPENDS, ADDITEMS, SETITEM, SETITEMS.
            b'a' => {
                let items = self.pop_some(1)?;
                self.extend(items)
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.extend(items)
            }
            b's' => {
                let pair = self.pop_some(2)?;
                self.set_items(vec![(pair[0], pair[1])])
            }
            b'u' => {
                let items = self.pop_pairs()?;
                self.set_items(items)
            }
            // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET.
            b'q' => {
                let key = self.input.u8().map_err(read_problem)?;
                self.remember(key.into())
            }
            b'r' => {
                let key = self.input.u32().map_err(read_problem)?;
                self.remember(key)
            }
            0x94 => self.remember(self.memo.len() as u32),
            b'h' => {
                let key = self.input.u8().map_err(read_problem)?;
                self.recall(key.into())
            }
            b'j' => {
                let key = self.input.u32().map_err(read_problem)?;
                self.recall(key)
            }
            // GLOBAL, STACK_GLOBAL.
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.add(Node::Global(format!("{module}.{name}").into()))
            }
            0x93 => self.stack_global(),
            // REDUCE, NEWOBJ, NEWOBJ_EX, BUILD, BINPERSID.
            b'R' | 0x81 => {
                let arguments = self.pop()?;
                self.call(arguments)
            }
            0x92 => {
                let [arguments, _named] = self.pop_some(2)?[..] else {
                    unreachable!("two were asked for");
                };
                self.call(arguments)
            }
            b'b' => {
                let state = self.pop()?;
                self.build(state)
            }
            b'Q' => {
                let id = self.pop()?;
                let at = self.position;
                let node = torch::storage(&self.nodes, &mut self.storages, id)
                    .map_err(|what| Problem::Pickle { what, at })?;
                self.add(node)
            }
            _ => Err(Problem::Opcode {
                name: opcode_name(opcode),
                opcode,
                at: self.position,
            }),
        }
    }

    fn check_room(&self, count: usize) -> Result<()> {
        if count >= MAX_NODES {
            return Err(self.problem("it holds too many values"));
        }
        Ok(())
    }

    fn push(&mut self, id: Id) -> Result<()> {
        self.check_room(self.stack.len())?;
        self.stack.push(id);
        Ok(())
    }

    fn add(&mut self, node: Node) -> Result<()> {
        self.check_room(self.nodes.len())?;
        self.nodes.push(node);
        self.push(self.nodes.len() as Id - 1)
    }

    /// Height of the stack below which a value belongs to somebody else.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Id> {
        if self.stack.len() <= self.floor() {
            return Err(self.problem("its stack is empty"));
        }
        Ok(self.stack.pop().expect("it is higher than its floor"))
    }

    fn pop_some(&mut self, count: usize) -> Result<Vec<Id>> {
        let height = self.stack.len();
        match height.checked_sub(count) {
            Some(rest) if rest >= self.floor() => Ok(self.stack.split_off(rest)),
            _ => Err(self.problem("its stack is empty")),
        }
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        let Some(height) = self.marks.pop() else {
            return Err(self.problem("a mark is missing"));
        };
        Ok(self.stack.split_off(height))
    }

    fn pop_pairs(&mut self) -> Result<Vec<(Id, Id)>> {
        let items = self.pop_mark()?;
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.problem("a key has no value"));
        }
        Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
    }

    fn top(&mut self) -> Result<&mut Node> {
        let at = self.position;
        match self.stack.last() {
            Some(&id) if self.stack.len() > self.floor() => Ok(&mut self.nodes[id as usize]),
            _ => Err(Problem::Pickle {
                what: "its stack is empty",
                at,
            }),
        }
    }

    fn extend(&mut self, items: Vec<Id>) -> Result<()> {
        match self.top()? {
            Node::List(list) => list.extend(items),
            Node::Object(object) => object.elements.extend(items),
            _ => return Err(self.problem("it appends to something that is not a list")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<(Id, Id)>) -> Result<()> {
        match self.top()? {
            Node::Dict(dict) => dict.extend(items),
            Node::Object(object) => object.items.extend(items),
            _ => return Err(self.problem("it sets items of something that is not a dictionary")),
        }
        Ok(())
    }

    fn remember(&mut self, key: u32) -> Result<()> {
        self.top()?;
        self.check_room(self.memo.len())?;
        let id = *self.stack.last().expect("top found one");
        self.memo.insert(key, id);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<()> {
        match self.memo.get(&key) {
            Some(&id) => self.push(id),
            None => Err(self.problem("it recalls a value that it never kept")),
        }
    }

    fn stack_global(&mut self) -> Result<()> {
        let names = self.pop_some(2)?;
        let [module, name] = [0, 1].map(|i| &self.nodes[names[i] as usize]);
        let (Node::Text(module), Node::Text(name)) = (module, name) else {
            return Err(self.problem("the name of a global is not a text"));
        };
        let global = format!("{module}.{name}").into();
        self.add(Node::Global(global))
    }

    /// A call of what is on the stack, as far as it is understood.
    fn call(&mut self, arguments: Id) -> Result<()> {
        let callee = self.pop()?;
        let Node::Global(name) = &self.nodes[callee as usize] else {
            // The result of another call, say: nothing that could be understood.
            return self.add(Node::Object(Box::default()));
        };
        let Node::Tuple(arguments) = &self.nodes[arguments as usize] else {
            return Err(self.problem("the arguments of a call are no tuple"));
        };
        let at = self.position;
        match torch::call(&self.nodes, &self.storages, name, arguments)
            .map_err(|what| Problem::Pickle { what, at })?
        {
            torch::Called::Same(id) => self.push(id),
            torch::Called::New(node) => self.add(node),
            torch::Called::Unknown => {
                let class = name.clone();
                self.add(Node::Object(Box::new(Object {
                    class,
                    ..Object::default()
                })))
            }
        }
    }

    fn build(&mut self, state: Id) -> Result<()> {
        // The state of anything else (an ordered dictionary keeps version numbers there) changes no tensor.
        if let Node::Object(object) = self.top()? {
            object.state = Some(state);
        }
        Ok(())
    }

    fn skip(&mut self, len: u64) -> Result<()> {
        self.input.skip(len).map_err(read_problem)
    }

    /// Bytes behind their number, which has `N` bytes itself.
    fn counted<const N: usize>(&mut self) -> Result<Vec<u8>> {
        let count: [u8; N] = self.input.array().map_err(read_problem)?;
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&count);
        let len = u64::from_le_bytes(wide);
        self.input.bytes(len).map_err(read_problem)
    }

    fn text<const N: usize>(&mut self) -> Result<()> {
        let bytes = self.counted::<N>()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.add(Node::Text(text.into()))
    }

    fn old_text<const N: usize>(&mut self) -> Result<()> {
        let bytes = self.counted::<N>()?;
        self.add(match String::from_utf8(bytes) {
            Ok(text) => Node::Text(text.into()),
            Err(error) => Node::Bytes(error.into_bytes().into()),
        })
    }

    fn bytes<const N: usize>(&mut self) -> Result<()> {
        let bytes = self.counted::<N>()?;
        self.add(Node::Bytes(bytes.into()))
    }

    /// Text up to the end of a line.
    fn line(&mut self) -> Result<String> {
        const LONGEST: usize = 4096;
        let mut bytes = Vec::new();
        loop {
            match self.input.u8().map_err(read_problem)? {
                b'\n' => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                _ if bytes.len() == LONGEST => return Err(self.problem("a name is too long")),
                byte => bytes.push(byte),
            }
        }
    }
}

/// A whole number in little-endian two's complement.
fn long(bytes: &[u8]) -> Node {
    if bytes.len() > 8 {
        return Node::Long(bytes.into());
    }
    let negative = bytes.last().is_some_and(|&b| b & 0x80 != 0);
    let mut wide = [if negative { 0xFF } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Node::Int(i64::from_le_bytes(wide))
}

/// Names of the opcodes that are not understood, for messages.
fn opcode_name(opcode: u8) -> &'static str {
    match opcode {
        b'2' => "DUP",
        b'F' => "FLOAT",
        b'I' => "INT",
        b'L' => "LONG",
        b'P' => "PERSID",
        b'S' => "STRING",
        b'V' => "UNICODE",
        b'g' => "GET",
        b'i' => "INST",
        b'o' => "OBJ",
        b'p' => "PUT",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        _ => "unknown",
    }
}
