//! Expressions over numbers in Python's notation: reading them, and computing them. Nothing but numbers comes in or out.

use fresco_graph::NodeError;
use num_traits::ToPrimitive;

use super::number::{Number, domain_error};

/// Letters of an expression.
const MAX_LETTERS: usize = 10_000;
/// Parts within parts: a long sum counts as deep as it is long.
const MAX_DEPTH: usize = 200;
/// Brackets within brackets, and powers of powers: each takes many calls of functions.
const MAX_NESTED: usize = 30;
/// Exponents of `pow`.
const MAX_EXPONENT: i64 = 4000;

fn syntax(what: impl Into<String>) -> NodeError {
    NodeError::failed("SyntaxError", what)
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(Number),
    Name(String),
    Sign(&'static str),
    End,
}

/// Longer ones first.
const SIGNS: [&str; 23] = [
    "**", "//", "<<", ">>", "<=", ">=", "==", "!=", "+", "-", "*", "/", "%", "&", "|", "^", "~",
    "<", ">", "(", ")", ",", ";",
];

fn tokens(text: &str) -> Result<Vec<Token>, NodeError> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length;
        if first.is_ascii_digit()
            || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            let (number, n) = literal(rest)?;
            out.push(Token::Number(number));
            length = n;
        } else if first.is_alphabetic() || first == '_' {
            length = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            out.push(Token::Name(rest[..length].to_owned()));
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            length = sign.len();
            out.push(Token::Sign(sign));
        } else {
            return Err(syntax(format!("{first:?} has no meaning in an expression")));
        }
        rest = rest[length..].trim_start();
    }
    out.push(Token::End);
    Ok(out)
}

/// A number at the start of a text, and its length.
fn literal(text: &str) -> Result<(Number, usize), NodeError> {
    let bad = || syntax("a number of the expression is not well formed");
    let lower = text.to_ascii_lowercase();
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = lower.strip_prefix(prefix) {
            let n = digits
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(digits.len());
            let clean = digits[..n].replace('_', "");
            let value = num_bigint::BigInt::parse_bytes(clean.as_bytes(), radix).ok_or_else(bad)?;
            return Ok((Number::Int(value), 2 + n));
        }
    }
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut float = false;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'0'..=b'9' | b'_' => {}
            b'.' if !float => float = true,
            b'e' | b'E' => {
                let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
                if !bytes.get(at + 1 + sign).is_some_and(u8::is_ascii_digit) {
                    return Err(bad());
                }
                at += 1 + sign;
                float = true;
                while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                    at += 1;
                }
                break;
            }
            _ => break,
        }
        at += 1;
    }
    if bytes
        .get(at)
        .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'.')
    {
        return Err(bad());
    }
    let clean = text[..at].replace('_', "");
    let number = if float {
        Number::Float(clean.parse().map_err(|_| bad())?)
    } else {
        Number::Int(clean.parse().map_err(|_| bad())?)
    };
    Ok((number, at))
}

/// What is computed from two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Binary {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    ShiftLeft,
    ShiftRight,
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug)]
enum Unary {
    Not,
    Minus,
    Plus,
    Invert,
}

