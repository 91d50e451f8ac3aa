//! Fields that a document has and its type does not know.

use serde_json::Value;

/// Paths in `given` that `known` (the same document, read and written again) lacks. A
/// null says as much as an absent field.
pub fn fields(given: &Value, known: &Value) -> Vec<String> {
    let mut out = Vec::new();
    walk("", given, known, &mut out);
    out
}

fn walk(path: &str, given: &Value, known: &Value, out: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (key, value) in given {
                let next = match path {
                    "" => key.clone(),
                    _ => format!("{path}.{key}"),
                };
                match known.get(key) {
                    Some(known) => walk(&next, value, known, out),
                    None if value.is_null() => {}
                    // An empty list is left out when written again.
                    None if value.as_array().is_some_and(Vec::is_empty) => {}
                    None => out.push(next),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (i, (given, known)) in given.iter().zip(known).enumerate() {
                walk(&format!("{path}[{i}]"), given, known, out);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_the_type_lost_is_named() {
        let given = json!({"a": 1, "b": {"c": 2, "d": null}, "e": [{"f": 1, "g": 2}], "h": []});
        let known = json!({"a": 1, "b": {}, "e": [{"f": 1}]});
        assert_eq!(fields(&given, &known), ["b.c", "e[0].g"]);
        assert!(fields(&known, &known).is_empty());
    }
}
