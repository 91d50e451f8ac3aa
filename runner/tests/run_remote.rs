//! Runs against endpoints that somebody else runs: over TLS, with a key, and with
//! servers that do other things than they are asked.
#![cfg(feature = "tls")]

#[path = "run_failures/support.rs"]
#[allow(dead_code)]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runseal::audit::{AuditReport, Reader, audit};
use runseal::bundle::read::{RawBundle, read};
use runseal::codes::Code;
use runseal::event::{Event, EventLine, to_line};
use runseal::keys::{load_public, load_secret};
use runseal::record::{CacheProof, FixedOutput, RunRecord};
use runseal::relpath::RelPath;
use runseal::seal::seal;
use serde_json::{Value, json};
use support::{Plan, Work, because, codes, failed_with};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

const AUTHORITY: &str = include_str!("data/tls/loopback-authority.pem");
const OTHER_AUTHORITY: &str = include_str!("data/tls/authority.pem");
const KEY: &str = "sk-Hunter2Hunter2Hunter2";
const VARIABLE: &str = "RUNSEAL_TEST_KEY";

/// A request as the server saw it.
#[derive(Debug, Clone)]
struct Seen {
    head: String,
    body: Value,
}

/// What a server answers to the n-th request: status and body.
type Script = Arc<dyn Fn(usize, &Seen) -> (u16, String) + Send + Sync>;

struct Server {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    fn start(tls: bool, script: Script) -> Self {
        let config = tls.then(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let theirs = Arc::clone(&seen);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (seen, script, config) =
                    (Arc::clone(&theirs), Arc::clone(&script), config.clone());
                std::thread::spawn(move || {
                    let _ = socket.set_read_timeout(Some(Duration::from_secs(60)));
                    let _ = socket.set_nodelay(true);
                    match config {
                        Some(config) => {
                            let tls = ServerConnection::new(config).unwrap();
                            serve(StreamOwned::new(tls, socket), &seen, &script);
                        }
                        None => serve::<TcpStream>(socket, &seen, &script),
                    }
                });
            }
        });
        Server { addr, seen }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn config() -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(include_bytes!("data/tls/loopback.pem"))
        .collect::<Result<Vec<_>, _>>()
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("data/tls/loopback.key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config)
}

fn serve<S: Read + Write>(mut stream: S, seen: &Mutex<Vec<Seen>>, script: &Script) {
    let mut got = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let (head, len) = loop {
            if let Some(at) = got.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8(got[..at].to_vec()).unwrap();
                let line = head.lines().find_map(|l| {
                    let (name, value) = l.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length")
                        .then(|| value.trim().parse().ok())?
                });
                let len: usize = line.unwrap_or(0);
                if got.len() >= at + 4 + len {
                    break (head, at + 4 + len);
                }
            }
            match stream.read(&mut piece) {
                Ok(n) if n > 0 => got.extend_from_slice(&piece[..n]),
                _ => return,
            }
        };
        let start = head.len() + 4;
        let body = serde_json::from_slice(&got[start..len]).unwrap_or_default();
        got.drain(..len);
        let request = Seen { head, body };
        let n = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        let (status, body) = script(n, &request);
        let kind = match status {
            200 => "text/event-stream",
            _ => "application/json",
        };
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream
            .write_all(answer.as_bytes())
            .and_then(|()| stream.flush())
            .is_err()
        {
            return;
        }
    }
}

/// An answer of `tokens` tokens, ended for `reason`, to a prompt of `prompt` tokens.
fn answer(text: &str, reason: &str, prompt: u64, tokens: u64) -> String {
    let chunks = [
        json!({"model": "m", "choices": [{"index": 0, "delta": {"content": text}}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}),
        json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}}),
    ];
    let lines: String = chunks.iter().map(|c| format!("data: {c}\n\n")).collect();
    format!("{lines}data: [DONE]\n\n")
}

fn plan(endpoint: &str, requests: &str, more: &str) -> String {
    format!(
        r#"format = "runseal.attest/v1"
suite = "tiny"

[[endpoint]]
name = "e0"
{endpoint}

[engine]
recipe = "endpoint"

[requests]
model = "some-model"
temperature = "0"
seed = 1
max_tokens = 8
{requests}

[load]
concurrency = 1
repetitions = 1

[timeouts_ms]
connect = 5000
first_token = 20000
stall = 20000
request = 20000
ready = 20000

[cache]
claim = "none"
max_cached_tokens = 0
{more}
"#
    )
}

