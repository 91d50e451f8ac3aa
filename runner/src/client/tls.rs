//! TLS between HTTP and the stamped socket.
//!
//! The socket below it is stamped and gated as without TLS: a read is stamped
//! before it is decrypted, its length counts encrypted bytes, and what several
//! records of one read decrypt to shares that read's stamp. The handshake belongs
//! to the connection, not to the request. Trusted are the usual public
//! authorities, and those that the operator adds; there is no switch to trust
//! nobody in particular.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::Client;
use super::io::StampedIo;

/// How to speak TLS with one server.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The host is neither a DNS name nor an IP address.
    #[error("{0:?} is no host name that a certificate could hold")]
    BadName(String),
    /// The added authorities are not PEM certificates.
    #[error("the added authorities could not be read: {0} (hint: PEM, one or more certificates)")]
    BadAuthority(String),
    /// The TLS library refused.
    #[error("TLS could not be set up: {0}")]
    Refused(String),
}

impl Tls {
    /// For the server that proves to be `host`, by a public authority or by one of
    /// the certificates in `authorities` (PEM; may be empty).
    pub fn new(host: &str, authorities: &[u8]) -> Result<Self, TlsError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TlsError::BadName(host.to_owned()))?;
        let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        let bad = |e: &dyn std::fmt::Display| TlsError::BadAuthority(e.to_string());
        let mut added = 0;
        for certificate in CertificateDer::pem_slice_iter(authorities) {
            let certificate = certificate.map_err(|e| bad(&e))?;
            roots.add(certificate).map_err(|e| bad(&e))?;
            added += 1;
        }
        if added == 0 && !authorities.trim_ascii().is_empty() {
            return Err(bad(&"it holds no certificate"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| TlsError::Refused(e.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            connector: Arc::new(config).into(),
            name,
        })
    }

    pub(super) async fn connect(&self, socket: StampedIo) -> io::Result<TlsStream<StampedIo>> {
        self.connector.connect(self.name.clone(), socket).await
    }
}

impl Client {
    /// Speaks TLS on every further connection to `addr`.
    pub fn secure(&self, addr: SocketAddr, tls: Tls) {
        self.secured().insert(addr, tls);
    }
}
