//! Rules of Python and torch that node results depend on: slices, rounding, evenly spaced numbers.

use std::ops::Range;

/// `items[start..stop]` by Python's rule: negative counts from the end, everything is clipped.
pub(crate) fn slice(start: i64, stop: i64, len: usize) -> Range<usize> {
    let clip = |at: i64| -> usize {
        let at = if at < 0 { at + len as i64 } else { at };
        usize::try_from(at).unwrap_or(0).min(len)
    };
    let (start, stop) = (clip(start), clip(stop));
    start..stop.max(start)
}

/// `round(x)` of a float: half to even, as an integer.
pub(crate) fn round(x: f64) -> i64 {
    x.round_ties_even() as i64
}

/// `torch.linspace` in f32: counted up from the start in the first half and down from the end in the second.
pub(crate) fn linspace(start: f32, end: f32, count: usize) -> Vec<f32> {
    if count == 1 {
        return vec![start];
    }
    let step = (end - start) / (count.saturating_sub(1)) as f32;
    (0..count)
        .map(|i| {
            if i < count / 2 {
                start + step * i as f32
            } else {
                end - step * (count - 1 - i) as f32
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_follow_python() {
        assert_eq!(slice(-5, -1, 14), 9..13);
        assert_eq!(slice(3, 1, 14), 3..3);
        assert_eq!(slice(2, 100, 5), 2..5);
        assert_eq!(slice(-100, 3, 5), 0..3);
        assert_eq!(slice(-2, -1, 5), 3..4);
        assert_eq!(slice(-1, 0, 5), 4..4);
    }

    #[test]
    fn linspace_hits_both_ends() {
        assert_eq!(linspace(0.0, 1.0, 5), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(linspace(2.0, 9.0, 1), [2.0]);
        assert!(linspace(0.0, 1.0, 0).is_empty());
        assert_eq!(*linspace(0.1, 0.9, 7).last().unwrap(), 0.9);
    }

    #[test]
    fn halves_round_to_even() {
        assert_eq!(
            [round(0.5), round(1.5), round(2.5), round(-0.5)],
            [0, 2, 2, 0]
        );
    }
}
