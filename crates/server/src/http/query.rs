//! Query strings as structs, which say once how a key is called, how its value is read and what `/openapi.json` says of it.

/// How a value is made from the text of its key; none where the key is not there.
pub(crate) trait QueryValue {
    fn read(text: Option<String>) -> Self;
}

impl QueryValue for Option<String> {
    fn read(text: Option<String>) -> Self {
        text
    }
}

/// Empty where the key is not there.
impl QueryValue for String {
    fn read(text: Option<String>) -> Self {
        text.unwrap_or_default()
    }
}

/// A text; an empty one is as none.
pub(crate) struct NonEmpty(pub(crate) Option<String>);

impl QueryValue for NonEmpty {
    fn read(text: Option<String>) -> Self {
        Self(text.filter(|text| !text.is_empty()))
    }
}

/// On where the key says `true`, in any case.
pub(crate) struct SaysTrue(pub(crate) bool);

impl QueryValue for SaysTrue {
    fn read(text: Option<String>) -> Self {
        Self(text.is_some_and(|text| text.eq_ignore_ascii_case("true")))
    }
}

/// Off only where the key says `false`.
pub(crate) struct UnlessFalse(pub(crate) bool);

impl QueryValue for UnlessFalse {
    fn read(text: Option<String>) -> Self {
        Self(text.is_none_or(|text| text != "false"))
    }
}

/// On where the key has a value that is neither `0` nor `false`.
pub(crate) struct Switch(pub(crate) bool);

impl QueryValue for Switch {
    fn read(text: Option<String>) -> Self {
        Self(text.is_some_and(|text| !matches!(text.as_str(), "" | "0" | "false")))
    }
}

/// Keys of a query string with their meanings.
pub(crate) type QueryKeys = &'static [(&'static str, &'static str)];

/// Makes a struct with a field for each key, and the list of its keys.
macro_rules! query_struct {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty = $key:literal, $meaning:literal;)+ }) => {
        $(#[$doc])*
        pub(crate) struct $name {
            $(pub(crate) $field: $kind,)+
        }

        impl $name {
            pub(crate) const KEYS: $crate::http::query::QueryKeys = &[$(($key, $meaning)),+];

            pub(crate) fn of(request: &$crate::http::request::Request) -> Self {
                $(let $field = request.query($key);)+
                Self {
                    $($field: $crate::http::query::QueryValue::read($field),)+
                }
            }
        }
    };
}

pub(crate) use query_struct;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_differ_in_what_turns_them_on() {
        for (text, says_true, unless_false, switch) in [
            (None, false, true, false),
            (Some(""), false, true, false),
            (Some("0"), false, true, false),
            (Some("1"), false, true, true),
            (Some("True"), true, true, true),
            (Some("false"), false, false, false),
        ] {
            let given = || text.map(str::to_owned);
            assert_eq!(SaysTrue::read(given()).0, says_true, "{text:?}");
            assert_eq!(UnlessFalse::read(given()).0, unless_false, "{text:?}");
            assert_eq!(Switch::read(given()).0, switch, "{text:?}");
        }
        assert_eq!(NonEmpty::read(Some(String::new())).0, None);
    }
}
