//! From a recipe and an inventory to the programs of every rank.

use std::collections::BTreeMap;

use runseal::digest::Sha256Digest;
use runseal::plan::{ImagePin, LayoutPlan, MountContent, MountPlan, ProgramPlan, RankPlan};
use runseal::weights::{Engine, GidIndex, Inventory, Launch, Mount, Replica, Role};

use super::fill::{FillError, Values, fill};
use super::{On, Order, Recipe, Step};

/// Placeholders that a plan keeps: they would name machines or folders on them, or
/// are only known on the node.
const KEPT: [&str; 11] = [
    "model",
    "draft",
    "adapter",
    "tokenizer",
    "program",
    "bin",
    "address",
    "head_address",
    "rendezvous",
    "rendezvous_address",
    "gid_index",
];

/// Why a recipe and an inventory do not go together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The inventory has no ranks.
    #[error(
        "recipe {0:?} is for a cluster, and the inventory's nodes have no ranks (hint: rank = 0, 1, 2, …)"
    )]
    NoRanks(String),
    /// The inventory does not say how the engine is started.
    #[error("the inventory has no [engine]")]
    NoEngine,
    /// The recipe starts nothing by itself at ranks.
    #[error("recipe {0:?} has no ranks (hint: it is for replicas that serve by themselves)")]
    Single(String),
    /// Something is needed that the inventory does not say.
    #[error("{0}")]
    Missing(String),
    /// A word cannot be filled.
    #[error("{step} of rank {rank}: {source}")]
    Word {
        /// The step.
        step: String,
        /// The rank.
        rank: u32,
        /// What is wrong with it.
        source: FillError,
    },
    /// A variable cannot be filled.
    #[error("{name} of rank {rank}: {source}")]
    Variable {
        /// Its name.
        name: String,
        /// The rank.
        rank: u32,
        /// What is wrong with it.
        source: FillError,
    },
}

/// A rank with the node that it runs on.
#[derive(Debug, Clone, Copy)]
pub struct Rank<'a> {
    /// Its number.
    pub number: u32,
    /// The node.
    pub node: &'a Replica,
}

/// The layout that a recipe gives on an inventory's nodes.
pub fn layout(recipe: &Recipe, inventory: &Inventory) -> Result<LayoutPlan, LayoutError> {
    let engine = inventory
        .extra
        .engine
        .as_ref()
        .ok_or(LayoutError::NoEngine)?;
    let ranks: Vec<Rank> = inventory
        .ranks()
        .into_iter()
        .map(|(number, node)| Rank { number, node })
        .collect();
    if recipe.steps.iter().any(|s| s.on == On::Each) || recipe.steps.is_empty() {
        return Err(LayoutError::Single(recipe.name.clone()));
    }
    if ranks.is_empty() {
        return Err(LayoutError::NoRanks(recipe.name.clone()));
    }
    if engine.launch == Launch::Process && needs_program(recipe) && engine.program.is_none() {
        return Err(LayoutError::Missing(format!(
            "launch = \"process\" needs `program` with recipe {:?}",
            recipe.name
        )));
    }
    let mut programs = Vec::new();
    for step in &recipe.steps {
        for rank in at(step, &ranks) {
            programs.push(program(recipe, engine, inventory, step, rank)?);
        }
    }
    let docker = engine.launch == Launch::Docker;
    Ok(LayoutPlan {
        ranks: ranks
            .iter()
            .map(|r| RankPlan {
                rank: r.number,
                replica: r.node.name.clone(),
            })
            .collect(),
        programs,
        image: inventory.extra.image.as_ref().filter(|_| docker).map(pins),
        docker_args: match (docker, &engine.docker_args) {
            (false, _) => Vec::new(),
            (true, Some(own)) => own.clone(),
            (true, None) => recipe.docker_args.clone(),
        },
        mounts: match docker {
            true => inventory.extra.mounts.iter().map(mount).collect(),
            false => Vec::new(),
        },
    })
}