fn work(text: &str) -> Work {
    let work = Work::new(&Plan::default());
    fs::write(work.path("attest.toml"), text).unwrap();
    fs::write(work.path("ca.pem"), AUTHORITY).unwrap();
    work
}

fn run(work: &Work, key: Option<&str>) -> support::Ended {
    let mut command = work.command(&["run"]);
    command.env_remove(VARIABLE);
    if let Some(key) = key {
        command.env(VARIABLE, key);
    }
    work.start_command(command).end()
}

fn with_key(server: &Server, ca: &str) -> String {
    format!(
        "url = \"https://{}/v1\"\nca_file = \"{ca}\"\napi_key_env = \"{VARIABLE}\"",
        server.addr
    )
}

/// Files beneath a folder that hold some bytes.
fn files_with(dir: &Path, bytes: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read(&path)
                .unwrap()
                .windows(bytes.len())
                .any(|w| w == bytes.as_bytes())
            {
                out.push(path.strip_prefix(dir).unwrap().display().to_string());
            }
        }
    }
    out
}

fn bundle(work: &Work) -> RawBundle {
    read(&work.bundle()).unwrap()
}

/// The bundle after an edit of its events, sealed anew with the operator's own key.
fn forged(work: &Work, raw: &mut RawBundle, edit: impl Fn(&mut EventLine)) -> AuditReport {
    let name = RelPath::parse("events.jsonl").unwrap();
    let bytes = raw.files.get_mut(&name).unwrap();
    let mut lines = bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    let mut out = lines.next().unwrap().to_vec();
    out.push(b'\n');
    for line in lines {
        let mut line: EventLine = serde_json::from_slice(line).unwrap();
        edit(&mut line);
        out.extend(to_line(&line).into_bytes());
        out.push(b'\n');
    }
    assert_ne!(*bytes, out, "the edit changes nothing");
    *bytes = out;
    reseal(work, raw)
}

fn reseal(work: &Work, raw: &mut RawBundle) -> AuditReport {
    let salts: BTreeMap<String, [u8; 32]> = raw
        .salts
        .iter()
        .map(|(name, salt)| {
            let mut bytes = [0; 32];
            hex::decode_to_slice(salt, &mut bytes).unwrap();
            (name.clone(), bytes)
        })
        .collect();
    let tool = work.audit(true).derived.unwrap().provenance.tool;
    let key = load_secret(&work.path("keys/attest.key.pem")).unwrap();
    let sealed = seal(&raw.files, &salts, tool, &key).unwrap();
    raw.index = Some(sealed.index);
    raw.record = Some(sealed.envelope);
    audited(work, raw)
}

fn audited(work: &Work, raw: &RawBundle) -> AuditReport {
    let key = load_public(&work.path("keys/attest.pub.pem")).unwrap();
    let trusted = [key];
    let reader = Reader {
        trusted: &trusted,
        grader: &|_, _| Err("not asked".to_owned()),
        commitment: None,
    };
    audit("bundle", raw, &reader)
}

fn errors(report: &AuditReport) -> Vec<Code> {
    let errors = report.findings.iter();
    let errors = errors.filter(|f| f.severity == runseal::finding::Severity::Error);
    let mut codes: Vec<Code> = errors.map(|f| f.code).collect();
    codes.dedup();
    codes
}

fn has(record: &RunRecord, code: &str) -> bool {
    record.limitations.iter().any(|l| l.code == code)
}

