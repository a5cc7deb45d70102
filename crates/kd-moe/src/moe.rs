//! One mixture-of-experts layer.

use kd_tensor::{Matrix, Pool, Task, View, block_width};

use crate::experts::TILE;
use crate::{Experts, Groups, Mlp, Router, Routing};

/// Router, routed experts and the shared expert of one layer.
#[derive(Debug, Clone)]
pub struct Moe {
    /// Chooses the experts.
    pub router: Router,
    /// The routed experts.
    pub experts: Experts,
    /// The shared expert (several are one MLP of their joint width), if there is one.
    pub shared: Option<Mlp>,
}

impl Moe {
    /// Routed experts plus the shared expert, unweighted: `[rows, hidden]`, and the routing for whoever records it.
    ///
    /// Three parallel regions: the choice of experts, their form of the rows and the first products of the shared expert; the
    /// first products of the experts; all last products.
    pub fn forward(&self, pool: &Pool, x: View<'_>) -> (Matrix, Routing) {
        let inputs = self.router.inputs(x);
        let mut shared = self.shared.as_ref().map(|shared| (shared, shared.hidden(x.rows())));
        let (mut chosen, mut digits) = (None, None);
        let choose = || {
            let routing = self.router.choose(&inputs);
            let groups = Groups::new(&routing, self.experts.0.len());
            chosen = Some((routing, groups));
        };
        // Both are long tasks of one thread (a region inside a region is), so they begin first: neither should end this one last.
        let digitise = || digits = Some(self.experts.inputs(pool, x));
        let mut tasks: Vec<Task<'_>> = vec![Box::new(choose), Box::new(digitise)];
        if let Some((shared, hidden)) = &mut shared {
            // Half as wide as alone, to go round the choice of experts and the form of the rows, each made by one thread.
            let block = block_width(pool, shared.gate.rows(), x.rows(), 2 * shared.gate.cols());
            tasks.extend(shared.gate_up((block / 2).next_multiple_of(TILE), &inputs, hidden));
        }
        pool.run(tasks);
        let (Some((routing, groups)), Some(digits)) = (chosen, digits) else {
            unreachable!("every task has run")
        };
        let hidden = self.experts.first_half(pool, &digits, &groups);
        let shared = shared.as_ref().map(|(shared, hidden)| (&shared.down, hidden));
        let y = self.experts.down_with(pool, x.rows(), &hidden, &routing, &groups, shared);
        (y, routing)
    }
}
