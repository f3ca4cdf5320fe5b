//! Numbers of expressions: whole ones of any size, floats, yes and no, with Python's rules between them.

use std::cmp::Ordering;

use fresco_graph::{NodeError, Value};
use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use num_traits::{FromPrimitive, Signed, ToPrimitive, Zero};

/// Whole numbers may have this many bits on the way; a result has to fit into a float, which is far less.
const MAX_BITS: u64 = 1 << 18;

/// A value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Number {
    Bool(bool),
    Int(BigInt),
    Float(f64),
}

pub(super) fn domain_error() -> NodeError {
    NodeError::value_error("math domain error")
}

fn overflow(what: &str) -> NodeError {
    NodeError::failed("OverflowError", what)
}

fn zero_division() -> NodeError {
    NodeError::failed("ZeroDivisionError", "division by zero")
}

fn too_large() -> NodeError {
    overflow("a whole number of the expression has too many digits")
}

/// Bits of a whole number on its way through an expression.
fn bounded(n: BigInt) -> Result<Number, NodeError> {
    if n.bits() > MAX_BITS {
        return Err(too_large());
    }
    Ok(Number::Int(n))
}

/// A float as a whole number, cut towards zero.
fn truncated(f: f64) -> Result<BigInt, NodeError> {
    if f.is_nan() {
        return Err(NodeError::value_error(
            "cannot convert float NaN to integer",
        ));
    }
    BigInt::from_f64(f.trunc()).ok_or_else(|| overflow("cannot convert float infinity to integer"))
}

