//! The page at `/status`, and at `/` where asked for. One file, no script, light and dark.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::http::request::Request;
use crate::http::response;
use crate::routes::guard::escape_html;

const PAGE: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="10">
<title>Fresco</title>
<style>
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 8vh auto; padding: 0 1rem; }
h1 { margin-bottom: 0; }
dl { display: grid; grid-template-columns: max-content auto; gap: .2rem 1.5rem; border: 1px solid var(--line);
     border-radius: .5rem; padding: 1rem; }
dt { opacity: .7; } dd { margin: 0; }
code, pre { background: #8882; border-radius: .3rem; padding: .1rem .3rem; }
pre { padding: .6rem; overflow-x: auto; }
</style>
</head>
<body>
<h1>Fresco</h1>
<p>is running and ready for workflows.</p>
<dl>
<dt>Version</dt><dd>{version}</dd>
<dt>In the queue</dt><dd>{queue}</dd>
<dt>Connected clients</dt><dd>{clients}</dd>
<dt>Node classes</dt><dd>{nodes}</dd>
<dt>Up for</dt><dd>{uptime}</dd>
</dl>
<h2>Pages</h2>
<p>Fresco has a page of its own, which <a href="./">/</a> shows unless another one was asked for. The official ComfyUI
editor is a Python package; install it and restart:</p>
<pre>pip install comfyui-frontend-package
fresco --front-end comfy</pre>
<p>or name a folder that holds one: <code>fresco --front-end-root DIR</code>.</p>
<h2>Programs</h2>
<p>Everything the editor can do is also an interface for programs:
<a href="api/openapi.json">description</a>,
<a href="api/object_info">nodes</a>,
<a href="api/queue">queue</a>,
<a href="api/jobs">jobs</a>,
<a href="metrics">metrics</a>.</p>
</body>
</html>
"#;

pub(crate) fn page(request: &Request) -> Response {
    let app = &request.app;
    let seconds = app.metrics.uptime() as u64;
    let uptime = match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    };
    let text = PAGE
        .replace("{version}", &escape_html(&app.config.version))
        .replace("{queue}", &app.engine.remaining().to_string())
        .replace("{clients}", &app.metrics.open_sockets().to_string())
        .replace("{nodes}", &app.engine.registry().len().to_string())
        .replace("{uptime}", &uptime);
    let mut answer = response::html(StatusCode::OK, text);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    answer.headers_mut().insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(policy),
    );
    answer
}
