//! The HTTP/1.1 server.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::FINGERPRINT;
use super::api::{ApiError, ChatRequest, Kind, Reply};
use super::engine::Engine;
use super::error::EngineError;
use super::jobs::{Event, Jobs};
use super::metrics::RequestState;
use super::sse::EventBody;

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The name clients ask for.
    pub served_model_name: String,
    /// Requests that run at once; others wait.
    pub max_running: usize,
    /// Pause before each token's text is sent, so that tests can interrupt an answer.
    pub token_delay: Duration,
    /// Pause before a prompt is processed.
    pub prefill_delay: Duration,
    /// Largest request body in bytes.
    pub max_body: usize,
    /// How long open requests may go on after a shutdown was asked for.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            served_model_name: "runseal-reference".into(),
            max_running: 8,
            token_delay: Duration::ZERO,
            prefill_delay: Duration::ZERO,
            max_body: 8 << 20,
            drain: Duration::from_secs(5),
        }
    }
}

/// Serves until `shutdown` completes; then no connection is accepted any more, open
/// requests get [`ServeOptions::drain`] to finish, and what is left is cancelled.
pub async fn serve(
    engine: Arc<Engine>,
    listener: TcpListener,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    let drain = options.drain;
    let server = Arc::new(Server::new(engine, options));
    let (stop, stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(Arc::clone(&server), stream, stopping.clone()));
                }
                // Out of descriptors, or a client that gave up: neither ends the server,
                // and the first would otherwise spin.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }
    drop(listener);
    drop(stop);
    let all_closed = async { while connections.join_next().await.is_some() {} };
    // Whoever is still connected after this is cut off when the set is dropped.
    let _ = tokio::time::timeout(drain, all_closed).await;
    Ok(())
}

async fn connection(server: Arc<Server>, stream: TcpStream, mut stopping: watch::Receiver<()>) {
    // Without this a token's chunk can wait for the previous one's acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // A connection's error is its client's business: it left, or it does not speak HTTP.
    tokio::select! {
        _ = &mut connection => return,
        _ = stopping.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

type Answer = Response<Either<Full<Bytes>, EventBody>>;

#[derive(Debug)]
struct Server {
    jobs: Arc<Jobs>,
    model: String,
    max_body: usize,
    max_running: usize,
    /// Start of the server in Unix nanoseconds; makes ids unlike those of another start.
    epoch: u128,
    replies: AtomicU64,
}

impl Server {
    fn new(engine: Arc<Engine>, options: ServeOptions) -> Self {
        Self {
            jobs: Arc::new(Jobs::new(
                engine,
                options.max_running,
                options.prefill_delay,
                options.token_delay,
            )),
            model: options.served_model_name,
            max_body: options.max_body,
            max_running: options.max_running,
            epoch: since_epoch().as_nanos(),
            replies: AtomicU64::new(0),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let allowed = match request.uri().path() {
            "/v1/chat/completions" | "/v1/completions" => Method::POST,
            "/v1/models" | "/health" | "/version" | "/metrics" | "/server_info" => Method::GET,
            path => {
                return refuse(&ApiError::new(
                    StatusCode::NOT_FOUND,
                    format!("no such path: {path}"),
                ));
            }
        };
        if *request.method() != allowed {
            let message = format!("{} is not allowed here, only {allowed}", request.method());
            let mut answer = refuse(&ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message));
            // Both methods are valid header text.
            if let Ok(value) = HeaderValue::from_str(allowed.as_str()) {
                answer.headers_mut().insert(ALLOW, value);
            }
            return answer;
        }
        match request.uri().path() {
            "/health" => text(String::new()),
            "/metrics" => text(self.jobs.metrics().render()),
            "/version" => document(StatusCode::OK, &json!({"version": FINGERPRINT})),
            "/v1/models" => document(StatusCode::OK, &self.models()),
            "/server_info" => document(StatusCode::OK, &self.info()),
            path => {
                let kind = match path {
                    "/v1/completions" => Kind::Text,
                    _ => Kind::Chat,
                };
                self.complete(kind, request.into_body())
                    .await
                    .unwrap_or_else(|error| {
                        self.jobs.metrics().ended(RequestState::Rejected);
                        refuse(&error)
                    })
            }
        }
    }

    fn models(&self) -> Value {
        json!({"object": "list", "data": [{
            "id": self.model,
            "object": "model",
            "created": (self.epoch / 1_000_000_000) as u64,
            "owned_by": "runseal",
            "max_model_len": self.jobs.engine().config().context,
        }]})
    }

    fn info(&self) -> Value {
        json!({
            "version": FINGERPRINT,
            "max_running_requests": self.max_running,
            "context_limit_tokens": self.jobs.engine().config().context,
        })
    }

    async fn complete(&self, kind: Kind, body: Incoming) -> Result<Answer, ApiError> {
        let body = read(body, self.max_body).await?;
        let request = ChatRequest::parse(kind, &body, self.jobs.engine(), &self.model)?;
        let stream = request.stream;
        let reply = self.reply(kind);
        let events = self.jobs.submit(request);
        let Some(options) = stream else {
            return Ok(collect(&reply, events).await);
        };
        let mut answer = Response::new(Either::Right(EventBody::new(reply, options, events)));
        let headers = answer.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        Ok(answer)
    }

    fn reply(&self, kind: Kind) -> Reply {
        let number = self.replies.fetch_add(1, Ordering::Relaxed);
        let id = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Text => "cmpl",
        };
        Reply {
            kind,
            id: format!("{id}-{:x}-{number}", self.epoch),
            created: since_epoch().as_secs(),
            model: self.model.clone(),
        }
    }
}

/// Waits for all of a job's events and answers with one document.
async fn collect(reply: &Reply, mut events: tokio::sync::mpsc::Receiver<Event>) -> Answer {
    let mut content = String::new();
    while let Some(event) = events.recv().await {
        match event {
            Event::Started(_) => {}
            Event::Delta { text, .. } => content += &text,
            Event::Finished {
                text,
                reason,
                usage,
            } => {
                content += &text;
                return document(StatusCode::OK, &reply.completion(&content, reason, usage));
            }
            Event::Failed(message) => {
                return refuse(&ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
            }
        }
    }
    refuse(&ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the generation ended without an outcome",
    ))
}

/// Reads a body up to a limit. Somewhat more is read and thrown away: answering while the
/// client still sends makes many clients lose the answer to a reset.
async fn read(mut body: Incoming, limit: usize) -> Result<Vec<u8>, ApiError> {
    let (mut bytes, mut total) = (Vec::new(), 0usize);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("request body: {error}"))
        })?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        total = total.saturating_add(data.len());
        if total <= limit {
            bytes.extend_from_slice(data);
        } else if total > limit.saturating_mul(4) {
            break;
        }
    }
    if total > limit {
        let message = format!("the request body is over the limit of {limit} bytes");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    Ok(bytes)
}

fn refuse(error: &ApiError) -> Answer {
    document(error.status, &error.body())
}

fn document(status: StatusCode, value: &Value) -> Answer {
    plain(status, "application/json", value.to_string())
}

fn text(text: String) -> Answer {
    plain(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        text,
    )
}

fn plain(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::from(body))));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// The wall clock; before 1970 it reads zero.
fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
