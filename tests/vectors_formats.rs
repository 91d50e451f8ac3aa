//! The library against the shared vectors of docs/formats.md and
//! docs/metrics.md. The Python auditor in tests/independent/ reads the same
//! files, so the two can only drift apart together with the documents.

use runseal::digest::{Enc, Sha256Digest, commitment};
use runseal::event::{
    DeltaKind, body_digest, delta_digest, error_digest, nonce_hash, run_commitment,
};
use runseal::json;
use runseal::metrics::exact::{decimal, percentile, ratio};
use runseal::plan::RequestSettings;
use runseal::scorer;
use runseal::suite::{AttemptKey, Suite, SuiteToml, prefix};
use serde_json::{Value, json as value};

fn vectors(name: &str) -> Vec<Value> {
    let path = format!("{}/tests/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let list = file["vectors"].as_array().unwrap().clone();
    assert!(list.len() >= 4, "{name} holds too few vectors");
    list
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_else(|| panic!("{key} in {v}"))
}

fn bytes(v: &Value, key: &str) -> Vec<u8> {
    hex::decode(text(v, key)).unwrap()
}

fn number(v: &Value, key: &str) -> u32 {
    v[key].as_u64().unwrap().try_into().unwrap()
}

fn salt(v: &Value, key: &str) -> [u8; 32] {
    bytes(v, key).try_into().unwrap()
}

fn digest(v: &Value, key: &str) -> Sha256Digest {
    text(v, key).parse().unwrap()
}

#[test]
fn canonical_json() {
    for v in vectors("json.json") {
        let got = json::parse(&bytes(&v, "input")).ok();
        let got = got.map(|parsed| hex::encode(json::canonical(&parsed)));
        assert_eq!(got.as_deref(), v["canonical"].as_str(), "{}", v["name"]);
    }
}

#[test]
fn encodings() {
    for v in vectors("enc.json") {
        let fields = v["fields"].as_array().unwrap();
        let enc = fields.iter().fold(Enc::new(text(&v, "domain")), |enc, f| {
            match f["u64"].as_u64() {
                Some(n) => enc.u64(n),
                None => enc.bytes(&bytes(f, "bytes")),
            }
        });
        assert_eq!(enc.finish(), digest(&v, "digest"), "{}", v["name"]);
        if v["domain"] == "scorer/v1" {
            let dialect = String::from_utf8(bytes(&fields[0], "bytes")).unwrap();
            let file = digest(&fields[1], "bytes");
            assert_eq!(scorer::identity(&dialect, file), digest(&v, "digest"));
        }
    }
}

#[test]
fn salted_digests_of_the_event_log() {
    for v in vectors("delta.json") {
        let content = bytes(&v, "text");
        let got = match text(&v, "what") {
            "delta" => {
                let kind: DeltaKind = serde_json::from_value(v["kind"].clone()).unwrap();
                delta_digest(&salt(&v, "salt"), number(&v, "ev"), kind, &content)
            }
            "error" => error_digest(&salt(&v, "salt"), &content),
            "body" => body_digest(&salt(&v, "salt"), &content).hex(),
            "nonce" => nonce_hash(&content.try_into().unwrap()).hex(),
            other => panic!("unknown kind of vector {other}"),
        };
        assert_eq!(got, text(&v, "digest"), "{}", v["name"]);
    }
}

#[test]
fn commitments() {
    for v in vectors("commitment.json") {
        let got = if v["salt"].is_string() {
            commitment(&salt(&v, "salt"), &bytes(&v, "bytes"))
        } else {
            run_commitment(
                digest(&v, "plan"),
                digest(&v, "nonce_hash"),
                digest(&v, "dataset"),
                text(&v, "keyid"),
            )
        };
        assert_eq!(got, digest(&v, "commitment"), "{}", v["name"]);
    }
}

/// A suite with one case (or warm-up) and the alphabet of the vector.
fn suite_of(v: &Value) -> (SuiteToml, Option<Suite>) {
    let toml = format!(
        "format = \"runseal.suite/v1\"\nname = \"vector\"\ntitle = \"Vector\"\nkind = \"serving\"\n\
         dataset = \"cases.jsonl\"\nscorer = \"scorer.toml\"\nprefix_alphabet = {}\nprefix_length = {}\n",
        v["alphabet"], v["length"]
    );
    let suite = v["messages"].is_array().then(|| {
        let case = value!({
            "id": v["case"], "expect": null, "kind": "vector",
            "max_tokens": v["max_tokens"], "messages": v["messages"],
        });
        Suite::parse(toml.as_bytes(), format!("{case}\n").as_bytes()).unwrap()
    });
    (SuiteToml::parse(toml.as_bytes()).unwrap(), suite)
}

#[test]
fn prefixes_and_request_bodies() {
    let mut bodies = 0;
    for v in vectors("prefix.json") {
        let (toml, suite) = suite_of(&v);
        let key = AttemptKey {
            case: text(&v, "case").into(),
            rep: number(&v, "rep"),
            attempt: number(&v, "attempt"),
        };
        let nonce = salt(&v, "nonce");
        assert_eq!(
            prefix(&toml, &nonce, &key),
            text(&v, "prefix"),
            "{}",
            v["name"]
        );
        if let Some(suite) = suite {
            let settings: RequestSettings = serde_json::from_value(v["requests"].clone()).unwrap();
            let body = suite.body(&settings, &nonce, &key).unwrap();
            assert_eq!(String::from_utf8(body).unwrap(), text(&v, "body"));
            bodies += 1;
        }
    }
    assert_eq!(bodies, 2);
}

#[test]
fn percentiles_and_rounding() {
    for v in vectors("percentiles.json") {
        let values: Vec<u64> = serde_json::from_value(v["values"].clone()).unwrap();
        let [num, den]: [u32; 2] = serde_json::from_value(v["p"].clone()).unwrap();
        let divide = ratio(v["divide_by"].as_u64().unwrap().into(), 1).unwrap();
        let got = percentile(&values, num, den)
            .map(|p| decimal(&(p / divide.clone()), number(&v, "decimals")));
        assert_eq!(got.as_deref(), v["result"].as_str(), "{}", v["name"]);
    }
}
