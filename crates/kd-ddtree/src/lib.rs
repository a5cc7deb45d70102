//! Draft trees: best-first builder, ancestor masks and walk; knows no model and no device.
//!
//! A drafter gives one row of next-token probabilities for each of the next `L` positions. The *draft tree* with a
//! budget of `B` nodes holds the `B` most probable token sequences under the product of these rows, a set that is
//! always closed under prefixes (DDTree, arXiv 2604.12989). One target pass over all rows of the tree, each row
//! seeing its ancestors only, gives the target's own distribution after every node; a [`walk`] then follows the
//! tokens that the target chooses for as long as the tree contains them.
//!
//! ```
//! use kd_ddtree::{DraftRow, Marginals, Tree, TreeBuilder, draft_rows, walk};
//!
//! // Two positions over a vocabulary of four.
//! let block = [0.0, 2.0, 1.0, -9.0, 3.0, 0.0, 0.0, 2.5];
//! let rows: Vec<DraftRow> = draft_rows(&block, 4, 4);
//! let mut tree = Tree::empty();
//! TreeBuilder::new().build(&mut Marginals(&rows), 4, &mut tree)?;
//! let shape: Vec<_> = tree.nodes().iter().map(|node| (node.token, node.parent)).collect();
//! assert_eq!(shape, [(1, 0), (0, 1), (2, 0), (3, 1)]);
//!
//! // A target that says 1 first, then 3, then 7.
//! let outcome = walk(&tree, |row| Ok::<u32, ()>([1, 3, 7][tree.depth(row)]));
//! assert_eq!(outcome.map(|walk| walk.rows), Ok(vec![0, 1, 4]));
//! # Ok::<(), kd_ddtree::BuildError>(())
//! ```
//!
//! # Rows
//!
//! Row 0 is the *root*: the newest committed token, whose successor nobody knows yet. It is implicit, costs no
//! budget and is an ancestor of every row. Rows `1..=N` are the nodes, parents before children.
//!
//! # Order
//!
//! Nodes leave the builder in one documented total order, so that any other builder (on a device, say) can be
//! compared with it byte for byte: score descending, then depth ascending, then stream ascending, then creation
//! within the stream. A node's creation number counts the candidates of its stream: the root's best child is
//! created first; whenever a node is taken, its next sibling is created, then its own best child. A score is
//! always the parent's score plus the token's log-probability, in f32, never the sibling's score plus a difference.
#![forbid(unsafe_code)]

pub mod budget;
mod build;
mod candidate;
mod error;
mod forest;
mod order;
mod row;
mod scorer;
mod shape;
mod tree;
mod walk;

pub use build::TreeBuilder;
pub use candidate::MAX_STREAMS;
pub use error::{BuildError, RowError, TreeError};
pub use forest::{Forest, StreamLimits};
pub use row::{DraftRow, RowShard, draft_rows};
pub use scorer::{Child, Marginals, Scorer};
pub use tree::{MAX_NODES, Node, Tree};
pub use walk::{Walk, walk};
