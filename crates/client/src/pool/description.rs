//! Descriptions of arrays and groups, by which a search of a pool finds them.
//!
//! A description is a JSON object in an extended attribute of the directory that contains `zarr.json`. The manager
//! indexes its fields. The client sends it with the name `zarr.json`, in one commit.

use outcore_core::element_types::TYPES;
use serde_json::{Map, Value, json};

/// The name of the metadata of an array or a group.
const METADATA: &str = "zarr.json";
/// Bytes of metadata that the client reads to describe an array or a group, at most.
pub(crate) const MAX_METADATA_BYTES: u64 = 1 << 20;
/// Bytes of a description, at most: less than an extended attribute may have.
const MAX_BYTES: usize = 60_000;

/// Whether the file at a path describes its directory.
pub(crate) fn describes(path: &str) -> bool {
    path.rsplit('/').next() == Some(METADATA)
}

/// The description of an array or a group with this `zarr.json`; `None` for anything else. It has the layout and the
/// state of an array of outcore only.
pub fn description_of(metadata: &[u8]) -> Option<Vec<u8>> {
    let document: Value = serde_json::from_slice(metadata).ok()?;
    let mut fields = match document["node_type"].as_str()? {
        "array" => array(&document)?,
        "group" => Map::new(),
        _ => return None,
    };
    fields.insert("kind".into(), document["node_type"].clone());
    fields.retain(|_, value| !value.is_null());
    let text = Value::Object(fields).to_string();
    (text.len() <= MAX_BYTES).then(|| text.into_bytes())
}

fn array(document: &Value) -> Option<Map<String, Value>> {
    let shape: Vec<u64> = document["shape"].as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
    let named = TYPES.iter().find(|(name, ..)| document["data_type"] == *name);
    let codec = &document["codecs"][0];
    let parts = if codec["name"] == "sharding_indexed" { codec } else { &document["chunk_grid"] };
    let bytes = named.and_then(|(.., bytes)| shape.iter().try_fold(*bytes, |all, n| all.checked_mul(*n)));
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| fields.insert(name.into(), value);
    add("dtype", named.map_or(Value::Null, |(_, dtype, _)| json!(dtype)));
    add("ndim", json!(shape.len()));
    add("size", json!(bytes));
    add("chunks", parts["configuration"]["chunk_shape"].clone());
    add("dims", document["dimension_names"].clone());
    let own = &document["attributes"]["outcore"];
    if own.is_object() {
        add("order", own["order"].clone());
        add("chunk_order", own["chunk_order"].clone());
        add("state", if own["state"].is_null() { json!("complete") } else { own["state"].clone() });
        if own["growing"] == true {
            add("steps", json!(shape.first()));
        }
    }
    add("shape", json!(shape));
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(metadata: &Value) -> Value {
        let found = description_of(metadata.to_string().as_bytes());
        found.map_or(Value::Null, |text| serde_json::from_slice(&text).unwrap())
    }

    #[test]
    fn arrays_and_groups_have_descriptions() {
        let grid = json!({"name": "regular", "configuration": {"chunk_shape": [8, 9]}});
        let mut metadata = json!({
            "node_type": "array", "shape": [5, 7], "data_type": "complex64", "chunk_grid": grid,
            "codecs": [{"name": "bytes"}], "dimension_names": ["x", null], "attributes": {"a": 1},
        });
        let foreign = json!({
            "kind": "array", "dtype": "c8", "shape": [5, 7], "ndim": 2, "size": 280, "chunks": [8, 9],
            "dims": ["x", null],
        });
        assert_eq!(described(&metadata), foreign);
        metadata["attributes"]["outcore"] =
            json!({"order": "F", "chunk_order": "row-major", "growing": true});
        metadata["codecs"][0] = json!({"name": "sharding_indexed", "configuration": {"chunk_shape": [4, 3]}});
        let mut own = foreign;
        own["order"] = json!("F");
        own["chunk_order"] = json!("row-major");
        own["state"] = json!("complete");
        own["steps"] = json!(5);
        own["chunks"] = json!([4, 3]);
        assert_eq!(described(&metadata), own);
        metadata["attributes"]["outcore"] = json!({"state": "incomplete"});
        assert_eq!(described(&metadata)["state"], "incomplete");
        metadata["data_type"] = json!({"name": "numpy.datetime64"});
        assert_eq!(
            (&described(&metadata)["dtype"], &described(&metadata)["size"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(described(&json!({"node_type": "group", "attributes": {}})), json!({"kind": "group"}));
    }

    #[test]
    fn other_files_have_none() {
        for text in ["", "[", "[]", "5", "{}", r#"{"node_type": 5}"#, r#"{"node_type": "array"}"#] {
            assert_eq!(description_of(text.as_bytes()), None, "{text}");
        }
        for shape in [json!([-1]), json!([0.5]), json!("5"), json!(vec![1; MAX_BYTES / 2])] {
            assert_eq!(described(&json!({"node_type": "array", "shape": shape})), Value::Null);
        }
        let huge = json!({"node_type": "array", "shape": [u64::MAX, 2], "data_type": "int8"});
        assert_eq!(described(&huge)["size"], Value::Null);
        assert!(describes("zarr.json") && describes("a/zarr.json") && !describes("a.zarr.json"));
    }
}
