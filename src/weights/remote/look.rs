//! What a node is, and how far its clock is: one session, no rehash.

use std::time::{Duration, Instant};

use super::agent::unix_us;
use super::failure::Failure;
use super::lock::{Holder, LockRequest};
use super::protocol::Message;
use super::session::{Node, check_hello, connected, greet};
use crate::codes::Code;
use crate::finding::Finding;
use crate::node_facts::Raw;
use crate::node_facts::clock::Exchange;
use crate::node_facts::collect::Wanted;

/// What a node says of itself, and how far its clock is.
#[derive(Debug, Clone)]
pub struct NodeLook {
    /// Its sources.
    pub raw: Raw,
    /// Stamps of every exchange.
    pub exchanges: Vec<Exchange>,
    /// Boot id in its greeting.
    pub boot_id: String,
    /// Remarks on the node's program.
    pub notes: Vec<Finding>,
    /// Who has the cluster, when it was asked for and somebody else has it.
    pub busy: Option<Holder>,
}

/// Exchanges of stamps: the shortest of several is close to the real way.
const EXCHANGES: usize = 8;

/// Asks one node what it is, in one session. With `lock` it is also asked for the
/// cluster, which is then taken until the session ends.
pub fn look(node: &Node, wanted: &Wanted, lock: Option<&LockRequest>) -> Result<NodeLook, Failure> {
    connected(node, || look_at(node, wanted, lock))
}

fn look_at(node: &Node, wanted: &Wanted, lock: Option<&LockRequest>) -> Result<NodeLook, Failure> {
    let (mut session, hello) = greet(node)?;
    let notes = check_hello(node, &hello)?.into_iter().collect();
    let mut busy = None;
    if let Some(request) = lock {
        session.send(&Message::Lock(request.clone()));
        match session.next(node.silence)? {
            Message::Locked => {}
            Message::Busy(holder) => busy = Some(holder),
            Message::Refused { reason } => {
                return Err(session.nonsense(&format!("it refused: {reason}")));
            }
            _ => return Err(session.nonsense("it did not say whether the cluster is free")),
        }
    }
    let mut exchanges = Vec::new();
    for _ in 0..EXCHANGES {
        let t0 = unix_us();
        session.send(&Message::Clock { sent_us: t0 });
        match session.next(node.silence)? {
            Message::Time {
                sent_us,
                received_us,
                answered_us,
            } if sent_us == t0 => exchanges.push(Exchange {
                t0,
                t1: received_us,
                t2: answered_us,
                t3: unix_us(),
            }),
            _ => return Err(session.nonsense("it did not tell its time when asked")),
        }
    }
    session.send(&Message::Look(Box::new(wanted.clone())));
    // It says that it is alive while it asks its programs, but not for ever.
    let deadline = Instant::now() + Duration::from_millis(wanted.limit_ms) + node.silence;
    let raw = loop {
        match session.next(node.silence)? {
            Message::Progress { .. } if Instant::now() < deadline => {}
            Message::Progress { .. } => {
                session.kill();
                let detail = "it did not say what it is in time";
                return Err(Failure::new(Code::NodeTimeout, detail));
            }
            Message::Facts(raw) => break *raw,
            _ => return Err(session.nonsense("it did not say what it is when asked")),
        }
    };
    session.end();
    Ok(NodeLook {
        raw,
        exchanges,
        boot_id: hello.boot_id,
        notes,
        busy,
    })
}
