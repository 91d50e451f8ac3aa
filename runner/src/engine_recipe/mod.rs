//! Engine recipes: how a kind of server is started on the ranks of a cluster, as
//! data (`runner/engines/*.toml`), and the programs that follow from a recipe and
//! an inventory.

pub mod command;
mod fill;
mod layout;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use fill::{FillError, Values};
pub use layout::{LayoutError, Rank, layout, values};

/// The value of the `format` field.
pub const FORMAT: &str = "runseal.engine-recipe/v1";

/// A recipe.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    format: String,
    /// Its name.
    pub name: String,
    /// One line about it.
    pub about: String,
    /// First words in a container, after the image.
    pub docker: Vec<String>,
    /// First words of a process; `{program}` is the inventory's.
    pub process: Vec<String>,
    /// Options of `docker run`, unless the inventory has its own.
    pub docker_args: Vec<String>,
    /// Named ports that its programs listen on beside the API's.
    #[serde(default)]
    pub ports: BTreeMap<String, u16>,
    /// Environment of every program. A variable whose placeholder has no value is
    /// left out.
    pub env: BTreeMap<String, String>,
    /// What is started, in this order.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
    /// How to tell that it serves.
    pub ready: Ready,
    /// Lines of the logs that matter.
    #[serde(default, rename = "log")]
    pub logs: Vec<LogPattern>,
}

/// One kind of program, started at some ranks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// At which ranks.
    pub on: On,
    /// In which order of ranks; only with `on = "all"`.
    #[serde(default)]
    pub order: Order,
    /// It is started inside the container of the rank's first program.
    #[serde(default)]
    pub exec: bool,
    /// Its words.
    pub argv: Vec<String>,
    /// Further words, unless the model is served under its path.
    #[serde(default)]
    pub served_name: Vec<String>,
    /// The inventory's `args` follow.
    #[serde(default)]
    pub args: bool,
    /// Last words at the head.
    #[serde(default)]
    pub head: Vec<String>,
    /// Last words at the other ranks.
    #[serde(default)]
    pub workers: Vec<String>,
}

/// At which ranks a step starts something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// At every rank.
    All,
    /// At rank 0.
    Head,
    /// At the others.
    Workers,
    /// At every replica by itself; such an engine has no ranks.
    Each,
}

/// In which order ranks are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// …, 3, 2, 1, and then the head.
    #[default]
    HeadLast,
    /// The head, and then 1, 2, 3, …
    HeadFirst,
}

/// How to tell that an engine serves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// Path that answers 200 when it does.
    pub health: String,
    /// Path that requests are posted to.
    pub path: String,
}

/// A line of a log that matters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPattern {
    /// What it says.
    pub name: String,
    /// Text that the line holds.
    pub pattern: String,
}

macro_rules! recipes {
    ($($name:literal),*) => {
        /// Names of the recipes.
        pub const NAMES: &[&str] = &[$($name),*];

        fn text(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("../../engines/", $name, ".toml"))),)*
                _ => None,
            }
        }
    };
}

recipes!(
    "sglang",
    "vllm",
    "vllm-ray",
    "vllm-mentat",
    "llama-cpp",
    "reference",
    "endpoint"
);

/// The recipe of a name. They are compiled in, and a test reads them all.
pub fn recipe(name: &str) -> Option<Recipe> {
    let recipe: Recipe = toml::from_str(text(name)?).ok()?;
    (recipe.format == FORMAT && recipe.name == name).then_some(recipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_is_read() {
        for name in NAMES {
            let parsed: Result<Recipe, _> = toml::from_str(text(name).unwrap());
            let parsed = parsed.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(recipe(name), Some(parsed.clone()));
            assert!(!parsed.about.is_empty());
            // A server whose own words are kept has a family of that name.
            let family = runseal::server_facts::family(name);
            assert_eq!(family.is_none(), *name == "endpoint", "{name}");
            assert!(parsed.steps.iter().filter(|s| s.args).count() <= 1);
            for step in &parsed.steps {
                assert!(
                    step.on == On::All || step.order == Order::HeadLast,
                    "{name}"
                );
            }
        }
        assert_eq!(recipe("nosuch"), None);
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/engines")).unwrap();
        assert_eq!(files.count(), NAMES.len());
    }
}