#[test]
fn a_key_goes_to_the_server_and_nowhere_else() {
    // It says the key back wherever it can.
    let server = Server::start(
        true,
        Arc::new(|n, _| match n {
            2 => (401, format!("{{\"error\":\"bad key {KEY}\"}}")),
            3 => (200, answer(&format!("you are {KEY}"), KEY, 7, 3)),
            _ => (
                200,
                answer("hello", "stop", 7, 3).replace("\"m\"", &format!("\"{KEY}\"")),
            ),
        }),
    );
    let work = work(&plan(&with_key(&server, "ca.pem"), "", ""));
    let ended = run(&work, Some(KEY)).exits(0);
    let seen = server.seen();
    assert_eq!(seen.len(), 5, "a warm-up and four cases");
    for request in &seen {
        assert!(
            request.head.starts_with("POST /v1/chat/completions "),
            "{}",
            request.head
        );
        let authorization = format!("authorization: Bearer {KEY}");
        assert!(request.head.contains(&authorization), "{}", request.head);
        assert_eq!(request.body["model"], "some-model");
    }
    assert!(!ended.out.contains(KEY) && !ended.err.contains(KEY));
    assert_eq!(files_with(work.dir.path(), KEY), [""; 0]);

    let record = work.record();
    assert_eq!(record.transport.completed, 3);
    assert_eq!(record.transport.http_error, 1);
    assert_eq!(
        (record.attribution.verified, record.integrity.replicas),
        (0, 0)
    );
    assert_eq!(because(&record.cases[0]), Some("endpoint-run-by-others"));
    assert!(has(&record, "endpoint-run-by-others") && has(&record, "executable-unpinned"));

    // Where the endpoint is stands in one file, which may be withheld.
    let held = files_with(&work.bundle(), &server.addr.to_string());
    assert_eq!(held, ["addresses.json"]);
    fs::remove_file(work.bundle().join("addresses.json")).unwrap();
    let report = work.audit(true);
    assert_eq!(errors(&report), [], "{:?}", report.findings);
    assert!(codes(&report).contains(&"part-withheld"));
}

#[test]
fn without_a_key_nothing_begins() {
    let server = Server::start(true, Arc::new(|_, _| (200, String::new())));
    let work = work(&plan(&with_key(&server, "ca.pem"), "", ""));
    for key in [None, Some(""), Some(" \n")] {
        run(&work, key).exits(2).says(VARIABLE);
        assert!(work.bundles().is_empty() && !work.path("keys").exists());
    }
    // A key in the place of its name is not repeated.
    let text = fs::read_to_string(work.path("attest.toml")).unwrap();
    fs::write(work.path("attest.toml"), text.replace(VARIABLE, KEY)).unwrap();
    let ended = run(&work, Some(KEY)).exits(2);
    assert!(!ended.err.contains(KEY), "{}", ended.err);
    assert!(server.seen().is_empty());
}

#[test]
fn a_server_that_does_not_prove_its_name_hears_nothing() {
    let server = Server::start(true, Arc::new(|_, _| (200, String::new())));
    let work = work(&plan(&with_key(&server, "other.pem"), "", ""));
    fs::write(work.path("other.pem"), OTHER_AUTHORITY).unwrap();
    let ended = run(&work, Some(KEY)).exits(1);
    assert!(server.seen().is_empty());
    let record = work.record();
    let detail = failed_with(&record, "warm", "canary-failed");
    assert!(detail.contains("connect_error"), "{detail}");
    assert!(!ended.err.contains(KEY));
    assert_eq!(files_with(work.dir.path(), KEY), [""; 0]);
}

#[test]
fn plans_that_say_too_much_or_too_little_of_an_endpoint_are_refused() {
    let server = Server::start(false, Arc::new(|_, _| (200, String::new())));
    let url = format!("url = \"http://{}\"", server.addr);
    for (text, says) in [
        (plan("", "", ""), "has no url"),
        (
            plan(&format!("{url}\nreplicas = [\"r0\"]"), "", ""),
            "none of our replicas",
        ),
        (
            plan(&format!("{url}\nca_file = \"ca.pem\""), "", ""),
            "no TLS",
        ),
        (
            plan("url = \"http://a.example\"\napi_key_env = \"A\"", "", ""),
            "unencrypted",
        ),
        (
            plan(&url, "", "[input]\nlanguage = \"tr\""),
            "length_target_tokens",
        ),
        (
            plan(
                &url,
                "api = \"completions\"\nreasoning_effort = \"high\"",
                "",
            ),
            "reasoning_effort",
        ),
        (
            plan(&url, "", "").replace(
                "[engine]\nrecipe = \"endpoint\"",
                "[engine]\nrecipe = \"reference\"",
            ),
            "the engine recipe is",
        ),
    ] {
        let work = work(&text);
        run(&work, None).exits(2).says(says);
    }
    assert!(server.seen().is_empty());
}

