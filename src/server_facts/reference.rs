//! The reference engine of this project.

use super::{Family, Place};
use Place::{Json, Metric};

/// It has no speculation and no cache; its counters are exact when a request ends.
pub const FAMILY: Family = Family {
    recipe: "reference",
    documents: &["/server_info", "/v1/models", "/metrics"],
    facts: &[
        ("version", &[Json("/server_info", "/version")]),
        (
            "context-limit-tokens",
            &[Json("/v1/models", "/data/0/max_model_len")],
        ),
        (
            "request-slots",
            &[Json("/server_info", "/max_running_requests")],
        ),
        (
            "running",
            &[Metric("runseal_reference_num_requests_running")],
        ),
        (
            "waiting",
            &[Metric("runseal_reference_num_requests_waiting")],
        ),
        (
            "prompt-tokens",
            &[Metric("runseal_reference_prompt_tokens_total")],
        ),
        (
            "generation-tokens",
            &[Metric("runseal_reference_generation_tokens_total")],
        ),
        (
            "cached-tokens",
            &[Metric("runseal_reference_cached_tokens_total")],
        ),
    ],
    prompt_excludes_cached: false,
};