#[derive(Debug)]
enum Expr {
    Number(Number),
    Name(String),
    Unary(Unary, Box<Part>),
    Binary(Binary, Box<(Part, Part)>),
    /// `a < b <= c`: the first, then signs with what follows them.
    Compare(Box<Part>, Vec<(&'static str, Part)>),
    /// `yes if condition else no`.
    Choice(Box<(Part, Part, Part)>),
    Call(String, Vec<Part>),
}

/// An expression and how deep it is.
#[derive(Debug)]
struct Part {
    expr: Expr,
    depth: usize,
}

impl Part {
    fn new(expr: Expr, inner: usize) -> Result<Self, NodeError> {
        if inner >= MAX_DEPTH {
            return Err(syntax("the expression has too many parts"));
        }
        Ok(Self {
            expr,
            depth: inner + 1,
        })
    }
}

/// The two-sided signs, weakest first; those of one row bind alike.
const LEVELS: [&[(&str, Binary)]; 6] = [
    &[("|", Binary::BitOr)],
    &[("^", Binary::BitXor)],
    &[("&", Binary::BitAnd)],
    &[("<<", Binary::ShiftLeft), (">>", Binary::ShiftRight)],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[
        ("*", Binary::Multiply),
        ("/", Binary::Divide),
        ("//", Binary::FloorDivide),
        ("%", Binary::Modulo),
    ],
];

const COMPARISONS: [&str; 6] = ["<", "<=", ">", ">=", "==", "!="];
const WORDS: [&str; 5] = ["and", "or", "not", "if", "else"];

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    nested: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(s) if *s == sign);
        self.at += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Token::Name(n) if n == word);
        self.at += usize::from(found);
        found
    }

    /// Every way back to the whole grammar comes through here, so nothing nests deeper than this allows.
    fn choice(&mut self) -> Result<Part, NodeError> {
        self.nested += 1;
        if self.nested > MAX_NESTED {
            return Err(syntax("the expression is nested too deeply"));
        }
        let yes = self.any_of("or", Binary::Or, Self::all_of)?;
        let part = if self.take_word("if") {
            let condition = self.any_of("or", Binary::Or, Self::all_of)?;
            if !self.take_word("else") {
                return Err(syntax("expected 'else' after 'if' expression"));
            }
            let no = self.choice()?;
            let depth = yes.depth.max(condition.depth).max(no.depth);
            Part::new(Expr::Choice(Box::new((yes, condition, no))), depth)?
        } else {
            yes
        };
        self.nested -= 1;
        Ok(part)
    }

    fn any_of(
        &mut self,
        word: &str,
        binary: Binary,
        inner: fn(&mut Self) -> Result<Part, NodeError>,
    ) -> Result<Part, NodeError> {
        let mut left = inner(self)?;
        while self.take_word(word) {
            left = joined(binary, left, inner(self)?)?;
        }
        Ok(left)
    }

    fn all_of(&mut self) -> Result<Part, NodeError> {
        self.any_of("and", Binary::And, Self::negation)
    }

    fn negation(&mut self) -> Result<Part, NodeError> {
        let mut count = 0;
        while self.take_word("not") {
            count += 1;
        }
        let mut part = self.comparison()?;
        for _ in 0..count {
            let depth = part.depth;
            part = Part::new(Expr::Unary(Unary::Not, Box::new(part)), depth)?;
        }
        Ok(part)
    }

    fn comparison(&mut self) -> Result<Part, NodeError> {
        let first = self.level(0)?;
        let mut rest = Vec::new();
        let mut depth = first.depth;
        while let Some(sign) = COMPARISONS.into_iter().find(|sign| self.take_sign(sign)) {
            let next = self.level(0)?;
            depth = depth.max(next.depth);
            rest.push((sign, next));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        Part::new(Expr::Compare(Box::new(first), rest), depth)
    }

    fn level(&mut self, at: usize) -> Result<Part, NodeError> {
        let Some(signs) = LEVELS.get(at) else {
            return self.signed();
        };
        let mut left = self.level(at + 1)?;
        while let Some((_, binary)) = signs.iter().find(|(sign, _)| self.take_sign(sign)) {
            left = joined(*binary, left, self.level(at + 1)?)?;
        }
        Ok(left)
    }

    /// Signs before a number bind weaker than a power: `-2 ** 2` is -4.
    fn signed(&mut self) -> Result<Part, NodeError> {
        let mut signs = Vec::new();
        loop {
            if self.take_sign("-") {
                signs.push(Unary::Minus);
            } else if self.take_sign("+") {
                signs.push(Unary::Plus);
            } else if self.take_sign("~") {
                signs.push(Unary::Invert);
            } else {
                break;
            }
        }
        let mut part = self.power()?;
        for unary in signs.into_iter().rev() {
            let depth = part.depth;
            part = Part::new(Expr::Unary(unary, Box::new(part)), depth)?;
        }
        Ok(part)
    }

    fn power(&mut self) -> Result<Part, NodeError> {
        let base = self.atom()?;
        if !self.take_sign("**") {
            return Ok(base);
        }
        self.nested += 1;
        if self.nested > MAX_NESTED {
            return Err(syntax("the expression is nested too deeply"));
        }
        let exponent = self.signed()?;
        self.nested -= 1;
        joined(Binary::Power, base, exponent)
    }

    fn atom(&mut self) -> Result<Part, NodeError> {
        let token = self.peek().clone();
        self.at += 1;
        match token {
            Token::Number(number) => Part::new(Expr::Number(number), 0),
            Token::Name(name) if name == "True" => Part::new(Expr::Number(Number::Bool(true)), 0),
            Token::Name(name) if name == "False" => Part::new(Expr::Number(Number::Bool(false)), 0),
            Token::Name(name) if WORDS.contains(&&*name) => {
                Err(syntax(format!("'{name}' stands where a value should")))
            }
            Token::Name(name) if self.take_sign("(") => {
                let mut inner = Vec::new();
                let mut depth = 0;
                while !self.take_sign(")") {
                    let part = self.choice()?;
                    depth = depth.max(part.depth);
                    inner.push(part);
                    if !self.take_sign(",") && !matches!(self.peek(), Token::Sign(")")) {
                        return Err(syntax(format!("'{name}(' was never closed")));
                    }
                }
                Part::new(Expr::Call(name, inner), depth)
            }
            Token::Name(name) => Part::new(Expr::Name(name), 0),
            Token::Sign("(") => {
                let part = self.choice()?;
                if self.take_sign(")") {
                    Ok(part)
                } else {
                    Err(syntax("'(' was never closed"))
                }
            }
            Token::Sign(sign) => Err(syntax(format!("'{sign}' stands where a value should"))),
            Token::End => Err(syntax("the expression ends where a value should stand")),
        }
    }
}

