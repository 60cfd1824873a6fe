//! What a model is made of and what it costs: roles of layers, parameters and bytes, caches, and a memory plan.
//!
//! [`ModelSummary`] is plain data, for `--json`; [`render`] writes it for people. Both come from the same tensor list that
//! loading uses, so the figures cannot drift from what is really read.
#![forbid(unsafe_code)]

mod families;
pub(crate) mod render;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cache_format::{
    CacheFormats, DEFAULT_BACKTRACKING, DEFAULT_DRAFT_TOKENS, PAGE_TOKENS, PageLayout, RequestState, rollback_positions,
};
use crate::checkpoint::{Checkpoint, Group, Storage, StoredDtype, TensorSpec, tensor_specs};
use crate::config::ModelConfig;

pub use families::TensorFamily;
pub use render::render;

/// What the memory plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlanInput {
    /// Tokens of each request, prompt and output together.
    pub context_tokens: usize,
    /// Requests that are in memory at once.
    pub requests: usize,
    /// Positions by which a request may be set back, apart from rejected drafts.
    pub backtracking: usize,
    /// Tokens drafted per step.
    pub draft_tokens: usize,
}

impl PlanInput {
    /// One request over the whole context of `config`, with the default rollback.
    pub fn for_full_context(config: &ModelConfig) -> Self {
        Self {
            context_tokens: config.max_position_embeddings,
            requests: 1,
            backtracking: DEFAULT_BACKTRACKING,
            draft_tokens: DEFAULT_DRAFT_TOKENS,
        }
    }
}

/// Everything that `deepinfer inspect` reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    /// Sizes and layer roles.
    pub architecture: Architecture,
    /// All tensors together.
    pub total: Totals,
    /// Totals of each part of the model, and of each format in it.
    pub groups: Vec<GroupTotals>,
    /// Totals of each storage format.
    pub formats: Vec<FormatTotals>,
    /// Sizes of the caches.
    pub cache: CacheSummary,
    /// Bytes that each request owns besides its pages.
    pub request_state: RequestState,
    /// Device memory for a number of requests.
    pub plan: MemoryPlan,
    /// All tensors, those that differ only in numbers in one line.
    pub tensors: Vec<TensorFamily>,
}

/// Sizes and layer roles.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Architecture {
    /// Token ids.
    pub vocab_size: usize,
    /// Width of one copy of the residual stream.
    pub hidden_size: usize,
    /// Copies of the residual stream.
    pub stream_copies: usize,
    /// Longest sequence in tokens.
    pub max_context_tokens: usize,
    /// Attention heads.
    pub attention_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Positions that window attention sees.
    pub window_tokens: usize,
    /// Backbone layers.
    pub layers: usize,
    /// Layers by what they read besides their window.
    pub roles: LayerRoles,
    /// Layers with an n-gram lookup before them.
    pub engram_layers: Vec<usize>,
    /// Experts of a backbone layer.
    pub experts: Experts,
    /// The drafter, if the checkpoint has one.
    pub drafter: Option<Drafter>,
    /// The vision tower, if the checkpoint has one.
    pub vision: Option<Vision>,
}

/// Backbone layers by what they read besides their window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerRoles {
    /// Nothing: window only.
    pub window: Vec<usize>,
    /// Compressed entries and a selection of their own.
    pub full: Vec<usize>,
    /// A selection of their own among the entries of an earlier layer.
    pub reindex: Vec<usize>,
    /// Entries and selection of earlier layers.
    pub reuse: Vec<usize>,
    /// The layer that chooses candidate blocks for later selections.
    pub candidate_source: Option<usize>,
}

/// Experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// Routed experts.
    pub routed: usize,
    /// Routed experts that a token visits.
    pub per_token: usize,
    /// Shared experts, which every token visits.
    pub shared: usize,
    /// Hidden width of an expert.
    pub width: usize,
}

/// The DSpark drafter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drafter {
    /// Draft stages.
    pub stages: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Backbone layers that it looks at.
    pub target_layers: Vec<usize>,
    /// Experts of a stage.
    pub experts: Experts,
}

/// The vision tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Vision {
    /// Transformer blocks.
    pub blocks: usize,
    /// Width.
    pub width: usize,
    /// Side of a patch in pixels.
    pub patch_pixels: usize,
}

