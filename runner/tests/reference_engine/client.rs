//! A server on a free port and a bare HTTP client for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use runseal_runner::reference::{Engine, EngineError, ServeOptions, serve};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub struct Server {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    pub task: JoinHandle<Result<(), EngineError>>,
}

/// A response whose connection breaks when it is dropped.
pub struct Open {
    pub response: Response<Incoming>,
    connection: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Server {
    pub async fn start(engine: Arc<Engine>, options: ServeOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        let task = tokio::spawn(serve(engine, listener, options, shutdown));
        Self {
            address,
            stop,
            task,
        }
    }

    /// Asks for a shutdown and hands back the task that ends with it.
    pub fn stop(self) -> JoinHandle<Result<(), EngineError>> {
        self.stop.send(()).unwrap();
        self.task
    }

    pub async fn open(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Open {
        open(self.address, method, path, body.into()).await.unwrap()
    }

    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> (StatusCode, String) {
        let mut open = self.open(method, path, body).await;
        let body = open.response.body_mut().collect().await.unwrap().to_bytes();
        (
            open.response.status(),
            String::from_utf8(body.to_vec()).unwrap(),
        )
    }

    /// A chat request for the user message "x" with more fields; the JSON of the answer.
    pub async fn chat(&self, fields: Value) -> (StatusCode, Value) {
        let (status, text) = self.request(Method::POST, CHAT, chat_body(fields)).await;
        (status, serde_json::from_str(&text).unwrap())
    }

    /// The same, streamed: the payload of every event.
    pub async fn stream(&self, mut fields: Value) -> Vec<String> {
        fields["stream"] = json!(true);
        let (status, text) = self.request(Method::POST, CHAT, chat_body(fields)).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let events = text
            .strip_suffix("\n\n")
            .expect("a blank line after the last event");
        events
            .split("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap().to_owned())
            .collect()
    }

    /// One figure of the metrics page.
    pub async fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.request(Method::GET, "/metrics", "").await;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("runseal_reference_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }

    /// Waits until a figure has a value; the deadline only keeps a failure from hanging.
    pub async fn until(&self, name: &str, value: u64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.metric(name).await != value {
            assert!(Instant::now() < deadline, "{name} never became {value}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub const CHAT: &str = "/v1/chat/completions";

pub fn chat_body(fields: Value) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    body.to_string()
}

pub async fn open(
    address: SocketAddr,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Open, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(async move { drop(connection.await) });
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "test")
        .body(Full::new(body))?;
    let response = sender.send_request(request).await?;
    Ok(Open {
        response,
        connection,
    })
}
