//! How much a file may grow to while it is read, rewritten and written out.

use super::options::ConvertError;
use crate::Value;

/// What is left of the bytes one stage of the conversion may make.
pub(super) struct Room {
    left: usize,
    limit: usize,
}

impl Room {
    pub(super) fn new(limit: usize) -> Self {
        Self { left: limit, limit }
    }

    pub(super) fn spend(&mut self, bytes: usize) -> Result<(), ConvertError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(ConvertError::TooLong { limit: self.limit })?;
        Ok(())
    }

    pub(super) fn spend_value(&mut self, value: &Value) -> Result<(), ConvertError> {
        let weight = weight(value, self.left);
        self.spend(weight)
    }
}

/// About as many bytes as the value takes as JSON. Counting ends soon after `enough`, so that refusing costs no more than
/// the limit.
pub(super) fn weight(value: &Value, enough: usize) -> usize {
    /// For brackets, commas and numbers.
    const EACH: usize = 8;
    let mut sum = 0_usize;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        sum = sum.saturating_add(EACH);
        match value {
            Value::Str(text) => sum = sum.saturating_add(text.len()),
            Value::List(list) => open.extend(list.iter()),
            Value::Map(map) => {
                for (key, value) in &**map {
                    sum = sum.saturating_add(key.len());
                    open.push(value);
                }
            }
            _ => {}
        }
        if sum > enough {
            break;
        }
    }
    sum
}
