//! A checkpoint folder in the Hugging Face layout.
//!
//! Either `model.safetensors`, or `model.safetensors.index.json` with the shards it names;
//! both at once are refused, since readers differ in which they prefer. The index and the
//! shard headers must describe the same set of tensors in the same files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::config::ModelConfig;
use super::error::EngineError;
use super::safetensors::{SafetensorsFile, UniqueMap};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// An opened checkpoint; tensors are taken out one by one until none is left.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: ModelConfig,
    files: Vec<SafetensorsFile>,
    /// Tensor name to position in `files`; a tensor that was taken is gone.
    remaining: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Reads all files of a folder and checks that they fit together.
    pub fn open(folder: &Path) -> Result<Self, EngineError> {
        let path = folder.join("config.json");
        let config = ModelConfig::parse(&path, &read(&path)?)?;
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        let files = match (single.exists(), index.exists()) {
            (true, true) => {
                return Err(EngineError::Layout {
                    path: folder.to_owned(),
                    cause: format!(
                        "both {SINGLE} and {INDEX} are there, which of them holds the weights is unclear"
                    ),
                });
            }
            (false, true) => open_shards(folder, &index)?,
            // A missing file is reported under the name it should have.
            (_, false) => vec![SafetensorsFile::open(&single)?],
        };
        let remaining = files
            .iter()
            .enumerate()
            .flat_map(|(number, file)| {
                file.tensors()
                    .keys()
                    .map(move |name| (name.clone(), number))
            })
            .collect();
        Ok(Self {
            folder: folder.to_owned(),
            config,
            files,
            remaining,
        })
    }

    /// The checkpoint's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Takes a tensor that must be there with exactly this shape.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        let Some(number) = self.remaining.remove(name) else {
            return Err(self.layout(format!("tensor {name} is missing")));
        };
        let file = &self.files[number];
        let info = &file.tensors()[name];
        if info.shape != shape {
            return Err(EngineError::Shape {
                path: file.path().to_owned(),
                name: name.to_owned(),
                expected: shape.to_vec(),
                found: info.shape.clone(),
            });
        }
        file.values(name, info)
    }

    /// Ends the reading: a tensor nobody asked for means this is not the model it claims.
    pub fn finish(self) -> Result<(), EngineError> {
        match self.remaining.keys().next() {
            None => Ok(()),
            Some(name) => Err(self.layout(format!(
                "tensor {name} has no place in the model that config.json describes ({} such)",
                self.remaining.len()
            ))),
        }
    }

    fn layout(&self, cause: String) -> EngineError {
        EngineError::Layout {
            path: self.folder.clone(),
            cause,
        }
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

fn open_shards(folder: &Path, index_path: &Path) -> Result<Vec<SafetensorsFile>, EngineError> {
    let Index {
        weight_map: UniqueMap(map),
    } = serde_json::from_slice(&read(index_path)?).map_err(|source| EngineError::Json {
        path: index_path.to_owned(),
        source,
    })?;
    let fault = |cause: String| EngineError::Layout {
        path: index_path.to_owned(),
        cause,
    };
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, file) in &map {
        // A shard is a sibling of its index; anything else would read outside the folder
        // that was rehashed.
        if !file.ends_with(".safetensors") || file.contains(['/', '\\']) {
            return Err(fault(format!(
                "{file:?} is not the name of a safetensors file in this folder"
            )));
        }
        by_file.entry(file).or_default().push(tensor);
    }
    let mut files = Vec::with_capacity(by_file.len());
    for (name, tensors) in by_file {
        let file = SafetensorsFile::open(&folder.join(name))?;
        if let Some(tensor) = tensors
            .iter()
            .find(|tensor| !file.tensors().contains_key(**tensor))
        {
            return Err(fault(format!(
                "tensor {tensor} should be in {name}, whose header does not have it"
            )));
        }
        if let Some(tensor) = file
            .tensors()
            .keys()
            .find(|tensor| map.get(*tensor).is_none_or(|file| file != name))
        {
            return Err(fault(format!(
                "{name} holds tensor {tensor}, which the index does not place there"
            )));
        }
        files.push(file);
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>, EngineError> {
    std::fs::read(path).map_err(|source| EngineError::Read {
        path: path.to_owned(),
        source,
    })
}
