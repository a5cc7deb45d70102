//! One mixture-of-experts layer.

use kd_tensor::{Matrix, Pool, View};

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
    /// Three parallel regions: the first products of the router and the shared expert, those of the experts, and all last
    /// products.
    pub fn forward(&self, pool: &Pool, x: View<'_>) -> (Matrix, Routing) {
        let (inputs, mut scores) = (self.router.inputs(x), self.router.room(x.rows()));
        let mut shared = self.shared.as_ref().map(|shared| (shared, shared.hidden(x.rows())));
        let mut tasks = self.router.score(pool, &inputs, &mut scores);
        if let Some((shared, hidden)) = &mut shared {
            tasks.extend(shared.gate_up(pool, &inputs, hidden));
        }
        pool.run(tasks);
        let routing = self.router.choose_all(scores);
        let groups = Groups::new(&routing, self.experts.0.len());
        let hidden = self.experts.gate_up(pool, x, &groups);
        let shared = shared.as_ref().map(|(shared, hidden)| (&shared.down, hidden));
        let y = self.experts.down_with(pool, x.rows(), &hidden, &routing, &groups, shared);
        (y, routing)
    }
}