/// Sums over a set of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// Tensors, scales included.
    pub tensors: u64,
    /// Parameters; scales do not count.
    pub parameters: u64,
    /// Bytes as stored, scales included.
    pub bytes: u64,
}

/// Totals of a part of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupTotals {
    /// The part.
    pub group: Group,
    /// Its totals.
    #[serde(flatten)]
    pub totals: Totals,
    /// The same by storage format.
    pub formats: Vec<FormatTotals>,
}

/// Totals of a storage format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FormatTotals {
    /// The format.
    pub storage: Storage,
    /// Its totals.
    #[serde(flatten)]
    pub totals: Totals,
}

/// Sizes of the caches in their deployed formats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheSummary {
    /// Formats of the entries.
    pub formats: CacheFormats,
    /// Bytes of a window entry.
    pub window_entry_bytes: usize,
    /// Bytes of a compressed key/value entry.
    pub main_entry_bytes: usize,
    /// Bytes of an index key.
    pub index_entry_bytes: usize,
    /// Bytes that a token adds to the compressed caches, without page padding.
    pub kv_bytes_per_token: f64,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// The page.
    pub page: PageLayout,
}

/// Device memory for a number of requests. Activations and workspaces are not in it: they depend on the backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// What the plan was made for.
    pub input: PlanInput,
    /// Weights that the text path keeps on the device, as stored.
    pub weight_bytes: u64,
    /// Pages of all requests.
    pub pages: u64,
    /// Bytes of those pages.
    pub page_bytes: u64,
    /// Window rings, compressor tails and n-gram histories of all requests.
    pub state_bytes: u64,
    /// Sum of the above.
    pub total_bytes: u64,
    /// What drafting adds: weights and window rings of the draft stages.
    pub drafter_bytes: u64,
    /// What image input adds: weights of the vision tower and of the image routing biases.
    pub vision_bytes: u64,
}

impl ModelSummary {
    /// The summary of a checkpoint in the released storage formats.
    pub fn of_config(config: &ModelConfig, plan: PlanInput) -> Self {
        Self::of_tensors(config, &tensor_specs(config), plan)
    }

    /// The summary of the weights that `checkpoint` really holds: tensors stored in BF16 or F32 count as such, absent ones
    /// not at all.
    pub fn of_checkpoint(checkpoint: &Checkpoint, plan: PlanInput) -> Self {
        Self::of_tensors(checkpoint.config(), &stored_specs(checkpoint), plan)
    }

    fn of_tensors(config: &ModelConfig, specs: &[TensorSpec], plan: PlanInput) -> Self {
        let mut cells: BTreeMap<(Group, Storage), Totals> = BTreeMap::new();
        for spec in specs {
            cells.entry((spec.group, spec.storage)).or_default().add(&Totals {
                tensors: 1,
                parameters: spec.parameters(),
                bytes: spec.bytes(),
            });
        }
        let mut groups: BTreeMap<Group, GroupTotals> = BTreeMap::new();
        let mut formats: BTreeMap<Storage, Totals> = BTreeMap::new();
        let mut total = Totals::default();
        for (&(group, storage), totals) in &cells {
            let entry = groups.entry(group).or_insert_with(|| GroupTotals {
                group,
                totals: Totals::default(),
                formats: Vec::new(),
            });
            entry.totals.add(totals);
            entry.formats.push(FormatTotals { storage, totals: *totals });
            formats.entry(storage).or_default().add(totals);
            total.add(totals);
        }
        let groups: Vec<GroupTotals> = groups.into_values().collect();

        let cache_formats = CacheFormats::deployed(config);
        let cache = cache_summary(config, cache_formats);
        let rollback = rollback_positions(plan.backtracking, plan.draft_tokens);
        let request_state = RequestState::new(config, cache_formats, rollback);
        Self {
            architecture: architecture(config),
            total,
            plan: memory_plan(plan, &groups, &cache, &request_state),
            groups,
            formats: formats.into_iter().map(|(storage, totals)| FormatTotals { storage, totals }).collect(),
            cache,
            request_state,
            tensors: families::fold(specs),
        }
    }
}

