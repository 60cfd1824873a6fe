//! A developer's images in the place of embedded ones: what is wrong with the folder is told when devices are listed, and what is
//! replaced is part of the device's name.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::{child_with, plugin};

/// The header of an ELF file of 64 bits, whose empty table of sections begins at its end: a whole image without a kernel.
fn without_kernels() -> Vec<u8> {
    let mut header = vec![0; 64];
    header[..6].copy_from_slice(b"\x7FELF\x02\x01");
    // A shared object of this machine.
    header[16] = 3;
    header[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    header[40] = 64;
    header
}

fn folder_with(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        fs::write(folder.path().join(name), without_kernels()).unwrap();
    }
    folder
}

fn opened_with(folder: &Path) -> Option<String> {
    child_with("open", &[("DEEPINFER_ASCEND_KERNELS", folder.to_str().unwrap())])
}

/// The device is not listed, with a sentence of these parts.
#[track_caller]
fn refuses(folder: &Path, parts: &[&str]) {
    let Some(text) = opened_with(folder) else { return };
    for part in [&["not opened: ", "the backend ascend has no device: DEEPINFER_ASCEND_KERNELS"], parts].concat() {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn a_folder_that_is_none_is_refused() {
    let advice = "name a folder with OP.so files, or unset it";
    refuses(Path::new("kernels"), &["DEEPINFER_ASCEND_KERNELS is \"kernels\", which is no absolute path: ", advice]);
    refuses(
        Path::new("/nowhere/kernels"),
        &["DEEPINFER_ASCEND_KERNELS is \"/nowhere/kernels\", which cannot be read (No such file or directory", advice],
    );
    let folder = folder_with(&["rstd.so"]);
    refuses(&folder.path().join("rstd.so"), &["which cannot be read (Not a directory", advice]);
    refuses(folder_with(&[]).path(), &["where there is no OP.so: ", advice]);
    // What an editor or a compiler leaves is no image.
    refuses(folder_with(&["rstd.cpp", "rstd.o", "rstd.so.old", "rstd"]).path(), &["where there is no OP.so: "]);
}

#[test]
fn an_image_that_would_replace_nothing_is_refused() {
    for name in ["rsdt", "Gather", "libexample_of_mine"] {
        // A right one beside it changes nothing.
        let folder = folder_with(&[&format!("{name}.so"), "copy.so"]);
        let sentence = format!(
            "{name}.so: there is no kernel file {name}.cpp, so that this image would replace nothing; there are "
        );
        refuses(folder.path(), &[&sentence, "adjust_logits, apply_token_mask, ", ", topk_select"]);
    }
}

#[test]
fn an_image_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("rstd.so");
    let whole = fs::read(plugin()).unwrap();
    for bytes in [&b"no image"[..], &[], &whole[..4000], &whole[..whole.len() - 1]] {
        fs::write(&image, bytes).unwrap();
        refuses(folder.path(), &[&format!("rstd.so: {} bytes are no whole image: build it again", bytes.len())]);
    }
    fs::remove_file(&image).unwrap();
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &image).unwrap();
    refuses(folder.path(), &["rstd.so: No such file or directory"]);
    fs::remove_file(&image).unwrap();
    fs::create_dir(&image).unwrap();
    refuses(folder.path(), &["rstd.so is no file"]);
}

#[test]
fn what_is_replaced_is_part_of_the_devices_name() {
    for (files, words) in [
        (&["rstd.so", "rstd.cpp"][..], ", rstd from "),
        (&["rstd.so", "rms_norm.so"], ", rms_norm and rstd from "),
        (&["rstd.so", "rms_norm.so", "copy.so"], ", copy, rms_norm and rstd from "),
        (&["rstd.so", "rms_norm.so", "copy.so", "fill.so"], ", copy, fill and 2 more kernel files from "),
    ] {
        let folder = folder_with(files);
        let Some(text) = opened_with(folder.path()) else { return };
        let name = format!("opened Ascend 950 (host twin, seed 0){words}{} true", folder.path().display());
        assert!(text.contains(&name), "{name:?} is missing in: {text}");
    }
    let Some(text) = opened_with(Path::new("")) else { return };
    assert!(text.contains("opened Ascend 950 (host twin, seed 0) true"), "{text}");
}

/// It is told from the embedded one by having no kernels. By then the file is gone: what is loaded is what was read for the name.
#[test]
fn an_image_is_loaded_as_it_was_when_the_device_was_listed() {
    let folder = folder_with(&["rstd.so"]);
    let variables = [("DEEPINFER_ASCEND_KERNELS", folder.path().to_str().unwrap())];
    let Some(text) = child_with("images go", &variables) else { return };
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
    for part in
        ["the kernels of rstd do not load (", "bytes are free): a wrong call (107000)", "no kernels of the host twin"]
    {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn an_image_that_can_never_be_loaded_is_refused() {
    for (place, value, what) in [
        (5, 2, "it is of a big-endian machine"),
        (16, 2, "it is no shared object"),
        (18, 243, "it is of another machine than this one"),
    ] {
        let folder = folder_with(&["rstd.so"]);
        let mut bytes = without_kernels();
        bytes[place] = value;
        fs::write(folder.path().join("rstd.so"), bytes).unwrap();
        refuses(folder.path(), &[&format!("rstd.so: {what}: build it again")]);
    }
}
