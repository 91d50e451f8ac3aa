//! The server of llama.cpp, started with `--metrics --slots --props`.

use super::{Family, Place};
use Place::{Json, Metric};

/// It counts prompt tokens without those reused from its cache.
pub const FAMILY: Family = Family {
    recipe: "llama.cpp",
    documents: &["/props", "/slots", "/metrics"],
    facts: &[
        ("version", &[Json("/props", "/build_info")]),
        (
            "context-limit-tokens",
            &[Json("/props", "/default_generation_settings/n_ctx")],
        ),
        ("request-slots", &[Json("/props", "/total_slots")]),
        ("speculation", &[Json("/slots", "/0/speculative")]),
        ("running", &[Metric("llamacpp:requests_processing")]),
        ("waiting", &[Metric("llamacpp:requests_deferred")]),
        ("prompt-tokens", &[Metric("llamacpp:prompt_tokens_total")]),
        (
            "generation-tokens",
            &[Metric("llamacpp:tokens_predicted_total")],
        ),
        (
            "cached-tokens",
            &[Metric("llamacpp:prompt_tokens_cached_total")],
        ),
        (
            "spec-drafts",
            &[Metric("llamacpp:spec_decode_num_drafts_total")],
        ),
        (
            "spec-draft-tokens",
            &[Metric("llamacpp:spec_decode_num_draft_tokens_total")],
        ),
        (
            "spec-accepted-tokens",
            &[Metric("llamacpp:spec_decode_num_accepted_tokens_total")],
        ),
    ],
    prompt_excludes_cached: true,
};