/// The ranks of a step, in the order in which it starts them.
fn at<'a>(step: &Step, ranks: &[Rank<'a>]) -> Vec<Rank<'a>> {
    let mut out: Vec<Rank> = ranks
        .iter()
        .copied()
        .filter(|r| match step.on {
            On::All | On::Each => true,
            On::Head => r.number == 0,
            On::Workers => r.number > 0,
        })
        .collect();
    if step.order == Order::HeadLast {
        out.reverse();
    }
    out
}

fn program(
    recipe: &Recipe,
    engine: &Engine,
    inventory: &Inventory,
    step: &Step,
    rank: Rank,
) -> Result<ProgramPlan, LayoutError> {
    let values = values(recipe, inventory, rank)?;
    let head = rank.number == 0;
    let mut words: Vec<&String> = Vec::new();
    words.extend(match engine.launch {
        // Inside a container the words are those of the program itself.
        Launch::Docker if !step.exec => &recipe.docker,
        Launch::Process => &recipe.process,
        _ => &recipe.docker,
    });
    words.extend(&step.argv);
    // Served under its path, it needs no name.
    if values.get("model").and_then(Option::as_ref) != Some(&engine.served_name) {
        words.extend(&step.served_name);
    }
    if step.args {
        words.extend(&engine.args);
        words.extend(if head {
            &engine.head_args
        } else {
            &engine.worker_args
        });
    }
    words.extend(if head { &step.head } else { &step.workers });
    let keep = kept(recipe);
    let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
    let filled = |word: &String| {
        // Known to be there, even when it stays.
        fill(word, &values, &[])
            .and_then(|_| fill(word, &values, &keep))
            .map_err(|source| LayoutError::Word {
                step: step.name.clone(),
                rank: rank.number,
                source,
            })
    };
    Ok(ProgramPlan {
        step: step.name.clone(),
        rank: rank.number,
        exec: step.exec,
        argv: words.into_iter().map(filled).collect::<Result<_, _>>()?,
        env: environment(recipe, inventory, rank, &values, &keep)?,
    })
}

fn environment(
    recipe: &Recipe,
    inventory: &Inventory,
    rank: Rank,
    values: &Values,
    keep: &[&str],
) -> Result<BTreeMap<String, String>, LayoutError> {
    let refuse = |name: &str, source| LayoutError::Variable {
        name: name.to_owned(),
        rank: rank.number,
        source,
    };
    let mut env = BTreeMap::new();
    for (name, value) in &recipe.env {
        match fill(value, values, &[]) {
            Ok(_) => {}
            Err(FillError::Absent(_)) => continue,
            Err(e) => return Err(refuse(name, e)),
        }
        let value = fill(value, values, keep).map_err(|e| refuse(name, e))?;
        env.insert(name.clone(), value);
    }
    for (name, value) in inventory.extra.env.iter().chain(&rank.node.node.env) {
        let checked = fill(value, values, &[]).and_then(|_| fill(value, values, keep));
        env.insert(name.clone(), checked.map_err(|e| refuse(name, e))?);
    }
    Ok(env)
}

fn kept(recipe: &Recipe) -> Vec<String> {
    let ports = recipe.ports.keys();
    let named = ports.flat_map(|p| [format!("head:{p}"), format!("workers:{p}")]);
    KEPT.iter().map(|k| (*k).to_owned()).chain(named).collect()
}

