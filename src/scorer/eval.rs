//! Evaluation of a compiled scorer. Runs in the child process only.
//!
//! JSON becomes CEL as follows: an integer written without fraction or exponent,
//! within ±2^53, is an `int`; every other number is a `double`; the rest maps one
//! to one. `answer.json` is the content read as one strict JSON value (JSON white
//! space around it is fine; duplicate keys, `NaN`, nesting past
//! [`crate::json::MAX_DEPTH`] and integers past 2^53 are not), else `null`.
//!
//! Reasons name the check and a class of error, never a value: they must be the
//! same on every machine, and they are published while answers may be withheld.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString,
};
use cel::common::value::Val;
use cel::{Context, Env, ExecutionError};
use serde_json::Value;

use super::dialect::{self, Expression};
use super::{
    Answer, Grade, MAX_ANSWER_BYTES, MAX_CASE_BYTES, MAX_JSON_VALUES, Scorer, ScorerError,
};
use crate::json;

/// A scorer whose checks are parsed and within the dialect.
pub struct Compiled {
    env: Arc<Env>,
    checks: Vec<(String, Expression)>,
}

impl Compiled {
    /// Parses every check; the first one outside the dialect refuses the scorer.
    pub fn new(scorer: &Scorer) -> Result<Self, ScorerError> {
        let env = dialect::environment().map_err(ScorerError::File)?;
        let mut checks = Vec::new();
        for check in scorer.checks() {
            let expression =
                dialect::compile(&env, &check.expr).map_err(|why| ScorerError::Check {
                    id: check.id.clone(),
                    why,
                })?;
            checks.push((check.id.clone(), expression));
        }
        Ok(Self {
            env: Arc::new(env),
            checks,
        })
    }

    /// Grades one case.
    pub fn grade(&self, case: &Value, answer: &Answer) -> Grade {
        if let Err(grade) = check_size(case, answer) {
            return grade;
        }
        let parsed = json::parse(answer.content.as_bytes()).unwrap_or(Value::Null);
        if too_many_values([&parsed]) {
            return ungraded(format!(
                "the content holds more than {MAX_JSON_VALUES} JSON values"
            ));
        }
        let mut context = Context::with_env(Arc::clone(&self.env));
        context.add_variable_as_val("case", to_cel(case));
        context.add_variable_as_val("answer", answer_to_cel(answer, &parsed));
        for (id, expression) in &self.checks {
            // The interpreter has `panic!` on paths that the dialect should not
            // reach; should one be reached, it is this check that errs.
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let value =
                    cel::Value::resolve_val(&expression.0, &context).map_err(|e| class_of(&e))?;
                match value.downcast_ref::<CelBool>() {
                    Some(b) => Ok(*b.inner()),
                    None => Err("the result is not a boolean"),
                }
            }));
            match outcome {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return Grade::Fail { check: id.clone() },
                Ok(Err(class)) => return ungraded(format!("check {id}: {class}")),
                Err(_) => return ungraded(format!("check {id}: the evaluator failed")),
            }
        }
        Grade::Pass
    }
}

fn ungraded(reason: String) -> Grade {
    Grade::Ungraded { reason }
}

/// Limits that are the same on every machine. Asked by the parent before it
/// sends an item, and again by the child.
pub fn check_size(case: &Value, answer: &Answer) -> Result<(), Grade> {
    let limit = |what: &str, max: usize, unit: &str| {
        Err(ungraded(format!("the {what} holds more than {max} {unit}")))
    };
    if !case.is_object() {
        return Err(ungraded("the case is not a JSON object".to_owned()));
    }
    let shapes = [
        ("case", vec![case]),
        ("answer", answer.tool_calls.iter().collect()),
    ];
    for (what, values) in shapes {
        if too_many_values(values.iter().copied()) {
            return limit(what, MAX_JSON_VALUES, "JSON values");
        }
        if values.iter().any(|v| !fits_depth(v, json::MAX_DEPTH)) {
            return limit(what, json::MAX_DEPTH, "levels of nesting");
        }
    }
    let tools: usize = answer
        .tool_calls
        .iter()
        .map(|c| json::canonical(c).len())
        .sum();
    let finish = answer.finish_reason.as_ref().map_or(0, String::len);
    if answer.content.len() + answer.reasoning.len() + finish + tools > MAX_ANSWER_BYTES {
        return limit("answer", MAX_ANSWER_BYTES, "bytes");
    }
    if json::canonical(case).len() > MAX_CASE_BYTES {
        return limit("case", MAX_CASE_BYTES, "bytes");
    }
    Ok(())
}

