//! The byte tokenizer and the chat template.
//!
//! Ids 0 to 255 are bytes; padding, begin and end come from `config.json`. The template is
//!
//! ```text
//! bos  content-1 "\n"  content-2 "\n" ...  "A: "
//! ```
//!
//! Roles leave no trace: the model was trained on documents, not on conversations.

use super::config::ModelConfig;

/// What opens the answer.
pub const GENERATION_PROMPT: &str = "A: ";

/// Maps texts to ids and ids to bytes.
#[derive(Debug, Clone, Copy)]
pub struct Tokenizer {
    bos: u32,
    eos: u32,
}

impl Tokenizer {
    /// The tokenizer of a checkpoint.
    pub fn new(config: &ModelConfig) -> Self {
        Self {
            bos: config.bos,
            eos: config.eos,
        }
    }

    /// The id that ends an answer.
    pub fn eos(&self) -> u32 {
        self.eos
    }

    /// The prompt for a list of message contents.
    pub fn prompt<'a>(&self, contents: impl IntoIterator<Item = &'a str>) -> Vec<u32> {
        let mut ids = vec![self.bos];
        for content in contents {
            ids.extend(content.bytes().map(u32::from));
            ids.push(u32::from(b'\n'));
        }
        ids.extend(GENERATION_PROMPT.bytes().map(u32::from));
        ids
    }

    /// The byte a token stands for; special ids stand for no text.
    pub fn byte(&self, id: u32) -> Option<u8> {
        u8::try_from(id).ok()
    }
}