fn joined(binary: Binary, left: Part, right: Part) -> Result<Part, NodeError> {
    let depth = left.depth.max(right.depth);
    Part::new(Expr::Binary(binary, Box::new((left, right))), depth)
}

/// The names of an expression and what they stand for.
pub(super) struct Names<'a> {
    pub(super) single: &'a [(String, Number)],
    /// What `values` is: all of them.
    pub(super) all: &'a [Number],
}

/// Computes an expression.
pub(super) fn evaluate(text: &str, names: &Names<'_>) -> Result<Number, NodeError> {
    if text.trim().is_empty() {
        return Err(NodeError::value_error("the expression is empty"));
    }
    if text.chars().count() > MAX_LETTERS {
        return Err(syntax(format!(
            "the expression is longer than {MAX_LETTERS} letters"
        )));
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        nested: 0,
    };
    let part = parser.choice()?;
    match parser.peek() {
        Token::End => names.number(&part),
        Token::Sign(sign) => Err(syntax(format!("'{sign}' is not expected here"))),
        Token::Name(name) => Err(syntax(format!("'{name}' is not expected here"))),
        Token::Number(_) => Err(syntax("a number is not expected here")),
    }
}

impl Names<'_> {
    fn number(&self, part: &Part) -> Result<Number, NodeError> {
        match &part.expr {
            Expr::Number(number) => Ok(number.clone()),
            Expr::Name(name) => self.lookup(name),
            Expr::Unary(unary, inner) => {
                let number = self.number(inner)?;
                match unary {
                    Unary::Not => Ok(Number::Bool(!number.truthy())),
                    Unary::Minus => Ok(number.negate()),
                    Unary::Plus => Ok(number.plain()),
                    Unary::Invert => number.invert(),
                }
            }
            Expr::Binary(binary, sides) => self.binary(*binary, &sides.0, &sides.1),
            Expr::Compare(first, rest) => {
                let mut left = self.number(first)?;
                for (sign, next) in rest {
                    let right = self.number(next)?;
                    if !compare(&left, sign, &right) {
                        return Ok(Number::Bool(false));
                    }
                    left = right;
                }
                Ok(Number::Bool(true))
            }
            Expr::Choice(parts) => {
                let (yes, condition, no) = &**parts;
                let taken = self.number(condition)?.truthy();
                self.number(if taken { yes } else { no })
            }
            Expr::Call(name, arguments) => self.call(name, arguments),
        }
    }

    fn lookup(&self, name: &str) -> Result<Number, NodeError> {
        let found = self.single.iter().find(|(n, _)| n == name);
        found.map(|(_, number)| number.clone()).ok_or_else(|| {
            if name == "values" {
                NodeError::type_error(
                    "'values' is a list: use it as sum(values), min(values), max(values)",
                )
            } else {
                NodeError::failed(
                    "NameError",
                    format!("name '{name}' is not defined: nothing is connected to it"),
                )
            }
        })
    }

    fn binary(&self, binary: Binary, left: &Part, right: &Part) -> Result<Number, NodeError> {
        let a = self.number(left)?;
        match binary {
            Binary::Or if a.truthy() => return Ok(a),
            Binary::And if !a.truthy() => return Ok(a),
            _ => {}
        }
        let b = self.number(right)?;
        match binary {
            Binary::Or | Binary::And => Ok(b),
            Binary::BitOr => a.bitwise(&b, "|", |a, b| a | b),
            Binary::BitXor => a.bitwise(&b, "^", |a, b| a ^ b),
            Binary::BitAnd => a.bitwise(&b, "&", |a, b| a & b),
            Binary::ShiftLeft => a.shift(&b, true),
            Binary::ShiftRight => a.shift(&b, false),
            Binary::Add => a.add(&b),
            Binary::Subtract => a.subtract(&b),
            Binary::Multiply => a.multiply(&b),
            Binary::Divide => a.divide(&b),
            Binary::FloorDivide => a.floor_divide(&b),
            Binary::Modulo => a.modulo(&b),
            Binary::Power => a.power(&b),
        }
    }

    /// The arguments of a call; `values` stands for all of its numbers.
    fn arguments(&self, parts: &[Part]) -> Result<Vec<Number>, NodeError> {
        if let [
            Part {
                expr: Expr::Name(name),
                ..
            },
        ] = parts
            && name == "values"
        {
            return Ok(self.all.to_vec());
        }
        parts.iter().map(|part| self.number(part)).collect()
    }

    fn call(&self, name: &str, parts: &[Part]) -> Result<Number, NodeError> {
        let given = self.arguments(parts)?;
        match name {
            "sum" => {
                let mut total = Number::int(0);
                for number in &given {
                    total = total.add(number)?;
                }
                return Ok(total);
            }
            "min" | "max" => {
                let mut rest = given.into_iter();
                let mut best = rest
                    .next()
                    .ok_or_else(|| NodeError::value_error(format!("{name}() of nothing")))?;
                for number in rest {
                    let order = number.order(&best);
                    let better = if name == "min" {
                        order.is_some_and(std::cmp::Ordering::is_lt)
                    } else {
                        order.is_some_and(std::cmp::Ordering::is_gt)
                    };
                    if better {
                        best = number;
                    }
                }
                return Ok(best);
            }
            _ => {}
        }
        let float = |f: fn(f64) -> f64, x: &Number| -> Result<Number, NodeError> {
            let x = x.to_float()?;
            let y = f(x);
            if y.is_nan() && !x.is_nan() {
                return Err(domain_error());
            }
            Ok(Number::Float(y))
        };
        match (name, given.as_slice()) {
            ("abs", [x]) => Ok(x.absolute()),
            ("round", [x]) => x.round(None),
            ("round", [x, digits]) => x.round(Some(digits)),
            ("pow", [x, y]) => {
                let exponent = y.to_float()?;
                if exponent.abs() > MAX_EXPONENT as f64 {
                    return Err(NodeError::value_error(format!(
                        "pow: the exponent {exponent} is beyond {MAX_EXPONENT}"
                    )));
                }
                x.power(y)
            }
            ("sqrt", [x]) => float(f64::sqrt, x),
            ("sin", [x]) => float(f64::sin, x),
            ("cos", [x]) => float(f64::cos, x),
            ("tan", [x]) => float(f64::tan, x),
            ("ceil", [x]) => whole(x, f64::ceil),
            ("floor", [x]) => whole(x, f64::floor),
            ("log", [x]) => logarithm(x, f64::ln),
            ("log2", [x]) => logarithm(x, f64::log2),
            ("log10", [x]) => logarithm(x, f64::log10),
            ("log", [x, base]) => logarithm(x, f64::ln)?.divide(&logarithm(base, f64::ln)?),
            ("int", [x]) => Ok(Number::Int(x.to_int()?)),
            ("float", [x]) => Ok(Number::Float(x.to_float()?)),
            (
                "abs" | "round" | "pow" | "sqrt" | "sin" | "cos" | "tan" | "ceil" | "floor" | "log"
                | "log2" | "log10" | "int" | "float",
                _,
            ) => Err(NodeError::type_error(format!(
                "{name}() does not take {} values",
                given.len()
            ))),
            _ => Err(NodeError::failed(
                "NameError",
                format!("unknown function '{name}'"),
            )),
        }
    }
}

