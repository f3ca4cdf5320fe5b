//! `Range` headers.

/// What a client asked for of a file of known size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// No range, or one this server does not do (several parts, other units): send everything.
    Whole,
    /// First byte and length, both inside the file.
    Part { start: u64, length: u64 },
    /// Nothing of the file lies in it, or it is no range at all.
    Unsatisfiable,
}

/// Reads a `Range` value against a file of `size` bytes.
pub fn parse(value: &str, size: u64) -> Range {
    let Some((unit, spec)) = value.split_once('=') else {
        return Range::Unsatisfiable;
    };
    if !unit.trim().eq_ignore_ascii_case("bytes") || spec.contains(',') {
        return Range::Whole;
    }
    let Some((first, last)) = spec.trim().split_once('-') else {
        return Range::Unsatisfiable;
    };
    let number = |text: &str| -> Result<Option<u64>, ()> {
        if text.is_empty() {
            return Ok(None);
        }
        if !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(());
        }
        // More digits than fit are still a number, only a very large one.
        Ok(Some(text.parse().unwrap_or(u64::MAX)))
    };
    let (Ok(first), Ok(last)) = (number(first.trim()), number(last.trim())) else {
        return Range::Unsatisfiable;
    };
    match (first, last) {
        (None, None | Some(0)) => Range::Unsatisfiable,
        (None, Some(_)) if size == 0 => Range::Unsatisfiable,
        (None, Some(suffix)) => {
            let length = suffix.min(size);
            Range::Part {
                start: size - length,
                length,
            }
        }
        (Some(start), _) if start >= size => Range::Unsatisfiable,
        (Some(start), Some(end)) if end < start => Range::Unsatisfiable,
        (Some(start), end) => {
            let end = end.unwrap_or(u64::MAX).min(size - 1);
            Range::Part {
                start,
                length: end - start + 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let part = |start, length| Range::Part { start, length };
        for (value, size, want) in [
            ("bytes=0-0", 10, part(0, 1)),
            ("bytes=2-4", 10, part(2, 3)),
            ("bytes=2-", 10, part(2, 8)),
            ("bytes=-3", 10, part(7, 3)),
            ("bytes=-30", 10, part(0, 10)),
            ("bytes=5-99999999999999999999999", 10, part(5, 5)),
            ("bytes=10-", 10, Range::Unsatisfiable),
            ("bytes=4-2", 10, Range::Unsatisfiable),
            ("bytes=-0", 10, Range::Unsatisfiable),
            ("bytes=-", 10, Range::Unsatisfiable),
            ("bytes=0-", 0, Range::Unsatisfiable),
            ("bytes=-1", 0, Range::Unsatisfiable),
            ("bytes=a-b", 10, Range::Unsatisfiable),
            ("bytes", 10, Range::Unsatisfiable),
            ("bytes=0-1,3-4", 10, Range::Whole),
            ("lines=0-1", 10, Range::Whole),
        ] {
            assert_eq!(parse(value, size), want, "{value} of {size}");
        }
    }

    #[test]
    fn a_part_always_lies_inside_the_file() {
        for size in 0..6u64 {
            for first in ["", "0", "1", "5", "18446744073709551615"] {
                for last in ["", "0", "3", "18446744073709551615"] {
                    if let Range::Part { start, length } =
                        parse(&format!("bytes={first}-{last}"), size)
                    {
                        assert!(length > 0 && start + length <= size);
                    }
                }
            }
        }
    }
}
