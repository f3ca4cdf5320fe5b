//! Text in paths and queries: percent encoding there and back.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The first value of `key` in a query string, decoded.
pub(crate) fn query_value(query: &str, key: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(k, true) == key).then(|| decode(v, true))
    })
}

/// Undoes percent encoding; bytes that are not UTF-8 become the replacement character. `plus`: `+` is a blank.
pub(crate) fn decode(text: &str, plus: bool) -> String {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    if plus && text.contains('+') {
        decoded(&text.replace('+', " "))
    } else {
        decoded(text)
    }
}

/// What stands for itself in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Percent-encodes one path segment.
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding() {
        for (raw, plus, want) in [
            ("a%2Fb", false, "a/b"),
            ("a+b", true, "a b"),
            ("a+b", false, "a+b"),
            ("100%", false, "100%"),
            ("%zz%4", false, "%zz%4"),
            ("%C3%A9", false, "\u{e9}"),
            ("%FF", false, "\u{fffd}"),
        ] {
            assert_eq!(decode(raw, plus), want, "{raw}");
        }
        assert_eq!(
            query_value("a=1&b=x%20y&b=2&c", "b").as_deref(),
            Some("x y")
        );
        assert_eq!(query_value("a=1&c", "c").as_deref(), Some(""));
        assert_eq!(query_value("a=1", "d"), None);
        assert_eq!(encode_segment("a b/\u{e9}"), "a%20b%2F%C3%A9");
        assert_eq!(encode_segment("a.b#c@d/e"), "a.b%23c%40d%2Fe");
    }
}
