//! Temporary tensors of a step, from memory that is reused step after step.

use std::cell::RefCell;
use std::rc::Rc;

use deepinfer_plugin_api::Format;

use crate::device::Device;
use crate::error::OpError;
use crate::tensor::{Allocation, Tensor};

/// Alignment of every tensor: a cache line pair, and what vector units and copy engines like.
const ALIGN: usize = 256;
/// Smallest allocation that the arena asks of the device.
const CHUNK_BYTES: usize = 4 << 20;

/// Hands out temporary tensors. [`Arena::rewind`] makes their memory free again; a tensor that outlives it stays valid
/// memory, but another tensor may write there.
pub struct Arena {
    device: Rc<dyn Device>,
    state: RefCell<State>,
}

struct State {
    chunks: Vec<Allocation>,
    /// Chunk in use, and the first free byte in it.
    at: Mark,
    /// Most bytes that were in use at once, with those lost at the ends of chunks.
    peak: usize,
    poison: bool,
}

/// A state of the arena to return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    chunk: usize,
    offset: usize,
}

impl Arena {
    /// An empty arena.
    pub fn new(device: Rc<dyn Device>) -> Self {
        let at = Mark { chunk: 0, offset: 0 };
        Self { device, state: RefCell::new(State { chunks: Vec::new(), at, peak: 0, poison: false }) }
    }

    /// Fills every new tensor with bytes 0xFF (NaN in each floating-point format, -1 in integers), so that a kernel that
    /// reads what nobody wrote is seen.
    pub fn set_poison(&self, poison: bool) {
        self.state.borrow_mut().poison = poison;
    }

    /// Makes room for `bytes` bytes in one piece, so that steps which need no more than that allocate nothing. Ends the
    /// tensors that there are.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`].
    pub fn reserve(&self, bytes: usize) -> Result<(), OpError> {
        let mut state = self.state.borrow_mut();
        state.at = self.start();
        if state.chunks.first().is_none_or(|chunk| chunk.bytes < bytes) {
            // The old ones first, so that both need not fit.
            state.chunks.clear();
            let memory = self.device.allocate(bytes.next_multiple_of(ALIGN))?;
            state.chunks.push(memory);
        }
        Ok(())
    }

    /// Most bytes that were in use at once.
    pub fn peak_bytes(&self) -> usize {
        self.state.borrow().peak
    }

    /// The state in which all memory is free.
    pub fn start(&self) -> Mark {
        Mark { chunk: 0, offset: 0 }
    }

    /// The present state.
    pub fn mark(&self) -> Mark {
        self.state.borrow().at
    }

    /// Frees all tensors made since `mark`.
    pub fn rewind(&self, mark: Mark) {
        self.state.borrow_mut().at = mark;
    }

    /// A contiguous tensor with undefined content, with its scales when `format` is quantised.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`].
    pub fn tensor(&self, format: Format, shape: &[usize]) -> Result<Tensor, OpError> {
        let mut state = self.state.borrow_mut();
        let codes = state.take(&*self.device, Tensor::bytes_of(format, shape))?;
        let tensor = match Tensor::scale_bytes(format, shape) {
            None => Tensor::plain(&state.chunks[codes.chunk], codes.offset, format, shape),
            Some(bytes) => {
                let scales = state.take(&*self.device, bytes)?;
                let at = |mark: Mark| (&state.chunks[mark.chunk], mark.offset);
                Tensor::quantized(at(codes), at(scales), format, shape)
            }
        };
        let poison = state.poison;
        drop(state);
        if poison {
            self.device.fill(&tensor, 0xFF)?;
            if tensor.scale().is_some() {
                self.device.fill(&tensor.scale_as_bytes(), 0xFF)?;
            }
        }
        Ok(tensor)
    }
}

impl State {
    /// Where `bytes` bytes are free, which they are no longer.
    fn take(&mut self, device: &dyn Device, bytes: usize) -> Result<Mark, OpError> {
        loop {
            let found = self.at;
            match self.chunks.get(found.chunk) {
                Some(memory) if found.offset + bytes <= memory.bytes => {
                    self.at.offset = (found.offset + bytes).next_multiple_of(ALIGN);
                    let before: usize = self.chunks[..found.chunk].iter().map(|c| c.bytes).sum();
                    self.peak = self.peak.max(before + self.at.offset);
                    return Ok(found);
                }
                Some(_) => self.at = Mark { chunk: found.chunk + 1, offset: 0 },
                None => {
                    // Doubling keeps the number of chunks, and with it the memory lost at their ends, small.
                    let reserved: usize = self.chunks.iter().map(|c| c.bytes).sum();
                    let size = bytes.next_multiple_of(ALIGN).max(CHUNK_BYTES).max(reserved / 2);
                    self.chunks.push(device.allocate(size)?);
                }
            }
        }
    }
}
