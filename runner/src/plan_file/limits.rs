//! What a plan that people write must satisfy beyond [`RunPlan::check`]: values
//! that are legal in a record but can only be slips in a plan.

use std::path::{Component, Path};

use anyhow::bail;
use runseal::length::targets;
use runseal::plan::RunPlan;
use runseal::suite::SuiteToml;

use super::hints::nearest;

/// Longest time limit: a week.
const MAX_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Most client slots.
const MAX_CONCURRENCY: u32 = 4096;
/// Most declared attempts.
const MAX_ATTEMPTS: u64 = 1_000_000;
const ROLES: [&str; 4] = ["target", "draft", "adapter", "tokenizer"];

/// Refuses a checkpoint role that nothing reads.
pub fn role(role: &str) -> anyhow::Result<()> {
    if ROLES.contains(&role) {
        return Ok(());
    }
    let hint = nearest(role, ROLES.into_iter());
    bail!(
        "plan: unknown checkpoint role {role:?}{}",
        hint.unwrap_or_else(|| format!(" (hint: one of {})", ROLES.join(", ")))
    );
}

/// Refuses a plan outside the limits.
pub fn check(plan: &RunPlan) -> anyhow::Result<()> {
    let t = &plan.timeouts_ms;
    for (name, ms) in [
        ("connect", t.connect),
        ("first_token", t.first_token),
        ("stall", t.stall),
        ("request", t.request),
        ("ready", t.ready),
    ] {
        if ms == 0 || ms > MAX_MS {
            bail!("plan: timeouts_ms.{name} = {ms} (hint: 1 to {MAX_MS} milliseconds)");
        }
    }
    if plan.requests.max_tokens == 0 {
        bail!("plan: requests.max_tokens = 0 (hint: every answer needs room for a token)");
    }
    if plan.load.concurrency > MAX_CONCURRENCY {
        bail!(
            "plan: load.concurrency = {} (hint: at most {MAX_CONCURRENCY})",
            plan.load.concurrency
        );
    }
    let attempts = plan.suite.case_ids.len() as u64 * u64::from(plan.load.repetitions);
    if attempts > MAX_ATTEMPTS {
        bail!(
            "plan: {} cases x {} repetitions are {attempts} attempts (hint: at most {MAX_ATTEMPTS})",
            plan.suite.case_ids.len(),
            plan.load.repetitions
        );
    }
    if !plan.is_remote() && !plan.checkpoints.iter().any(|c| c.role == "target") {
        bail!("plan: there is no checkpoint of role \"target\" to serve");
    }
    for r in &plan.replicas {
        for (role, path) in &r.paths {
            let up = Path::new(path)
                .components()
                .any(|c| c == Component::ParentDir);
            if path.is_empty() || path.contains('\0') || up {
                bail!(
                    "plan: replica {}: {role} = {path:?} must be a folder's path without \"..\" (hint: \
                     beneath the folder that the run is started in, or absolute)",
                    r.name
                );
            }
        }
    }
    Ok(())
}

/// Whoever has prompts filled says to which length, for every case.
pub fn lengths(plan: &RunPlan, suite: &SuiteToml) -> anyhow::Result<()> {
    if plan.input.is_some() && targets(suite, plan).iter().any(Option::is_none) {
        bail!(
            "plan: [input] has prompts filled, and suite {} has no length of its own to fill them to (hint: \
             input.length_target_tokens)",
            suite.name
        );
    }
    Ok(())
}

/// A suite with batches decides itself how many requests are open at once.
pub fn batches(plan: &RunPlan, suite: &SuiteToml) -> anyhow::Result<()> {
    let Some(most) = suite.batches.iter().map(|b| b.concurrency).max() else {
        return Ok(());
    };
    if plan.load.mode != "closed" || plan.load.retry.is_some() {
        bail!(
            "suite {} sends batches, which need a closed loop without retries",
            suite.name
        );
    }
    if plan.load.concurrency != most {
        bail!(
            "suite {} sends batches of up to {most} requests at once (hint: load.concurrency = {most})",
            suite.name
        );
    }
    Ok(())
}
