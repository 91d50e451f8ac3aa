//! What the hub's test support needs.

use std::path::Path;

pub const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

pub fn content(name: &str) -> Vec<u8> {
    if !name.ends_with(".safetensors") {
        return name.bytes().rev().collect();
    }
    let data = name.as_bytes();
    let header = format!(
        "{{\"t{}\":{{\"dtype\":\"U8\",\"shape\":[{n}],\"data_offsets\":[0,{n}]}}}}",
        &name[8..11],
        n = data.len()
    );
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.bytes());
    out.extend(data);
    out
}

pub fn checkpoint(folder: &Path) {
    for (name, bytes) in hub::files() {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

#[path = "../../../tests/weights_support/hub.rs"]
#[allow(dead_code)]
pub mod hub;
