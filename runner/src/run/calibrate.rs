//! Calibration: how much text brings each prompt to its length by the server's count.
//!
//! Each case is tried with requests for one token, warm-ups like any other, until the
//! count is within 1 % of the target (half of what is allowed, since the measured
//! prompt has another prefix) or the tries are used up; the best one is taken. What
//! was learnt from one case is the first guess at the next.

use runseal::event::{Event, State};
use runseal::filler::MAX_CHARS;
use runseal::length::{CALIBRATION_TRIES, targets, within};
use runseal::suite::{AttemptKey, CALIBRATION};
use runseal::trace::Transport;

use super::{Run, Stop};
use crate::client::run_closed_loop_with;

/// What is known of the relation of characters to tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// Tokens that `chars` more characters made.
    rate: Option<(u64, u64)>,
    /// Of the latest try: characters of text, of the document, and tokens.
    latest: Option<(u64, u64, u64)>,
}

impl Known {
    /// Characters of text that should give `target` tokens with a document of
    /// `document` characters.
    fn guess(&self, target: u64, document: u64) -> u64 {
        let Some((chars, of_document, tokens)) = self.latest else {
            return 0;
        };
        // At worst each character is a token: too little is a try, too much can be a
        // refusal.
        let (more_tokens, more_chars) = self.rate.unwrap_or((1, 1));
        let lacking = i128::from(target) - i128::from(tokens);
        let step = lacking * i128::from(more_chars) / i128::from(more_tokens.max(1));
        let shorter = i128::from(of_document) - i128::from(document);
        let chars = i128::from(chars) + step + shorter;
        u64::try_from(chars.max(0)).unwrap_or(0).min(MAX_CHARS)
    }

    fn learn(&mut self, chars: u64, document: u64, tokens: u64) {
        if let Some((c, d, t)) = self.latest
            && d == document
            && let (more_chars, more_tokens) = (chars.abs_diff(c), tokens.abs_diff(t))
            && more_tokens > 0
            && more_chars >= 16
        {
            self.rate = Some((more_tokens, more_chars));
        }
        self.latest = Some((chars, document, tokens));
    }
}

/// True when a count is near enough to leave room for another prefix.
fn near(target: u64, tokens: u64) -> bool {
    u128::from(target.abs_diff(tokens)) * 100 <= u128::from(target)
}

impl Run {
    /// Finds out how much text each case's prompt needs.
    pub(super) async fn calibrate(&mut self) -> Result<(), Stop> {
        let plan = self.inputs.resolved.plan.clone();
        if plan.input.is_none() {
            return Ok(());
        }
        let suite = self.inputs.resolved.suite.clone();
        let targets = targets(&suite.toml, &plan);
        let (mut known, mut short, mut requests) = (Known::default(), 0, 0);
        for (i, (case, target)) in suite.cases.iter().zip(targets).enumerate() {
            let Some(target) = target else { continue };
            let document: usize = case
                .messages
                .iter()
                .map(|m| m.content.chars().count())
                .sum();
            let document = document as u64;
            let endpoint = plan.endpoint_of(i).name.clone();
            // Fewest tokens off, and the characters of that try.
            let mut best: Option<(u64, u64)> = None;
            for rep in 0..CALIBRATION_TRIES {
                let chars = known.guess(target, document);
                self.fill_with(&case.id, chars);
                let tokens = self.count(&case.id, rep, &endpoint).await?;
                requests += 1;
                known.learn(chars, document, tokens);
                let off = target.abs_diff(tokens);
                if best.is_none_or(|(least, _)| off < least) {
                    best = Some((off, chars));
                }
                // A document that is too long by itself cannot be cut.
                let whole = near(target, tokens) || (chars == 0 && tokens >= target);
                if whole || known.guess(target, document) == chars {
                    break;
                }
            }
            if let Some((off, chars)) = best {
                if self.filled.get(&case.id) != Some(&chars) {
                    self.fill_with(&case.id, chars);
                }
                short += usize::from(!within(target, target - off.min(target)));
            }
        }
        self.say(&format!(
            "warm: {requests} calibration requests for {} prompts, {short} not within 2 % of their target",
            suite.cases.len()
        ));
        Ok(())
    }

    fn fill_with(&mut self, case: &str, chars: u64) {
        self.emit(&Event::Filled {
            case: case.to_owned(),
            chars,
        });
        self.filled.insert(case.to_owned(), chars);
    }

    /// The server's count of the tokens of a case's prompt as it is filled now.
    async fn count(&mut self, case: &str, rep: u32, endpoint: &str) -> Result<u64, Stop> {
        debug_assert_eq!(self.state, State::Warm);
        let key = AttemptKey {
            case: case.to_owned(),
            rep,
            attempt: CALIBRATION,
        };
        let mut spec = self.specs()?.one(key, endpoint)?;
        let req = self.next_req;
        spec.req = req;
        self.next_req += 1;
        self.send(1, |client, cancel, put| {
            let (client, cancel) = (client.clone(), cancel.clone());
            async move { run_closed_loop_with(&client, vec![spec], 1, &cancel, put).await }
        })
        .await?;
        let traces = self.traces()?;
        let trace = traces.requests.get(req as usize);
        let failed = |why: &str| Stop::failure("calibration-failed", format!("{case}: {why}"));
        let trace = trace.ok_or_else(|| failed("its calibration left no trace"))?;
        match trace.transport() {
            Transport::Completed => trace
                .prompt_tokens()
                .ok_or_else(|| failed("the server did not count the tokens of its prompt")),
            other => Err(failed(&format!(
                "its calibration ended as {}",
                other.name()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries until near, against a server with `rate` tokens per 100 characters.
    fn tries(known: &mut Known, rate: u64, target: u64, document: u64) -> (u32, u64) {
        for n in 1..=CALIBRATION_TRIES {
            let chars = known.guess(target, document);
            let tokens = 7 + (document + chars) * rate / 100;
            known.learn(chars, document, tokens);
            if near(target, tokens) || (chars == 0 && tokens >= target) {
                return (n, tokens);
            }
        }
        panic!("never near {target}");
    }

    #[test]
    fn few_tries_reach_the_target_whatever_the_tokenizer() {
        for rate in [20, 25, 33, 100, 190] {
            let mut known = Known::default();
            let (first, _) = tries(&mut known, rate, 4096, 300);
            assert!(first <= 4, "{rate}: {first}");
            // What was learnt serves the next one.
            let (next, _) = tries(&mut known, rate, 4096, 420);
            assert!(next <= 2, "{rate}: {next}");
            let (other, _) = tries(&mut known, rate, 16384, 310);
            assert!(other <= 2, "{rate}: {other}");
        }
    }

    #[test]
    fn a_document_that_is_too_long_is_left_alone() {
        let mut known = Known::default();
        let (n, tokens) = tries(&mut known, 100, 128, 500);
        assert_eq!((n, tokens), (1, 507));
    }
}
