//! `runseal-cel/1`: which CEL expressions a check may be.
//!
//! Two gates. [`scan`] looks at the text alone, in one pass without recursion:
//! size, nesting of brackets, plain string literals, no stray characters. It
//! guards the CEL parser, whose recursion follows the nesting of its input, and
//! is safe in any process. [`compile`] parses and then walks the syntax tree:
//! only listed operators, functions and macros, only known names, bounded depth
//! and macro nesting. It runs in the child.
//!
//! The walk also makes evaluation deterministic. CEL leaves the order of map
//! keys open, and the interpreter uses a randomly seeded hash map; so the range
//! of every macro is wrapped in an internal function that turns a map into its
//! sorted keys, and `+` into one that refuses a map on the right (the
//! interpreter would append its keys to a list). Names that start with `@`
//! cannot be written in source, so no check can call or shadow these.

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelList, CelMap, CelMapKey, DYN_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{Env, ExecutionError};

/// Name of the dialect.
pub const DIALECT: &str = "runseal-cel/1";
/// Longest expression, in bytes.
pub const MAX_EXPR_BYTES: usize = 8 * 1024;
/// Deepest nesting of `()`, `[]` and `{}` together.
pub const MAX_BRACKETS: usize = 24;
/// Deepest syntax tree, macros expanded.
pub const MAX_DEPTH: usize = 100;
/// Deepest nesting of macros within the bodies of macros.
pub const MAX_MACROS: usize = 3;
/// Macros: `has` is a test, the others run over a list or a map's sorted keys.
pub const MACROS: [&str; 6] = ["has", "all", "exists", "exists_one", "map", "filter"];
/// The two variables.
pub const VARIABLES: [&str; 2] = ["case", "answer"];

/// Functions as `name(x)`: name and numbers of arguments.
pub const FUNCTIONS: [(&str, &[usize]); 6] = [
    ("size", &[1]),
    ("int", &[1]),
    ("double", &[1]),
    ("string", &[1]),
    ("bool", &[1]),
    ("dyn", &[1]),
];

/// Functions as `x.name(y)`: name and numbers of arguments after the target.
pub const METHODS: [(&str, &[usize]); 12] = [
    ("size", &[0]),
    ("contains", &[1]),
    ("startsWith", &[1]),
    ("endsWith", &[1]),
    ("trim", &[0]),
    ("lowerAscii", &[0]),
    ("upperAscii", &[0]),
    ("split", &[1]),
    ("join", &[0, 1]),
    ("replace", &[2]),
    ("substring", &[1, 2]),
    ("indexOf", &[1]),
];

const OPERATORS: [&str; 18] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::IN,
];

/// Only the expansions of macros use it.
const NOT_STRICTLY_FALSE: &str = operators::NOT_STRICTLY_FALSE;
const ORDERED: &str = "@ordered";
const PLUS: &str = "@plus";

/// Checks the text of an expression against the limits that need no parser.
pub fn scan(expr: &str) -> Result<(), String> {
    if expr.len() > MAX_EXPR_BYTES {
        return Err(format!(
            "the expression has {} bytes, more than {MAX_EXPR_BYTES}",
            expr.len()
        ));
    }
    let bytes = expr.as_bytes();
    let (mut i, mut depth, mut word) = (0, 0usize, 0);
    while i < bytes.len() {
        let b = bytes[i];
        if b.is_ascii_alphanumeric() || b == b'_' {
            word += 1;
            i += 1;
            continue;
        }
        // The macro exists in newer versions of CEL only, under a second name.
        if word == 9 && &bytes[i - word..i] == b"existsOne" && b == b'(' {
            return Err("existsOne is spelled exists_one".to_owned());
        }
        match b {
            b'"' | b'\'' => {
                if word > 0 {
                    return Err("raw and byte strings are not used".to_owned());
                }
                i = skip_string(bytes, i)?;
                continue;
            }
            b'(' | b'[' | b'{' => {
                depth += 1;
                if depth > MAX_BRACKETS {
                    return Err(format!("brackets are nested deeper than {MAX_BRACKETS}"));
                }
            }
            b')' | b']' | b'}' => {
                depth = depth
                    .checked_sub(1)
                    .ok_or("a bracket is closed that was not opened")?;
            }
            b'/' if bytes.get(i + 1) == Some(&b'/') => {
                while i < bytes.len() && bytes[i] != b'\n' {
                    i += 1;
                }
                word = 0;
                continue;
            }
            b' ' | b'\n' | b'\t' | b'\r' | b'.' | b',' | b':' | b'?' | b'!' | b'=' | b'<'
            | b'>' | b'+' | b'-' | b'*' | b'/' | b'%' | b'&' | b'|' => {}
            _ => {
                return Err(format!(
                    "byte 0x{b:02x} at offset {i} stands outside of a string"
                ));
            }
        }
        word = 0;
        i += 1;
    }
    if depth > 0 {
        return Err("a bracket is not closed".to_owned());
    }
    if expr.trim().is_empty() {
        return Err("the expression is empty".to_owned());
    }
    Ok(())
}

