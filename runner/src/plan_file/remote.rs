//! Endpoints that somebody else runs, as people write them down: a URL, authorities of
//! their own, and the name of the environment variable with the key.

use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use hyper::Uri;
use runseal::digest::Sha256Digest;
use runseal::plan::RemotePlan;

use crate::client::Headers;

/// An endpoint that somebody else runs.
#[derive(Clone, PartialEq, Eq)]
pub struct Remote {
    /// As written.
    pub url: String,
    /// Over TLS.
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Value of the `Host` header.
    pub host_header: String,
    /// What stands before the path of requests; often empty.
    pub prefix: String,
    /// PEM, beside the public authorities; may be empty.
    pub authorities: Vec<u8>,
    /// Environment variable with the bearer key.
    pub api_key_env: Option<String>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl Remote {
    /// Reads what a plan says of endpoint `name`. `ca_file` is relative to `folder`.
    pub fn new(
        name: &str,
        url: &str,
        ca_file: Option<&str>,
        api_key_env: Option<String>,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        // The text is not repeated: it may hold what nobody should read.
        let bad = |why: &str| {
            anyhow::anyhow!("plan: the url of endpoint {name} {why} (hint: https://HOST:PORT)")
        };
        let uri: Uri = url.parse().map_err(|_| bad("is no url"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad("begins with neither https:// nor http://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad(
                "holds a user name or password; keys come from the environment, by api_key_env",
            ));
        }
        if uri.query().is_some() || url.contains('#') {
            return Err(bad("has a query or fragment"));
        }
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        if host.is_empty() {
            return Err(bad("names no host"));
        }
        if !tls && api_key_env.is_some() && !is_loopback(host) {
            return Err(bad("would send the key unencrypted"));
        }
        if cfg!(not(feature = "tls")) && tls {
            bail!("plan: this attest was built without TLS (hint: cargo feature \"tls\")");
        }
        // People write down the base of other clients, which ends in the version.
        let prefix = uri.path().trim_end_matches('/');
        let prefix = prefix.strip_suffix("/v1").unwrap_or(prefix).to_owned();
        let authorities = match ca_file {
            None => Vec::new(),
            Some(file) => {
                let path = folder.join(file);
                std::fs::read(&path)
                    .with_context(|| format!("could not read the authorities {}", path.display()))?
            }
        };
        let remote = Self {
            url: url.to_owned(),
            tls,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            host_header: authority.as_str().to_owned(),
            prefix,
            authorities,
            api_key_env,
        };
        if ca_file.is_some() && remote.authorities.is_empty() {
            bail!("plan: the authorities of endpoint {name} are an empty file");
        }
        remote.check_tls(name)?;
        Ok(remote)
    }

    /// That the authorities can be read is better known before the run.
    #[cfg(feature = "tls")]
    fn check_tls(&self, name: &str) -> anyhow::Result<()> {
        if self.tls {
            crate::client::tls::Tls::new(&self.host, &self.authorities)
                .with_context(|| format!("plan: endpoint {name}"))?;
        }
        Ok(())
    }

    #[cfg(not(feature = "tls"))]
    fn check_tls(&self, _: &str) -> anyhow::Result<()> {
        Ok(())
    }

    /// What the plan keeps of it.
    pub fn plan(&self) -> RemotePlan {
        RemotePlan {
            tls: self.tls,
            ca_sha256: match self.authorities.is_empty() {
                true => None,
                false => Some(Sha256Digest::of(&self.authorities)),
            },
            api_key_env: self.api_key_env.clone(),
        }
    }

    /// The headers of its requests, with the key that `lookup` finds (usually in the
    /// environment).
    pub fn headers(
        &self,
        lookup: impl FnOnce(&str) -> Option<String>,
    ) -> Result<Headers, crate::client::NoKey> {
        let mut headers = Headers::default();
        if let Some(name) = &self.api_key_env {
            headers.bearer_from(name, lookup)?;
        }
        Ok(headers)
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, key: bool) -> anyhow::Result<Remote> {
        Remote::new(
            "e0",
            url,
            None,
            key.then(|| "KEY".to_owned()),
            Path::new(""),
        )
    }

    #[test]
    fn urls_are_taken_apart() {
        for (url, host, port, header, prefix) in [
            (
                "http://127.0.0.1:8000",
                "127.0.0.1",
                8000,
                "127.0.0.1:8000",
                "",
            ),
            ("http://[::1]:8000/v1/", "::1", 8000, "[::1]:8000", ""),
            (
                "https://a.example/x/v1",
                "a.example",
                443,
                "a.example",
                "/x",
            ),
            ("http://a.example", "a.example", 80, "a.example", ""),
        ] {
            let r = read(url, false).unwrap();
            let got = (
                r.host.as_str(),
                r.port,
                r.host_header.as_str(),
                r.prefix.as_str(),
            );
            assert_eq!(got, (host, port, header, prefix));
        }
    }

    #[test]
    fn what_cannot_be_reached_or_would_give_the_key_away_is_refused_without_repeating_it() {
        for (url, key) in [
            ("ftp://a.example", false),
            ("a.example", false),
            ("https://user:secret@a.example", false),
            ("https://a.example/?key=secret", false),
            ("http://secret.example", true),
            ("https://", false),
        ] {
            let why = format!("{:#}", read(url, key).unwrap_err());
            assert!(!why.contains("secret"), "{why}");
        }
        assert!(read("http://127.0.0.1:1", true).is_ok());
        assert!(read("https://a.example", true).is_ok());
    }

    #[test]
    fn a_key_comes_from_the_environment_or_the_run_does_not_begin() {
        let r = read("https://a.example", true).unwrap();
        assert!(r.headers(|n| (n == "KEY").then(|| "secret".into())).is_ok());
        assert!(r.headers(|_| None).is_err());
        assert!(r.headers(|_| Some(" ".into())).is_err());
        assert!(
            read("https://a.example", false)
                .unwrap()
                .headers(|_| None)
                .is_ok()
        );
    }
}
