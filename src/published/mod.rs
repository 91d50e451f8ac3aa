//! Records that others publish, audited offline: what follows from what they hold, what
//! leaves room for it, what is only said, and what cannot be.
//!
//! Pure: bytes come in, and [`Beside`] gives the files that lie beside a record. Nobody
//! signed a published record, so its best verdict is "self-consistent"; a reader's
//! policy may accept that.

pub mod card;
mod claims;
pub mod envelope;
mod imports;
pub mod kind;
mod number;
pub mod report;
pub mod serving;
pub mod throughput;
mod times;
mod unknown;

/// The exact value of a decimal text: digits and a point, with a sign where there is one.
pub use number::parse as decimal_text;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::codes::Code;
use crate::schema;
use kind::Kind;
use report::{Auditor, PublishedReport};

/// Largest JSON document that is read as a record of others.
pub const MAX_BYTES: u64 = 64 << 20;

/// Access to the files beside a record.
pub trait Beside {
    /// The bytes of a file of that plain name; `None` when there is none, `Err` says why
    /// it was not opened.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, String>;
}

/// Nothing lies beside it.
pub struct Nothing;

impl Beside for Nothing {
    fn read(&self, _: &str) -> Result<Option<Vec<u8>>, String> {
        Ok(None)
    }
}

/// Audits a document of a known kind that is no envelope.
pub fn audit(
    path: &str,
    bytes: &[u8],
    value: &Value,
    kind: Kind,
    beside: &dyn Beside,
) -> PublishedReport {
    let mut a = Auditor::default();
    match kind {
        Kind::ThroughputV3 => {
            if let Some(r) = typed(&mut a, "published-throughput", value) {
                throughput::audit(&mut a, &r, beside);
            }
        }
        Kind::ServingV1 => {
            if let Some(r) = typed(&mut a, "published-serving", value) {
                serving::audit(&mut a, &r);
            }
        }
        Kind::RecipeCardV1 => {
            if let Some(r) = typed(&mut a, "published-card", value) {
                card::audit(&mut a, &r);
            }
        }
        Kind::VllmBench | Kind::LlamaBenchy | Kind::Guidellm | Kind::Aiperf => {
            imports::audit(&mut a, kind, value);
        }
        Kind::Unreadable | Kind::Envelope => {
            a.skip("content", true, "it is no document of this kind");
        }
    }
    a.skip(
        "signature-present",
        true,
        "the format carries no signature: nobody vouches for it",
    );
    a.finish(path, kind, bytes)
}

/// Validates against the schema of that stem and reads the type.
fn typed<T: DeserializeOwned + Serialize>(a: &mut Auditor, stem: &str, value: &Value) -> Option<T> {
    if let Err(errors) = schema::validate(stem, value) {
        for e in errors {
            a.add(Code::SchemaInvalid, "record", e);
        }
        a.close("schema", &[Code::SchemaInvalid]);
        return None;
    }
    let read: Result<T, _> = serde_json::from_value(value.clone());
    let record = match read {
        Ok(record) => record,
        Err(e) => {
            a.add(Code::SchemaInvalid, "record", e.to_string());
            a.close("schema", &[Code::SchemaInvalid]);
            return None;
        }
    };
    a.close("schema", &[Code::SchemaInvalid]);
    let known = serde_json::to_value(&record).unwrap_or_default();
    for field in unknown::fields(value, &known) {
        a.add(
            Code::FieldUnknown,
            field,
            "the format as known here has no such field; it was not looked at",
        );
    }
    Some(record)
}
