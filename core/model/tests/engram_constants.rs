//! The derived Engram constants and the hash equal the stored ones of every model at hand, bit for bit.

use std::path::{Path, PathBuf};

use deepinfer_model::engram_constants::{DEAD, EngramConstants, EngramParams};
use safetensors::SafeTensors;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Vec<u8> {
    let path = repository().join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The parameters in a `config.json`; every pad token at hand has the compressed id that is passed.
fn params(config: &str, pad_compressed_id: u32) -> EngramParams {
    let config: serde_json::Value = serde_json::from_slice(&read(config)).unwrap();
    let text = &config["text_config"];
    let number = |key: &str| text[key].as_u64().unwrap_or_else(|| panic!("no {key}")) as usize;
    let layer_ids = text["engram_layer_ids"].as_array().unwrap();
    EngramParams {
        layer_ids: layer_ids.iter().map(|layer| layer.as_u64().unwrap() as usize).collect(),
        max_ngram_size: number("engram_max_ngram_size"),
        vocab_size: number("engram_vocab_size"),
        n_heads: number("engram_n_heads"),
        compressed_vocab_size: number("engram_compressed_vocab_size"),
        pad_compressed_id,
    }
}

fn released() -> EngramConstants {
    EngramConstants::derive(&params("tests/fixtures/config.v41-flash.json", 2)).unwrap()
}

fn tiny() -> EngramConstants {
    EngramConstants::derive(&params("tests/fixtures/golden/tiny_model/config.json", 1)).unwrap()
}

fn miniature() -> EngramConstants {
    EngramConstants::derive(&params("models/deepseek-v41-mini/config.json", 2)).unwrap()
}

/// A golden tensor of signed integers or bytes, flattened.
fn integers(file: &SafeTensors<'_>, name: &str) -> Vec<i64> {
    let tensor = file.tensor(name).unwrap();
    match tensor.dtype() {
        safetensors::Dtype::I64 => tensor.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        safetensors::Dtype::I32 => {
            tensor.data().as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect()
        }
        safetensors::Dtype::U8 => tensor.data().iter().map(|&b| i64::from(b)).collect(),
        other => panic!("{name} is {other:?}"),
    }
}

/// `[slot][position][column]` rows in the `[position, slot, column]` order of the golden files.
fn flatten(rows: &[Vec<Vec<i64>>]) -> Vec<i64> {
    let positions = rows[0].len();
    (0..positions).flat_map(|position| rows.iter().flat_map(move |slot| slot[position].clone())).collect()
}

fn hash_all_slots(constants: &EngramConstants, history: &[i64], ids: &[i64]) -> Vec<i64> {
    let slots = 0..constants.layer_ids.len();
    flatten(&slots.map(|slot| constants.hash_rows(slot, history, ids)).collect::<Vec<_>>())
}

#[test]
fn derived_constants_equal_the_stored_files() {
    let cases = [
        (released(), "tests/fixtures/engram_constants.v41-flash.json"),
        (miniature(), "models/deepseek-v41-mini/engram_constants.json"),
        (tiny(), "tests/fixtures/golden/tiny_model/engram_constants.json"),
        (tiny(), "tests/fixtures/golden/trained_model/engram_constants.json"),
    ];
    for (derived, file) in cases {
        let stored = EngramConstants::from_json(&read(file)).unwrap();
        stored.check_against(&derived).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(stored, derived, "{file}");
    }
}

#[test]
fn table_rows_equal_the_configured_embeddings() {
    assert_eq!(released().table_rows(), [384_006_168, 384_016_682]);
    assert_eq!(miniature().table_rows(), [20_808, 21_116]);
    assert_eq!(tiny().table_rows(), [660, 864]);
    assert_eq!(released().columns(), 24);
}

#[test]
fn released_constants_and_rows_equal_the_golden_file() {
    let bytes = read("tests/fixtures/golden/engram_released.safetensors");
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let constants = released();
    assert_eq!(constants.multipliers.concat(), integers(&golden, "multipliers"));
    assert_eq!(constants.primes.concat().concat(), integers(&golden, "primes"));
    assert_eq!(constants.offsets.concat(), integers(&golden, "offsets"));
    assert_eq!(vec![constants.pad], integers(&golden, "pad"));

    let token_map = integers(&golden, "token_map");
    let ids: Vec<i64> = integers(&golden, "ids").iter().map(|&id| token_map[id as usize]).collect();
    assert_eq!(hash_all_slots(&constants, &[], &ids), integers(&golden, "rows"));
}

#[test]
fn tiny_rows_with_and_without_dead_positions_equal_the_golden_file() {
    let bytes = read("tests/fixtures/golden/engram.safetensors");
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let constants = tiny();
    let token_map = integers(&golden, "token_map");
    let ids: Vec<i64> = integers(&golden, "ids").iter().map(|&id| token_map[id as usize]).collect();
    let mask = integers(&golden, "text_mask");
    let masked: Vec<i64> = ids.iter().zip(&mask).map(|(&id, &text)| if text == 1 { id } else { DEAD }).collect();
    assert!(masked.contains(&DEAD), "the golden mask should hide some positions");

    let batch = 2;
    let per_row = ids.len() / batch;
    let hash = |ids: &[i64]| ids.chunks(per_row).flat_map(|row| hash_all_slots(&constants, &[], row)).collect();
    let rows: Vec<i64> = hash(&ids);
    assert_eq!(rows, integers(&golden, "rows"));
    let rows: Vec<i64> = hash(&masked);
    assert_eq!(rows, integers(&golden, "rows_masked"));

    let histories: Vec<i64> = masked.chunks(per_row).flat_map(|row| constants.next_history(&[], row)).collect();
    assert_eq!(histories, integers(&golden, "history_after"));
}

#[test]
fn chunks_with_history_give_the_rows_of_the_whole_run() {
    let constants = miniature();
    let ids: Vec<i64> = (0..40).map(|i| if i % 11 == 7 { DEAD } else { i * 97 % 3429 }).collect();
    let whole = constants.hash_rows(1, &[], &ids);
    for chunk in [1, 2, 3, 7, 40] {
        let (mut rows, mut history) = (Vec::new(), Vec::new());
        for run in ids.chunks(chunk) {
            rows.extend(constants.hash_rows(1, &history, run));
            history = constants.next_history(&history, run);
            assert_eq!(history.len(), 3);
        }
        assert_eq!(rows, whole, "chunks of {chunk}");
    }
}

#[test]
fn rows_stay_in_the_bucket_range_of_their_column() {
    let constants = released();
    let largest = 99_091;
    let rows = constants.hash_rows(0, &[], &[largest, 0, DEAD, largest, largest, largest, largest]);
    let primes = constants.primes[0].concat();
    for row in rows.iter().flat_map(|rows| rows.iter().zip(&constants.offsets[0]).zip(&primes)) {
        let ((row, offset), prime) = row;
        assert!((*offset..offset + prime).contains(row), "{row} outside {offset} + {prime}");
    }
}

#[test]
fn a_differing_file_is_named_value_by_value() {
    let derived = miniature();
    let check = |change: fn(&mut EngramConstants), expected: &str| {
        let mut stored = derived.clone();
        change(&mut stored);
        let message = stored.check_against(&derived).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    check(|c| c.multipliers[1][2] += 2, "multipliers[1][2] is 2128453807095387, but");
    check(|c| c.primes[0][2][1] = 5, "primes[0][2][1] is 5, but config.json and the tokenizer determine 3491;");
    check(|c| c.pad = 9, "pad is 9, but config.json and the tokenizer determine 2;");
    check(|c| c.layer_ids[1] = 5, "layer_ids is [1, 5], but config.json and the tokenizer determine [1, 4];");
    check(
        |c| c.multipliers.iter_mut().for_each(|m| m.truncate(3)),
        "the number of multipliers is 3 per layer, but config.json and the tokenizer determine 4 per layer;",
    );
}

#[test]
fn a_file_whose_lists_do_not_fit_is_refused() {
    let file = String::from_utf8(read("models/deepseek-v41-mini/engram_constants.json")).unwrap();
    let check = |from: &str, to: &str, expected: &str| {
        assert!(file.contains(from), "{from} is not in the file");
        let message = EngramConstants::from_json(file.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    check("[1, 4]", "[1]", "multipliers has 2 values, expected 1");
    check("145583227515267, ", "", "multipliers[1] has 3 values, expected 4");
    check("139863809226779, ", "", "primes[0] has 3 values, expected 2");
    check("[3463, 3467]", "[3463]", "primes[0][1] has 1 values, expected 2");
    check("[3463, 3467]", "[3463, 0]", "primes[0][1][1] is 0, expected a bucket count from 1 to");
    check("6918, ", "", "offsets[0] has 5 values, expected 6");
    check("10381", "10382", "offsets[0][3] is 10382, expected 10381");
    check("\"pad\": 2", "\"pad\": -2", "pad is -2, expected a value that is not negative");
    check("\"pad\": 2", "\"bad\": 2", "missing field `pad`");
    check("{", "", "engram_constants.json cannot be read");
}

#[test]
fn parameters_without_a_hash_are_refused() {
    let check = |change: fn(&mut EngramParams), expected: &str| {
        let mut params = params("models/deepseek-v41-mini/config.json", 2);
        change(&mut params);
        let message = EngramConstants::derive(&params).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    check(|p| p.max_ngram_size = 1, "engram_max_ngram_size is 1, expected at least 2");
    check(|p| p.n_heads = 0, "engram_n_heads is 0, expected at least 1");
    check(|p| p.compressed_vocab_size = 0, "engram_compressed_vocab_size is 0, expected 1 to 1073741823");
    check(|p| p.compressed_vocab_size = 1 << 30, "engram_compressed_vocab_size is 1073741824");
    check(|p| p.vocab_size = 1 << 31, "engram_vocab_size is 2147483648");
    check(|p| p.pad_compressed_id = 3429, "the compressed id of engram_pad_token_id is 3429, expected less than 3429");
}
