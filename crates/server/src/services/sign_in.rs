//! The page that asks a browser for the token. One file without a script, in the colours of the page behind it: the
//! guard lets nothing else through before the token is known.

const START: &str = r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · Fresco</title>
<style>
:root { color-scheme: light dark; --bg: light-dark(#f7f3ec, #181513); --surface: light-dark(#fffdf9, #221e1b);
  --ink: light-dark(#2a2320, #f1e9df); --soft: light-dark(#655a50, #b8ab9d); --line: light-dark(#e5dccf, #38322c);
  --edge: light-dark(#92877b, #7f7468); --accent: light-dark(#a8472a, #e2906a); --on: light-dark(#fff, #23130b);
  --bad: light-dark(#ab2a2a, #f29b93); }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; padding: 1rem; background: var(--bg);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { width: 100%; max-width: 25rem; padding: 2rem; border: 1px solid var(--line); border-radius: 18px;
  background: var(--surface); box-shadow: 0 8px 28px light-dark(rgb(70 45 20 / .14), rgb(0 0 0 / .5)); }
h1 { display: flex; align-items: center; gap: .75rem; margin: 0 0 .75rem; font-size: 1.5rem; line-height: 1.2; }
p { margin: 0 0 1.25rem; color: var(--soft); }
label { display: block; margin-bottom: .35rem; font-size: .875rem; font-weight: 560; }
input, button { width: 100%; min-height: 44px; padding: 0 .75rem; border-radius: 10px; font: inherit; }
input { border: 1px solid var(--edge); background: var(--bg); color: inherit; }
button { margin-top: 1rem; border: 0; background: var(--accent); color: var(--on); font-weight: 600; cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.wrong { margin: .5rem 0 0; color: var(--bad); font-size: .875rem; }
</style>
</head>
<body>
<main>
<h1><svg width="36" height="36" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" fill="#b4512e"/>
<path d="M6 24c4-9 7-12 10-12 2.6 0 3.2 3 5 3 1.6 0 2.7-1.6 5-5v16H6z" fill="#f7ecdf"/>
<circle cx="11" cy="9.5" r="2.8" fill="#f2c078"/></svg>Fresco</h1>
<p>This server is protected by a token. It is part of the address that Fresco
printed when it started.</p>
<form>
<label for="token">Token</label>
<input id="token" type="password" name="token" autocomplete="current-password" autofocus required>"##;

const WRONG: &str =
    r#"<p class="wrong" role="alert">That is not the token of this server. Try again.</p>"#;

const END: &str = r"
<button>Sign in</button>
</form>
</main>
</body>
</html>
";

/// The page, for somebody who has given no token yet or a wrong one.
pub(crate) fn page(wrong: bool) -> String {
    [START, if wrong { WRONG } else { "" }, END].concat()
}