/// Counts with a stack of its own, so that nesting does not matter here.
fn too_many_values<'a>(values: impl IntoIterator<Item = &'a Value>) -> bool {
    let mut stack: Vec<&Value> = values.into_iter().collect();
    let mut n = 0;
    while let Some(value) = stack.pop() {
        n += 1;
        if n > MAX_JSON_VALUES {
            return true;
        }
        match value {
            Value::Array(items) => stack.extend(items),
            Value::Object(map) => stack.extend(map.values()),
            _ => {}
        }
    }
    false
}

fn fits_depth(value: &Value, left: usize) -> bool {
    let mut children: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => return true,
    };
    left > 0 && children.all(|v| fits_depth(v, left - 1))
}

fn to_cel(value: &Value) -> Box<dyn Val> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(b) => Box::new(CelBool::from(*b)),
        Value::Number(n) => match n.as_i64() {
            Some(i) if i.unsigned_abs() <= json::MAX_INTEGER => Box::new(CelInt::from(i)),
            _ => Box::new(CelDouble::from(n.as_f64().unwrap_or(f64::NAN))),
        },
        Value::String(s) => Box::new(CelString::from(s.clone())),
        Value::Array(items) => {
            let items: Vec<Box<dyn Val>> = items.iter().map(to_cel).collect();
            Box::new(CelList::from(items))
        }
        Value::Object(map) => cel_map(map.iter().map(|(k, v)| (k.clone(), to_cel(v)))),
    }
}

fn cel_map(entries: impl Iterator<Item = (String, Box<dyn Val>)>) -> Box<dyn Val> {
    let map: HashMap<CelMapKey<'static>, Box<dyn Val>> =
        entries.map(|(k, v)| (CelMapKey::from(k), v)).collect();
    Box::new(CelMap::from(map))
}

fn answer_to_cel(answer: &Answer, parsed: &Value) -> Box<dyn Val> {
    let text = |s: &str| -> Box<dyn Val> { Box::new(CelString::from(s.to_owned())) };
    let finish: Box<dyn Val> = match &answer.finish_reason {
        Some(reason) => text(reason),
        None => Box::new(CelNull),
    };
    let calls: Vec<Box<dyn Val>> = answer.tool_calls.iter().map(to_cel).collect();
    cel_map(
        [
            ("content", text(&answer.content)),
            ("reasoning", text(&answer.reasoning)),
            ("json", to_cel(parsed)),
            ("finish_reason", finish),
            ("tool_calls", Box::new(CelList::from(calls))),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v)),
    )
}

fn class_of(error: &ExecutionError) -> &'static str {
    use ExecutionError as E;
    match error {
        E::NoSuchKey(_) => "no such key",
        E::DivisionByZero(_) | E::RemainderByZero(_) => "division by zero",
        E::Overflow(..) => "overflow",
        E::IndexOutOfBounds(_) => "index out of range",
        E::DuplicateKey(_) => "repeated map key",
        E::FunctionError { .. } => "a function does not accept its argument",
        E::NoSuchOverload(_)
        | E::UnexpectedType { .. }
        | E::ValuesNotComparable(..)
        | E::UnsupportedBinaryOperator(..)
        | E::UnsupportedTargetType { .. }
        | E::UnsupportedKeyType(_)
        | E::UnsupportedIndex(..)
        | E::NotSupportedAsMethod { .. } => "types do not fit",
        _ => "evaluation error",
    }
}
