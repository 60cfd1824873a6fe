//! Encoding and decoding with the miniature's tokenizer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use deepinfer_model::tokenizer::Tokenizer;
use proptest::prelude::*;

const BOS: u32 = 0;
const EOS: u32 = 1;
const VOCAB_SIZE: u32 = 4096;

static TOKENIZER: LazyLock<Arc<Tokenizer>> =
    LazyLock::new(|| Arc::new(Tokenizer::from_bytes(&read("models/deepseek-v41-mini/tokenizer.json"), BOS).unwrap()));

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Vec<u8> {
    let path = repository().join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All texts of a stream, and its end.
fn stream(ids: &[u32]) -> String {
    let mut stream = TOKENIZER.detokenize_stream();
    let mut text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
    text.extend(stream.finish());
    text
}

#[test]
fn prompts_and_texts_equal_the_reference_runs() {
    for file in ["tests/fixtures/expected.json", "tests/fixtures/expected_deploy.json"] {
        let expected: serde_json::Value = serde_json::from_slice(&read(file)).unwrap();
        let prompts = expected["prompts"].as_array().unwrap();
        assert!(!prompts.is_empty());
        for case in prompts {
            let ids = |key: &str| -> Vec<u32> { serde_json::from_value(case[key].clone()).unwrap() };
            let text = |key: &str| case[key].as_str().unwrap();
            let name = text("name");
            assert_eq!(TOKENIZER.encode_prompt(text("prompt")).unwrap(), ids("prompt_ids"), "{file}: {name}");
            assert_eq!(TOKENIZER.decode(&ids("tokens")), text("text"), "{file}: {name}");
            assert_eq!(stream(&ids("tokens")), text("text"), "{file}: {name}");
            assert_eq!(TOKENIZER.decode(&ids("prompt_ids")), text("prompt"), "{file}: {name}");
        }
    }
}

#[test]
fn the_beginning_of_sentence_is_added_once() {
    let plain = TOKENIZER.encode_prompt("Once upon a time,").unwrap();
    assert_eq!(plain[0], BOS);
    assert_eq!(plain.iter().filter(|&&id| id == BOS).count(), 1);
    assert_eq!(TOKENIZER.encode_prompt("<｜begin▁of▁sentence｜>Once upon a time,").unwrap(), plain);
    assert_eq!(TOKENIZER.encode_prompt("").unwrap(), [BOS]);
    // Text that has it later still gets one in front.
    assert_eq!(TOKENIZER.encode_prompt("a<｜begin▁of▁sentence｜>").unwrap()[0], BOS);
}

#[test]
fn special_tokens_are_parsed_and_kept() {
    let text = "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>No.<｜end▁of▁sentence｜>";
    let ids = TOKENIZER.encode_prompt(text).unwrap();
    for special in [4069, 4070, 4072, EOS] {
        assert_eq!(ids.iter().filter(|&&id| id == special).count(), 1, "{special} in {ids:?}");
    }
    assert_eq!(TOKENIZER.decode(&ids), text);
    assert_eq!(TOKENIZER.spelling(EOS).as_deref(), Some("<｜end▁of▁sentence｜>"));
}

#[test]
fn a_character_over_several_tokens_is_given_whole() {
    let text = "a🙂é";
    let ids = TOKENIZER.encode_prompt(text).unwrap();
    assert!(ids.len() > 1 + text.chars().count(), "the miniature should spell these characters in parts: {ids:?}");
    let mut stream = TOKENIZER.detokenize_stream();
    let texts: Vec<String> = ids[1..].iter().filter_map(|&id| stream.push(id)).collect();
    assert_eq!(texts, ["a", "🙂", "é"]);
    assert_eq!(stream.finish(), None);
}

#[test]
fn an_incomplete_character_is_replaced_only_at_the_end() {
    let ids = TOKENIZER.encode_prompt("🙂").unwrap();
    let mut stream = TOKENIZER.detokenize_stream();
    for &id in &ids[1..ids.len() - 1] {
        assert_eq!(stream.push(id), None);
    }
    assert_eq!(stream.finish().as_deref(), Some("\u{FFFD}"));
}

#[test]
fn ids_without_a_token_give_no_text() {
    assert_eq!(TOKENIZER.vocab_size(), VOCAB_SIZE as usize);
    assert_eq!(TOKENIZER.decode(&[VOCAB_SIZE, u32::MAX]), "");
    assert_eq!(TOKENIZER.token_bytes(VOCAB_SIZE), b"");
    assert_eq!(TOKENIZER.spelling(VOCAB_SIZE), None);
}

/// The decoding of this crate against that of the library, token by token.
#[test]
fn every_token_decodes_as_the_tokenizers_library_does() {
    let library = tokenizers::Tokenizer::from_bytes(read("models/deepseek-v41-mini/tokenizer.json")).unwrap();
    for id in 0..VOCAB_SIZE {
        assert_eq!(TOKENIZER.decode(&[id]), library.decode(&[id], false).unwrap(), "token {id}");
    }
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let mut file: serde_json::Value = serde_json::from_slice(&read("models/deepseek-v41-mini/tokenizer.json")).unwrap();
    file["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0
    });
    file["padding"] = serde_json::json!({
        "strategy": { "Fixed": 64 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 2, "pad_type_id": 0,
        "pad_token": "<｜▁pad▁｜>"
    });
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes(), BOS).unwrap();
    let text = "The cat sat on the mat and looked at the moon.";
    assert_eq!(tokenizer.encode_prompt(text).unwrap(), TOKENIZER.encode_prompt(text).unwrap());
}

