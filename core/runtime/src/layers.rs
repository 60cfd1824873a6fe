//! Layers: plugins that stand between the core and a backend, to check, to record or to disturb.
//!
//! A layer is never found by itself: only the variable `DEEPINFER_LAYERS`, or a caller in code, puts one in. Its entry gets
//! the table of what it wraps, and its own table is used instead; so any layer goes over any backend and over other layers.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backend::LoadedBackend;
use crate::find::{Candidate, SearchPath, file_is_named, privileges_are_raised};
use crate::load::{LoadError, wrap};

/// Layers to put over a backend, as [`Layers::parse`] reads them.
pub(crate) const VARIABLE: &str = "DEEPINFER_LAYERS";

/// A layer that is over a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInfo {
    /// Name that it gives itself.
    pub name: String,
    /// Version.
    pub version: String,
    /// File.
    #[serde(serialize_with = "crate::report::lossy")]
    pub path: PathBuf,
    /// `key=value&key=value`, or empty.
    pub options: String,
}

/// Layers to put over a backend, outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layers(Vec<Layer>);

/// One layer that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    /// Name, or a path: it has a `/` or ends in `.so`.
    target: String,
    /// `key=value&key=value`, as a plugin gets them.
    options: String,
}

/// Why layers cannot be put over a backend.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LayerError {
    /// The text names no layers.
    #[error("{VARIABLE}: the layers {text:?} cannot be understood: {problem}")]
    Malformed {
        /// Text.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// No file has the name.
    #[error(
        "there is no layer {name:?}{}: {} was found in none of{}",
        or_option(before),
        file_name(name),
        list(searched)
    )]
    Unknown {
        /// Name.
        name: String,
        /// Layer that is named before it, of which it may be an option.
        before: Option<String>,
        /// Directories that were searched.
        searched: Vec<PathBuf>,
    },
    /// The layer was refused, or refuses.
    #[error("the layer {layer:?} cannot be put over {over}: {reason}{}", separators(options))]
    Refused {
        /// Name or path by which it was asked for.
        layer: String,
        /// Options that it was given.
        options: String,
        /// What it was to wrap.
        over: String,
        /// Why.
        reason: Box<LoadError>,
    },
}

/// What stands between what, for texts that use something else.
const SEPARATORS: &str = "layers are apart by ;, and the options of one follow a colon, apart by commas";

fn or_option(before: &Option<String>) -> String {
    before.as_ref().map_or_else(String::new, |before| format!(" (an option of {before} would follow a comma, not ;)"))
}

/// The end of a sentence about options that a layer refuses, if a separator that is none may be in them.
fn separators(options: &str) -> String {
    match options.contains(|c: char| c.is_whitespace() || c == ':') {
        true => format!("; {SEPARATORS}"),
        false => String::new(),
    }
}

fn file_name(name: &str) -> String {
    format!("libdeepinfer_{}.so", name.replace('-', "_"))
}

fn list(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| format!("\n  {}", crate::one_line::one_line(&folder.display().to_string()))).collect()
}