impl Number {
    /// What came over a link or out of a widget.
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(Self::Bool(*b)),
            Value::Int(i) => Some(Self::Int(BigInt::from(*i))),
            Value::Float(f) => Some(Self::Float(*f)),
            _ => None,
        }
    }

    pub(super) fn int(n: i64) -> Self {
        Self::Int(BigInt::from(n))
    }

    pub(super) fn truthy(&self) -> bool {
        match self {
            Self::Bool(b) => *b,
            Self::Int(n) => !n.is_zero(),
            Self::Float(f) => *f != 0.0,
        }
    }

    /// As a whole number, if it is one; yes and no are 1 and 0.
    fn whole(&self) -> Option<BigInt> {
        match self {
            Self::Bool(b) => Some(BigInt::from(u8::from(*b))),
            Self::Int(n) => Some(n.clone()),
            Self::Float(_) => None,
        }
    }

    pub(super) fn to_float(&self) -> Result<f64, NodeError> {
        let f = match self {
            Self::Bool(b) => f64::from(u8::from(*b)),
            Self::Float(f) => return Ok(*f),
            Self::Int(n) => n.to_f64().unwrap_or(f64::INFINITY),
        };
        if f.is_finite() {
            Ok(f)
        } else {
            Err(overflow("int too large to convert to float"))
        }
    }

    /// `int(x)`.
    pub(super) fn to_int(&self) -> Result<BigInt, NodeError> {
        match self {
            Self::Float(f) => truncated(*f),
            other => Ok(other.whole().unwrap_or_default()),
        }
    }

    fn both_whole(&self, other: &Self) -> Option<(BigInt, BigInt)> {
        Some((self.whole()?, other.whole()?))
    }

    fn floats(&self, other: &Self) -> Result<(f64, f64), NodeError> {
        Ok((self.to_float()?, other.to_float()?))
    }

    pub(super) fn add(&self, other: &Self) -> Result<Self, NodeError> {
        match self.both_whole(other) {
            Some((a, b)) => bounded(a + b),
            None => self.floats(other).map(|(a, b)| Self::Float(a + b)),
        }
    }

    pub(super) fn subtract(&self, other: &Self) -> Result<Self, NodeError> {
        match self.both_whole(other) {
            Some((a, b)) => bounded(a - b),
            None => self.floats(other).map(|(a, b)| Self::Float(a - b)),
        }
    }

    pub(super) fn multiply(&self, other: &Self) -> Result<Self, NodeError> {
        match self.both_whole(other) {
            Some((a, b)) if a.bits() + b.bits() > MAX_BITS + 1 => Err(too_large()),
            Some((a, b)) => bounded(a * b),
            None => self.floats(other).map(|(a, b)| Self::Float(a * b)),
        }
    }

    /// `/`: of whole numbers too, rounded once.
    pub(super) fn divide(&self, other: &Self) -> Result<Self, NodeError> {
        if !other.truthy() {
            return Err(zero_division());
        }
        match self.both_whole(other) {
            Some((a, b)) => quotient(&a, &b).map(Self::Float),
            None => self.floats(other).map(|(a, b)| Self::Float(a / b)),
        }
    }

    /// `//`.
    pub(super) fn floor_divide(&self, other: &Self) -> Result<Self, NodeError> {
        if !other.truthy() {
            return Err(zero_division());
        }
        if let Some((a, b)) = self.both_whole(other) {
            Ok(Self::Int(a.div_floor(&b)))
        } else {
            let (a, b) = self.floats(other)?;
            Ok(Self::Float(float_divmod(a, b).0))
        }
    }

    /// `%`: has the sign of the divisor.
    pub(super) fn modulo(&self, other: &Self) -> Result<Self, NodeError> {
        if !other.truthy() {
            return Err(zero_division());
        }
        if let Some((a, b)) = self.both_whole(other) {
            Ok(Self::Int(a.mod_floor(&b)))
        } else {
            let (a, b) = self.floats(other)?;
            Ok(Self::Float(float_divmod(a, b).1))
        }
    }

    /// `**`.
    pub(super) fn power(&self, other: &Self) -> Result<Self, NodeError> {
        if let Some((base, exponent)) = self.both_whole(other)
            && !exponent.is_negative()
        {
            return whole_power(&base, &exponent);
        }
        let (base, exponent) = self.floats(other)?;
        if base == 0.0 && exponent < 0.0 {
            return Err(NodeError::failed(
                "ZeroDivisionError",
                "0.0 cannot be raised to a negative power",
            ));
        }
        let result = base.powf(exponent);
        if result.is_nan() && !base.is_nan() && !exponent.is_nan() {
            return Err(NodeError::value_error(
                "a negative number has no real power with a fraction",
            ));
        }
        if result.is_infinite() && base.is_finite() && exponent.is_finite() {
            return Err(overflow("Numerical result out of range"));
        }
        Ok(Self::Float(result))
    }

    /// `&`, `|` and `^`; of two booleans the result is one.
    pub(super) fn bitwise(
        &self,
        other: &Self,
        sign: &str,
        bits: impl FnOnce(BigInt, BigInt) -> BigInt,
    ) -> Result<Self, NodeError> {
        let Some((a, b)) = self.both_whole(other) else {
            return Err(NodeError::type_error(format!(
                "unsupported operand type(s) for {sign}: '{}' and '{}'",
                self.kind(),
                other.kind()
            )));
        };
        let result = bits(a, b);
        if let (Self::Bool(_), Self::Bool(_)) = (self, other) {
            return Ok(Self::Bool(!result.is_zero()));
        }
        Ok(Self::Int(result))
    }

    /// `<<`, or `>>` if not `left`.
    pub(super) fn shift(&self, other: &Self, left: bool) -> Result<Self, NodeError> {
        let Some((n, by)) = self.both_whole(other) else {
            return Err(NodeError::type_error(
                "only whole numbers can be shifted by bits",
            ));
        };
        if by.is_negative() {
            return Err(NodeError::value_error("negative shift count"));
        }
        let by = by.to_u64();
        match by {
            Some(by) if left && (n.is_zero() || by <= MAX_BITS) => bounded(n << by),
            _ if left => Err(too_large()),
            Some(by) if by <= MAX_BITS => Ok(Self::Int(n >> by)),
            _ => Ok(Self::int(if n.is_negative() { -1 } else { 0 })),
        }
    }

    pub(super) fn negate(&self) -> Self {
        match self {
            Self::Float(f) => Self::Float(-f),
            other => Self::Int(-other.whole().unwrap_or_default()),
        }
    }

    /// Unary `+`: yes and no become numbers.
    pub(super) fn plain(&self) -> Self {
        match self {
            Self::Bool(b) => Self::int(i64::from(*b)),
            other => other.clone(),
        }
    }

    /// `~`.
    pub(super) fn invert(&self) -> Result<Self, NodeError> {
        let whole = self
            .whole()
            .ok_or_else(|| NodeError::type_error("bad operand type for unary ~: 'float'"))?;
        Ok(Self::Int(-(whole + 1i32)))
    }

    pub(super) fn absolute(&self) -> Self {
        match self {
            Self::Float(f) => Self::Float(f.abs()),
            other => Self::Int(other.whole().unwrap_or_default().abs()),
        }
    }

    /// The order of two numbers; none where one of them is not a number. A whole number and a float are compared exactly.
    pub(super) fn order(&self, other: &Self) -> Option<Ordering> {
        match (self.whole(), other.whole()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            (Some(a), None) => whole_to_float(&a, other.to_float().ok()?),
            (None, Some(b)) => whole_to_float(&b, self.to_float().ok()?).map(Ordering::reverse),
            (None, None) => self.to_float().ok()?.partial_cmp(&other.to_float().ok()?),
        }
    }

    /// `round(x)` and `round(x, digits)`: half to even.
    pub(super) fn round(&self, digits: Option<&Self>) -> Result<Self, NodeError> {
        let digits =
            match digits {
                Some(d) => Some(d.whole().and_then(|d| d.to_i32()).ok_or_else(|| {
                    NodeError::type_error("round wants a whole number of digits")
                })?),
                None => None,
            };
        match (self, digits) {
            (Self::Float(f), None) => Ok(Self::Int(truncated(f.round_ties_even())?)),
            (Self::Float(f), Some(digits)) => Ok(Self::Float(round_float(*f, digits))),
            (other, Some(digits)) if digits < 0 => Ok(Self::Int(round_whole(
                &other.whole().unwrap_or_default(),
                digits,
            ))),
            (other, _) => Ok(Self::Int(other.whole().unwrap_or_default())),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
        }
    }
}

