//! Names of servers: what a `Host` and an `Origin` header say, and whether they mean the same place.

use std::net::IpAddr;

/// A name and a port as a header gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    /// Lower case, without brackets; addresses in their usual form.
    pub(crate) name: String,
    pub(crate) port: Port,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Not named: that of the scheme.
    Usual,
    Given(u16),
    /// Not a number, so that of no server.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(crate) fn of(tls: bool) -> Self {
        if tls { Self::Https } else { Self::Http }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl HostPort {
    /// Reads `name`, `name:port`, `[address]` or `[address]:port`.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.trim().to_ascii_lowercase();
        let (name, port) = split(&text);
        Self {
            name: match name.parse::<IpAddr>() {
                Ok(ip) => ip.to_string(),
                Err(_) => name.to_owned(),
            },
            port: match port {
                None | Some("") => Port::Usual,
                Some(digits) => digits.parse().map_or(Port::Unreadable, Port::Given),
            },
        }
    }

    fn number(&self, scheme: Scheme) -> Option<u16> {
        match self.port {
            Port::Usual => Some(scheme.port()),
            Port::Given(port) => Some(port),
            Port::Unreadable => None,
        }
    }

    /// Names are not looked up: an answer from the network must not decide what counts as local.
    pub(crate) fn is_loopback(&self) -> bool {
        if let Ok(ip) = self.name.parse::<IpAddr>() {
            return ip.to_canonical().is_loopback();
        }
        let name = self.name.strip_suffix('.').unwrap_or(&self.name);
        name == "localhost" || name.ends_with(".localhost")
    }

    pub(crate) fn is_address(&self) -> bool {
        self.name.parse::<IpAddr>().is_ok()
    }
}

fn split(text: &str) -> (&str, Option<&str>) {
    if let Some(rest) = text.strip_prefix('[')
        && let Some((name, port)) = rest.split_once(']')
        && (port.is_empty() || port.starts_with(':'))
    {
        return (name, port.strip_prefix(':'));
    }
    match text.split_once(':') {
        Some((name, port)) if !port.contains(':') => (name, Some(port)),
        _ => (text, None),
    }
}

/// What an `Origin` header names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// None for schemes that no page of ours has.
    pub(crate) scheme: Option<Scheme>,
    pub(crate) place: HostPort,
}

impl Origin {
    /// None for `null` and whatever else names no place.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once("://")?;
        let place = rest.split(['/', '?', '#']).next().unwrap_or("");
        if place.is_empty() {
            return None;
        }
        Some(Self {
            scheme: Scheme::parse(scheme),
            place: HostPort::parse(place),
        })
    }

    /// Scheme, name and port are those of a server that is asked as `host` and speaks `own`.
    pub(crate) fn is(&self, own: Scheme, host: &HostPort) -> bool {
        self.scheme == Some(own) && self.is_place(host)
    }

    /// Name and port are those of `host`, whatever the scheme: that of a proxy in front is not ours.
    fn is_place(&self, host: &HostPort) -> bool {
        let Some(scheme) = self.scheme else {
            return false;
        };
        let port = self.place.number(scheme);
        port.is_some() && self.place.name == host.name && port == host.number(scheme)
    }

    /// Whether a name given with `--allow-host` lets this origin in. The name stands for a proxy in front of us, whose
    /// scheme may be another: with its usual port, with the port that came with the name, or with the one that the proxy
    /// passed on in `Host`. Other ports of that machine are other servers.
    pub(crate) fn is_allowed(&self, allowed: &str, host: &HostPort) -> bool {
        if allowed == "*" {
            return self.is_place(host);
        }
        let Some(scheme) = self.scheme else {
            return false;
        };
        let allowed = HostPort::parse(allowed);
        self.place.name == allowed.name
            && (self.place.number(scheme) == allowed.number(scheme) || self.is_place(host))
    }
}

/// Whether a name given with `--allow-host` is this host's. Its port is that of the proxy, which need not be in `Host`.
pub(crate) fn allows_host(allowed: &str, host: &HostPort) -> bool {
    allowed == "*" || HostPort::parse(allowed).name == host.name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn same(own: Scheme, host: &str, origin: &str) -> bool {
        Origin::parse(origin).is_some_and(|o| o.is(own, &HostPort::parse(host)))
    }

    #[test]
    fn scheme_name_and_port_are_compared() {
        let (http, https) = (Scheme::Http, Scheme::Https);
        for (own, host, origin, want) in [
            (http, "127.0.0.1:8188", "http://127.0.0.1:8188", true),
            (http, "127.0.0.1:8188", "HTTP://127.0.0.1:8188", true),
            (http, "127.0.0.1:8188", "http://127.0.0.1", false),
            (http, "127.0.0.1:8188", "http://127.0.0.1:80", false),
            (http, "127.0.0.1:8188", "https://127.0.0.1:8188", false),
            (http, "127.0.0.1", "http://127.0.0.1:9", false),
            (http, "127.0.0.1", "http://127.0.0.1:80", true),
            (http, "127.0.0.1:80", "http://127.0.0.1", true),
            (http, "127.0.0.1", "https://127.0.0.1", false),
            (https, "box.lan", "https://BOX.lan", true),
            (https, "box.lan:443", "https://box.lan", true),
            (https, "box.lan", "http://box.lan:443", false),
            (https, "box.lan:8188", "https://box.lan", false),
            (http, "[::1]:8188", "http://[0:0:0:0:0:0:0:1]:8188", true),
            (http, "[::1]:8188", "http://[::1]", false),
            (http, "a:8188", "http://a:8188@evil.example", false),
            (http, "a:8188", "http://evil.example:8188", false),
            (http, "a:x", "http://a:x", false),
            (http, "a:65536", "http://a:65536", false),
            (http, "a", "file://a", false),
            (http, "", "http://", false),
            (http, "null", "null", false),
        ] {
            assert_eq!(same(own, host, origin), want, "{host} {origin}");
        }
    }

    #[test]
    fn an_allowed_name_is_a_proxy_and_not_its_neighbours() {
        for (allowed, host, origin, want) in [
            ("box.lan", "box.lan", "https://box.lan", true),
            ("box.lan", "127.0.0.1:8188", "https://box.lan", true),
            ("box.lan", "127.0.0.1:8188", "http://box.lan", true),
            ("box.lan", "box.lan:8443", "https://box.lan:8443", true),
            ("box.lan", "127.0.0.1:8188", "https://box.lan:8443", false),
            ("box.lan", "box.lan:8188", "http://box.lan:9", false),
            (
                "box.lan:8443",
                "127.0.0.1:8188",
                "https://box.lan:8443",
                true,
            ),
            ("box.lan:8443", "127.0.0.1:8188", "https://box.lan", false),
            ("box.lan", "box.lan", "https://evil.example", false),
            ("*", "box.lan", "https://box.lan", true),
            ("*", "box.lan", "https://evil.example", false),
        ] {
            let origin = Origin::parse(origin).unwrap();
            let host = HostPort::parse(host);
            assert_eq!(
                origin.is_allowed(allowed, &host),
                want,
                "{allowed} {host:?} {origin:?}"
            );
        }
        assert!(allows_host("box.lan:8443", &HostPort::parse("BOX.lan")));
        assert!(!allows_host(
            "box.lan",
            &HostPort::parse("box.lan.evil.example")
        ));
    }

    #[test]
    fn loopback_names() {
        for (host, want) in [
            ("localhost:8188", true),
            ("a.localhost.", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("127.9.9.9", true),
            ("localhost.evil.example", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(HostPort::parse(host).is_loopback(), want, "{host}");
        }
    }
}