impl Layers {
    /// Reads `LAYER;LAYER`, the outermost first. A layer is a name or a path, then optionally a colon and options, apart by
    /// commas: `validate:shadow=1/64,ops=rms_norm+moe_*,poison`. An option without `=` means `option=1`. A text with a `/`
    /// before the colon, or that ends in `.so` there, is a path. An empty text means no layer.
    ///
    /// # Errors
    /// [`LayerError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, LayerError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let layers: Result<Vec<Layer>, String> = text.split(';').map(Layer::parse).collect();
        layers.map(Self).map_err(|problem| LayerError::Malformed { text: text.to_owned(), problem })
    }

    /// Reads the variable `DEEPINFER_LAYERS`; none when it is unset or empty, or when the process runs with raised
    /// privileges.
    ///
    /// # Errors
    /// [`LayerError::Malformed`].
    pub fn from_env() -> Result<Self, LayerError> {
        match std::env::var_os(VARIABLE).filter(|_| !privileges_are_raised()) {
            Some(text) => Self::parse(&text.to_string_lossy()),
            None => Ok(Self::default()),
        }
    }

    /// The same layers, of which those called `name` get an option unless they have one of this key. A layer that is given
    /// by its path is known by the name of its file.
    #[must_use]
    pub fn with_default(mut self, name: &str, key: &str, value: &str) -> Self {
        let is_meant = |target: &str| target == name || file_is_named(Path::new(target), name);
        for Layer { options, .. } in self.0.iter_mut().filter(|layer| is_meant(&layer.target)) {
            if !options.split('&').any(|option| option.split_once('=').is_some_and(|(other, _)| other == key)) {
                let and = if options.is_empty() { "" } else { "&" };
                options.push_str(&format!("{and}{key}={value}"));
            }
        }
        self
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts the layers over a backend: the last one over the backend, the first one over all others. Names are looked for
    /// on `search`. The same layers over the same backend give the same result as before.
    ///
    /// # Errors
    /// A layer is not found, is a backend, or refuses; none is then left out silently.
    pub fn wrap(
        &self,
        backend: &'static LoadedBackend,
        search: &SearchPath,
    ) -> Result<&'static LoadedBackend, LayerError> {
        self.0.iter().enumerate().rev().try_fold(backend, |inner, (index, layer)| {
            let refused = |reason| LayerError::Refused {
                layer: layer.target.clone(),
                options: layer.options.clone(),
                over: inner.title(),
                reason: Box::new(reason),
            };
            let before = index.checked_sub(1).map(|before| self.0[before].target.clone());
            let candidate = layer.find(before, search)?;
            let library = candidate.library().map_err(refused)?;
            wrap(library, candidate.manifest(), &layer.options, inner).map_err(refused)
        })
    }
}

impl fmt::Display for Layers {
    /// As [`Layers::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Layer { target, options }) in self.0.iter().enumerate() {
            let (semicolon, colon) = (if index > 0 { ";" } else { "" }, if options.is_empty() { "" } else { ":" });
            write!(f, "{semicolon}{target}{colon}{}", options.replace('&', ","))?;
        }
        Ok(())
    }
}

impl Layer {
    /// # Errors
    /// What is wrong, as the end of a sentence.
    fn parse(text: &str) -> Result<Self, String> {
        let (target, options) = match text.find(".so:") {
            // A path may contain colons.
            Some(at) => (&text[..at + 3], Some(&text[at + 4..])),
            None if text.ends_with(".so") => (text, None),
            None => text.split_once(':').map_or((text, None), |(target, options)| (target, Some(options))),
        };
        if target.is_empty() {
            return Err("the name of a layer is missing".to_owned());
        }
        if let Some(found) = misplaced(target) {
            return Err(format!("the name {target:?} contains {found}; {SEPARATORS}"));
        }
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            let (key, value) = option.split_once('=').unwrap_or((option, "1"));
            if key.is_empty() {
                return Err(format!("the option {option:?} of {target} is not of the form key or key=value"));
            }
            // A value may be a path, which has spaces inside.
            if option.trim() != option || key.contains(char::is_whitespace) {
                return Err(format!("the option {option:?} of {target} contains a space; {SEPARATORS}"));
            }
            if option.contains('&') {
                return Err(format!("the option {option:?} of {target} contains &; options are apart by commas"));
            }
            if pairs.iter().any(|(other, _)| *other == key) {
                return Err(format!("the option {key} of {target} is given twice"));
            }
            pairs.push((key, value));
        }
        let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Ok(Self { target: target.to_owned(), options: pairs.join("&") })
    }

    /// The file of the layer, which stands behind `before`. Plugins of other names are not touched.
    fn find(&self, before: Option<String>, search: &SearchPath) -> Result<Candidate, LayerError> {
        if self.target.contains('/') || self.target.ends_with(".so") {
            return Ok(Candidate::of_path(Path::new(&self.target)));
        }
        let is_meant = |candidate: &Candidate| match candidate.manifest() {
            Some(manifest) => manifest.name == self.target,
            None => file_is_named(candidate.path(), &self.target),
        };
        let found = search.candidates().into_iter().find(is_meant);
        let (name, searched) = (self.target.clone(), search.directories().to_vec());
        found.ok_or(LayerError::Unknown { name, before, searched })
    }
}

