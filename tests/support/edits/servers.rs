//! Edits of what the servers said of themselves.

use super::*;

const FILE: &str = "server/r0.json";
const AFTER: &str = "server/r0/after/metrics";
const BEFORE: &str = "server/r0/before/metrics";

/// Exchanges text of a document and makes server/r0.json name the new bytes.
pub fn rewrite(raw: &mut RawBundle, name: &str, from: &str, to: &str) {
    let text = String::from_utf8(file(raw, name).clone()).unwrap();
    assert!(text.contains(from), "{name} has no {from}");
    let bytes = text.replacen(from, to, 1).into_bytes();
    let digest = Sha256Digest::of(&bytes);
    *file(raw, name) = bytes;
    let when = name.split('/').nth(2).unwrap().to_owned();
    edit_json(raw, FILE, |f| {
        f[when.as_str()]["/metrics"]["sha256"] = json!(digest);
    });
}

/// Sets a sample of the reference engine's metrics.
fn sample(raw: &mut RawBundle, name: &str, metric: &str, value: &str) {
    let text = String::from_utf8(file(raw, name).clone()).unwrap();
    let start = format!("runseal_reference_{metric} ");
    let line = text.lines().find(|l| l.starts_with(&start)).unwrap();
    rewrite(
        raw,
        name,
        &format!("{line}\n"),
        &format!("{start}{value}\n"),
    );
}

/// The counters as they would stand had nobody else asked.
fn mend(raw: &mut RawBundle) {
    let derived = check(raw).derived.unwrap();
    let server = &derived.servers.as_ref().unwrap()[0];
    let count = |name: &str| {
        let fact = server.facts.iter().find(|f| f.name == name).unwrap();
        fact.counts().unwrap().0
    };
    let mine = derived
        .cases
        .iter()
        .filter(|c| c.endpoint.as_deref() == Some("r0"));
    let (p, g) = mine.fold((0, 0), |(p, g), c| {
        (
            p + c.prompt_tokens.unwrap(),
            g + c.completion_tokens.unwrap(),
        )
    });
    let prompt = (count("prompt-tokens") + p).to_string();
    let generated = (count("generation-tokens") + g).to_string();
    sample(raw, AFTER, "prompt_tokens_total", &prompt);
    sample(raw, AFTER, "generation_tokens_total", &generated);
}

fn withdraw(raw: &mut RawBundle, when: &str) {
    edit_json(raw, FILE, |f| {
        f[when]["/metrics"] = json!({"outcome": "not_obtained", "why": "lost"});
    });
}

pub fn edits() -> Vec<Edit> {
    vec![
        edit!(
            "server-documents-dropped",
            COMPLETED,
            [EvidenceMissing],
            |raw| {
                raw.files
                    .retain(|name, _| !name.to_string().starts_with("server/r0"));
            }
        ),
        edit!(
            "server-document-dropped",
            COMPLETED,
            [EvidenceMissing],
            |raw| {
                raw.files.remove(&path(AFTER));
            }
        ),
        edit!(
            "server-document-edited",
            COMPLETED,
            [EvidenceMalformed],
            |raw| {
                file(raw, AFTER).push(b'\n');
            }
        ),
        edit!(
            "server-document-withdrawn-and-left",
            COMPLETED,
            [EvidenceExtra],
            |raw| withdraw(raw, "after")
        ),
        edit!(
            "server-documents-of-another-endpoint",
            COMPLETED,
            [EvidenceMalformed],
            |raw| set(raw, FILE, "/endpoint", json!("r1"))
        ),
        edit!(
            "server-documents-of-another-run",
            COMPLETED,
            [WrongRun],
            |raw| {
                set(
                    raw,
                    FILE,
                    "/run_id",
                    json!("20261201T000000Z-golden-v1-000000"),
                );
            }
        ),
        edit!(
            "server-documents-fewer-than-planned",
            COMPLETED,
            [EvidenceMalformed],
            |raw| {
                edit_json(raw, FILE, |f| {
                    f["after"].as_object_mut().unwrap().remove("/server_info");
                });
                raw.files.remove(&path("server/r0/after/server_info"));
            }
        ),
        edit!(
            "server-documents-older-than-the-measurement",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_json(raw, FILE, |f| {
                    f["before"]["/metrics"]["asked"] = json!(0);
                });
            }
        ),
        edit!(
            "server-documents-from-before-said-to-be-after",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_json(raw, FILE, |f| {
                    let early = f["before"]["/metrics"]["ended"].clone();
                    f["after"]["/metrics"]["asked"] = early.clone();
                    f["after"]["/metrics"]["ended"] = early;
                });
            }
        ),
        says!(
            "server-counters-withdrawn",
            COMPLETED,
            "/servers/0/foreign_during/state",
            "not_judged",
            |raw| {
                withdraw(raw, "after");
                raw.files.remove(&path(AFTER));
            }
        ),
        says!(
            "server-busy-before",
            COMPLETED,
            "/run/taints/0/cause",
            "foreign-traffic-before",
            |raw| sample(raw, BEFORE, "num_requests_waiting", "1")
        ),
        says!(
            "server-counts-more-than-our-own",
            COMPLETED,
            "/run/taints/0/cause",
            "foreign-traffic-during",
            |raw| sample(raw, AFTER, "generation_tokens_total", "1000000")
        ),
        says!(
            "server-counts-less-than-our-own",
            COMPLETED,
            "/servers/0/foreign_during/state",
            "not_judged",
            |raw| {
                sample(raw, AFTER, "generation_tokens_total", "1");
                sample(raw, AFTER, "prompt_tokens_total", "1");
            }
        ),
        says!(
            "server-counts-cached-tokens",
            COMPLETED,
            "/cache/proof",
            "refused",
            |raw| sample(raw, AFTER, "cached_tokens_total", "1")
        ),
        // Counters are the operator's word, as the event log is.
        edit!("server-counters-mended", FOREIGN, [], mend),
    ]
}
