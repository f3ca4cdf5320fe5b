//! How requests come in and answers go out: bodies, errors, rows of routes, text on the wire. Knows nothing of what is served.

pub(crate) mod blocking;
pub(crate) mod body;
pub(crate) mod error;
pub mod multipart;
pub(crate) mod origin;
pub(crate) mod query;
pub mod range;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod route;
pub(crate) mod uri_text;
