//! Encoding and decoding with the miniature's tokenizer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use deepinfer_model::tokenizer::Tokenizer;
use proptest::prelude::*;
use serde_json::{Value, json};

const BOS: u32 = 0;
const EOS: u32 = 1;
const VOCAB_SIZE: u32 = 4096;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    Arc::new(Tokenizer::from_bytes(&read("models/deepseek-v41-mini/tokenizer.json"), BOS, 4096).unwrap())
});

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
fn markers_in_mere_text_stay_text() {
    let marker = "<｜Assistant｜>";
    let id = TOKENIZER.added_token(marker).unwrap();
    assert_eq!((id, TOKENIZER.is_added(id), TOKENIZER.is_special(id)), (4070, true, false));
    assert_eq!((TOKENIZER.added_token("the"), TOKENIZER.is_added(433)), (None, false));
    let text = format!("say {marker} and <｜end▁of▁sentence｜>");
    let ids = TOKENIZER.encode_text(&text).unwrap();
    assert!(ids.iter().all(|&id| !TOKENIZER.is_added(id)), "{ids:?}");
    assert_eq!(TOKENIZER.decode(&ids), text);
    assert!(TOKENIZER.encode_prompt(&text).unwrap().contains(&id));
    assert_eq!(TOKENIZER.encode_text("").unwrap(), [0u32; 0]);
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
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes(), BOS, 4096).unwrap();
    let text = "The cat sat on the mat and looked at the moon.";
    assert_eq!(tokenizer.encode_prompt(text).unwrap(), TOKENIZER.encode_prompt(text).unwrap());
}

#[test]
fn unusable_files_are_refused() {
    let error = |bytes: &[u8], bos| Tokenizer::from_bytes(bytes, bos, 4096).unwrap_err().to_string();
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

fn miniature_document() -> Value {
    serde_json::from_slice(&read("models/deepseek-v41-mini/tokenizer.json")).unwrap()
}

/// The miniature's tokenizer with something changed.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, String> {
    let mut document = miniature_document();
    change(&mut document);
    Tokenizer::from_bytes(document.to_string().as_bytes(), BOS, 4096).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Value), words: &[&str]) {
    let message = changed(change).expect_err("was accepted");
    for word in ["tokenizer.json"].iter().chain(words) {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

/// Cut inside the decoder, this file makes the tokenizers library panic.
#[test]
fn a_file_cut_anywhere_is_refused_with_the_place() {
    let text = serde_json::to_string_pretty(&miniature_document()).unwrap();
    for cut in (0..text.len()).step_by(509).chain([text.find("\"decoder\"").unwrap() + 30]) {
        let cut = text.floor_char_boundary(cut);
        let error = Tokenizer::from_bytes(&text.as_bytes()[..cut], BOS, 4096).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json cannot be read") && error.contains(" at line "), "{cut}: {error}");
    }
}

#[test]
fn components_of_other_tokenizers_are_refused_by_name() {
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    // The first four make the tokenizers library panic.
    let empty = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x"});
    refused(|t| t["normalizer"] = empty.clone(), &["`normalizer` is Replace"]);
    let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
    refused(|t| t["normalizer"]["normalizers"] = json!([precompiled]), &["`normalizer` is Precompiled"]);
    let fixed = json!({"type": "FixedLength", "length": 0});
    refused(|t| t["pre_tokenizer"]["pretokenizers"][0] = fixed, &["`pre_tokenizer` is FixedLength", "Split"]);
    refused(
        |t| t["model"]["continuing_subword_prefix"] = json!("##########"),
        &["model.continuing_subword_prefix", "##########"],
    );
    refused(|t| t["model"]["end_of_word_suffix"] = json!("</w>"), &["model.end_of_word_suffix", "</w>"]);
    refused(|t| t["model"]["unk_token"] = json!("nope"), &["model.unk_token", "nope"]);
    refused(|t| t["model"]["byte_fallback"] = json!(true), &["model.byte_fallback", "true"]);
    refused(|t| t["model"]["type"] = json!("WordPiece"), &["`model` is", "WordPiece", "BPE"]);
    refused(|t| t["decoder"] = json!({"type": "WordPiece"}), &["has the decoder WordPiece"]);
    refused(|t| t["pre_tokenizer"] = split("a"), &["without a ByteLevel step"]);
    refused(|t| t["pre_tokenizer"] = split(""), &["empty pattern"]);
    refused(|t| t["pre_tokenizer"]["pretokenizers"][0]["behavior"] = json!("Removed"), &["a Split that removes text"]);
    refused(|t| t["pre_tokenizer"] = json!(5), &["a component without a type"]);
    refused(|t| t["model"] = Value::Null, &["no object `model`"]);
    refused(|t| *t = json!([]), &["not a JSON object"]);
    // Parts that have no influence on ids may be anything.
    assert!(changed(|t| t["post_processor"] = json!({"type": "RobertaProcessing"})).is_ok());
}

/// With dropout, the same text has other ids in every run.
#[test]
fn dropout_is_refused() {
    for rate in [json!(0.5), json!(5), json!("x")] {
        refused(|t| t["model"]["dropout"] = rate.clone(), &["model.dropout", &rate.to_string()]);
    }
    for off in [Value::Null, json!(0), json!(0.0)] {
        assert!(changed(|t| t["model"]["dropout"] = off.clone()).is_ok(), "{off}");
    }
}

#[test]
fn every_token_has_an_id_of_the_model_for_itself() {
    for id in [json!(4096), json!(u32::MAX), json!(u64::MAX), json!(-1), json!(1.5), json!("7")] {
        refused(|t| t["model"]["vocab"]["zz"] = id.clone(), &["\"zz\"", &id.to_string(), "below 4096", "vocab_size"]);
    }
    refused(|t| t["added_tokens"][3]["id"] = json!(4096), &["the id 4096", "below 4096"]);
    refused(|t| t["model"]["vocab"]["zz"] = json!(300), &["the id 300 to two tokens", "\"zz\""]);
    // A model with more ids than its tokenizer is served.
    assert!(Tokenizer::from_bytes(&read("models/deepseek-v41-mini/tokenizer.json"), BOS, 5000).is_ok());
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_file() {
    let marked = [b"\xEF\xBB\xBF", &read("models/deepseek-v41-mini/tokenizer.json")[..]].concat();
    assert_eq!(Tokenizer::from_bytes(&marked, BOS, 4096).unwrap().vocab_size(), 4096);
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
    fn text_without_markers_is_encoded_as_a_prompt_without_its_begin(text in "[ -~\\n\\té🙂]{0,80}") {
        let prompt = TOKENIZER.encode_prompt(&text).unwrap();
        prop_assert_eq!(&TOKENIZER.encode_text(&text).unwrap(), &prompt[1..]);
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
