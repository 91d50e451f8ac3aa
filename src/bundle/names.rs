//! Names of a bundle's files: which there are follows from the plan.

use std::collections::BTreeSet;

use crate::plan::{ADDRESSES, RunPlan};

/// File name of a replica's report for a checkpoint role.
pub fn replica_file(replica: &str, role: &str) -> String {
    match role {
        "target" => format!("replicas/{replica}.json"),
        other => format!("replicas/{replica}.{other}.json"),
    }
}

/// Every file that a bundle of this plan may hold, besides index and record.
pub fn file_names(plan: &RunPlan) -> BTreeSet<String> {
    const ALWAYS: [&str; 9] = [
        "plan.json",
        "image.json",
        "events.jsonl",
        "responses.jsonl",
        "grades.jsonl",
        "telemetry.jsonl",
        "suite/suite.toml",
        "suite/cases.jsonl",
        "suite/scorer.toml",
    ];
    let mut names: BTreeSet<String> = ALWAYS.map(str::to_owned).into();
    if plan.is_remote() {
        names.insert(ADDRESSES.to_owned());
    }
    names.extend(node_names(plan).iter().map(|n| format!("nodes/{n}.json")));
    for checkpoint in &plan.checkpoints {
        names.insert(format!("checkpoints/{}.manifest.json", checkpoint.role));
    }
    for replica in &plan.replicas {
        names.insert(format!("engine/{}.json", replica.name));
        names.insert(format!("engine/{}.log", replica.name));
        for checkpoint in &plan.checkpoints {
            names.insert(replica_file(&replica.name, &checkpoint.role));
        }
    }
    for endpoint in plan.endpoints.iter().map(|e| e.name.as_str()) {
        if plan.engine.documents.is_empty() {
            break;
        }
        names.insert(server_file(endpoint));
        for document in &plan.engine.documents {
            names.extend(MOMENTS.map(|when| document_file(endpoint, when, document)));
        }
    }
    names
}

/// When documents of a server are kept, relative to the measurement.
pub const MOMENTS: [&str; 2] = ["before", "after"];

/// File that says which documents of an endpoint's server were kept.
pub fn server_file(endpoint: &str) -> String {
    format!("server/{endpoint}.json")
}

/// File with the bytes of one document: `/v1/models` is `v1_models`.
pub fn document_file(endpoint: &str, when: &str, path: &str) -> String {
    let name = path.trim_start_matches('/').replace('/', "_");
    format!("server/{endpoint}/{when}/{name}")
}

/// Aliases of the machines of a plan.
pub fn node_names(plan: &RunPlan) -> BTreeSet<String> {
    plan.replicas.iter().map(|r| r.node.clone()).collect()
}
