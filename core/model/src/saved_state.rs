//! Copies of state slots, from which a request can start where another one was.

use std::rc::Rc;

use deepinfer_ops::{Device, OpError, Tensor};

use crate::config::ModelConfig;
use crate::numerics::Numerics;
use crate::state::{KvCache, bytes_on};

/// Places for exact copies of state slots.
///
/// A slot holds window rings, open compression groups and the n-gram history, all at places that follow from positions. A
/// request whose slot is a copy that was saved when the first `n` tokens had run, and whose pages hold those tokens,
/// goes on as if it had run them itself, bit for bit.
pub struct StateStore {
    copies: Tensor,
}

impl StateStore {
    /// Room for `count` copies of slots of the caches that [`KvCache::new`] makes of the same configuration.
    ///
    /// # Errors
    /// The device has not enough memory.
    pub fn new(
        device: &Rc<dyn Device>,
        config: &ModelConfig,
        numerics: &Numerics,
        count: usize,
    ) -> Result<Self, OpError> {
        Ok(Self { copies: bytes_on(device, count, KvCache::slot_bytes(config, numerics) as usize)? })
    }

    /// Copies slot `slot` of `cache` to place `index`: one copy on the device, in order with steps, without a wait.
    ///
    /// # Errors
    /// The device reports a fault, or the slots of `cache` are of another size.
    ///
    /// # Panics
    /// If there is no such slot or place.
    pub fn save(&self, device: &dyn Device, cache: &KvCache, slot: usize, index: usize) -> Result<(), OpError> {
        device.copy(&self.copies.rows(index, 1), &cache.slot(slot))
    }

    /// Copies place `index` to slot `slot` of `cache`: the reverse of [`StateStore::save`], in every way.
    ///
    /// # Errors
    /// As [`StateStore::save`].
    ///
    /// # Panics
    /// If there is no such slot or place.
    pub fn restore(&self, device: &dyn Device, cache: &KvCache, index: usize, slot: usize) -> Result<(), OpError> {
        device.copy(&cache.slot(slot), &self.copies.rows(index, 1))
    }

    /// Places.
    pub fn count(&self) -> usize {
        self.copies.dim(0)
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.copies.bytes()
    }
}
