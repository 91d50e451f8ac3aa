//! Why the engine could not load, run or serve.
//!
//! Each message names the thing, the cause and a way on. What a *client* did wrong is not
//! here: that is an HTTP answer, see [`super::api::ApiError`].

use std::io;
use std::path::PathBuf;

/// A failure of the engine itself or of the checkpoint it was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A file or folder could not be read.
    #[error("{}: cannot read: {source}; hint: the model folder needs config.json and its safetensors files, readable by this user", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A JSON file is not the JSON that its name promises.
    #[error("{}: not valid: {source}; hint: copy the file again from the checkpoint's source", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// `config.json` describes something this engine does not run.
    #[error("{}: {field}: {cause}; hint: the reference engine runs plain Llama decoders with byte tokens, nothing else", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The field at fault.
        field: &'static str,
        /// What is wrong with it.
        cause: String,
    },
    /// A safetensors file breaks its own format.
    #[error("{}: broken safetensors file: {cause}; hint: the file is damaged or cut short, rehash it against its manifest", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The rule it breaks.
        cause: String,
    },
    /// The index, the shard headers and the configuration disagree.
    #[error("{}: {cause}; hint: index, shards and config.json must come from one export", path.display())]
    Layout {
        /// The file or folder.
        path: PathBuf,
        /// The disagreement.
        cause: String,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("{}: tensor {name}: shape {found:?}, config.json implies {expected:?}; hint: config.json and the weights must come from one export", path.display())]
    Shape {
        /// The file that holds the tensor.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shape the configuration implies.
        expected: Vec<usize>,
        /// The shape in the header.
        found: Vec<usize>,
    },
    /// A weight is infinite or not a number.
    #[error("{}: tensor {name}: element {index} is {value}; hint: such weights give no answers, export the checkpoint again", path.display())]
    NotFinite {
        /// The file that holds the tensor.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Position of the element in row-major order.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// More positions were asked for than the session or model has.
    #[error(
        "{wanted} positions asked for, {limit} available; hint: shorten the prompt or lower max_tokens"
    )]
    Context {
        /// Positions needed.
        wanted: usize,
        /// Positions there are.
        limit: usize,
    },
    /// A token id outside the vocabulary.
    #[error(
        "token {id} is outside the vocabulary of {vocabulary}; hint: make prompts with this checkpoint's tokenizer"
    )]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// The listening socket, the runtime or a signal handler failed.
    #[error("{action}: {source}; hint: {hint}")]
    Serve {
        /// What was being done.
        action: String,
        /// The system's reason.
        source: io::Error,
        /// A way on.
        hint: &'static str,
    },
}
