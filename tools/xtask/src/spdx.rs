//! Licence expressions as packages write them: names joined by AND, OR, WITH and parentheses.
//!
//! The old form with a slash for OR is still common in the registry and read as such.

use anyhow::{Result, bail};

/// Whether the expression can be satisfied with licences for which `allowed` holds.
pub(crate) fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        words: &words,
        at: 0,
        allowed,
    };
    let result = parser.any()?;
    if parser.at != words.len() {
        bail!("cannot read licence expression {expression:?}");
    }
    Ok(result)
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    allowed: &'a dyn Fn(&str) -> bool,
}

impl Parser<'_> {
    fn any(&mut self) -> Result<bool> {
        let mut result = self.all()?;
        while self.take("OR") {
            result |= self.all()?;
        }
        Ok(result)
    }

    fn all(&mut self) -> Result<bool> {
        let mut result = self.one()?;
        while self.take("AND") {
            result &= self.one()?;
        }
        Ok(result)
    }

    fn one(&mut self) -> Result<bool> {
        if self.take("(") {
            let result = self.any()?;
            if !self.take(")") {
                bail!("a licence expression lacks its closing parenthesis");
            }
            return Ok(result);
        }
        let Some(name) = self.words.get(self.at) else {
            bail!("a licence expression ends early");
        };
        self.at += 1;
        if self.take("WITH") {
            let Some(exception) = self.words.get(self.at) else {
                bail!("a licence expression ends after WITH");
            };
            self.at += 1;
            // An exception only grants more, so the plain licence being allowed is enough.
            let whole = format!("{name} WITH {exception}");
            return Ok((self.allowed)(name) || (self.allowed)(&whole));
        }
        Ok((self.allowed)(name))
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expression: &str, expected: bool) {
        let allowed = |name: &str| matches!(name, "MIT" | "Apache-2.0" | "Unicode-3.0");
        assert_eq!(satisfied(expression, &allowed).unwrap(), expected);
    }

    #[test]
    fn expressions() {
        check("MIT", true);
        check("GPL-3.0", false);
        check("MIT OR GPL-3.0", true);
        check("MIT/Apache-2.0", true);
        check("MIT AND GPL-3.0", false);
        check("(MIT OR GPL-3.0) AND Unicode-3.0", true);
        check("Apache-2.0 WITH LLVM-exception", true);
        check("GPL-3.0 WITH Classpath-exception-2.0", false);
    }

    #[test]
    fn broken_expressions_are_errors() {
        for broken in ["", "MIT OR", "(MIT", "MIT MIT", "MIT WITH"] {
            assert!(satisfied(broken, &|_| true).is_err(), "{broken}");
        }
    }
}
