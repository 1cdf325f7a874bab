//! The `zarr.json` of an array, as `docs/format.md` specifies it.

use outcore_core::{ChunkGrid, ChunkOrder, Error, ErrorKind, GridSpec, Result, StorageOrder};
use serde_json::{Value, json};

const FORMAT: u64 = 1;
/// The alignment of slots that `zarr.json` does not mention.
const SLOT_ALIGN_BYTES: u64 = 4096;

/// The types of elements, with their sizes in bytes and the fill value.
const TYPES: [(&std::ffi::CStr, u64, &str); 14] = [
    (c"bool", 1, "false"),
    (c"int8", 1, "0"),
    (c"int16", 2, "0"),
    (c"int32", 4, "0"),
    (c"int64", 8, "0"),
    (c"uint8", 1, "0"),
    (c"uint16", 2, "0"),
    (c"uint32", 4, "0"),
    (c"uint64", 8, "0"),
    (c"float16", 2, "0.0"),
    (c"float32", 4, "0.0"),
    (c"float64", 8, "0.0"),
    (c"complex64", 8, "[0.0, 0.0]"),
    (c"complex128", 16, "[0.0, 0.0]"),
];

/// A type of elements: a place in the list of types.
#[derive(Clone, Copy)]
pub(crate) struct ElementType(usize);

impl ElementType {
    pub(crate) fn named(name: &str) -> Result<Self> {
        let found = TYPES.iter().position(|(known, _, _)| known.to_str() == Ok(name));
        let unknown = || {
            Error::invalid(format!(
                "need a type of elements such as float64, complex128, int32 or uint8, have {name:?}; choose one of Zarr's"
            ))
        };
        found.map(Self).ok_or_else(unknown)
    }

    pub(crate) fn name(self) -> &'static std::ffi::CStr {
        TYPES[self.0].0
    }

    pub(crate) fn bytes(self) -> u64 {
        TYPES[self.0].1
    }
}

/// The layout of an array, and the type of its elements.
pub(crate) struct Metadata {
    pub(crate) element: ElementType,
    pub(crate) grid: ChunkGrid,
}

impl Metadata {
    /// The text of `zarr.json` of a new array.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let spec = self.grid.spec();
        let (order, chunk_order) = match spec.storage {
            StorageOrder::C => ("C", "row-major"),
            StorageOrder::F => ("F", "column-major"),
        };
        let mut own = json!({"format": FORMAT, "order": order, "chunk_order": chunk_order});
        if spec.slot_align_bytes != SLOT_ALIGN_BYTES {
            own["slot_align_bytes"] = json!(spec.slot_align_bytes);
        }
        let mut document = self.layout();
        document["zarr_format"] = json!(3);
        document["node_type"] = json!("array");
        document["shape"] = json!(spec.shape);
        document["data_type"] = json!(self.element.name().to_str().unwrap_or_default());
        document["attributes"] = json!({ "outcore": own });
        format!("{document:#}").into_bytes()
    }

    /// The parts of `zarr.json` that locate elements.
    fn layout(&self) -> Value {
        let spec = self.grid.spec();
        let shard: Vec<u64> = self.grid.shard_chunks().iter().zip(&spec.chunk).map(|(n, c)| n * c).collect();
        let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let dims = spec.shape.len();
        let mut codecs = vec![little.clone()];
        if spec.storage == StorageOrder::F && dims > 1 {
            let order: Vec<usize> = (0..dims).rev().collect();
            codecs.insert(0, json!({"name": "transpose", "configuration": {"order": order}}));
        }
        let fill: Value = serde_json::from_str(TYPES[self.element.0].2).unwrap_or_default();
        json!({
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": [{
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": spec.chunk,
                    "codecs": codecs,
                    "index_codecs": [little, {"name": "crc32c"}],
                    "index_location": "end",
                },
            }],
        })
    }

    /// Parses `zarr.json` of the array at `path`.
    pub(crate) fn parse(text: &[u8], path: &str) -> Result<Self> {
        let damaged = |why: String| {
            Error::new(
                ErrorKind::Corrupt,
                format!("{path}/zarr.json cannot be read ({why}); restore it from a copy"),
            )
        };
        let document: Value = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        let own = &document["attributes"]["outcore"];
        if document["node_type"] != "array" || !own.is_object() || own["format"].is_null() {
            return Err(Error::invalid(format!(
                "need an array of outcore, have something else in {path}; copy it with oc.from_array of Python"
            )));
        }
        if own["format"] != FORMAT {
            let text =
                format!("{path} is of format {}, this outcore reads {FORMAT}; update outcore", own["format"]);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        if let Some(state) = own["state"].as_str() {
            let why = own["why"].as_str().unwrap_or_default();
            return Err(Error::invalid(format!(
                "need a whole array, {path} is {state} ({why}); finish that call"
            )));
        }
        if own["growing"] == true {
            return Err(Error::invalid(format!(
                "need an array of fixed shape, {path} grows; read and append its steps from Python"
            )));
        }
        let numbers = |value: &Value, name: &str| {
            let numbers = value.as_array().and_then(|each| each.iter().map(Value::as_u64).collect());
            numbers.ok_or_else(|| damaged(format!("{name} is {value}")))
        };
        let optional =
            |name: &str| if own[name].is_null() { Ok(None) } else { numbers(&own[name], name).map(Some) };
        let storage = match own["order"].as_str() {
            Some("C") => StorageOrder::C,
            Some("F") => StorageOrder::F,
            _ => return Err(damaged(format!("order is {}", own["order"]))),
        };
        let element = ElementType::named(document["data_type"].as_str().unwrap_or_default())?;
        let configuration = &document["codecs"][0]["configuration"];
        let align = own.get("slot_align_bytes").map_or(Some(SLOT_ALIGN_BYTES), Value::as_u64);
        let grid = ChunkGrid::new(GridSpec {
            shape: numbers(&document["shape"], "shape")?,
            chunk: numbers(&configuration["chunk_shape"], "chunk_shape")?,
            item_bytes: element.bytes(),
            storage,
            chunk_order: ChunkOrder::from_name(
                own["chunk_order"].as_str().unwrap_or_default(),
                optional("block_chunks")?,
            )?,
            slot_align_bytes: align.ok_or_else(|| damaged("slot_align_bytes is no number".into()))?,
            column_places: optional("column_places")?,
            growing: false,
        });
        let metadata = Self { element, grid: grid.map_err(|error| damaged(error.message))? };
        // Attributes are easily copied from array to array; the layout identifies an array of outcore.
        if essence(&document) == essence(&metadata.layout()) {
            return Ok(metadata);
        }
        Err(Error::invalid(format!(
            "need an array in the layout of outcore, {path} has another; copy it with oc.from_array of Python"
        )))
    }
}

