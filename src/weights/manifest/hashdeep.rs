//! `hashdeep`: a header, a line that names the columns, comments, then one line
//! per file. Names are not escaped, so a name with a newline cannot be told from
//! two lines; such a list has a line that does not parse and is refused.

use std::collections::BTreeSet;

use super::read::lines;
use super::{Entry, ListFormat, Listing, ManifestError};
use crate::relpath::escape;

/// First line of every hashdeep file.
pub(super) const MAGIC: &[u8] = b"%%%% HASHDEEP-1.0";

/// Reads a hashdeep file. It must have a `sha256` column.
pub(super) fn read(bytes: &[u8]) -> Result<Listing, ManifestError> {
    let mut columns: Option<Vec<Vec<u8>>> = None;
    let mut entries = Vec::new();
    for line in lines(bytes)? {
        if line.bytes == MAGIC {
            continue;
        }
        if let Some(names) = line.bytes.strip_prefix(b"%%%% ") {
            let names: Vec<_> = names.split(|b| *b == b',').map(<[u8]>::to_vec).collect();
            // Which of the two would count?
            let mut met = BTreeSet::new();
            if let Some(twice) = names.iter().find(|name| !met.insert(*name)) {
                let why = format!("it names the column {} twice", escape(twice));
                return Err(line.refuse(why));
            }
            if columns.replace(names).is_some() {
                return Err(line.refuse("the columns are named twice"));
            }
            continue;
        }
        let Some(columns) = &columns else {
            return Err(line.refuse("no line has named the columns yet"));
        };
        // The name is the last column and may hold commas itself.
        let fields: Vec<_> = line.bytes.splitn(columns.len(), |b| *b == b',').collect();
        if fields.len() != columns.len() {
            return Err(line.refuse("it has fewer columns than were named"));
        }
        if columns.last().is_none_or(|c| c != b"filename") {
            return Err(line.refuse("the last column is not `filename`"));
        }
        let name = fields.last().copied().unwrap_or_default();
        let mut entry = Entry::of(line.path(name)?);
        for (column, field) in columns.iter().zip(&fields) {
            let text = std::str::from_utf8(field).unwrap_or_default();
            match column.as_slice() {
                b"size" => {
                    let size = text.parse().ok().filter(|_| digits(field));
                    entry.size = Some(size.ok_or_else(|| line.refuse("the size is not a number"))?);
                }
                b"sha256" => {
                    let digest = text.parse().map_err(|_| {
                        line.refuse(format!("{:?} is not a SHA-256 digest", escape(field)))
                    })?;
                    entry.sha256 = Some(digest);
                }
                _ => {}
            }
        }
        entries.push(entry);
    }
    Listing::new(ListFormat::Hashdeep, entries)
}

fn digits(field: &[u8]) -> bool {
    !field.is_empty() && field.iter().all(u8::is_ascii_digit)
}
