//! Stands in for the crate `hf-hub`, which downloads files of models.
//!
//! The crates of `deepseek-recipe` ask the crate `tokenizers` to be able to download, without a switch that turns it off, and
//! use none of it. With the real crate an HTTP client and a TLS library would become part of the program, some thirty crates
//! that never run. Here is what `tokenizers` names of it; every download is refused.

#![forbid(unsafe_code)]

/// Who asks for downloads.
pub mod api {
    /// The blocking interface.
    pub mod sync {
        use std::path::PathBuf;

        use crate::Repo;

        /// Every download is refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct ApiError;

        impl std::fmt::Display for ApiError {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("this program downloads nothing; give the path of a tokenizer.json")
            }
        }

        impl std::error::Error for ApiError {}

        /// Makes an [`Api`].
        #[derive(Clone, Copy, Debug)]
        pub struct ApiBuilder;

        impl ApiBuilder {
            /// No variable of the environment matters.
            pub fn from_env() -> Self {
                Self
            }

            /// No token is kept.
            #[must_use]
            pub fn with_token(self, _token: Option<String>) -> Self {
                self
            }

            /// An interface that refuses.
            ///
            /// # Errors
            /// None: the download is refused, not this.
            pub fn build(self) -> Result<Api, ApiError> {
                Ok(Api)
            }
        }

        /// Reaches no repository.
        #[derive(Clone, Copy, Debug)]
        pub struct Api;

        impl Api {
            /// A repository that has no file.
            pub fn repo(&self, _repo: Repo) -> ApiRepo {
                ApiRepo
            }
        }

        /// A repository that has no file.
        #[derive(Clone, Copy, Debug)]
        pub struct ApiRepo;

        impl ApiRepo {
            /// Refuses.
            ///
            /// # Errors
            /// Always.
            pub fn get(&self, _filename: &str) -> Result<PathBuf, ApiError> {
                Err(ApiError)
            }
        }
    }
}

/// What a repository holds.
#[derive(Clone, Copy, Debug)]
pub enum RepoType {
    /// A model.
    Model,
}

/// Names a repository.
#[derive(Clone, Copy, Debug)]
pub struct Repo;

impl Repo {
    /// The name is not kept: nothing is asked for.
    pub fn with_revision(_repo_id: String, _repo_type: RepoType, _revision: String) -> Self {
        Self
    }
}
