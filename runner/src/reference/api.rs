//! The OpenAI dialect of chat completions and completions: what requests mean and how
//! answers look.
//!
//! Where OpenAI's documentation leaves a choice, vLLM's behaviour is followed: the end token
//! counts as a completion token, `max_tokens` defaults to the room that is left, too large
//! a `max_tokens` is refused instead of cut. Two defaults are our own: a missing
//! `temperature` is 0 and a missing `seed` is 0, so that a request that says nothing is
//! reproducible. Fields that this module does not name are ignored, as servers of this
//! dialect do (`top_p` and `top_k` among them: sampling is over all tokens); `n` above 1 is
//! refused, because ignoring it would answer another question.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::FINGERPRINT;
use super::engine::{Engine, Generation};

/// A refusal in OpenAI's error form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What the client reads.
    pub message: String,
    /// The request field at fault.
    pub param: Option<&'static str>,
}

impl ApiError {
    /// A 400 about one field.
    pub fn bad_request(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
            param: Some(param),
        }
    }

    /// An error about no field in particular.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
        }
    }

    /// The JSON body.
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::BAD_REQUEST => "BadRequestError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowedError",
            StatusCode::PAYLOAD_TOO_LARGE => "PayloadTooLargeError",
            _ => "InternalServerError",
        };
        json!({"error": {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.status.as_u16(),
        }})
    }
}

/// Which of the two endpoints a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`: messages in, deltas out.
    Chat,
    /// `/v1/completions`: one prompt in, `text` out. The prompt is taken as the content of
    /// one message, since the model knows nothing but its template.
    Text,
}

/// A checked request for a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// What to generate.
    pub generation: Generation,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// How to send it; `None` is one JSON document.
    pub stream: Option<StreamOptions>,
}

/// Options of a streamed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct StreamOptions {
    /// End with a chunk that has usage and no choices.
    #[serde(default)]
    pub include_usage: bool,
    /// With `include_usage`: usage on every chunk.
    #[serde(default)]
    pub continuous_usage_stats: bool,
}

#[derive(Deserialize)]
struct RawRequest {
    model: Option<String>,
    #[serde(default)]
    messages: Vec<RawMessage>,
    prompt: Option<Value>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    min_tokens: Option<u64>,
    temperature: Option<f32>,
    seed: Option<i64>,
    n: Option<u64>,
    ignore_eos: Option<bool>,
    stop: Option<Stop>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
struct RawMessage {
    role: String,
    content: Value,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

impl ChatRequest {
    /// Reads and checks a request body.
    pub fn parse(
        kind: Kind,
        body: &[u8],
        engine: &Engine,
        served_model: &str,
    ) -> Result<Self, ApiError> {
        let raw: RawRequest = serde_json::from_slice(body).map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("request body: {error}"))
        })?;
        if let Some(model) = raw.model
            && model != served_model
        {
            return Err(ApiError {
                status: StatusCode::NOT_FOUND,
                message: format!(
                    "The model `{model}` does not exist; this server serves `{served_model}`."
                ),
                param: Some("model"),
            });
        }
        if raw.n.is_some_and(|n| n != 1) {
            return Err(ApiError::bad_request("n", "only n = 1 is supported"));
        }
        let stream = raw.stream.unwrap_or(false);
        if raw.stream_options.is_some() && !stream {
            return Err(ApiError::bad_request(
                "stream_options",
                "only allowed with stream = true",
            ));
        }
        let temperature = raw.temperature.unwrap_or(0.0);
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(ApiError::bad_request(
                "temperature",
                "must be a finite number from 0 up",
            ));
        }
        let contents = match (kind, &raw.prompt) {
            (Kind::Text, Some(Value::String(prompt))) => vec![prompt.clone()],
            (Kind::Text, _) => {
                return Err(ApiError::bad_request("prompt", "must be one string"));
            }
            (Kind::Chat, _) if raw.messages.is_empty() => {
                return Err(ApiError::bad_request("messages", "must not be empty"));
            }
            (Kind::Chat, _) => raw
                .messages
                .iter()
                .map(content)
                .collect::<Result<Vec<_>, _>>()?,
        };
        let prompt = engine
            .tokenizer()
            .prompt(contents.iter().map(String::as_str));

        let context = engine.config().context;
        let room = context.saturating_sub(prompt.len());
        let asked = raw.max_completion_tokens.or(raw.max_tokens);
        let max_tokens = asked.map_or(room, |asked| usize::try_from(asked).unwrap_or(usize::MAX));
        if asked == Some(0) {
            return Err(ApiError::bad_request("max_tokens", "must be at least 1"));
        }
        if max_tokens > room || room == 0 {
            let message = format!(
                "This model's maximum context length is {context} tokens. You requested {} completion tokens and \
                 the prompt has {} tokens. Shorten the prompt or lower max_tokens.",
                asked.unwrap_or(1),
                prompt.len(),
            );
            return Err(ApiError::bad_request("max_tokens", message));
        }
        let min_tokens = usize::try_from(raw.min_tokens.unwrap_or(0)).unwrap_or(usize::MAX);
        if min_tokens > max_tokens {
            return Err(ApiError::bad_request(
                "min_tokens",
                format!("must not be over max_tokens ({max_tokens})"),
            ));
        }
        Ok(Self {
            generation: Generation {
                prompt,
                max_tokens,
                min_tokens,
                temperature,
                seed: raw.seed.unwrap_or(0).cast_unsigned(),
                ignore_eos: raw.ignore_eos.unwrap_or(false),
            },
            stop: match raw.stop {
                None => Vec::new(),
                Some(Stop::One(stop)) => vec![stop],
                Some(Stop::Many(stops)) => stops,
            },
            stream: stream.then(|| raw.stream_options.unwrap_or_default()),
        })
    }
}

