//! A streamed answer as a response body of server-sent events.
//!
//! One event of the job is one body frame: the role chunk, one chunk per token, the finish
//! chunk together with usage and `[DONE]`. Frames that pile up may leave in one write.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::api::{ApiError, Reply, StreamOptions, Usage};
use super::jobs::Event;

/// The body; dropping it cancels the job.
#[derive(Debug)]
pub struct EventBody {
    reply: Reply,
    options: StreamOptions,
    events: mpsc::Receiver<Event>,
    ended: bool,
}

impl EventBody {
    /// A body that renders a job's events.
    pub fn new(reply: Reply, options: StreamOptions, events: mpsc::Receiver<Event>) -> Self {
        Self {
            reply,
            options,
            events,
            ended: false,
        }
    }

    fn render(&mut self, event: Event) -> String {
        match event {
            Event::Started(usage) => {
                let delta = json!({"role": "assistant", "content": ""});
                data(&self.reply.chunk(delta, None, self.continuous(usage)))
            }
            Event::Delta { text, usage } => {
                let delta = json!({"content": text});
                data(&self.reply.chunk(delta, None, self.continuous(usage)))
            }
            Event::Finished {
                text,
                reason,
                usage,
            } => {
                self.ended = true;
                let delta = if text.is_empty() {
                    json!({})
                } else {
                    json!({"content": text})
                };
                let mut lines = data(&self.reply.chunk(
                    delta,
                    Some(reason),
                    self.continuous(usage),
                ));
                if self.options.include_usage {
                    lines += &data(&self.reply.usage_chunk(usage));
                }
                lines + DONE
            }
            // The status line is long gone: an error object inside the stream, as vLLM has it.
            Event::Failed(message) => {
                self.ended = true;
                data(&ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).body()) + DONE
            }
        }
    }

    fn continuous(&self, usage: Usage) -> Option<Usage> {
        (self.options.include_usage && self.options.continuous_usage_stats).then_some(usage)
    }
}

const DONE: &str = "data: [DONE]\n\n";

fn data(document: &Value) -> String {
    format!("data: {document}\n\n")
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match ready!(self.events.poll_recv(context)) {
            Some(event) => Ok(Frame::data(Bytes::from(self.render(event)))),
            // The job died. A body error breaks the connection off, so that the client
            // cannot take the stream for a complete one.
            None => {
                self.ended = true;
                Err(io::Error::other("the generation ended without an outcome"))
            }
        }))
    }
}
