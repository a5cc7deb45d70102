//! Ranks that are processes or threads with a device each, through NCCL.

use cudarc::driver::{CudaSlice, CudaView};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::{Comm, Id, ReduceOp, sys};
use half::bf16;

use super::{Exchange, needed};
use crate::{KernelError, Stream};

/// Who adds the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `add_rms_norm`, in rank order: the same bits at every rank and every run.
    Ranks,
    /// NCCL, in an order of its own: less to move, and bits that its algorithm decides.
    Any,
}

/// What ranks must share to find each other.
#[derive(Clone, Copy, Debug)]
pub struct NcclId([std::ffi::c_char; 128]);

impl NcclId {
    /// A new one, for rank 0 to hand to the others.
    ///
    /// # Errors
    /// No NCCL library, or one that finds no network.
    pub fn new() -> Result<Self, KernelError> {
        present()?;
        let id = Id::new().map_err(|error| failed("making an NCCL id", &error))?;
        Ok(Self(*id.internal()))
    }
}

/// One rank of a communicator.
#[derive(Debug)]
pub struct Nccl {
    comm: Comm,
    order: Order,
}

impl Nccl {
    /// Joins as rank `rank` of `ranks`; returns once all have joined. Exchanges run on `stream`.
    ///
    /// # Errors
    /// No NCCL library, a rank that is not below `ranks`, ranks that cannot reach each other.
    pub fn join(
        stream: &Stream,
        rank: usize,
        ranks: usize,
        id: NcclId,
        order: Order,
    ) -> Result<Self, KernelError> {
        present()?;
        if rank >= ranks || i32::try_from(ranks).is_err() {
            return Err(KernelError::Exchange { what: format!("there is no rank {rank} of {ranks}") });
        }
        let comm = Comm::from_rank(stream.cuda().clone(), rank, ranks, Id::uninit(id.0));
        Ok(Self { comm: comm.map_err(|error| failed("joining the ranks", &error))?, order })
    }
}

impl Exchange for Nccl {
    fn parts(&self) -> usize {
        match self.order {
            Order::Ranks => self.comm.world_size(),
            Order::Any => 1,
        }
    }

    fn meet<'a>(
        &self,
        stream: &Stream,
        part: &'a mut CudaSlice<bf16>,
        elements: usize,
        room: &'a mut CudaSlice<bf16>,
    ) -> Result<CudaView<'a, bf16>, KernelError> {
        if *self.comm.stream() != **stream.cuda() {
            let what = "the communicator was joined on another stream".to_owned();
            return Err(KernelError::Exchange { what });
        }
        if self.order == Order::Any {
            super::present(part, elements)?;
            let reduced = self.comm.all_reduce_in_place(&mut part.slice_mut(..elements), &ReduceOp::Sum);
            reduced.map_err(|error| failed("the all-reduce", &error))?;
            return super::present(part, elements);
        }
        let all = needed(self.parts(), elements, room.len())?;
        let gathered = self.comm.all_gather(&super::present(part, elements)?, &mut room.slice_mut(..all));
        gathered.map_err(|error| failed("the all-gather", &error))?;
        Ok(room.slice(..all))
    }
}

fn present() -> Result<(), KernelError> {
    // SAFETY: only tries to load the library by name. Every other call of the wrapper panics without it.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    let what = "no NCCL (libnccl) on this machine; install it, or run one rank".to_owned();
    Err(KernelError::Exchange { what })
}

fn failed(what: &str, error: &NcclError) -> KernelError {
    KernelError::Exchange { what: format!("{what} failed: {:?}", error.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_for_an_id_never_panics() {
        if let Err(error) = NcclId::new() {
            assert!(error.to_string().contains("NCCL"), "{error}");
        }
    }
}