/// Rounded once: both are whole, and may be larger than any float.
fn quotient(a: &BigInt, b: &BigInt) -> Result<f64, NodeError> {
    // Enough bits that a float has none to spare; what is left over only decides halves.
    let shift = 66 + b.bits() as i64 - a.bits() as i64;
    let (top, bottom) = if shift >= 0 {
        (a << shift as u64, b.clone())
    } else {
        (a.clone(), b << shift.unsigned_abs())
    };
    let (whole, left) = top.div_rem(&bottom);
    let mut result: BigInt = whole << 1u8;
    if !left.is_zero() {
        let same = (a.sign() == Sign::Minus) == (b.sign() == Sign::Minus);
        result += if same { 1i32 } else { -1 };
    }
    let float = result.to_f64().unwrap_or(f64::INFINITY);
    let half = (shift + 1) / 2;
    let scaled = float * 2f64.powi(-(half as i32)) * 2f64.powi(-((shift + 1 - half) as i32));
    if scaled.is_finite() {
        Ok(scaled)
    } else {
        Err(overflow("integer division result too large for a float"))
    }
}

/// Python's `divmod` of floats.
fn float_divmod(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut count = (a - rest) / b;
    if rest == 0.0 {
        rest = 0f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        count -= 1.0;
    }
    if count == 0.0 {
        return (0f64.copysign(a / b), rest);
    }
    let floor = count.floor();
    let floor = if count - floor > 0.5 {
        floor + 1.0
    } else {
        floor
    };
    (floor, rest)
}

fn whole_power(base: &BigInt, exponent: &BigInt) -> Result<Number, NodeError> {
    let one = BigInt::from(1);
    if *base == one || base.is_zero() || *base == -&one {
        let odd = exponent.is_odd();
        return Ok(Number::Int(
            if exponent.is_zero() || (*base == -&one && !odd) {
                one
            } else {
                base.clone()
            },
        ));
    }
    let exponent = exponent.to_u32().ok_or_else(too_large)?;
    if base.bits().saturating_sub(1) * u64::from(exponent) > MAX_BITS {
        return Err(too_large());
    }
    bounded(base.pow(exponent))
}

fn whole_to_float(a: &BigInt, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    let Some(whole) = BigInt::from_f64(b.floor()) else {
        return Some(if b > 0.0 {
            Ordering::Less
        } else {
            Ordering::Greater
        });
    };
    Some(a.cmp(&whole).then(if b > b.floor() {
        Ordering::Less
    } else {
        Ordering::Equal
    }))
}

fn round_float(f: f64, digits: i32) -> f64 {
    if !f.is_finite() || digits > 400 {
        return f;
    }
    if digits >= 0 {
        // Printing rounds the exact value, half to even, which is what is asked for.
        return format!("{f:.*}", digits as usize).parse().unwrap_or(f);
    }
    let unit = 10f64.powi(-digits);
    if unit.is_infinite() {
        return 0f64.copysign(f);
    }
    (f / unit).round_ties_even() * unit
}

fn round_whole(n: &BigInt, digits: i32) -> BigInt {
    // More places than the number has: nothing is left of it.
    let places = digits.unsigned_abs();
    if u64::from(places) > n.bits() {
        return BigInt::zero();
    }
    let unit = BigInt::from(10).pow(places);
    let (count, rest) = n.div_mod_floor(&unit);
    let up = match (rest * 2u8).cmp(&unit) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => count.is_odd(),
    };
    (count + u8::from(up)) * unit
}
