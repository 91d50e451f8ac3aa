//! SGLang. Written after its documentation: no server of it could be run here, so its
//! fixtures are made by hand and labelled so.

use super::{Family, Place};
use Place::{Json, Metric};

/// `/get_server_info` is the older name of `/server_info`. The effective number of
/// slots can differ from the one that was asked for, so both are kept. Counters need
/// `--enable-metrics`.
pub const FAMILY: Family = Family {
    recipe: "sglang",
    documents: &[
        "/server_info",
        "/get_server_info",
        "/model_info",
        "/metrics",
    ],
    facts: &[
        (
            "version",
            &[
                Json("/server_info", "/version"),
                Json("/get_server_info", "/version"),
            ],
        ),
        ("weight-version", &[Json("/model_info", "/weight_version")]),
        (
            "context-limit-tokens",
            &[
                Json("/server_info", "/context_length"),
                Json("/get_server_info", "/context_length"),
            ],
        ),
        (
            "kv-pool-tokens",
            &[
                Json(
                    "/server_info",
                    "/internal_states/0/memory_usage/token_capacity",
                ),
                Json(
                    "/get_server_info",
                    "/internal_states/0/memory_usage/token_capacity",
                ),
                Json("/server_info", "/max_total_num_tokens"),
                Json("/get_server_info", "/max_total_num_tokens"),
            ],
        ),
        (
            "request-slots",
            &[
                Json(
                    "/server_info",
                    "/internal_states/0/effective_max_running_requests_per_dp",
                ),
                Json(
                    "/get_server_info",
                    "/internal_states/0/effective_max_running_requests_per_dp",
                ),
            ],
        ),
        (
            "request-slots-asked",
            &[
                Json("/server_info", "/max_running_requests"),
                Json("/get_server_info", "/max_running_requests"),
            ],
        ),
        (
            "speculation",
            &[
                Json("/server_info", "/speculative_algorithm"),
                Json("/get_server_info", "/speculative_algorithm"),
            ],
        ),
        (
            "spec-draft-length",
            &[
                Json("/server_info", "/speculative_num_draft_tokens"),
                Json("/get_server_info", "/speculative_num_draft_tokens"),
            ],
        ),
        (
            "spec-accept-length",
            &[
                Json("/server_info", "/internal_states/0/avg_spec_accept_length"),
                Json(
                    "/get_server_info",
                    "/internal_states/0/avg_spec_accept_length",
                ),
            ],
        ),
        ("running", &[Metric("sglang:num_running_reqs")]),
        ("waiting", &[Metric("sglang:num_queue_reqs")]),
        ("prompt-tokens", &[Metric("sglang:prompt_tokens_total")]),
        (
            "generation-tokens",
            &[Metric("sglang:generation_tokens_total")],
        ),
        ("cached-tokens", &[Metric("sglang:cached_tokens_total")]),
    ],
    prompt_excludes_cached: false,
};