/// Offset after the string literal that starts at `start`.
fn skip_string(bytes: &[u8], start: usize) -> Result<usize, String> {
    let quote = bytes[start];
    if bytes[start..].starts_with(&[quote; 3]) {
        return Err("triple-quoted strings are not used".to_owned());
    }
    let mut i = start + 1;
    while let Some(&b) = bytes.get(i) {
        match b {
            _ if b == quote => return Ok(i + 1),
            b'\\' => i += 2,
            0..0x20 | 0x7f => return Err("a string holds a control character".to_owned()),
            _ => i += 1,
        }
    }
    Err("a string is not closed".to_owned())
}

/// A parsed check in the dialect, ready to be evaluated with [`environment`].
#[derive(Debug)]
pub struct Expression(pub(super) IdedExpr);

/// Parses and checks an expression. Only for the child process: a parser that
/// someone else feeds is not something to run in the auditor's own process.
pub fn compile(env: &Env, expr: &str) -> Result<Expression, String> {
    scan(expr)?;
    let mut tree = env.parser().parse(expr).map_err(|errors| {
        let first = errors.errors.first();
        let what = first.map_or("no reason given", |e| e.msg.as_str());
        format!("it does not parse: {what}")
    })?;
    Walk::default().expr(&mut tree, 0)?;
    Ok(Expression(tree))
}

/// The functions that checks are evaluated with.
pub fn environment() -> Result<Env, String> {
    let mut env = Env::stdlib().with_optional_support(false);
    cel::extensions::strings(&mut env).map_err(|e| e.to_string())?;
    env.add_overload(ORDERED, "ordered", vec![DYN_TYPE], ordered)
        .and_then(|()| env.add_overload(PLUS, "plus", vec![DYN_TYPE, DYN_TYPE], plus))
        .map_err(|e| e.to_string())?;
    Ok(env)
}

/// A map's keys in order; anything else as it is.
fn ordered<'b, 'v>(mut args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let range = args.remove(0);
    let Some(map) = range.downcast_ref::<CelMap>() else {
        return Ok(range);
    };
    let mut keys: Vec<CelMapKey> = map.inner().keys().cloned().collect();
    keys.sort();
    let keys: Vec<Box<dyn Val + 'v>> = keys
        .into_iter()
        .map(|key| -> Box<dyn Val + 'v> {
            match key {
                CelMapKey::Bool(k) => Box::new(k),
                CelMapKey::Int(k) => Box::new(k),
                CelMapKey::UInt(k) => Box::new(k),
                CelMapKey::String(k) => Box::new(k),
            }
        })
        .collect();
    Ok(CowVal::owned(CelList::from(keys)))
}

/// `+` without "list + map".
fn plus<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mismatch = || ExecutionError::no_such_overload(operators::ADD, Vec::new());
    let [left, right] = args.as_slice() else {
        return Err(mismatch());
    };
    if right.downcast_ref::<CelMap>().is_some() {
        return Err(mismatch());
    }
    let sum = left.as_adder().ok_or_else(mismatch)?.add(right.as_ref())?;
    Ok(CowVal::Owned(sum.into_owned()))
}

#[derive(Default)]
struct Walk {
    /// Names bound by macros, innermost last.
    bound: Vec<String>,
    macros: usize,
}