fn whole(x: &Number, f: fn(f64) -> f64) -> Result<Number, NodeError> {
    match x {
        Number::Float(x) => Ok(Number::Int(Number::Float(f(*x)).to_int()?)),
        other => Ok(Number::Int(other.to_int()?)),
    }
}

fn logarithm(x: &Number, f: fn(f64) -> f64) -> Result<Number, NodeError> {
    let x = x.to_float()?;
    if x <= 0.0 {
        return Err(domain_error());
    }
    Ok(Number::Float(f(x)))
}

fn compare(a: &Number, sign: &str, b: &Number) -> bool {
    let order = a.order(b);
    match sign {
        "<" => order.is_some_and(std::cmp::Ordering::is_lt),
        "<=" => order.is_some_and(std::cmp::Ordering::is_le),
        ">" => order.is_some_and(std::cmp::Ordering::is_gt),
        ">=" => order.is_some_and(std::cmp::Ordering::is_ge),
        "==" => order.is_some_and(std::cmp::Ordering::is_eq),
        _ => !order.is_some_and(std::cmp::Ordering::is_eq),
    }
}

/// A result as a float and as a whole number.
pub(super) fn both(number: &Number) -> Result<(f64, i128), NodeError> {
    let float = number.to_float()?;
    if !float.is_finite() {
        return Err(NodeError::value_error(format!(
            "the result is not a finite number: {float}"
        )));
    }
    let whole = number.to_int()?.to_i128().ok_or_else(|| {
        NodeError::failed(
            "OverflowError",
            "the result has more than 128 bits, which no whole number on a link has",
        )
    })?;
    Ok((float, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(expression: &str, given: &[(&str, Number)]) -> String {
        let single: Vec<(String, Number)> = given
            .iter()
            .map(|(name, number)| ((*name).to_owned(), number.clone()))
            .collect();
        let all: Vec<Number> = given.iter().map(|(_, number)| number.clone()).collect();
        let names = Names {
            single: &single,
            all: &all,
        };
        match evaluate(expression, &names) {
            Ok(Number::Bool(b)) => b.to_string(),
            Ok(Number::Int(n)) => n.to_string(),
            Ok(Number::Float(f)) => format!("{f:?}"),
            Err(e) => format!("{}: {}", e.kind(), e.message()),
        }
    }

    #[track_caller]
    fn check(expression: &str, wanted: &str) {
        let given = [
            ("a", Number::int(1023)),
            ("b", Number::Float(2.5)),
            ("c", Number::Bool(true)),
        ];
        assert_eq!(text(expression, &given), wanted, "{expression}");
    }

    /// The right sides are what Python 3.12 prints.
    #[test]
    fn computes_as_python_does() {
        for (expression, wanted) in [
            ("a + b", "1025.5"),
            ("a & -8", "1016"),
            ("a & ~1", "1022"),
            ("a // 2, 1", "SyntaxError: ',' is not expected here"),
            ("7 // 2", "3"),
            ("-7 // 2", "-4"),
            ("-7 % 3", "2"),
            ("7 % -3", "-2"),
            ("-7.5 % 2", "0.5"),
            ("7.5 // -2", "-4.0"),
            ("1 / 3", "0.3333333333333333"),
            ("(2**70 + 1) / 2**70", "1.0"),
            ("9007199254740993 / 1", "9007199254740992.0"),
            ("10**400 / 10**399", "10.0"),
            ("-(10**400) / 10**399", "-10.0"),
            ("1 / 10**320", "1e-320"),
            ("2 ** 100", "1267650600228229401496703205376"),
            ("2 ** -1", "0.5"),
            ("-2 ** 2", "-4"),
            ("2 ** 3 ** 2", "512"),
            ("(-1) ** (10**30 + 1)", "-1"),
            ("True + True", "2"),
            ("c & True", "true"),
            ("c | 2", "3"),
            ("6 ^ 3", "5"),
            ("1 << 70 >> 68", "4"),
            ("-1 >> 10**9", "-1"),
            ("1 < 2 < 3", "true"),
            ("1 < 3 < 2", "false"),
            ("2**53 + 1 == 2.0**53", "false"),
            ("2**53 + 1 > 2.0**53", "true"),
            ("not a", "false"),
            ("not not 0", "false"),
            ("0 or b", "2.5"),
            ("a and 0", "0"),
            ("1 if a > 2048 else 0", "0"),
            ("a / 0 if a < 0 else 5", "5"),
            ("0 and 1 / 0", "0"),
            ("round(2.5)", "2"),
            ("round(3.5)", "4"),
            ("round(2.675, 2)", "2.67"),
            ("round(1250, -2)", "1200"),
            ("round(1350, -2)", "1400"),
            ("round(-15, -1)", "-20"),
            ("int(-3.9)", "-3"),
            ("ceil(2.1)", "3"),
            ("floor(-2.1)", "-3"),
            ("sqrt(16)", "4.0"),
            ("log(8, 2)", "3.0"),
            ("log2(8)", "3.0"),
            ("min(3, 1, 2)", "1"),
            ("max(values)", "1023"),
            ("sum(values)", "1026.5"),
            ("sum(1, 2, 3)", "6"),
            ("pow(2, 10)", "1024"),
            ("abs(-b)", "2.5"),
            ("float(3)", "3.0"),
            ("0xff + 1_000", "1255"),
            (".5 + 1e3 + 5.", "1005.5"),
            ("~c", "-2"),
            ("-c", "-1"),
        ] {
            check(expression, wanted);
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (expression, wanted) in [
            ("  ", "ValueError: the expression is empty"),
            (
                "z + 1",
                "NameError: name 'z' is not defined: nothing is connected to it",
            ),
            ("1 / 0", "ZeroDivisionError: division by zero"),
            (
                "0.0 ** -1",
                "ZeroDivisionError: 0.0 cannot be raised to a negative power",
            ),
            (
                "b & 1",
                "TypeError: unsupported operand type(s) for &: 'float' and 'int'",
            ),
            ("sqrt(-1)", "ValueError: math domain error"),
            ("log(0)", "ValueError: math domain error"),
            ("(1", "SyntaxError: '(' was never closed"),
            (
                "1 +",
                "SyntaxError: the expression ends where a value should stand",
            ),
            ("1 2", "SyntaxError: a number is not expected here"),
            (
                "__import__('os')",
                "SyntaxError: '\\'' has no meaning in an expression",
            ),
            ("open(1)", "NameError: unknown function 'open'"),
            (
                "pow(2, 5000)",
                "ValueError: pow: the exponent 5000 is beyond 4000",
            ),
            (
                "2 ** 10 ** 10",
                "OverflowError: a whole number of the expression has too many digits",
            ),
            (
                "10.0 ** 400",
                "OverflowError: Numerical result out of range",
            ),
            (
                "1 if 2",
                "SyntaxError: expected 'else' after 'if' expression",
            ),
            ("sqrt(1, 2)", "TypeError: sqrt() does not take 2 values"),
        ] {
            check(expression, wanted);
        }
    }

    #[test]
    fn hostile_expressions_end_soon() {
        let deep = "(".repeat(5000) + "1" + &")".repeat(4000);
        check(&deep, "SyntaxError: the expression is nested too deeply");
        check(
            &"-".repeat(5000),
            "SyntaxError: the expression ends where a value should stand",
        );
        check(
            &("-".repeat(5000) + "1"),
            "SyntaxError: the expression has too many parts",
        );
        check(
            &("1".to_owned() + &"+1".repeat(4000)),
            "SyntaxError: the expression has too many parts",
        );
        check(
            &("2".to_owned() + &"**2".repeat(3000)),
            "SyntaxError: the expression is nested too deeply",
        );
        check(
            &"1".repeat(10_001),
            "SyntaxError: the expression is longer than 10000 letters",
        );
        let huge = "9".repeat(9000);
        check(&format!("{huge} > 1"), "true");
    }

    #[test]
    fn results_are_finite_and_fit() {
        assert_eq!(both(&Number::Float(-2.9)).unwrap(), (-2.9, -2));
        assert_eq!(both(&Number::Bool(true)).unwrap(), (1.0, 1));
        assert!(both(&Number::Float(f64::NAN)).is_err());
        let wide = |text: &str| Number::Int(text.parse().unwrap());
        assert!(both(&wide(&"9".repeat(50))).is_err());
        assert!(both(&wide(&"9".repeat(400))).is_err());
    }
}