/// The text of `zarr.json` with another state, and the reason for it; `None` for a whole array. It no longer names the call
/// that made the array.
pub(crate) fn marked(text: &[u8], path: &str, state: Option<(&str, &str)>) -> Result<Vec<u8>> {
    let damaged = |why: &dyn std::fmt::Display| {
        let text = format!("{path}/zarr.json cannot be read ({why}); restore it from a copy");
        Error::new(ErrorKind::Corrupt, text)
    };
    let mut document: Value = serde_json::from_slice(text).map_err(|error| damaged(&error))?;
    let own = document.pointer_mut("/attributes/outcore").and_then(Value::as_object_mut);
    let own = own.ok_or_else(|| damaged(&"it has no attributes of outcore"))?;
    let mut changes = false;
    for name in ["state", "why", "made"] {
        changes |= own.remove(name).is_some();
    }
    if let Some((state, why)) = state {
        own.insert("state".into(), state.into());
        own.insert("why".into(), why.into());
    } else if !changes {
        // Numbers of other attributes may have more digits than the parser keeps.
        return Ok(text.to_vec());
    }
    Ok(format!("{document:#}").into_bytes())
}

/// The state of an array that is not whole, and the reason for it.
pub(crate) fn state_of(text: &[u8]) -> Option<(String, String)> {
    let document: Value = serde_json::from_slice(text).ok()?;
    let own = &document["attributes"]["outcore"];
    let state = own["state"].as_str()?;
    Some((state.to_owned(), own["why"].as_str().unwrap_or_default().to_owned()))
}

/// The parts of a document that locate elements, without those that other writers change or leave out.
fn essence(document: &Value) -> Vec<Value> {
    let configuration = &document["codecs"][0]["configuration"];
    let key = &document["chunk_key_encoding"];
    let key_name = if key.is_string() { key } else { &key["name"] };
    let or = |value: &Value, default: &str| if value.is_null() { json!(default) } else { value.clone() };
    let codec = |codec: &Value| {
        let given = &codec["configuration"];
        json!([codec["name"], given["order"], or(&given["endian"], "little")])
    };
    let codecs = |value: &Value| value.as_array().map(|each| each.iter().map(codec).collect::<Vec<_>>());
    vec![
        document["codecs"][0]["name"].clone(),
        document["chunk_grid"]["configuration"]["chunk_shape"].clone(),
        key_name.clone(),
        or(&key["configuration"]["separator"], "/"),
        json!(document["fill_value"].as_f64().map_or(document["fill_value"].clone(), |number| json!(number))),
        json!(codecs(&configuration["codecs"])),
        json!(codecs(&configuration["index_codecs"])),
        or(&configuration["index_location"], "end"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_changes_the_state_only() {
        let text =
            br#"{"shape": [3], "attributes": {"unit": "m", "outcore": {"format": 1, "made": {"by": 7}}}}"#;
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let half = marked(text, "A", Some(("incomplete", "why"))).unwrap();
        let own = json!({"format": 1, "state": "incomplete", "why": "why"});
        assert_eq!(read(&half), json!({"shape": [3], "attributes": {"unit": "m", "outcore": own}}));
        assert_eq!(state_of(text), None);
        assert_eq!(state_of(&half), Some(("incomplete".into(), "why".into())));
        let whole = marked(&half, "A", None).unwrap();
        assert_eq!(read(&whole)["attributes"], json!({"unit": "m", "outcore": {"format": 1}}));
        assert_eq!(marked(b"{\"attributes\":  {\"outcore\": {}}}", "A", None).unwrap().len(), 32);
        assert_eq!(marked(b"{}", "A", None).unwrap_err().kind, ErrorKind::Corrupt);
    }
}