#[test]
fn completions_are_asked_and_read_in_their_own_form() {
    let server = Server::start(
        false,
        Arc::new(|_, _| {
            let chunks = [
                json!({"object": "text_completion", "choices": [{"index": 0, "text": "x", "finish_reason": null}]}),
                json!({"object": "text_completion", "choices": [{"index": 0, "text": "y", "finish_reason": "stop"}],
                       "usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
            ];
            let lines: String = chunks.iter().map(|c| format!("data: {c}\n\n")).collect();
            (200, format!("{lines}data: [DONE]\n\n"))
        }),
    );
    let endpoint = format!("url = \"http://{}\"", server.addr);
    let work = work(&plan(&endpoint, "api = \"completions\"", ""));
    run(&work, None).exits(0);
    for request in server.seen() {
        assert!(
            request.head.starts_with("POST /v1/completions "),
            "{}",
            request.head
        );
        assert!(request.body["prompt"].as_str().unwrap().contains("\nQ: "));
        assert!(request.body.get("messages").is_none());
    }
    let record = work.record();
    assert_eq!(record.transport.completed, 4);
    assert_eq!(record.cases[0].completion_tokens, Some(2));
    let answers = fs::read_to_string(work.bundle().join("responses.jsonl")).unwrap();
    assert!(answers.contains("\"content\":\"xy\""), "{answers}");
}

#[test]
fn a_cold_cache_is_refused_for_any_report_of_any_attempt() {
    let usage = |cached: u64| {
        let details = json!({"cached_tokens": cached});
        let usage =
            json!({"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": details});
        format!("data: {}\n\n", json!({"choices": [], "usage": usage}))
    };
    let taken_back = move |n: usize| {
        let first = if n == 2 { usage(5) } else { String::new() };
        let answer =
            answer("x", "stop", 7, 2).replace("data: [DONE]", &(usage(0) + "data: [DONE]"));
        (200, first + &answer)
    };
    // An attempt that failed and was sent again found the cache warm.
    let retried = move |n: usize| {
        let answer = answer("x", "stop", 7, 2);
        let end = |cached| usage(cached) + "data: [DONE]";
        match n {
            2 => (200, format!("{}data: {{\"error\":\"x\"}}\n\n", usage(5))),
            _ => (200, answer.replace("data: [DONE]", &end(0))),
        }
    };
    let clean = move |_: usize| {
        let answer = answer("x", "stop", 7, 2);
        (
            200,
            answer.replace("data: [DONE]", &(usage(0) + "data: [DONE]")),
        )
    };
    type Answers = Arc<dyn Fn(usize) -> (u16, String) + Send + Sync>;
    let ways: [(Answers, bool); 3] = [
        (Arc::new(clean), true),
        (Arc::new(taken_back), false),
        (Arc::new(retried), false),
    ];
    for (way, cold) in ways {
        let server = Server::start(false, Arc::new(move |n, _| way(n)));
        let endpoint = format!("url = \"http://{}\"", server.addr);
        let text = plan(
            &endpoint,
            "",
            "[load.retry]\nattempts = 2\non = [\"stream_error\"]",
        )
        .replace("claim = \"none\"", "claim = \"cold\"");
        let work = work(&text);
        run(&work, None).exits(0);
        let record = work.record();
        assert_eq!(record.transport.completed, 4);
        let proven = matches!(
            record.cache.proof,
            CacheProof::Proven {
                n: 4,
                max_cached_tokens: 0
            }
        );
        let refused = match &record.cache.proof {
            CacheProof::Refused { reason } => reason.starts_with("5 cached tokens were reported"),
            _ => false,
        };
        assert_eq!((proven, refused), (cold, !cold), "{:?}", record.cache.proof);
    }
}

/// A server that keeps to the cap, but for what `change` makes of the n-th case.
fn fixed(change: fn(usize, String) -> String) -> (Work, RunRecord) {
    let server = Server::start(
        false,
        Arc::new(move |n, seen| {
            let cap = seen.body["max_tokens"].as_u64().unwrap();
            assert_eq!(seen.body["ignore_eos"], true);
            // The first request is the warm-up.
            (200, change(n, answer("go on", "length", 7, cap)))
        }),
    );
    let endpoint = format!("url = \"http://{}\"", server.addr);
    let work = work(&plan(&endpoint, "extra = { ignore_eos = true }", ""));
    run(&work, None).exits(0);
    let record = work.record();
    (work, record)
}

#[test]
fn a_fixed_output_is_proven_for_every_response_or_refused() {
    let (proven, record) = fixed(|_, a| a);
    assert_eq!(
        record.requests.fixed_output,
        Some(FixedOutput::Proven { n: 4 })
    );
    assert!(!has(&record, "fixed-output-refused"));

    type Change = fn(usize, String) -> String;
    let stopped: Change = |n, a| match n {
        2 => a.replace("\"length\"", "\"stop\""),
        _ => a,
    };
    let fewer: Change = |n, a| match n {
        2 => a.replace("\"completion_tokens\":8", "\"completion_tokens\":7"),
        _ => a,
    };
    let uncounted: Change = |n, a| match n {
        2 => a.replace("\"completion_tokens\":8", "\"completion_tokens\":null"),
        _ => a,
    };
    // A count without a token, one that is taken back, and text behind the end.
    let silent: Change = |n, a| match n {
        2 => a.replace("\"go on\"", "\"\""),
        _ => a,
    };
    let more: Change = |n, a| match n {
        2 => format!(
            "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":5000}}}}\n\n{a}"
        ),
        _ => a,
    };
    let behind: Change = |n, a| {
        match n {
        2 => a.replace(
            "data: [DONE]",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"and on\"}}]}\n\ndata: [DONE]",
        ),
        _ => a,
    }
    };
    for change in [stopped, fewer, uncounted, silent, more, behind] {
        let (work, record) = fixed(change);
        let Some(FixedOutput::Refused { reason }) = &record.requests.fixed_output else {
            panic!("{:?}", record.requests.fixed_output);
        };
        assert!(reason.starts_with("1 of 4 "), "{reason}");
        let flagged: Vec<bool> = record
            .cases
            .iter()
            .map(|c| c.flags.iter().any(|f| f == "fixed-output-missed"))
            .collect();
        assert_eq!(flagged, [false, true, false, false]);
        assert!(has(&record, "fixed-output-refused"));
        assert!(codes(&work.audit(true)).contains(&"fixed-output-refused"));
    }

    // A log edited to another count gives another claim than the one that was sealed.
    let mut raw = bundle(&proven);
    let record = raw.record.clone();
    forged(&proven, &mut raw, |line| {
        if let Event::Usage {
            req: 2, completion, ..
        } = &mut line.event
        {
            *completion = Some(7);
        }
    });
    raw.record = record;
    let report = audited(&proven, &raw);
    let differs = report
        .findings
        .iter()
        .any(|f| f.subject.contains("fixed_output"));
    assert!(differs, "{:?}", report.findings);
    // And caps that are not those of the requests are no caps.
    let mut raw = bundle(&proven);
    let name = RelPath::parse("plan.json").unwrap();
    let text = String::from_utf8(raw.files[&name].clone()).unwrap();
    let other = text.replace("\"fixed_output\":[8,8,8,8]", "\"fixed_output\":[7,8,8,8]");
    assert_ne!(text, other);
    raw.files.insert(name, other.into_bytes());
    let report = reseal(&proven, &mut raw);
    assert!(
        errors(&report).contains(&Code::SuiteMismatch),
        "{:?}",
        report.findings
    );
}

