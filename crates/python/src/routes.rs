//! Paths of pack routes, in aiohttp's syntax.

/// Whether a path may be a route's: `{x}` is one segment, `{x:.*}` the rest. The process has the last word.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    let mut wanted = pattern.split('/');
    let mut given = path.split('/');
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(segment), Some(_)) if segment.ends_with(":.*}") => return true,
            (Some(segment), Some(part)) => {
                let open = segment.contains('{');
                let fixed = segment.split(['{', '}']).next().unwrap_or("");
                if open && (part.is_empty() || !part.starts_with(fixed)) || !open && segment != part
                {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_of_aiohttp() {
        for (pattern, path, want) in [
            ("/a/b", "/a/b", true),
            ("/a/b", "/a", false),
            ("/a/{x}", "/a/1", true),
            ("/a/{x}", "/a/", false),
            ("/a/{x}", "/a/1/2", false),
            ("/a/{x:.*}", "/a/1/2", true),
            ("/a/v{x}.json", "/a/v1.json", true),
            ("/a/v{x}.json", "/a/w1.json", false),
        ] {
            assert_eq!(matches(pattern, path), want, "{pattern} {path}");
        }
    }
}
