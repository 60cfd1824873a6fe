//! Engram: rows of large tables, looked up by hashes of the last tokens and added to the stream through a gate.

use std::rc::Rc;

use deepinfer_ops::args::{EngramGate, EngramGather, EngramHash};
use deepinfer_ops::traits::EngramOps;
use deepinfer_ops::{Device, Format, OpError, Tensor};

use super::Run;
use crate::checkpoint::{Checkpoint, EngramHashing};
use crate::config::ModelConfig;
use crate::weights::{EngramWeights, LoadError};

/// The hash of the n-grams, on the device.
#[derive(Clone)]
pub(super) struct EngramTables {
    token_map: Tensor,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
    pad: i32,
}

impl EngramTables {
    /// Takes the token map and the constants from the checkpoint; `None` without Engram layers.
    pub(super) fn load(
        device: &Rc<dyn Device>,
        checkpoint: &Checkpoint,
        config: &ModelConfig,
    ) -> Result<Option<Self>, LoadError> {
        let Some(EngramHashing { token_map, constants }) = checkpoint.engram_hashing(config)? else {
            return Ok(None);
        };
        let upload = |what: &str, format: Format, shape: &[usize], bytes: Vec<u8>| {
            let copy = || {
                let tensor = Tensor::plain(&device.allocate(bytes.len())?, 0, format, shape);
                device.upload(&tensor, &bytes)?;
                Ok(tensor)
            };
            copy().map_err(|source| LoadError::Device { tensor: what.to_owned(), source })
        };
        let longs = |values: &mut dyn Iterator<Item = i64>| values.flat_map(i64::to_le_bytes).collect::<Vec<u8>>();
        let (layers, columns) = (config.engram_layer_ids.len(), config.engram_columns());
        let ids: Vec<u8> = token_map.as_slice().iter().flat_map(|&id| (id as i32).to_le_bytes()).collect();
        Ok(Some(Self {
            token_map: upload("Engram token map", Format::I32, &[token_map.as_slice().len()], ids)?,
            multipliers: upload(
                "Engram multipliers",
                Format::I64,
                &[layers, config.engram_max_ngram_size],
                longs(&mut constants.multipliers.iter().flatten().copied()),
            )?,
            primes: upload(
                "Engram primes",
                Format::I64,
                &[layers, columns],
                longs(&mut constants.primes.iter().flatten().flatten().copied()),
            )?,
            offsets: upload(
                "Engram offsets",
                Format::I64,
                &[layers, columns],
                longs(&mut constants.offsets.iter().flatten().copied()),
            )?,
            pad: constants.pad as i32,
        }))
    }
}

impl EngramTables {
    /// The same tables without content; `None` without Engram layers.
    pub(super) fn outline(device: &Rc<dyn Device>, config: &ModelConfig) -> Result<Option<Self>, OpError> {
        let (layers, columns) = (config.engram_layer_ids.len(), config.engram_columns());
        if layers == 0 {
            return Ok(None);
        }
        let tensor = |format: Format, shape: &[usize]| {
            Ok::<_, OpError>(Tensor::plain(&device.allocate(Tensor::bytes_of(format, shape))?, 0, format, shape))
        };
        Ok(Some(Self {
            token_map: tensor(Format::I32, &[config.vocab_size])?,
            multipliers: tensor(Format::I64, &[layers, config.engram_max_ngram_size])?,
            primes: tensor(Format::I64, &[layers, columns])?,
            offsets: tensor(Format::I64, &[layers, columns])?,
            pad: 0,
        }))
    }
}

impl Run<'_> {
    /// Table rows of every token for all Engram layers, `[layers, T, columns]`. They depend on ids alone, so they are
    /// known before the first layer runs.
    pub(super) fn engram_rows(&self) -> Result<Option<Tensor>, OpError> {
        let (Some(tables), Some(history)) = (&self.model.engram, &self.cache.history) else {
            return Ok(None);
        };
        let config = &self.model.config;
        let shape = [config.engram_layer_ids.len(), self.step.rows, config.engram_columns()];
        let rows = self.arena.tensor(Format::I32, &shape)?;
        self.device.engram_hash(&EngramHash {
            token_ids: &self.step.token_ids,
            token_map: &tables.token_map,
            image_mask: self.step.image_mask.as_ref(),
            history,
            request_start: &self.step.request_start,
            state_slot: &self.step.state_slot,
            pad: tables.pad,
            multipliers: &tables.multipliers,
            primes: &tables.primes,
            offsets: &tables.offsets,
            rows: &rows,
        })?;
        Ok(Some(rows))
    }

    /// Adds the looked-up value to the stream.
    pub(super) fn engram(
        &self,
        layer: usize,
        weights: &EngramWeights,
        rows: Option<&Tensor>,
        stream: &Tensor,
    ) -> Result<(), OpError> {
        let config = &self.model.config;
        let (Some(rows), Some(slot)) = (rows, config.engram_slot(layer)) else {
            return Ok(());
        };
        let columns = config.engram_columns();
        let rows = rows.rows(slot, 1).reshape(&[self.step.rows, columns]);
        let looked_up = self.activation(&[self.step.rows, columns * config.engram_head_dim])?;
        self.device.engram_gather(&EngramGather { table: &weights.table, rows: &rows, out: &looked_up })?;
        let kv = self.linear(&looked_up, &weights.wkv)?;
        self.device.engram_gate(&EngramGate {
            x: stream,
            kv: &kv,
            q_weight: &weights.q_weight,
            k_weight: &weights.k_weight,
            image_mask: self.step.image_mask.as_ref(),
            eps: config.rms_norm_eps,
        })
    }
}