/// The tensors that a checkpoint holds, as it stores them: some of BF16 or F32 where the released model is quantised.
pub(crate) fn stored_specs(checkpoint: &Checkpoint) -> Vec<TensorSpec> {
    let mut specs = tensor_specs(checkpoint.config());
    specs.retain_mut(|spec| {
        let Some(stored) = checkpoint.get(&spec.name) else { return false };
        match (stored.dtype, spec.scaled_weight()) {
            (StoredDtype::Bf16, None) => spec.storage = Storage::Bf16,
            (StoredDtype::F32, None) => spec.storage = Storage::F32,
            _ => {}
        }
        spec.shape = stored.shape.to_vec();
        true
    });
    specs
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.tensors += other.tensors;
        self.parameters += other.parameters;
        self.bytes += other.bytes;
    }
}

fn architecture(config: &ModelConfig) -> Architecture {
    let experts = |stage| {
        let (routed, per_token) = config.moe_shape(stage);
        Experts { routed, per_token, shared: config.n_shared_experts, width: config.moe_intermediate_size }
    };
    Architecture {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        stream_copies: config.hc_mult,
        max_context_tokens: config.max_position_embeddings,
        attention_heads: config.num_attention_heads,
        head_dim: config.head_dim,
        window_tokens: config.sliding_window,
        layers: config.num_hidden_layers,
        roles: layer_roles(config),
        engram_layers: config.engram_layer_ids.clone(),
        experts: experts(false),
        drafter: (config.draft_stages() > 0).then(|| Drafter {
            stages: config.draft_stages(),
            block_tokens: config.dspark_block_size,
            target_layers: config.dspark_target_layer_ids.clone(),
            experts: experts(true),
        }),
        vision: config.vision.as_ref().map(|vision| Vision {
            blocks: vision.num_hidden_layers,
            width: vision.hidden_size,
            patch_pixels: vision.patch_size,
        }),
    }
}

fn layer_roles(config: &ModelConfig) -> LayerRoles {
    let mut roles = LayerRoles {
        window: Vec::new(),
        full: Vec::new(),
        reindex: Vec::new(),
        reuse: Vec::new(),
        candidate_source: config.candidate_source_layer_id,
    };
    for layer in 0..config.num_hidden_layers {
        let role = match (config.compress_ratios[layer], config.is_kv_source(layer), config.is_index_source(layer)) {
            (0, _, _) => &mut roles.window,
            (_, true, _) => &mut roles.full,
            (_, false, true) => &mut roles.reindex,
            (_, false, false) => &mut roles.reuse,
        };
        role.push(layer);
    }
    roles
}

fn cache_summary(config: &ModelConfig, formats: CacheFormats) -> CacheSummary {
    CacheSummary {
        formats,
        window_entry_bytes: formats.window.entry_bytes(config.head_dim),
        main_entry_bytes: formats.main.entry_bytes(config.head_dim),
        index_entry_bytes: formats.index.entry_bytes(config.index_head_dim),
        kv_bytes_per_token: formats.bytes_per_token(config),
        page_tokens: PAGE_TOKENS,
        page: PageLayout::new(config, formats),
    }
}

fn memory_plan(
    input: PlanInput,
    groups: &[GroupTotals],
    cache: &CacheSummary,
    request_state: &RequestState,
) -> MemoryPlan {
    let bytes_of = |wanted: fn(Group) -> bool| -> u64 {
        groups.iter().filter(|entry| wanted(entry.group)).map(|entry| entry.totals.bytes).sum()
    };
    let requests = input.requests as u64;
    let weight_bytes = bytes_of(|group| !matches!(group, Group::Draft | Group::Vision));
    let pages = requests.saturating_mul(input.context_tokens.div_ceil(PAGE_TOKENS) as u64);
    let page_bytes = pages.saturating_mul(cache.page.bytes as u64);
    let state_bytes = requests.saturating_mul(request_state.total_bytes(false) as u64);
    let draft_rings = requests.saturating_mul(request_state.draft_ring_bytes as u64);
    MemoryPlan {
        input,
        weight_bytes,
        pages,
        page_bytes,
        state_bytes,
        total_bytes: weight_bytes.saturating_add(page_bytes).saturating_add(state_bytes),
        drafter_bytes: bytes_of(|group| group == Group::Draft).saturating_add(draft_rings),
        vision_bytes: bytes_of(|group| group == Group::Vision),
    }
}