#[test]
fn unusable_files_are_refused() {
    let error = |bytes: &[u8], bos| Tokenizer::from_bytes(bytes, bos).unwrap_err().to_string();
    let file = read("models/deepseek-v41-mini/tokenizer.json");
    assert!(error(&file[..file.len() / 2], BOS).contains("tokenizer.json cannot be read"));
    assert!(error(b"{}", BOS).contains("tokenizer.json cannot be read"));
    let message = error(&file, VOCAB_SIZE);
    assert!(message.contains("bos_token_id of config.json is 4096"), "{message}");

    let document: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let mut gap = document.clone();
    gap["added_tokens"].as_array_mut().unwrap().retain(|token| token["id"] != 4090);
    let message = error(gap.to_string().as_bytes(), BOS);
    assert!(message.contains("states id 4091"), "{message}");
    assert!(message.contains("its place in the vocabulary is 4090"), "{message}");

    let mut bare = document;
    bare["decoder"] = serde_json::Value::Null;
    let message = error(bare.to_string().as_bytes(), BOS);
    assert!(message.contains("has no decoder, expected a ByteLevel decoder"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Random ids are mostly no valid text, so this meets every way in which a character can be cut or broken.
    #[test]
    fn a_stream_gives_the_text_of_the_whole(ids in prop::collection::vec(0..VOCAB_SIZE + 2, 0..64)) {
        prop_assert_eq!(stream(&ids), TOKENIZER.decode(&ids));
    }

    /// Only single-byte tokens: bytes above 127 in every order.
    #[test]
    fn a_stream_of_single_bytes_gives_the_text_of_the_whole(bytes in prop::collection::vec(0x80..=0xFFu8, 0..24)) {
        let ids: Vec<u32> = bytes.iter().map(|byte| single_byte_ids()[usize::from(*byte)]).collect();
        prop_assert_eq!(stream(&ids), TOKENIZER.decode(&ids));
        prop_assert_eq!(stream(&ids), String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_text_survives_encoding_and_decoding(text in any::<String>()) {
        let ids = TOKENIZER.encode_prompt(&text).unwrap();
        prop_assert_eq!(TOKENIZER.decode(&ids[1..]), text);
    }
}

/// Token of every byte.
fn single_byte_ids() -> &'static [u32] {
    static IDS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let token_of = |byte| (0..VOCAB_SIZE).find(|&id| TOKENIZER.token_bytes(id) == [byte]);
        (0..=u8::MAX).map(|byte| token_of(byte).unwrap_or_else(|| panic!("no token of byte {byte}"))).collect()
    });
    &IDS
}
