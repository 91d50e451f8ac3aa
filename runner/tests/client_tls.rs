//! The client over TLS: the same answers and laws as without, and no word to a
//! server that is not who it should be.
#![cfg(feature = "tls")]

mod scripted;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use runseal::event::Event;
use runseal::trace::Transport;
use runseal_runner::client::tls::{Tls, TlsError};
use scripted::*;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

const AUTHORITY: &[u8] = include_bytes!("data/tls/authority.pem");

/// Answers every request of every connection with `pieces`, one record each, and
/// counts the requests.
fn start(pieces: Vec<Vec<u8>>) -> (SocketAddr, Arc<AtomicUsize>) {
    let chain = CertificateDer::pem_slice_iter(include_bytes!("data/tls/server.pem"))
        .collect::<Result<Vec<_>, _>>()
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("data/tls/server.key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (config, seen, pieces) = (config.clone(), Arc::clone(&seen), pieces.clone());
            std::thread::spawn(move || serve(socket.unwrap(), config, &seen, &pieces));
        }
    });
    (addr, requests)
}

fn serve(socket: TcpStream, config: Arc<ServerConfig>, seen: &AtomicUsize, pieces: &[Vec<u8>]) {
    socket.set_read_timeout(Some(BOUND)).unwrap();
    socket.set_nodelay(true).unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    let mut got = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let body = b"{\"stream\":true}";
        while !got.ends_with(body) {
            match stream.read(&mut piece) {
                Ok(n) if n > 0 => got.extend_from_slice(&piece[..n]),
                _ => return,
            }
        }
        got.clear();
        seen.fetch_add(1, Ordering::SeqCst);
        for piece in pieces {
            if stream
                .write_all(piece)
                .and_then(|()| stream.flush())
                .is_err()
            {
                return;
            }
        }
    }
}

fn pieces() -> Vec<Vec<u8>> {
    let mut pieces = vec![CHUNKED.as_bytes().to_vec()];
    for text in ["Grüße", ", ", "Welt"] {
        // Records end in the middle of everything.
        let bytes = chunk(content(text));
        pieces.extend(bytes.chunks(7).map(<[u8]>::to_vec));
    }
    pieces.push(chunk([FINISH, USAGE, DONE].concat()));
    pieces.push(LAST.as_bytes().to_vec());
    pieces
}

#[tokio::test]
async fn answers_over_tls_obey_the_same_laws() {
    let (addr, requests) = start(pieces());
    let bench = Bench::new();
    let tls = Tls::new("server.test", AUTHORITY).unwrap();
    bench.client.secure(addr, tls);
    let specs = (0..6).map(|i| spec(i, addr)).collect();
    let outcome = bench.run(specs, 2).await;
    assert_eq!(requests.load(Ordering::SeqCst), 6);
    for (trace, response) in outcome.traces.iter().zip(&outcome.responses) {
        assert_eq!(trace.transport(), Transport::Completed, "{trace:?}");
        assert_eq!(response.content, "Grüße, Welt");
        assert!(trace.connected.unwrap() <= trace.send.unwrap());
        assert_eq!(trace.chunks.len(), 3);
    }
    assert!(outcome.traces.iter().any(|t| t.reused), "kept alive");
    let read: u64 = outcome
        .lines
        .iter()
        .map(|l| match l.event {
            Event::Read { bytes, .. } => bytes,
            _ => 0,
        })
        .sum();
    let plain: usize = pieces().iter().map(Vec::len).sum();
    assert!(
        read > 6 * plain as u64,
        "reads count what came over the wire"
    );
}

#[tokio::test]
async fn large_bodies_go_through_and_are_stamped_once() {
    let (addr, _) = start(pieces());
    let bench = Bench::new();
    bench
        .client
        .secure(addr, Tls::new("server.test", AUTHORITY).unwrap());
    let mut one = spec(0, addr);
    let mut body = vec![b' '; 3 << 20];
    body.extend_from_slice(b"{\"stream\":true}");
    one.body = body.into();
    let (trace, response) = bench.run(vec![one], 1).await.one();
    assert_eq!(trace.transport(), Transport::Completed);
    assert_eq!(response.content, "Grüße, Welt");
}

#[tokio::test]
async fn no_request_is_sent_to_a_server_that_is_not_who_it_should_be() {
    let (addr, requests) = start(pieces());
    let unknown = Tls::new("server.test", b"").unwrap();
    let other = Tls::new("other.test", AUTHORITY).unwrap();
    for tls in [unknown, other] {
        let bench = Bench::new();
        bench.client.secure(addr, tls);
        let (trace, _) = bench.run(vec![spec(0, addr)], 1).await.one();
        assert_eq!(trace.transport(), Transport::ConnectError);
        assert_eq!(trace.send, None);
    }
    assert_eq!(requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_a_connect_error() {
    let server = Server::playing(stream(&[FINISH, DONE]));
    let bench = Bench::new();
    bench
        .client
        .secure(server.addr, Tls::new("server.test", AUTHORITY).unwrap());
    let mut one = spec(0, server.addr);
    one.timeouts.connect = std::time::Duration::from_millis(300);
    let (trace, _) = bench.run(vec![one], 1).await.one();
    assert_eq!(trace.transport(), Transport::ConnectError);
}

#[test]
fn what_cannot_be_trusted_is_named() {
    assert!(matches!(
        Tls::new("no host", AUTHORITY),
        Err(TlsError::BadName(_))
    ));
    for bad in [
        &b"rubbish"[..],
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        assert!(matches!(
            Tls::new("a.test", bad),
            Err(TlsError::BadAuthority(_))
        ));
    }
}