/// What no name of a layer has, in words. A path may have all of it inside, unless it looks like an option.
fn misplaced(target: &str) -> Option<&'static str> {
    let is_path =
        target.ends_with(".so") || target.starts_with(['/', '.']) || (target.contains('/') && !target.contains('='));
    if target.trim() != target || (!is_path && target.contains(char::is_whitespace)) {
        return Some("a space");
    }
    let signs = [(',', "a comma"), ('=', "="), ('&', "&")];
    signs.into_iter().find(|&(sign, _)| !is_path && target.contains(sign)).map(|(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_and_their_options() {
        let of = |list: &[(&str, &str)]| {
            let layer = |&(target, options): &(&str, &str)| Layer { target: target.into(), options: options.into() };
            Layers(list.iter().map(layer).collect())
        };
        for (text, wanted) in [
            ("", of(&[])),
            ("validate", of(&[("validate", "")])),
            (
                "validate:shadow=1/64,ops=rms_norm+moe_*,poison;other:x=a=b",
                of(&[("validate", "shadow=1/64&ops=rms_norm+moe_*&poison=1"), ("other", "x=a=b")]),
            ),
            ("/opt/a:b/libx.so:poison;./y.so", of(&[("/opt/a:b/libx.so", "poison=1"), ("./y.so", "")])),
            ("./plugin:deep", of(&[("./plugin", "deep=1")])),
            ("./a=b, c/plugin;of/plugin", of(&[("./a=b, c/plugin", ""), ("of/plugin", "")])),
            ("a:record=/my files", of(&[("a", "record=/my files")])),
        ] {
            let layers = Layers::parse(text).unwrap();
            assert_eq!(layers, wanted, "{text}");
            assert_eq!(Layers::parse(&layers.to_string()).unwrap(), wanted, "{layers}");
            assert_eq!(layers.is_empty(), text.is_empty());
        }
    }

    #[test]
    fn options_that_are_not_given_can_be_added_by_the_name_of_the_layer() {
        let text = "shadow-play;other:on=log;./libdeepinfer_shadow_play.so:x=1;shadow-play:only,on=error";
        let layers = Layers::parse(text).unwrap().with_default("shadow-play", "on", "log");
        let wanted =
            "shadow-play:on=log;other:on=log;./libdeepinfer_shadow_play.so:x=1,on=log;shadow-play:only=1,on=error";
        assert_eq!(layers.to_string(), wanted);
    }

    #[test]
    fn malformed_layers_say_what_is_wrong() {
        for (text, part) in [
            (";", "the name of a layer is missing"),
            ("a;;b", "the name of a layer is missing"),
            (":poison", "the name of a layer is missing"),
            ("a:", "the option \"\" of a is not of the form"),
            ("a:=1", "the option \"=1\" of a is not of the form"),
            ("a:x,,y", "the option \"\" of a"),
            ("a:x=1&y=2", "the option \"x=1&y=2\" of a contains &"),
            ("a:x,x=2", "the option x of a is given twice"),
            ("a,b", "the name \"a,b\" contains a comma; layers are apart by ;"),
            ("a b", "the name \"a b\" contains a space; layers are apart by ;"),
            ("a; b:x", "the name \" b\" contains a space"),
            (
                "a:x=1;y=1/2",
                "the name \"y=1/2\" contains =; layers are apart by ;, and the options of one follow a colon",
            ),
            ("a&x", "the name \"a&x\" contains &"),
            ("./x.so ;b", "the name \"./x.so \" contains a space"),
            ("a:x=1, y", "the option \" y\" of a contains a space; layers are apart by ;"),
            ("a:x y=1", "the option \"x y=1\" of a contains a space"),
        ] {
            let error = Layers::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(&format!("{text:?}")), "{text}: {error}");
        }
    }

    #[test]
    fn an_unknown_layer_names_the_file_and_the_folders() {
        let folder = tempfile::tempdir().unwrap();
        let layer = Layer::parse("shadow-play").unwrap();
        let search = SearchPath::of([folder.path().to_owned()]);
        let error = layer.find(None, &search).unwrap_err().to_string();
        assert!(error.contains("no layer \"shadow-play\": libdeepinfer_shadow_play.so was found in none"), "{error}");
        assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
        let error = layer.find(Some("validate".to_owned()), &search).unwrap_err().to_string();
        assert!(
            error.contains("no layer \"shadow-play\" (an option of validate would follow a comma, not ;):"),
            "{error}"
        );
    }

    #[test]
    fn options_that_a_layer_refuses_may_be_set_apart_wrongly() {
        assert_eq!(separators("shadow=1/x&poison=1"), "");
        for options in ["shadow=1/1 poison", "shadow=1/1:poison"] {
            assert_eq!(separators(options), format!("; {SEPARATORS}"));
        }
    }
}
