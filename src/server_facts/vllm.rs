//! vLLM.

use super::{Family, Place};
use Place::{Json, Label, Metric};

/// On hybrid models `kv_cache_size_tokens` is not a pool of tokens, so blocks and their
/// size stand beside it and nothing is multiplied here.
pub const FAMILY: Family = Family {
    recipe: "vllm",
    documents: &["/version", "/v1/models", "/metrics"],
    facts: &[
        ("version", &[Json("/version", "/version")]),
        (
            "context-limit-tokens",
            &[Json("/v1/models", "/data/0/max_model_len")],
        ),
        (
            "kv-cache-size-tokens",
            &[Label("vllm:cache_config_info", "kv_cache_size_tokens")],
        ),
        (
            "kv-blocks",
            &[Label("vllm:cache_config_info", "num_gpu_blocks")],
        ),
        (
            "kv-block-tokens",
            &[Label("vllm:cache_config_info", "block_size")],
        ),
        (
            "prefix-cache",
            &[Label("vllm:cache_config_info", "enable_prefix_caching")],
        ),
        ("running", &[Metric("vllm:num_requests_running")]),
        ("waiting", &[Metric("vllm:num_requests_waiting")]),
        ("prompt-tokens", &[Metric("vllm:prompt_tokens_total")]),
        (
            "generation-tokens",
            &[Metric("vllm:generation_tokens_total")],
        ),
        (
            "cached-tokens",
            &[
                Metric("vllm:prompt_tokens_cached_total"),
                Metric("vllm:prefix_cache_hits_total"),
            ],
        ),
        (
            "prefix-cache-queries",
            &[Metric("vllm:prefix_cache_queries_total")],
        ),
        (
            "prefix-cache-hits",
            &[Metric("vllm:prefix_cache_hits_total")],
        ),
        (
            "spec-drafts",
            &[Metric("vllm:spec_decode_num_drafts_total")],
        ),
        (
            "spec-draft-tokens",
            &[Metric("vllm:spec_decode_num_draft_tokens_total")],
        ),
        (
            "spec-accepted-tokens",
            &[Metric("vllm:spec_decode_num_accepted_tokens_total")],
        ),
    ],
    prompt_excludes_cached: false,
};