/// What the placeholders stand for at a rank.
pub fn values(recipe: &Recipe, inventory: &Inventory, rank: Rank) -> Result<Values, LayoutError> {
    let engine = inventory
        .extra
        .engine
        .as_ref()
        .ok_or(LayoutError::NoEngine)?;
    let ranks = inventory.ranks();
    let node = &rank.node.node;
    let head = ranks.first().and_then(|(_, r)| r.node.address.clone());
    let meeting = inventory
        .extra
        .cluster
        .as_ref()
        .and_then(|c| c.rendezvous());
    let workers = |port: u16| -> Option<String> {
        let each = ranks.iter().skip(1).map(|(_, r)| {
            let address = r.node.address.as_ref()?;
            Some(format!("{address}:{port}"))
        });
        let all: Option<Vec<String>> = each.collect();
        all.filter(|a| !a.is_empty()).map(|a| a.join(","))
    };
    let joined = |items: &Vec<String>| (!items.is_empty()).then(|| items.join(","));
    let mut out = Values::new();
    let mut put = |name: &str, value: Option<String>| {
        out.insert(name.to_owned(), value);
    };
    for role in [Role::Target, Role::Draft, Role::Adapter, Role::Tokenizer] {
        let name = match role {
            Role::Target => "model",
            other => other.name(),
        };
        put(name, path(inventory, engine, rank.node, role));
    }
    put("program", engine.program.clone());
    // A folder of programs: with its slash in front of a name, or nothing.
    let folder = engine
        .program
        .as_ref()
        .map(|p| format!("{}/", p.trim_end_matches('/')));
    put("bin", Some(folder.unwrap_or_default()));
    put("served_name", Some(engine.served_name.clone()));
    put("port", Some(engine.port.to_string()));
    put("rank", Some(rank.number.to_string()));
    put("nnodes", Some(ranks.len().to_string()));
    let parallel = engine
        .tensor_parallel
        .map_or(ranks.len().to_string(), |n| n.to_string());
    put("tensor_parallel", Some(parallel));
    put("address", node.address.clone());
    put("head_address", head.clone());
    put("rendezvous", meeting.map(|(a, p)| format!("{a}:{p}")));
    put("rendezvous_address", meeting.map(|(a, _)| a.to_owned()));
    put("rendezvous_port", meeting.map(|(_, p)| p.to_string()));
    put("management", node.management.clone());
    put("fabric", joined(&node.fabric));
    put("fabric0", node.fabric.first().cloned());
    put("hcas", joined(&node.hcas));
    put(
        "gid_index",
        node.gid_index.map(|g| match g {
            GidIndex::Index(n) => n.to_string(),
            GidIndex::Auto(_) => "auto".to_owned(),
        }),
    );
    for (name, port) in &recipe.ports {
        put(&format!("port:{name}"), Some(port.to_string()));
        put(
            &format!("head:{name}"),
            head.as_ref().map(|h| format!("{h}:{port}")),
        );
        put(&format!("workers:{name}"), workers(*port));
    }
    Ok(out)
}

/// Where the engine finds a checkpoint: at its mount, or where it lies.
fn path(inventory: &Inventory, engine: &Engine, node: &Replica, role: Role) -> Option<String> {
    let here = node.paths.get(&role)?;
    if engine.launch != Launch::Docker {
        return Some(here.clone());
    }
    let mounts = &inventory.extra.mounts;
    let mounted = mounts.iter().find(|m| m.checkpoint == Some(role));
    mounted.map(|m| m.target.clone())
}

fn needs_program(recipe: &Recipe) -> bool {
    recipe.process.iter().any(|w| w.contains("{program}"))
}

fn mount(mount: &Mount) -> MountPlan {
    let content = match (mount.checkpoint, mount.sha256, &mount.unpinned) {
        (Some(role), ..) => MountContent::Checkpoint(role.name().to_owned()),
        (None, Some(digest), _) => MountContent::Sha256(digest),
        (None, None, why) => MountContent::Unpinned(why.clone().unwrap_or_default()),
    };
    MountPlan {
        target: mount.target.clone(),
        writable: mount.writable,
        content,
    }
}

fn pins(image: &runseal::weights::Image) -> ImagePin {
    let digest = |text: &String| -> Option<Sha256Digest> {
        text.strip_prefix("sha256:")
            .and_then(|hex| hex.parse().ok())
    };
    let mut manifests: Vec<Sha256Digest> = image.manifests.iter().filter_map(digest).collect();
    // A reference by digest pins its manifest.
    let of_reference = image.reference.split_once('@').map(|(_, d)| d.to_owned());
    manifests.extend(of_reference.as_ref().and_then(digest));
    manifests.sort();
    manifests.dedup();
    ImagePin {
        manifests,
        config: image.config.as_ref().and_then(digest),
        diff_ids: image.diff_ids.iter().filter_map(digest).collect(),
    }
}
