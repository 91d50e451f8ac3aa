//! `schemas/` is generated from the Rust types and must not drift from them.

use std::path::Path;

use runseal::schema::{ALL, text};

/// Regenerate with `RUNSEAL_UPDATE=1 cargo test -p runseal --test schemas`.
#[test]
fn schemas_are_those_of_the_types() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    let mut want = std::collections::BTreeSet::new();
    for (stem, generate) in ALL {
        let name = format!("{stem}.schema.json");
        let fresh = text(&generate());
        if std::env::var_os("RUNSEAL_UPDATE").is_some() {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(&name), &fresh).unwrap();
        }
        let committed = std::fs::read_to_string(dir.join(&name)).unwrap_or_default();
        assert!(
            committed == fresh,
            "schemas/{name} differs from the types; regenerate with RUNSEAL_UPDATE=1 cargo test -p runseal --test schemas"
        );
        want.insert(name);
    }
    let have: std::collections::BTreeSet<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(have, want, "schemas/ holds exactly the generated files");
}

/// Stated fields are marked in the schema, so that readers can tell them apart.
#[test]
fn stated_fields_are_marked() {
    let (_, generate) = ALL.iter().find(|(s, _)| *s == "record").unwrap();
    let schema = generate();
    let provenance = &schema["$defs"]["Provenance"]["properties"];
    for field in ["tool", "signers"] {
        assert_eq!(provenance[field]["x-derivation"], "stated", "{field}");
    }
    assert!(provenance["suite"].get("x-derivation").is_none());
}