#[test]
fn addresses_in_the_log_are_found_and_so_are_other_ones() {
    let server = Server::start(false, Arc::new(|_, _| (200, answer("x", "stop", 7, 1))));
    let endpoint = format!("url = \"http://{}\"", server.addr);
    let work = work(&plan(&endpoint, "", ""));
    run(&work, None).exits(0);
    work.record();
    let address = server.addr.to_string();
    let shown = forged(&work, &mut bundle(&work), |line| {
        if let Event::Connected { req: 1, peer, .. } = &mut line.event {
            *peer = address.clone();
        }
    });
    assert_eq!(errors(&shown), [Code::AddressPublished]);
    let elsewhere = runseal::event::hidden_address(&[1; 32], "10.0.0.1:80");
    let mut raw = bundle(&work);
    let led = forged(&work, &mut raw, |line| {
        if let Event::Connected { req: 1, peer, .. } = &mut line.event {
            *peer = elsewhere.clone();
        }
    });
    assert_eq!(errors(&led), [Code::PeerNotTheEndpoint]);
    // One that differs from the others shows without the file, too.
    raw.files.remove(&RelPath::parse("addresses.json").unwrap());
    assert_eq!(errors(&audited(&work, &raw)), [Code::PeerNotTheEndpoint]);
    // Another address in the file is not the one that the log stands for.
    let mut raw = bundle(&work);
    let name = RelPath::parse("addresses.json").unwrap();
    let text = String::from_utf8(raw.files[&name].clone()).unwrap();
    let other = text.replace(
        &format!("\"peer\":\"{address}\""),
        "\"peer\":\"10.0.0.1:80\"",
    );
    assert_ne!(text, other);
    raw.files.insert(name, other.into_bytes());
    assert_eq!(errors(&reseal(&work, &mut raw)), [Code::PeerNotTheEndpoint]);
}