impl Walk {
    fn expr(&mut self, node: &mut IdedExpr, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("the expression is nested deeper than {MAX_DEPTH}"));
        }
        let depth = depth + 1;
        match &mut node.expr {
            Expr::Literal(LiteralValue::Bytes(_)) => Err("bytes are not used".to_owned()),
            Expr::Literal(LiteralValue::UInt(_)) => Err("unsigned numbers are not used".to_owned()),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => {
                if VARIABLES.contains(&name.as_str()) || self.bound.contains(name) {
                    Ok(())
                } else {
                    Err(format!(
                        "{name:?} is neither case nor answer nor a macro's variable"
                    ))
                }
            }
            Expr::Select(select) => self.expr(&mut select.operand, depth),
            Expr::Call(call) => self.call(call, depth),
            Expr::List(list) => {
                if !list.optional_indices.is_empty() {
                    return Err("optional values are not used".to_owned());
                }
                self.all(&mut list.elements, depth)
            }
            Expr::Map(map) => {
                for entry in &mut map.entries {
                    match &mut entry.expr {
                        EntryExpr::MapEntry(entry) if !entry.optional => {
                            self.expr(&mut entry.key, depth)?;
                            self.expr(&mut entry.value, depth)?;
                        }
                        _ => return Err("optional values are not used".to_owned()),
                    }
                }
                Ok(())
            }
            Expr::Comprehension(macro_) => {
                self.expr(&mut macro_.iter_range, depth)?;
                if macro_.iter_var2.is_some() {
                    return Err("macros over two variables are not used".to_owned());
                }
                if VARIABLES.contains(&macro_.iter_var.as_str()) {
                    return Err(format!("a macro's variable hides {}", macro_.iter_var));
                }
                self.macros += 1;
                if self.macros > MAX_MACROS {
                    return Err(format!("macros are nested deeper than {MAX_MACROS}"));
                }
                self.bound.push(macro_.iter_var.clone());
                self.bound.push(macro_.accu_var.clone());
                for part in [
                    &mut macro_.accu_init,
                    &mut macro_.loop_cond,
                    &mut macro_.loop_step,
                    &mut macro_.result,
                ] {
                    self.expr(part, depth)?;
                }
                self.bound.truncate(self.bound.len() - 2);
                self.macros -= 1;
                let range = std::mem::take(&mut macro_.iter_range);
                macro_.iter_range = IdedExpr {
                    id: range.id,
                    expr: Expr::Call(CallExpr {
                        func_name: ORDERED.to_owned(),
                        target: None,
                        args: vec![range],
                    }),
                };
                Ok(())
            }
            Expr::Struct(_) => Err("messages are not used".to_owned()),
            Expr::Unspecified => Err("a part of the expression is empty".to_owned()),
        }
    }

    fn all(&mut self, nodes: &mut [IdedExpr], depth: usize) -> Result<(), String> {
        nodes.iter_mut().try_for_each(|n| self.expr(n, depth))
    }

    fn call(&mut self, call: &mut CallExpr, depth: usize) -> Result<(), String> {
        let name = call.func_name.as_str();
        let n = call.args.len();
        let listed = |table: &[(&str, &[usize])]| {
            table
                .iter()
                .any(|(listed, arities)| *listed == name && arities.contains(&n))
        };
        let allowed = match &call.target {
            Some(_) => listed(&METHODS),
            None => OPERATORS.contains(&name) || name == NOT_STRICTLY_FALSE || listed(&FUNCTIONS),
        };
        if !allowed {
            let shape = if call.target.is_some() { "x." } else { "" };
            return Err(format!(
                "{shape}{name} with {n} arguments is not in the dialect"
            ));
        }
        if let Some(target) = &mut call.target {
            self.expr(target, depth)?;
        }
        self.all(&mut call.args, depth)?;
        // The `+` of an expanded macro stays: the interpreter recognises it and
        // appends in place, and its right side is always a list or a number.
        let of_macro = matches!(&call.args[..], [IdedExpr { expr: Expr::Ident(left), .. }, _]
            if left.starts_with('@'));
        if call.func_name == operators::ADD && !of_macro {
            call.func_name = PLUS.to_owned();
        }
        Ok(())
    }
}
