//! One mixture-of-experts layer.

use kd_tensor::{Matrix, Pool, View, ops::add_assign};

use crate::{Experts, Mlp, Router, Routing};

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
    pub fn forward(&self, pool: &Pool, x: View<'_>) -> (Matrix, Routing) {
        let routing = self.router.route(pool, x);
        let mut y = self.experts.forward(pool, x, &routing);
        if let Some(shared) = &self.shared {
            add_assign(&mut y, &shared.forward(pool, x));
        }
        (y, routing)
    }
}
