//! Digests of the suites that this project ships, so that a familiar name cannot
//! stand for other cases or another scorer, nor for a part of the cases while
//! they are withheld.

use crate::digest::{Enc, Sha256Digest};

/// The digests of a shipped suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shipped {
    /// Tree root over its three files.
    pub suite: Sha256Digest,
    /// SHA-256 of `suite.toml`.
    pub toml: Sha256Digest,
    /// SHA-256 of `cases.jsonl`.
    pub dataset: Sha256Digest,
    /// SHA-256 of `scorer.toml`.
    pub scorer: Sha256Digest,
    /// [`case_ids`] of its cases.
    pub case_ids: Sha256Digest,
}

/// Suite name and its five digests, in the order of [`Shipped`].
const SHIPPED: &[(&str, [&str; 5])] = &[
    (
        "serving-performance-v1",
        [
            "abe93a13c0992ab46dfa6ba1f131937a9ba665a17a6d1e1cbabd44f2d26bb8fe",
            "5ff1160aff0bf964defc3714259c560023fd8af46c7f58536b05f57f53e5545e",
            "548cac1fb97bb6d131682ee2e75a909555e9c3c3e42799e65fc537769a8df1a0",
            "cecb73e26570b85431a90ac1491a4a781039bef2f818cc9682dcfbd238a033e4",
            "6b4cf9d08766e319bb12c0c1443ebbc4f1d145d5bd56d6ced1290faaa84c6482",
        ],
    ),
    (
        "needle-recall-v1",
        [
            "6ec0a48504892de43916fa81d050db385412b7e42ba35ad03b79e0b8e5b8df87",
            "93a1c17fc967c3c84d893968f694b9fb6bb9042d428b7e09aa981d618839bf7f",
            "78e8f2b706384af6c0428decca71fa4e3c3c62a46f6895c6ec41e05875c3a901",
            "46ce9c7e617b27eabce3ee324fcb67384a73fc01b149cfc3cbd9d6464d96d9f9",
            "685cd665902ce6c40216c1863e3620a139207c098589bcfd9fcaf1b8855d0afa",
        ],
    ),
    (
        "context-sweep-v1",
        [
            "3ffc02b0caf0bd2b277fff608882edd0ed9f170041d2dddcf5f53005737e4135",
            "849c118973542e40946a0bf29ce37a73001e57e2cf495349dbc3899b0c24735d",
            "cdcf3ed34afed93b75e42da040ba7d75079b7556a7959ee10005555f962c8fc3",
            "27dc2e6319e51057d07ae59216f072a3afa0fed6f9b41003998ed8d69364a845",
            "945d81d80fa0215bc2d68ab98cf6ab9e87e5c5d1d8a60241b144b28d4556b09f",
        ],
    ),
    (
        "recipe-card-v1",
        [
            "e272771f0171f367fa3428370c0a0240258137149105bd005d0cc6927248192f",
            "2a6a1e26d29c90aaea85246844ebed7a9d6ae92f028a061969989b17163813dc",
            "e31401f444413908a56a3bd2c02e0f10efbe27eea433971264d2558d2943c783",
            "f6f90de4310ad899a657a01060351c2c7b9379acaea41686e5f15c9fcb40c9b0",
            "0b9dd2d6c562f80b75f76fafba05bbff801369a94d352400b1b4183a7b02d193",
        ],
    ),
];

/// The digests that a shipped suite of this name has; `None` for other names.
pub fn digest(name: &str) -> Option<Shipped> {
    let (_, hex) = SHIPPED.iter().find(|(n, _)| *n == name)?;
    let [suite, toml, dataset, scorer, case_ids] = hex.map(|h| h.parse().ok());
    Some(Shipped {
        suite: suite?,
        toml: toml?,
        dataset: dataset?,
        scorer: scorer?,
        case_ids: case_ids?,
    })
}

/// Digest of a list of case ids (`runseal-enc/v1`, domain `case-ids/v1`, one field
/// per id).
pub fn case_ids(ids: &[String]) -> Sha256Digest {
    ids.iter()
        .fold(Enc::new("case-ids/v1"), |enc, id| enc.bytes(id.as_bytes()))
        .finish()
}