/// The text of one message: a string, or an array of text parts.
fn content(message: &RawMessage) -> Result<String, ApiError> {
    if !ROLES.contains(&message.role.as_str()) {
        let text = format!("role {:?} is none of {}", message.role, ROLES.join(", "));
        return Err(ApiError::bad_request("messages", text));
    }
    match &message.content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts
            .iter()
            .map(
                |part| match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text"), Some(text)) => Ok(text),
                    _ => Err(ApiError::bad_request(
                        "messages",
                        "only content parts of type text are supported",
                    )),
                },
            )
            .collect(),
        _ => Err(ApiError::bad_request(
            "messages",
            "content must be a string or an array of text parts",
        )),
    }
}

/// Token counts of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, the template's included.
    pub prompt: usize,
    /// Generated tokens, the end token included.
    pub completion: usize,
}

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            // Each request computes its whole prompt: there is no prefix cache to hit.
            "prompt_tokens_details": {"cached_tokens": 0},
        })
    }
}

/// What all parts of one answer have in common.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Unique within the server's life.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The served model name.
    pub model: String,
    /// Which endpoint is answering.
    pub kind: Kind,
}

impl Reply {
    /// A whole answer as one document.
    pub fn completion(&self, content: &str, finish_reason: &str, usage: Usage) -> Value {
        let mut choice = json!({
            "index": 0,
            "logprobs": null,
            "finish_reason": finish_reason,
        });
        let object = match self.kind {
            Kind::Chat => {
                choice["message"] = json!({"role": "assistant", "content": content});
                "chat.completion"
            }
            Kind::Text => {
                choice["text"] = content.into();
                "text_completion"
            }
        };
        self.envelope(object, json!([choice]), Some(usage))
    }

    /// One chunk of a streamed answer. A delta without content is an empty text.
    pub fn chunk(&self, delta: Value, finish_reason: Option<&str>, usage: Option<Usage>) -> Value {
        let mut choice = json!({
            "index": 0,
            "logprobs": null,
            "finish_reason": finish_reason,
        });
        match self.kind {
            Kind::Chat => choice["delta"] = delta,
            Kind::Text => choice["text"] = delta["content"].as_str().unwrap_or_default().into(),
        }
        self.envelope(self.chunk_object(), json!([choice]), usage)
    }

    fn chunk_object(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Text => "text_completion",
        }
    }

    /// The last chunk of a stream that was asked for usage.
    pub fn usage_chunk(&self, usage: Usage) -> Value {
        self.envelope(self.chunk_object(), json!([]), Some(usage))
    }

    fn envelope(&self, object: &str, choices: Value, usage: Option<Usage>) -> Value {
        let mut document = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if let Some(usage) = usage {
            document["usage"] = usage.json();
        }
        document
    }
}
