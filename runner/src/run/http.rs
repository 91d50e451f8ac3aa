//! Small GETs: health and the server's own documents.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Largest document read.
const MAX_BODY: usize = 4 << 20;

/// GETs a path; status and body.
pub async fn get(addr: SocketAddr, path: &str, limit: Duration) -> anyhow::Result<(u16, Bytes)> {
    let work = async {
        let stream = TcpStream::connect(addr).await?;
        let (mut sender, conn) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let conn = tokio::spawn(conn);
        let request = Request::get(path)
            .header("host", addr.to_string())
            .body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_BODY)
            .collect()
            .await
            .map_err(|e| anyhow::anyhow!("{e}"))?
            .to_bytes();
        conn.abort();
        Ok((status, body))
    };
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| anyhow::anyhow!("no answer within {} ms", limit.as_millis()))?
}

/// GETs a document as evidence: its JSON, or its text when it is not JSON. An
/// error is evidence too.
pub async fn document(addr: SocketAddr, path: &str, limit: Duration) -> Value {
    match get(addr, path, limit).await {
        Ok((200, body)) => runseal::json::parse(&body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned())),
        Ok((status, _)) => serde_json::json!({"error": format!("status {status}")}),
        Err(e) => serde_json::json!({"error": e.to_string()}),
    }
}