/// A tokenizer of four bytes a token, with a template of five tokens; a prompt over
/// the context is refused.
fn counting(context: u64) -> Server {
    Server::start(
        false,
        Arc::new(move |_, seen| {
            let messages = seen.body["messages"].as_array().unwrap();
            let bytes: usize = messages
                .iter()
                .map(|m| m["content"].as_str().unwrap().len())
                .sum();
            let tokens = 5 + bytes as u64 / 4;
            match tokens > context {
                true => (400, "{\"error\":\"too long\"}".to_owned()),
                false => (200, answer("x", "stop", tokens, 1)),
            }
        }),
    )
}

#[test]
fn prompts_reach_their_length_by_the_servers_own_count() {
    for language in ["en", "tr"] {
        let server = counting(4200);
        let endpoint = format!("url = \"http://{}\"", server.addr);
        let input = format!("[input]\nlanguage = \"{language}\"\nlength_target_tokens = 4096");
        let work = work(&plan(&endpoint, "", &input));
        run(&work, None).exits(0);
        let record = work.record();
        let [range] = &record.input.lengths[..] else {
            panic!("{:?}", record.input.lengths)
        };
        assert_eq!(
            (range.target_tokens, range.declared, range.within),
            (4096, 4, 4)
        );
        assert!(!has(&record, "length-target-missed"));
        // What it took is in the log, in no figure, and little.
        let calibration = |l: &EventLine| matches!(&l.event, Event::Queued { case, warmup: true, .. } if case != "warmup");
        let tries = work.events().iter().filter(|l| calibration(l)).count();
        assert!((4..=10).contains(&tries), "{tries}");
        assert_eq!(record.transport.declared, 4);
        let prompts: std::collections::BTreeSet<String> = server
            .seen()
            .iter()
            .map(|s| s.body["messages"].to_string())
            .collect();
        assert_eq!(
            prompts.len(),
            server.seen().len(),
            "no prompt is sent twice"
        );
        // Another amount of text is another prompt than the one that was sent.
        let report = forged(&work, &mut bundle(&work), |line| {
            if let Event::Filled { chars, .. } = &mut line.event {
                *chars += 1;
            }
        });
        assert!(
            errors(&report).contains(&Code::RequestNotAsPlanned),
            "{:?}",
            report.findings
        );
    }
}

#[test]
fn a_length_that_cannot_be_met_is_said_with_what_was_counted() {
    let server = counting(4200);
    let endpoint = format!("url = \"http://{}\"", server.addr);
    // The documents are longer than that by themselves.
    let input = "[input]\nlanguage = \"en\"\nlength_target_tokens = 20";
    let work = work(&plan(&endpoint, "", input));
    run(&work, None).exits(0);
    let record = work.record();
    let missed = record
        .limitations
        .iter()
        .find(|l| l.code == "length-target-missed");
    let missed = &missed.unwrap().params;
    assert_eq!(
        (missed["n"].as_str(), missed["declared"].as_str()),
        ("4", "4")
    );
    let range = &record.input.lengths[0];
    assert!(range.min.unwrap() > 20);
    let words = format!("20: {}-{}", range.min.unwrap(), range.max.unwrap());
    assert_eq!(missed["ranges"], words);
    assert!(codes(&work.audit(true)).contains(&"length-target-missed"));
    // Counts that would make it true are not those of the sealed record.
    let mut raw = bundle(&work);
    let sealed = raw.record.clone();
    forged(&work, &mut raw, |line| {
        if let Event::Usage { prompt, .. } = &mut line.event {
            *prompt = Some(20);
        }
    });
    raw.record = sealed;
    let report = audited(&work, &raw);
    let differs = report
        .findings
        .iter()
        .any(|f| f.subject.contains("lengths"));
    assert!(differs, "{:?}", report.findings);
}
