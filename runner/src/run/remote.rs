//! Endpoints that somebody else runs: where they are, and how to speak with them.
//! Nothing is launched, looked at or ended here.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use runseal::bundle::files::{ADDRESSES_FORMAT, AddressFile, EndpointAddress};
use runseal::durable::WriteError;
use runseal::plan::ADDRESSES;

use super::bundle_dir::BundleDir;
use super::{Run, Stop};
use crate::client::Headers;
use crate::plan_file::Resolved;

/// Where the requests of an endpoint go.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub addr: SocketAddr,
    pub host_header: String,
    /// Ahead of the path of every request.
    pub prefix: String,
    pub headers: Headers,
}

impl Destination {
    /// One of our own processes.
    pub fn of_process(addr: SocketAddr) -> Self {
        Self {
            addr,
            host_header: addr.to_string(),
            prefix: String::new(),
            headers: Headers::default(),
        }
    }
}

/// addresses.json before anything was looked up; `None` for plans that need none.
pub(super) fn addresses(
    dir: &BundleDir,
    resolved: &Resolved,
) -> Result<Option<AddressFile>, AddressError> {
    if !resolved.plan.is_remote() {
        return Ok(None);
    }
    let mut salt = [0u8; 32];
    getrandom::fill(&mut salt).map_err(|e| AddressError::Random(e.to_string()))?;
    let unknown = |(name, remote): (&String, &crate::plan_file::remote::Remote)| {
        let url = remote.url.clone();
        (name.clone(), EndpointAddress { url, peer: None })
    };
    let file = AddressFile {
        format: ADDRESSES_FORMAT.into(),
        run_id: dir.run_id.clone(),
        nonce_hash: dir.nonce_hash,
        salt: hex::encode(salt),
        endpoints: resolved.remotes.iter().map(unknown).collect(),
    };
    dir.write_json(ADDRESSES, &file)?;
    Ok(Some(file))
}

/// addresses.json could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No salt.
    #[error("no random bytes: {0}")]
    Random(String),
    /// Not written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Run {
    /// Looks the endpoints' host names up, once, so that all requests of one go to one
    /// address. What goes wrong is told without a name: the log is for everybody.
    pub(super) async fn find_remotes(&mut self) -> Result<(), Stop> {
        let Some(mut file) = self.addresses.clone() else {
            return Ok(());
        };
        let lost = |name: &str, why: &str| {
            Stop::failure("endpoint-not-found", format!("endpoint {name}: {why}"))
        };
        let mut taken: BTreeMap<SocketAddr, String> = BTreeMap::new();
        for (name, remote) in self.inputs.resolved.remotes.clone() {
            let looking = tokio::net::lookup_host((remote.host.clone(), remote.port));
            let limit =
                std::time::Duration::from_millis(self.inputs.resolved.plan.timeouts_ms.connect);
            let found = self.or_signal(tokio::time::timeout(limit, looking)).await?;
            let addr = match found {
                Ok(Ok(mut found)) => found.next(),
                _ => None,
            };
            let addr = addr.ok_or_else(|| lost(&name, "its host name leads nowhere"))?;
            if let Some(other) = taken.insert(addr, name.clone()) {
                // One server must not stand for two, nor share connections of two names.
                return Err(lost(&name, &format!("it is at the address of {other}")));
            }
            #[cfg(feature = "tls")]
            if remote.tls {
                let tls = crate::client::tls::Tls::new(&remote.host, &remote.authorities);
                let tls = tls.map_err(|_| lost(&name, "TLS could not be set up"))?;
                self.client.secure(addr, tls);
            }
            let headers = self.inputs.headers.get(&name).cloned().unwrap_or_default();
            if let Some(entry) = file.endpoints.get_mut(&name) {
                entry.peer = Some(addr.to_string());
            }
            let destination = Destination {
                addr,
                host_header: remote.host_header,
                prefix: remote.prefix,
                headers,
            };
            self.remotes.insert(name, destination);
        }
        let mut salt = [0u8; 32];
        hex::decode_to_slice(&file.salt, &mut salt)
            .map_err(|_| Stop::failure("evidence-write", "the salt of addresses is malformed"))?;
        self.client.hide_addresses(salt);
        self.dir
            .write_json(ADDRESSES, &file)
            .map_err(|e| Stop::failure("evidence-write", e))?;
        self.addresses = Some(file);
        self.say(&format!(
            "launch: nothing to launch; {} endpoint(s) of somebody else",
            self.remotes.len()
        ));
        Ok(())
    }
}
