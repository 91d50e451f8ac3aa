//! The exact words that start a program of a rank: of the program itself, or of the
//! container engine that runs it.

use std::collections::BTreeMap;

use runseal::plan::ProgramPlan;
use runseal::weights::{Engine, Inventory, Launch, Replica};

use super::fill::fill;
use super::layout::{LayoutError, Rank, values};
use super::{Recipe, layout};

/// Label of containers and prefix of names: what carries it is ours.
pub const LABEL: &str = "runseal.run";

/// A program with every placeholder filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled {
    /// The recipe's step.
    pub step: String,
    /// The rank.
    pub rank: u32,
    /// Name of the node.
    pub node: String,
    /// Inside the container of the rank's first program.
    pub exec: bool,
    /// Its words.
    pub argv: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// What its container sees of the node: source, target, writable.
    pub mounts: Vec<(String, String, bool)>,
}

/// Every program of a plan's layout in the order of its start, as it is on the
/// nodes of this inventory.
pub fn programs(recipe: &Recipe, inventory: &Inventory) -> Result<Vec<Filled>, LayoutError> {
    let plan = layout(recipe, inventory)?;
    let engine = inventory
        .extra
        .engine
        .as_ref()
        .ok_or(LayoutError::NoEngine)?;
    let ranks: BTreeMap<u32, &Replica> = inventory.ranks().into_iter().collect();
    let mut out = Vec::new();
    for program in &plan.programs {
        let Some(node) = ranks.get(&program.rank) else {
            continue;
        };
        let rank = Rank {
            number: program.rank,
            node,
        };
        out.push(filled(recipe, inventory, engine, program, rank)?);
    }
    Ok(out)
}

fn filled(
    recipe: &Recipe,
    inventory: &Inventory,
    engine: &Engine,
    program: &ProgramPlan,
    rank: Rank,
) -> Result<Filled, LayoutError> {
    let values = values(recipe, inventory, rank)?;
    let word = |word: &String| {
        fill(word, &values, &[]).map_err(|source| LayoutError::Word {
            step: program.step.clone(),
            rank: rank.number,
            source,
        })
    };
    let mut env = BTreeMap::new();
    for (name, value) in &program.env {
        let value = fill(value, &values, &[]).map_err(|source| LayoutError::Variable {
            name: name.clone(),
            rank: rank.number,
            source,
        })?;
        env.insert(name.clone(), value);
    }
    let mounts = match engine.launch {
        Launch::Docker => mounts(inventory, rank.node),
        _ => Vec::new(),
    };
    Ok(Filled {
        step: program.step.clone(),
        rank: rank.number,
        node: rank.node.name.clone(),
        exec: program.exec,
        argv: program.argv.iter().map(word).collect::<Result<_, _>>()?,
        env,
        mounts,
    })
}

fn mounts(inventory: &Inventory, node: &Replica) -> Vec<(String, String, bool)> {
    let each = inventory.extra.mounts.iter().filter_map(|m| {
        let source = match m.checkpoint {
            // The inventory was checked: every node has every checkpoint.
            Some(role) => node.paths.get(&role).cloned(),
            None => m.source.clone(),
        };
        Some((source?, m.target.clone(), m.writable))
    });
    each.collect()
}

/// Name of the container of a rank's first program.
pub fn container(run: &str, rank: u32) -> String {
    format!("runseal-{run}-{rank}")
}

/// The words of the container engine that start a program.
pub fn docker(
    engine: &Engine,
    options: &[String],
    image: &str,
    run: &str,
    program: &Filled,
) -> Vec<String> {
    let mut out = engine.docker_words();
    let mut add = |words: &[&str]| out.extend(words.iter().map(|w| (*w).to_owned()));
    let name = container(run, program.rank);
    if program.exec {
        add(&["exec", "--detach"]);
    } else {
        add(&["run", "--detach", "--name", &name]);
        add(&["--label", &format!("{LABEL}={run}")]);
        add(&["--label", &format!("runseal.rank={}", program.rank)]);
        options.iter().for_each(|o| add(&[o]));
        for (source, target, writable) in &program.mounts {
            let mode = if *writable { "rw" } else { "ro" };
            add(&["--volume", &format!("{source}:{target}:{mode}")]);
        }
    }
    for (name, value) in &program.env {
        add(&["--env", &format!("{name}={value}")]);
    }
    add(&[if program.exec { &name } else { image }]);
    out.extend(program.argv.iter().cloned());
    out
}

#[cfg(test)]
mod tests;
